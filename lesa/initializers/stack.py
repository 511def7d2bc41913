"""G_stack (arXiv 2405.15319): the whole base, repeated."""

from torch import Tensor

from lesa.initializers import NewLayer
from lesa.plan import Placement, Plan, repeat


def arrange(n_layers: int, placement: Placement) -> Plan:
    """The base twice, or as often as ``new_layers`` of the placement says; where they go is the method's own.

    Raises:
        LesaError: the placement is a list, or its number of layers no whole multiple of the base's.
    """
    placement.check_no_list("stack")
    return repeat(n_layers, placement.new_layers or n_layers)


def initialize(layer: NewLayer) -> dict[str, Tensor]:
    """The layer itself, once more."""
    return layer.left()
