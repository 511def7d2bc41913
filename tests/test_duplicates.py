from pathlib import Path

import numpy as np
import pytest

from lesa.duplicates import DROPPED, HELDOUT, INDEX, TRAIN, choose_sides


@pytest.mark.parametrize("at_once", [10, 100, 10**6])
@pytest.mark.parametrize("limit", [None, 700])
def test_as_a_dictionary_would_tell(tmp_path: Path, at_once: int, limit: int | None) -> None:
    rng = np.random.default_rng(0)
    pool = np.zeros(600, INDEX)
    pool["key"] = rng.integers(0, 2**64, 600, dtype=np.uint64)
    pool["key"][:50] = pool["key"][50:100]  # half a digest in common makes no duplicate
    pool["key"][100], pool["key"][101] = 0, 2**64 - 1
    pool["rest"] = rng.integers(0, 2**64, 600, dtype=np.uint64)
    shards = [pool[rng.integers(0, 600, rows)] for rows in (0, 500, 1, 300, 0, 199)]
    indexes, sides = [tmp_path / f"{i}.bin" for i in range(6)], [tmp_path / f"{i}.npy" for i in range(6)]
    for path, shard in zip(indexes, shards, strict=True):
        shard.tofile(path)
    found = choose_sides(indexes, sides, 0.3, limit, at_once)

    seen: set[tuple[int, int]] = set()
    expected = []
    for place, (key, rest, _, _) in enumerate(np.concatenate(shards).tolist()):
        fresh = (key, rest) not in seen and (limit is None or place < limit)
        expected.append((HELDOUT if key / 2**64 < 0.3 else TRAIN) if fresh else DROPPED)
        if fresh:
            seen.add((key, rest))
    assert np.concatenate([np.load(path) for path in sides]).tolist() == expected
    assert found == (len(seen), (limit or 1000) - len(seen))


@pytest.mark.parametrize(("fraction", "lonely"), [(1e-18, HELDOUT), (1 - 1e-9, TRAIN)])
def test_the_lonely_document_is_the_first_of_its_kind(tmp_path: Path, fraction: float, lonely: int) -> None:
    index = np.zeros(6, INDEX)
    index["key"] = [500, 40, 900, 40, 900, 60]
    index["key"] <<= np.uint64(40)
    for number, part in enumerate((index[:3], index[3:])):
        part.tofile(tmp_path / f"{number}.bin")
    sides = [tmp_path / f"{number}.npy" for number in range(2)]
    assert choose_sides([tmp_path / "0.bin", tmp_path / "1.bin"], sides, fraction, None, at_once=2) == (4, 2)
    found = np.concatenate([np.load(path) for path in sides]).tolist()
    others = TRAIN if lonely == HELDOUT else HELDOUT
    alone = 1 if lonely == HELDOUT else 2
    assert found == [lonely if i == alone else DROPPED if i in (3, 4) else others for i in range(6)]
