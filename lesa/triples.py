"""The samples a predictor learns from: rows of three layers in a row.

One sample is one component of one layer: input ``[V_{i-1}[r], V_{i+1}[r]]``, target ``V_i[r]``, for every inner layer
``i`` and every component ``r``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lesa.spectrum import Coefficients


@dataclass(frozen=True)
class Triple:
    """Three layers in a row, of which the middle one is predicted from the outer two."""

    left: int
    middle: int
    right: int


def triples(order: Sequence[int]) -> list[Triple]:
    """All neighbouring triples of layers in the given order."""
    return [Triple(*order[i : i + 3]) for i in range(len(order) - 2)]


class Batches:
    """The coefficients of some triples, held in memory, given out in random batches of rows."""

    def __init__(self, coefficients: Coefficients, samples: Sequence[Triple]) -> None:
        needed = sorted({layer for triple in samples for layer in (triple.left, triple.middle, triple.right)})
        place = {layer: number for number, layer in enumerate(needed)}
        first = coefficients(needed[0])
        shape = first.shape
        self._values = first.new_empty(len(needed), *shape)
        for number, layer in enumerate(needed):
            self._values[number] = coefficients(layer)
        self._values = self._values.flatten(0, 1)
        starts = [[place[t.left], place[t.middle], place[t.right]] for t in samples]
        self._starts = torch.tensor(starts) * shape[0]
        self._rows = shape[0]

    def shuffled(self, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Every row of every triple once, in random order: left, middle, right, each ``size x d_in``."""
        for chosen in torch.randperm(len(self._starts) * self._rows, generator=generator).split(size):
            rows = (self._starts[chosen // self._rows] + (chosen % self._rows)[:, None]).to(self._values.device)
            yield self._values[rows[:, 0]], self._values[rows[:, 1]], self._values[rows[:, 2]]


def groups_of(samples: Sequence[Triple], resident_layers: int) -> list[list[Triple]]:
    """Split triples into runs whose layers, at most ``resident_layers``, fit in memory together."""
    groups: list[list[Triple]] = [[]]
    held: set[int] = set()
    for triple in samples:
        wanted = {triple.left, triple.middle, triple.right}
        if groups[-1] and len(held | wanted) > resident_layers:
            groups.append([])
            held = set()
        groups[-1].append(triple)
        held |= wanted
    return groups
