"""Which documents are kept, and on which side each lies, told from their digests alone.

Digests lie in one file a shard. They are compared one range of values after another, so that memory does not grow with
their number.
"""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DROPPED, TRAIN, HELDOUT = range(3)
INDEX = np.dtype([("key", "<u8"), ("rest", "<u8"), ("tokens", "<u4"), ("characters", "<u4")])
"""A document: the two halves of its digest, its tokens with the end-of-text token, its characters."""

AT_ONCE = 1 << 21
"""Documents compared at once, about; each takes some 100 bytes."""


def choose_sides(
    indexes: list[Path], sides: list[Path], heldout_fraction: float, limit: int | None, at_once: int = AT_ONCE
) -> tuple[int, int]:
    """Write the side of every document, DROPPED for all but the first of exact duplicates.

    A document is held out if its key, a number in 0..2**64-1 drawn from its text, lies below that share of them. Where
    that leaves a side empty, the document with the smallest or largest key changes sides.

    Args:
        indexes: a file of INDEX records for each shard, in source order.
        sides: the ``.npy`` files to write, uint8, one value a document.
        heldout_fraction: expected share of documents held out.
        limit: how many documents to take, from the first on; None for all.
        at_once: documents compared at once, about.

    Returns:
        The number of different documents, and of duplicates dropped.
    """
    bound = math.ceil(heldout_fraction * 2**64)
    left = math.inf if limit is None else limit
    taken = []
    for index, side in zip(indexes, sides, strict=True):
        rows = len(load_index(index))
        taken.append(int(min(rows, left)))
        left -= taken[-1]
        start = np.zeros(rows, np.uint8)
        start[: taken[-1]] = TRAIN
        np.save(side, start)

    parts = math.ceil(sum(taken) / at_once) or 1
    distinct = heldout = 0
    smallest: NDArray[np.void] | None = None
    largest: NDArray[np.void] | None = None
    for low, high in pairwise(2**64 * part // parts for part in range(parts + 1)):
        found = _between(indexes, taken, low, high - 1)
        key, rest = found["key"], found["rest"]
        first = np.ones(len(found), bool)
        first[1:] = (key[1:] != key[:-1]) | (rest[1:] != rest[:-1])
        held = first & (key <= np.uint64(bound - 1))
        _mark(sides, found[~first], DROPPED)
        _mark(sides, found[held], HELDOUT)
        distinct += int(first.sum())
        heldout += int(held.sum())
        if len(found):
            largest = found[first][-1:]
            smallest = found[:1] if smallest is None else smallest
    if distinct > 1 and smallest is not None and heldout == 0:
        _mark(sides, smallest, HELDOUT)
    if distinct > 1 and largest is not None and heldout == distinct:
        _mark(sides, largest, TRAIN)
    return distinct, sum(taken) - distinct


def load_index(path: Path) -> NDArray[np.void]:
    """The INDEX records of a file, read from disk as they are needed."""
    return np.memmap(path, INDEX, "r") if path.stat().st_size else np.zeros(0, INDEX)


def _between(indexes: list[Path], taken: list[int], low: int, high: int) -> NDArray[np.void]:
    """Documents with keys in ``low..high``, ordered by digest, and by place among equal ones."""
    place = np.dtype([("key", "<u8"), ("rest", "<u8"), ("shard", "<u4"), ("row", "<u4")])
    pieces = [np.zeros(0, place)]
    for number, (path, count) in enumerate(zip(indexes, taken, strict=True)):
        index = load_index(path)[:count]
        rows = np.flatnonzero((index["key"] >= np.uint64(low)) & (index["key"] <= np.uint64(high)))
        piece = np.zeros(len(rows), place)
        piece["key"], piece["rest"], piece["shard"], piece["row"] = (
            index["key"][rows],
            index["rest"][rows],
            number,
            rows,
        )
        pieces.append(piece)
    found = np.concatenate(pieces)
    return found[np.lexsort((found["rest"], found["key"]))]  # stable


def _mark(sides: list[Path], places: NDArray[np.void], value: int) -> None:
    places = places[np.argsort(places["shard"], kind="stable")]
    numbers, starts = np.unique(places["shard"], return_index=True)
    for number, rows in zip(numbers, np.split(places["row"], starts[1:]), strict=False):
        np.load(sides[number], mmap_mode="r+")[rows] = value
