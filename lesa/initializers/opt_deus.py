"""OpT-DeUS (arXiv 2508.08011): the mean of the neighbours after their heads and neurons are matched, with zero outputs.

Averaged unmatched (``zero_mean``), unrelated neurons would blur each other.
"""

from torch import Tensor

from lesa.alignment import align
from lesa.initializers import NewLayer


def initialize(layer: NewLayer) -> dict[str, Tensor]:
    """The weighted mean of the left neighbour and the right one in the left one's order, in float32; outputs zero."""
    left = layer.left()
    right = align(layer.layers, left, layer.right(), layer.device)
    return layer.silent({name: layer.between(tensor, right[name]) for name, tensor in left.items()})
