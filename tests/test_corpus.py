import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lesa.corpus import prepare
from lesa.documents import Document
from lesa.errors import LesaError

EOS = 7


def word_tokenizer(size: int = 100, eos: bool = True) -> PreTrainedTokenizerFast:
    """Word ``w12`` has the token 12; the end-of-text token is 7."""
    words = {f"w{i}": i for i in range(size) if i != EOS} | {"<eos>": EOS}
    raw = Tokenizer(models.WordLevel(words, unk_token="w0"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>" if eos else None)


def some_documents(count: int = 60) -> list[Document]:
    rng = random.Random(1)
    texts = [" ".join(f"w{rng.randrange(8, 100)}" for _ in range(rng.randrange(5, 60))) for _ in range(count)]
    return [Document(str(number), f"title {number}", text) for number, text in enumerate(texts)]


def held(text: str, seed: int, fraction: float) -> bool:
    return int(hashlib.sha256(f"{seed}\n{text}".encode()).hexdigest()[:16], 16) / 2**64 < fraction


def run(documents: list[Document], out: Path, length: int = 16, fraction: float = 0.3, seed: int = 0) -> dict[str, Any]:
    out.mkdir()
    return prepare(documents, word_tokenizer(), out, length, fraction, seed)


def test_blocks_are_the_documents_of_each_side_end_to_end(tmp_path: Path) -> None:
    documents = some_documents()
    metrics = run([*documents, documents[3]], tmp_path / "c")
    for side, is_held in (("train", False), ("heldout", True)):
        mine = [d for d in documents if held(d.text, 0, 0.3) == is_held]
        stream = [token for d in mine for token in [*(int(word[1:]) for word in d.text.split()), EOS]]
        blocks = np.load(tmp_path / "c" / f"{side}.npy", mmap_mode="r")
        assert blocks.dtype == np.uint16
        assert blocks.tolist() == [stream[i : i + 16] for i in range(0, len(stream) - 15, 16)]
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
    assert {p.name for p in (tmp_path / "c").iterdir()} == {"train.npy", "heldout.npy", "heldout.jsonl"}


def test_same_bytes_again_and_another_split_with_another_seed(tmp_path: Path) -> None:
    documents = some_documents()
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(documents, tmp_path / name, seed=seed)
    for name in ("train.npy", "heldout.npy", "heldout.jsonl"):
        first = (tmp_path / "a" / name).read_bytes()
        assert first == (tmp_path / "b" / name).read_bytes()
        assert first != (tmp_path / "c" / name).read_bytes()


def test_a_documents_side_does_not_depend_on_the_others(tmp_path: Path) -> None:
    documents = some_documents()
    run(documents, tmp_path / "all")
    run(documents[::-2], tmp_path / "some")
    sides = {}
    for name in ("all", "some"):
        lines = (tmp_path / name / "heldout.jsonl").read_text().splitlines()
        sides[name] = {json.loads(line)["id"] for line in lines}
    assert sides["some"] == sides["all"] & {d.id for d in documents[::-2]}


@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
def test_neither_side_is_empty(tmp_path: Path, fraction: float) -> None:
    documents = some_documents(5)
    metrics = run(documents, tmp_path / "c", length=4, fraction=fraction)
    alone = "heldout" if fraction < 0.5 else "train"
    assert metrics[alone]["documents"] == 1
    keys = {hashlib.sha256(f"0\n{d.text}".encode()).hexdigest(): d.id for d in documents}
    ids = {json.loads(line)["id"] for line in (tmp_path / "c" / "heldout.jsonl").read_text().splitlines()}
    chosen = keys[min(keys)] if alone == "heldout" else keys[max(keys)]
    assert (chosen in ids) == (alone == "heldout")


def test_large_vocabulary_takes_four_bytes(tmp_path: Path) -> None:
    texts = [Document(str(i), "", f"w70000 w{i}") for i in range(20)]
    prepare(texts, word_tokenizer(70001), tmp_path, 2, 0.3, 0)
    blocks = np.load(tmp_path / "train.npy")
    assert blocks.dtype == np.uint32
    assert 70000 in blocks


def test_too_little_text(tmp_path: Path) -> None:
    with pytest.raises(LesaError, match=r"corpus\.source gave 0 document\(s\)"):
        run([], tmp_path / "a")
    twins = [Document("1", "", "w8"), Document("2", "", "w8")]
    with pytest.raises(LesaError, match=r"corpus\.source gave 1 document\(s\)"):
        run(twins, tmp_path / "b")
    with pytest.raises(LesaError, match=r"one block takes corpus\.sequence_length = 9000"):
        run(some_documents(), tmp_path / "c", length=9000)
    with pytest.raises(LesaError, match="no end-of-text token"):
        prepare([], word_tokenizer(eos=False), tmp_path, 8, 0.1, 0)
