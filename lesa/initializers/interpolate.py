"""The mean of the two neighbours, weighed by how near the layer lies to each where there are several in a gap."""

from torch import Tensor

from lesa.initializers import NewLayer


def initialize(layer: NewLayer) -> dict[str, Tensor]:
    """Every tensor the weighted mean of the neighbours', computed in float32."""
    right = layer.right()
    return {name: layer.between(tensor, right[name]) for name, tensor in layer.left().items()}
