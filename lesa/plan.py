"""Where new layers go, and which layers a finished model's layers came from."""

from dataclasses import dataclass

from lesa.errors import LesaError


@dataclass(frozen=True)
class PlannedLayer:
    """One layer of the deeper model: the base layers it is made from (0 is the first), and whether it is new."""

    sources: tuple[int, ...]
    new: bool

    def to_json(self) -> dict[str, object]:
        """The entry of this layer in ``expansion.json``."""
        return {"from": list(self.sources), "new": self.new}


Plan = list[PlannedLayer]


def check_range(n_layers: int, first: int, last: int) -> None:
    """See that ``first..last`` lies inside a model of ``n_layers`` layers and holds at least two.

    Raises:
        LesaError: it does not.
    """
    if n_layers < 2:
        raise LesaError(f"the base has {n_layers} decoder layer; a new layer needs two neighbours")
    if not 0 <= first < last < n_layers:
        raise LesaError(
            f"expansion.first..expansion.last is {first}..{last}, outside the base's {n_layers} layers; "
            f"right would be 0 <= first < last <= {n_layers - 1}"
        )


def between(n_layers: int, first: int, last: int) -> Plan:
    """One new layer between every two neighbours in ``first..last`` (LESA; arXiv 2502.13794).

    The result has ``n_layers + last - first`` layers; a new layer's sources are its left and right neighbour.
    """
    check_range(n_layers, first, last)
    plan = []
    for layer in range(n_layers):
        plan.append(PlannedLayer((layer,), new=False))
        if first <= layer < last:
            plan.append(PlannedLayer((layer, layer + 1), new=True))
    return plan


def overlap(n_layers: int, extra: int) -> Plan:
    """The first layers followed by the last ones, overlapping by ``extra`` layers (SOLAR; arXiv 2312.15166).

    The result has ``n_layers + extra`` layers, the first half of them (rounded up) from the front of the base. The
    second occurrence of a repeated layer counts as new.

    Raises:
        LesaError: ``extra`` is more than the base has to repeat.
    """
    if not 1 <= extra <= n_layers:
        raise LesaError(f"solar can add 1 to {n_layers} layers to a base of {n_layers}, not {extra}")
    front = -(-(n_layers + extra) // 2)
    start = n_layers - (n_layers + extra - front)
    head = [PlannedLayer((layer,), new=False) for layer in range(front)]
    return head + [PlannedLayer((layer,), new=layer < front) for layer in range(start, n_layers)]
