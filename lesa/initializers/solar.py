"""SOLAR's depth up-scaling (arXiv 2312.15166): the first layers of the base followed by its last ones, overlapping."""

from torch import Tensor

from lesa.initializers import NewLayer
from lesa.plan import Placement, Plan, overlap


def arrange(n_layers: int, placement: Placement) -> Plan:
    """As many layers more as the placement has; where they go is the method's own.

    Raises:
        LesaError: the placement is a list, or adds more layers than the base has.
    """
    placement.check_no_list("solar")
    return overlap(n_layers, sum(placement.counts(n_layers)))


def initialize(layer: NewLayer) -> dict[str, Tensor]:
    """The layer itself, once more."""
    return layer.left()
