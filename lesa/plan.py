"""Where new layers go, and which layers a finished model's layers came from."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lesa.errors import LesaError

PLACES = ("range", "top", "middle", "bottom", "spread")
SAID = ", ".join(PLACES) + ", or a list of left neighbours"
DEEPEST = 3
"""The deeper model has at most so many times the base's layers."""


@dataclass(frozen=True)
class PlannedLayer:
    """One layer of the deeper model.

    Attributes:
        sources: the base layers it is made from (0 is the first).
        new: whether it is new.
        fraction: where it lies between its two sources: 0 would be the left one, 1 the right one.
    """

    sources: tuple[int, ...]
    new: bool
    fraction: float = 0.5

    def to_json(self) -> dict[str, object]:
        """The entry of this layer in ``expansion.json``; ``fraction`` only where it is not a half."""
        entry: dict[str, object] = {"from": list(self.sources), "new": self.new}
        return entry if self.fraction == 0.5 else {**entry, "fraction": self.fraction}


Plan = list[PlannedLayer]


@dataclass(frozen=True)
class Placement:
    """Which gaps between neighbours get new layers, and how many.

    Attributes:
        where: ``range``: evenly between neighbours in ``first..last``; ``top``, ``middle``, ``bottom``: in the last,
            central or first gaps of the model; ``spread``: evenly over the model; or the number of the left neighbour
            of each new layer, where a repeated number puts several layers into that gap.
        new_layers: how many; None is one in each gap of the range, elsewhere half the base's layers (rounded down).
            Where there are more than gaps, every gap gets several, and the places decide about the rest.
        first: for ``range``.
        last: for ``range``; None is the last layer.

    Raises:
        LesaError: there is no such place, or the keys contradict each other.
    """

    where: str | tuple[int, ...] = "range"
    new_layers: int | None = None
    first: int = 0
    last: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.where, str):
            if self.where not in PLACES:
                raise LesaError(f"expansion.placement is {self.where!r}; right would be {SAID}")
        elif not self.where:
            raise LesaError(f"expansion.placement is an empty list; right would be {SAID}")
        elif self.new_layers not in (None, len(self.where)):
            raise LesaError(
                f"expansion.new_layers is {self.new_layers}, and expansion.placement lists {len(self.where)} new "
                "layers; right would be null, or the same number"
            )
        if self.new_layers is not None and self.new_layers < 1:
            raise LesaError(f"expansion.new_layers is {self.new_layers}; right would be 1 or more, or null")
        if self.where == "range" and self.last is not None and self.first >= self.last:
            raise LesaError(f"expansion.first ({self.first}) must be below expansion.last ({self.last})")

    def to_json(self) -> dict[str, object]:
        """The keys of ``expansion`` that say this."""
        where = self.where if isinstance(self.where, str) else list(self.where)
        keys: dict[str, object] = {"placement": where, "new_layers": self.new_layers}
        return {**keys, "first": self.first, "last": self.last} if self.where == "range" else keys

    def counts(self, n_layers: int) -> list[int]:
        """The number of new layers in each of the ``n_layers - 1`` gaps, the first of which is after layer 0.

        Raises:
            LesaError: the model has no gap, a named layer is not in it, or it would become more than 3 times as deep.
        """
        if n_layers < 2:
            raise LesaError(f"the base has {n_layers} decoder layer; a new layer needs two neighbours")
        gaps = range(n_layers - 1)
        if self.where == "range":
            last = n_layers - 1 if self.last is None else self.last
            check_range(n_layers, self.first, last)
            gaps = gaps[self.first : last]
        if isinstance(self.where, str):
            total = self.new_layers or (len(gaps) if self.where == "range" else n_layers // 2)
            check_depth(n_layers, total)
            each, rest = divmod(total, len(gaps))
            chosen = Counter(list(gaps) * each + _pick(gaps, rest, self.where))
        else:
            for layer in self.where:
                if layer not in gaps:
                    raise LesaError(
                        f"expansion.placement lists {layer} as a left neighbour, and the base has {n_layers} layers; "
                        f"right would be 0 to {n_layers - 2}"
                    )
            check_depth(n_layers, len(self.where))
            chosen = Counter(self.where)
        return [chosen[gap] for gap in range(n_layers - 1)]

    def check_no_list(self, method: str) -> None:
        """See that a method which knows itself where its layers go is not told so layer by layer.

        Raises:
            LesaError: it is.
        """
        if not isinstance(self.where, str):
            raise LesaError(
                f"expansion.placement is a list, and {method} places its layers by itself; right would be range, "
                "and expansion.new_layers for how many"
            )


def check_range(n_layers: int, first: int, last: int) -> None:
    """See that ``first..last`` lies inside a model of ``n_layers`` layers and holds at least two.

    Raises:
        LesaError: it does not.
    """
    if not 0 <= first < last < n_layers:
        raise LesaError(
            f"expansion.first..expansion.last is {first}..{last}, outside the base's {n_layers} layers; "
            f"right would be 0 <= first < last <= {n_layers - 1}"
        )


def check_depth(n_layers: int, new_layers: int) -> None:
    """See that ``new_layers`` make a model of ``n_layers`` layers at most 3 times as deep.

    Raises:
        LesaError: they make it deeper.
    """
    if n_layers + new_layers > DEEPEST * n_layers:
        raise LesaError(
            f"expansion.placement and expansion.new_layers add {new_layers} layers to the base's {n_layers}; right "
            f"would be at most {(DEEPEST - 1) * n_layers}, which makes the model {DEEPEST} times as deep"
        )


def between(counts: Sequence[int]) -> Plan:
    """So many new layers in each gap between neighbours, evenly spaced inside it.

    The sources of a new layer are its left and right neighbour; the ``k``-th of ``m`` in a gap lies at ``k / (m + 1)``.
    One in each of the last gaps is the placement of LESA (arXiv 2502.13794).
    """
    plan = []
    for layer, count in enumerate([*counts, 0]):
        plan.append(PlannedLayer((layer,), new=False))
        plan += [PlannedLayer((layer, layer + 1), new=True, fraction=k / (count + 1)) for k in range(1, count + 1)]
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


def repeat(n_layers: int, extra: int) -> Plan:
    """The whole base, and the whole base again until ``extra`` layers are added (G_stack; arXiv 2405.15319).

    Raises:
        LesaError: ``extra`` is no whole multiple of the base.
    """
    check_depth(n_layers, extra)
    if extra % n_layers:
        raise LesaError(
            f"expansion.new_layers is {extra}, and stack repeats the base's {n_layers} layers as a whole; "
            f"right would be {n_layers} or {2 * n_layers}"
        )
    return [PlannedLayer((number % n_layers,), new=number >= n_layers) for number in range(n_layers + extra)]


def _pick(gaps: range, count: int, where: str) -> list[int]:
    """``count`` of the gaps, fewer than there are."""
    if where == "bottom":
        return list(gaps[:count])
    if where == "middle":
        start = (len(gaps) - count) // 2
        return list(gaps[start : start + count])
    if where == "top":
        return list(gaps[len(gaps) - count :])
    # Each of `count` equal parts of the model gets its layer in the part's middle.
    return [gaps[(2 * part + 1) * len(gaps) // (2 * count)] for part in range(count)]
