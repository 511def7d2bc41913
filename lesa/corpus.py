"""Documents to train and held-out token blocks, split by document.

Choices: a document's side depends on its text and the corpus's seed alone, so it stays where it is when others come or
go. Documents follow each other with the tokenizer's end-of-text token between them, which is how pretraining marks that
what comes next has nothing to do with what came before; the blocks are cut from that one stream.

The source is cut into shards, and each is worked on by itself, so that memory stays that of a few documents and a
process more makes it faster: all documents of a shard become tokens; then digests tell duplicates and sides over all
shards; then each shard's tokens are packed into blocks. What does not fill the last block of a shard is left out.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from numpy.typing import NDArray
from transformers import AutoTokenizer

from lesa.checkpoint import parse_size
from lesa.documents import Document, Piece, read
from lesa.duplicates import HELDOUT, INDEX, TRAIN, choose_sides, load_index
from lesa.errors import LesaError
from lesa.executor import Workers
from lesa.files import file_hash, read_json, replace_folder, whole_file, write_json
from lesa.meter import Meter
from lesa.settings import Corpus
from lesa.shards import Shard, cut, stamp

SIDES = {"train": TRAIN, "heldout": HELDOUT}
BATCH = 16
ROWS = 1024


def prepare(
    corpus: Corpus,
    tokenizer: str | Path,
    out: str | Path,
    work: str | Path,
    trust_remote_code: bool = False,
) -> dict[str, Any]:
    """Write ``train/`` and ``heldout/`` with a ``.npy`` of tokens a shard, and ``heldout.jsonl``, whole or not at all.

    The arrays are ``[blocks, sequence_length]``, uint16 where the vocabulary allows, else uint32, and open with
    ``np.load(mmap_mode="r")``. The bytes written depend on source and settings, not on the number of processes. A run
    that was killed goes on from the shards in ``work`` if source, settings and tokenizer are the same, and starts anew
    otherwise. On success that folder is removed.

    Args:
        corpus: the source, and how to treat it. Of exact duplicates the first is kept; both sides get at least one
            document.
        tokenizer: a folder with a tokenizer that has an end-of-text token.
        out: the folder to write.
        work: a folder on the same disk, for what a killed run goes on from: 2 or 4 bytes for each token.
        trust_remote_code: whether the tokenizer may bring code of its own.

    Returns:
        Metrics: for each side ``documents``, ``characters``, ``tokens`` and ``blocks``; ``duplicates``,
        ``vocabulary_size``, ``seconds`` and ``peak_memory_bytes`` (at most: that of this process, and the largest of
        the others times their number).

    Raises:
        LesaError: the source cannot be read, fewer than two documents, too little text for one block a side, or no
            end-of-text token.
    """
    meter = Meter()
    loaded = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=trust_remote_code)
    if loaded.eos_token_id is None:
        raise LesaError("the base model's tokenizer has no end-of-text token (eos_token), which separates documents")
    vocabulary = max(loaded.get_vocab().values()) + 1
    folder = _work_folder(Path(work), _fingerprint(corpus, Path(tokenizer)))
    shards = cut(corpus, parse_size(corpus.shard_size), folder / "source")
    job = _Job(corpus, Path(tokenizer), trust_remote_code, "<u2" if vocabulary <= 1 << 16 else "<u4", folder)
    job.lay_out(shards)
    numbers = range(len(shards))
    processes = min(corpus.processes or _cores(), len(shards))
    with Workers(processes) as workers:
        workers.run(job.tokenize, len(shards), folder / "tokenized", "tokenizing")
        distinct, duplicates = choose_sides(
            [job.path("index", number) for number in numbers],
            [job.path("sides", number) for number in numbers],
            corpus.heldout_fraction,
            corpus.max_documents,
        )
        if distinct < 2:
            raise LesaError(
                f"corpus.source gave {distinct} document(s) with text; at least 2 are needed, one to train on and one "
                "to hold out"
            )
        workers.run(job.pack, len(shards), folder / "packed", "packing")
    counts = _total([read_json(job.path("counts", number)) for number in numbers])
    for side, count in counts.items():
        if not count["blocks"]:
            raise LesaError(
                f"corpus.source gave {count['tokens']} tokens for the {side} side, and one block takes "
                f"corpus.sequence_length = {corpus.sequence_length}; use more text or shorter blocks"
            )
    with whole_file(job.out / "heldout.jsonl") as partial, partial.open("wb") as target:
        for number in numbers:
            with job.path("heldout", number).open("rb") as source:
                shutil.copyfileobj(source, target, 1 << 20)
    replace_folder(job.out, Path(out))
    shutil.rmtree(work)
    peak = meter.peak_memory_bytes + (processes * meter.largest_child_bytes if processes > 1 else 0)
    return {
        **counts,
        "duplicates": duplicates,
        "vocabulary_size": vocabulary,
        "seconds": meter.seconds,
        "peak_memory_bytes": peak,
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _fingerprint(corpus: Corpus, tokenizer: Path) -> str:
    """A hash of all that the output depends on."""
    files = [path for path in sorted(tokenizer.iterdir()) if path.is_file() and path.suffix != ".safetensors"]
    content = {
        "corpus": corpus.model_dump(exclude={"processes"}),
        "source": stamp(corpus),
        "tokenizer": [[path.name, file_hash(path)] for path in files],
        "transformers": transformers.__version__,
    }
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _work_folder(work: Path, name: str) -> Path:
    """The folder of that name in ``work``; what other runs left there is removed."""
    folder = work / name
    folder.mkdir(parents=True, exist_ok=True)
    for other in work.iterdir():
        if other.name != name:
            shutil.rmtree(other)
    if not (folder / "corpus").exists():  # killed after the output was moved away
        shutil.rmtree(folder / "packed", ignore_errors=True)
    return folder


def _total(counts: Iterable[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    total: dict[str, dict[str, int]] = {side: {} for side in SIDES}
    for shard in counts:
        for side, values in shard.items():
            for name, value in values.items():
                total[side][name] = total[side].get(name, 0) + value
    return total


@dataclass(frozen=True)
class _Job:
    """The two tasks of a shard; every file of theirs lies in ``folder`` and is written anew by a task that starts."""

    corpus: Corpus
    tokenizer: Path
    trust_remote_code: bool
    dtype: str
    folder: Path

    @property
    def out(self) -> Path:
        return self.folder / "corpus"

    def lay_out(self, shards: list[Shard]) -> None:
        """Make the folders, and write what each shard holds: too much to hand over with every task."""
        for name in ("tokens", "index", "texts", "sides", "counts", "heldout"):
            (self.folder / name).mkdir(exist_ok=True)
        for side in SIDES:
            (self.out / side).mkdir(parents=True, exist_ok=True)
        with (self.folder / "shards.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps([astuple(piece) for piece in shard]) + "\n" for shard in shards)

    def documents(self, number: int) -> Iterator[Document]:
        """The documents of a shard."""
        with (self.folder / "shards.jsonl").open(encoding="utf-8") as file:
            line = next(islice(file, number, None))
        return read([Piece(*piece) for piece in json.loads(line)], self.corpus)

    def path(self, what: str, number: int) -> Path:
        endings = {"sides": "npy", "counts": "json", "texts": "jsonl", "heldout": "jsonl"}
        return self.folder / what / f"{number:05d}.{endings.get(what, 'bin')}"

    def tokenize(self, number: int) -> None:
        """Write tokens and index of a shard's documents, and the texts of those that may be held out."""
        tokenizer = _load_tokenizer(self.tokenizer, self.trust_remote_code, self.folder.name)
        bound = math.ceil(self.corpus.heldout_fraction * 2**64)
        documents = islice(self.documents(number), self._wanted(number))
        with (
            self.path("tokens", number).open("wb") as stream,
            self.path("index", number).open("wb") as index,
            self.path("texts", number).open("w", encoding="utf-8") as texts,
        ):
            for batch in _chunks(documents, BATCH):
                encoded = tokenizer([document.text for document in batch], add_special_tokens=False, verbose=False)
                records = []
                for document, tokens in zip(batch, encoded["input_ids"], strict=True):
                    digest = hashlib.sha256(
                        f"{self.corpus.seed}\n{document.text}".encode("utf-8", "surrogatepass")
                    ).digest()
                    key, rest = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big")
                    records.append((key, rest, len(tokens) + 1, len(document.text)))
                    stream.write(np.asarray([*tokens, tokenizer.eos_token_id], self.dtype).tobytes())
                    if key < bound:
                        texts.write(_line(document))
                index.write(np.array(records, INDEX).tobytes())

    def _wanted(self, number: int) -> int | None:
        """How many documents of a shard can be among the first ``corpus.max_documents``, as far as is known by now."""
        if self.corpus.max_documents is None:
            return None
        indexes = [self.path("index", earlier) for earlier in range(number)]
        known = sum(path.stat().st_size // INDEX.itemsize for path in indexes if path.exists())
        return max(0, self.corpus.max_documents - known)

    def pack(self, number: int) -> None:
        """Write a shard's blocks of both sides, its held-out documents, and their counts."""
        index, side_of = load_index(self.path("index", number)), np.load(self.path("sides", number))
        tokens = np.memmap(self.path("tokens", number), self.dtype, "r") if len(index) else np.zeros(0, self.dtype)
        writers = {
            side: _Blocks(self.out / side / f"{number:05d}.npy", self.corpus.sequence_length, self.dtype)
            for side in SIDES
        }
        counts = {side: {"documents": 0, "characters": 0, "tokens": 0} for side in SIDES}
        done = 0
        for start in range(0, len(index), ROWS):
            rows, sides = index[start : start + ROWS], side_of[start : start + ROWS]
            stream = tokens[done : done + int(rows["tokens"].sum())]
            done += len(stream)
            side_of_token = np.repeat(sides, rows["tokens"])
            for side, value in SIDES.items():
                mine = rows[sides == value]
                writers[side].append(stream[side_of_token == value])
                counts[side]["documents"] += len(mine)
                for name in ("characters", "tokens"):
                    counts[side][name] += int(mine[name].sum())
        with self.path("heldout", number).open("w", encoding="utf-8") as file:
            file.writelines(self._heldout_lines(number, index, side_of))
        blocks = {side: writer.close() for side, writer in writers.items()}
        write_json(self.path("counts", number), {side: {**counts[side], "blocks": blocks[side]} for side in SIDES})

    def _heldout_lines(self, number: int, index: NDArray[np.void], side_of: NDArray[np.uint8]) -> Iterator[str]:
        bound = math.ceil(self.corpus.heldout_fraction * 2**64)
        rows = np.flatnonzero(index["key"] <= np.uint64(bound - 1))
        with self.path("texts", number).open(encoding="utf-8") as texts:
            for row, line in zip(rows, texts, strict=True):
                if side_of[row] == HELDOUT:
                    yield line
        # Where no key is small enough, one document is held out whose text was not kept.
        for row in np.setdiff1d(np.flatnonzero(side_of == HELDOUT), rows):
            yield _line(next(islice(self.documents(number), int(row), None)))


@lru_cache(maxsize=1)
def _load_tokenizer(folder: Path, trust_remote_code: bool, fingerprint: str) -> Any:
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)


