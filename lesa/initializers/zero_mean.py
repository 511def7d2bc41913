"""The mean of the two neighbours with outputs of zero, so that the model computes as before.

What OpT-DeUS (arXiv 2508.08011) compares itself with: the same without its alignment.
"""

from torch import Tensor

from lesa.initializers import NewLayer, interpolate


def initialize(layer: NewLayer) -> dict[str, Tensor]:
    """The neighbours' weighted mean, with zeros in the modules that write to the residual stream."""
    return layer.silent(interpolate.initialize(layer))
