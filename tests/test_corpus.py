import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lesa import corpus
from lesa.corpus import prepare
from lesa.documents import Document
from lesa.errors import LesaError
from lesa.settings import Corpus

EOS = 7
SLOW = """
import os, signal, sys, time
from pathlib import Path
from lesa import corpus
from lesa.settings import Corpus

def slow(function):
    def slowed(*arguments):
        time.sleep(0.2)
        return function(*arguments)
    return slowed

corpus.read, corpus.load_index = slow(corpus.read), slow(corpus.load_index)  # in the workers as well

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if sys.argv[3] == "moved":
        corpus.replace_folder = lambda new, out: (new.rename(out), os.kill(os.getpid(), signal.SIGKILL))
    settings = Corpus(source=str(folder / "text.jsonl"), heldout_fraction=0.3, sequence_length=16, shard_size="1KB",
                      processes=int(sys.argv[2]))
    corpus.prepare(settings, folder / "tokenizer", folder / "c", folder / "c.work")
"""


def word_tokenizer(folder: Path, size: int = 100, eos: bool = True) -> Path:
    """Word ``w12`` has the token 12; the end-of-text token is 7."""
    words = {f"w{i}": i for i in range(size) if i != EOS} | {"<eos>": EOS}
    raw = Tokenizer(models.WordLevel(words, unk_token="w0"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>" if eos else None).save_pretrained(folder)
    return folder


def some_documents(count: int = 60) -> list[Document]:
    rng = random.Random(1)
    texts = [" ".join(f"w{rng.randrange(8, 100)}" for _ in range(rng.randrange(5, 60))) for _ in range(count)]
    return [Document(str(number), f"title {number}", text) for number, text in enumerate(texts)]


def write(path: Path, documents: Sequence[Document]) -> Path:
    lines = [json.dumps({"id": d.id, "title": d.title, "text": d.text}) for d in documents]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def held(text: str, seed: int, fraction: float) -> bool:
    return int(hashlib.sha256(f"{seed}\n{text}".encode()).hexdigest()[:16], 16) / 2**64 < fraction


def run(documents: Sequence[Document], out: Path, seed: int = 0, **changes: Any) -> dict[str, Any]:
    settings = {"heldout_fraction": 0.3, "sequence_length": 16, "processes": 1, **changes}
    source = write(out.with_name(out.name + ".jsonl"), documents)
    tokenizer = word_tokenizer(out.with_name("tokenizer"))
    return prepare(Corpus(source=str(source), seed=seed, **settings), tokenizer, out, out.with_name(out.name + ".work"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def blocks(folder: Path) -> list[list[int]]:
    return [block for path in sorted(folder.glob("*.npy")) for block in np.load(path, mmap_mode="r").tolist()]


def heldout_ids(out: Path) -> list[str]:
    return [json.loads(line)["id"] for line in (out / "heldout.jsonl").read_text().splitlines()]


def cut(stream: list[int], length: int = 16) -> list[list[int]]:
    return [stream[i : i + length] for i in range(0, len(stream) - length + 1, length)]


def tokens(documents: Sequence[Document]) -> list[int]:
    return [token for d in documents for token in [*(int(word[1:]) for word in d.text.split()), EOS]]


def test_blocks_are_the_documents_of_each_side_end_to_end(tmp_path: Path) -> None:
    documents = some_documents()
    metrics = run([*documents, documents[3]], tmp_path / "c")
    for side, is_held in (("train", False), ("heldout", True)):
        mine = [d for d in documents if held(d.text, 0, 0.3) == is_held]
        stream = tokens(mine)
        array = np.load(tmp_path / "c" / side / "00000.npy", mmap_mode="r")
        assert array.dtype == np.uint16
        assert array.tolist() == cut(stream)
        assert metrics[side] == {
            "documents": len(mine),
            "characters": sum(len(d.text) for d in mine),
            "tokens": len(stream),
            "blocks": len(stream) // 16,
        }
    assert metrics["duplicates"] == 1
    assert metrics["vocabulary_size"] == 100
    lines = [json.loads(line) for line in (tmp_path / "c" / "heldout.jsonl").read_text().splitlines()]
    assert lines == [{"id": d.id, "title": d.title, "text": d.text} for d in documents if held(d.text, 0, 0.3)]
    assert contents(tmp_path / "c").keys() == {"train/00000.npy", "heldout/00000.npy", "heldout.jsonl"}
    assert not (tmp_path / "c.work").exists()


def test_each_shard_is_cut_by_itself_and_nothing_else_depends_on_shards(tmp_path: Path) -> None:
    documents = some_documents(100)
    whole = run(documents, tmp_path / "whole")
    metrics = run(documents, tmp_path / "c", shard_size="1KB")
    files = sorted((tmp_path / "c" / "train").iterdir())
    assert len(files) > 5
    place, starts = 0, []
    for line in (tmp_path / "c.jsonl").read_text().splitlines(keepends=True):
        starts.append(place)
        place += len(line)
    expected = []
    for shard in range(len(files)):
        mine = [
            d for d, start in zip(documents, starts, strict=True) if start // 1000 == shard and not held(d.text, 0, 0.3)
        ]
        expected += cut(tokens(mine))
    assert blocks(tmp_path / "c" / "train") == expected
    assert metrics["train"]["blocks"] == len(expected)
    for key in ("documents", "characters", "tokens"):
        assert metrics["train"][key] == whole["train"][key]
    assert (tmp_path / "c" / "heldout.jsonl").read_bytes() == (tmp_path / "whole" / "heldout.jsonl").read_bytes()


def test_several_processes_write_the_bytes_of_one(tmp_path: Path) -> None:
    documents = some_documents(200)
    one = run(documents, tmp_path / "one", shard_size="2KB")
    two = run(documents, tmp_path / "two", shard_size="2KB", processes=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    measured = {"seconds", "peak_memory_bytes"}
    assert {k: v for k, v in one.items() if k not in measured} == {k: v for k, v in two.items() if k not in measured}
    assert two["peak_memory_bytes"] > 0


@pytest.mark.parametrize(
    ("processes", "stage", "finished"), [(1, "tokenized", 3), (2, "tokenized", 3), (2, "packed", 3), (1, "moved", 0)]
)
def test_a_killed_run_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int, stage: str, finished: int
) -> None:
    documents = some_documents(100)
    run(documents, tmp_path / "unbroken", shard_size="1KB")
    write(tmp_path / "text.jsonl", documents)
    (tmp_path / "slow.py").write_text(SLOW)
    with subprocess.Popen([sys.executable, str(tmp_path / "slow.py"), str(tmp_path), str(processes), stage]) as process:
        deadline = time.monotonic() + 60
        done: list[Path] = []
        while process.poll() is None and (stage == "moved" or len(done) < finished):
            assert time.monotonic() < deadline
            done = list((tmp_path / "c.work").glob(f"*/{stage}/completions/*"))
            time.sleep(0.01)
        helpers = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert not psutil.wait_procs(helpers, timeout=10)[1]  # no worker goes on by itself
    assert (tmp_path / "c").exists() == (stage == "moved")

    worked: dict[str, set[int]] = {"tokenize": set(), "pack": set()}
    for name, numbers in worked.items():
        task = getattr(corpus._Job, name)

        def spy(job: Any, number: int, task: Any = task, numbers: set[int] = numbers) -> None:
            numbers.add(number)
            task(job, number)

        monkeypatch.setattr(corpus._Job, name, spy)
    settings = Corpus(
        source=str(tmp_path / "text.jsonl"), heldout_fraction=0.3, sequence_length=16, shard_size="1KB", processes=1
    )
    prepare(settings, tmp_path / "tokenizer", tmp_path / "c", tmp_path / "c.work")
    assert contents(tmp_path / "c") == contents(tmp_path / "unbroken")
    everything = set(range(len(list((tmp_path / "c" / "train").iterdir()))))
    known = {int(path.name) for path in done}
    if stage == "tokenized":
        assert worked["tokenize"] <= everything - known
        assert worked["tokenize"]
    else:
        assert not worked["tokenize"]
        assert worked["pack"] <= everything - known
        assert worked["pack"]
    assert not (tmp_path / "c.work").exists()


def test_other_settings_or_another_text_start_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = some_documents(100)

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(corpus._Job, "pack", interrupted)
        for seed in (0, 1):
            with pytest.raises(KeyboardInterrupt):
                run(documents, tmp_path / "c", seed=seed, shard_size="1KB")
            (left,) = (tmp_path / "c.work").iterdir()
    first_of_other = documents[50:] + documents[:50]
    run(first_of_other, tmp_path / "c", seed=1, shard_size="1KB")
    assert not left.exists()
    run(first_of_other, tmp_path / "expected", seed=1, shard_size="1KB")
    assert contents(tmp_path / "c") == contents(tmp_path / "expected")


def test_duplicates_across_shards_keep_the_first(tmp_path: Path) -> None:
    documents = some_documents(100)
    twins = [Document(f"twin {d.id}", "", d.text) for d in documents[::3]]
    metrics = run([*documents, *twins, *twins], tmp_path / "c", shard_size="1KB", processes=2)
    assert metrics["duplicates"] == 2 * len(twins)
    run(documents, tmp_path / "alone", shard_size="1KB")
    assert heldout_ids(tmp_path / "c") == heldout_ids(tmp_path / "alone")
    assert metrics["train"]["tokens"] == len(tokens([d for d in documents if not held(d.text, 0, 0.3)]))


@pytest.mark.parametrize("processes", [1, 2])
def test_max_documents_are_the_first_in_the_source(tmp_path: Path, processes: int) -> None:
    documents = some_documents(100)
    documents[4] = documents[2]
    limited = run(documents, tmp_path / "c", shard_size="1KB", max_documents=37, processes=processes)
    first = run(documents[:37], tmp_path / "first", shard_size="1KB")
    assert contents(tmp_path / "c") == contents(tmp_path / "first")
    assert limited["duplicates"] == first["duplicates"] == 1


def test_same_bytes_again_and_another_split_with_another_seed(tmp_path: Path) -> None:
    documents = some_documents()
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(documents, tmp_path / name, seed=seed)
    first, again, other = (contents(tmp_path / name) for name in "abc")
    assert first == again
    assert all(first[name] != other[name] for name in first)


def test_a_documents_side_does_not_depend_on_the_others(tmp_path: Path) -> None:
    documents = some_documents()
    run(documents, tmp_path / "all")
    run(documents[::-2], tmp_path / "some")
    assert set(heldout_ids(tmp_path / "some")) == set(heldout_ids(tmp_path / "all")) & {d.id for d in documents[::-2]}


@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
@pytest.mark.parametrize("shard_size", ["1MB", "200"])
def test_neither_side_is_empty(tmp_path: Path, fraction: float, shard_size: str) -> None:
    documents = some_documents(5)
    metrics = run(documents, tmp_path / "c", sequence_length=8, heldout_fraction=fraction, shard_size=shard_size)
    alone = "heldout" if fraction < 0.5 else "train"
    assert metrics[alone]["documents"] == 1
    keys = {hashlib.sha256(f"0\n{d.text}".encode()).hexdigest(): d.id for d in documents}
    chosen = keys[min(keys)] if alone == "heldout" else keys[max(keys)]
    ids = heldout_ids(tmp_path / "c")
    assert (ids == [chosen]) if alone == "heldout" else (set(ids) == {d.id for d in documents} - {chosen})


def test_large_vocabulary_takes_four_bytes(tmp_path: Path) -> None:
    texts = [Document(str(i), "", " ".join(["w70000"] * 9 + [f"w{i}"])) for i in range(20)]
    tokenizer = word_tokenizer(tmp_path / "tokenizer", 70001)
    settings = Corpus(
        source=str(write(tmp_path / "t.jsonl", texts)), heldout_fraction=0.3, sequence_length=8, processes=1
    )
    prepare(settings, tokenizer, tmp_path / "c", tmp_path / "c.work")
    array = np.load(tmp_path / "c" / "train" / "00000.npy")
    assert array.dtype == np.uint32
    assert 70000 in array


def test_too_little_text(tmp_path: Path) -> None:
    with pytest.raises(LesaError, match=r"corpus\.source gave 0 document\(s\)"):
        run([], tmp_path / "a")
    twins = [Document("1", "", "w8"), Document("2", "", "w8")]
    with pytest.raises(LesaError, match=r"corpus\.source gave 1 document\(s\)"):
        run(twins, tmp_path / "b", shard_size="20")
    with pytest.raises(LesaError, match=r"one block takes corpus\.sequence_length = 9000"):
        run(some_documents(), tmp_path / "c", sequence_length=9000)
    assert not any((tmp_path / name).exists() for name in "abc")
    settings = Corpus(source=str(tmp_path / "a.jsonl"))
    with pytest.raises(LesaError, match="no end-of-text token"):
        prepare(settings, word_tokenizer(tmp_path / "t", eos=False), tmp_path / "d", tmp_path / "w")


def test_a_mistake_in_one_shard_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.jsonl", some_documents(100))
    lines = path.read_text().splitlines()
    lines[70] = '{"text": '
    path.write_text("\n".join(lines))
    settings = Corpus(source=str(path), shard_size="1KB", processes=2)
    with pytest.raises(LesaError, match=r"line 71 of .* is not JSON"):
        prepare(settings, word_tokenizer(tmp_path / "tokenizer"), tmp_path / "c", tmp_path / "c.work")
    assert "Traceback" not in capfd.readouterr().err
    assert not (tmp_path / "c").exists()