def _line(document: Document) -> str:
    return json.dumps({"id": document.id, "title": document.title, "text": document.text}, ensure_ascii=False) + "\n"


def _chunks(items: Iterable[Document], size: int) -> Iterator[list[Document]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


class _Blocks:
    """A .npy file of token blocks that grows as tokens come; its header is corrected at the end."""

    def __init__(self, path: Path, sequence_length: int, dtype: str) -> None:
        self._path = path
        self._file = path.open("wb")
        self._length = sequence_length
        self._dtype = np.dtype(dtype)
        self._rest = np.zeros(0, self._dtype)
        self._blocks = 0
        self._write_header()

    def append(self, tokens: NDArray[np.unsignedinteger]) -> None:
        stream = np.concatenate([self._rest, tokens])
        end = len(stream) // self._length * self._length
        self._file.write(stream[:end].tobytes())
        self._rest = stream[end:]
        self._blocks += end // self._length

    def close(self) -> int:
        """Finish the file, or leave none if it would be empty; the number of blocks in it."""
        self._file.seek(0)
        self._write_header()  # numpy pads headers so that a longer first axis fits
        self._file.close()
        if not self._blocks:
            self._path.unlink()
        return self._blocks

    def _write_header(self) -> None:
        shape = (self._blocks, self._length)
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)
