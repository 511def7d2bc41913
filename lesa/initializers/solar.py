"""SOLAR's depth up-scaling (arXiv 2312.15166): the first layers of the base followed by its last ones, overlapping."""

from torch import Tensor

from lesa.initializers import NewLayer
from lesa.plan import Plan, check_range, overlap


def arrange(n_layers: int, first: int, last: int) -> Plan:
    """As many layers more as ``first..last`` has neighbours; where they go is the method's own."""
    check_range(n_layers, first, last)
    return overlap(n_layers, last - first)


def initialize(layer: NewLayer) -> dict[str, Tensor]:
    """The layer itself, once more."""
    return layer.left()
