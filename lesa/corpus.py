"""Documents to train and held-out token blocks, split by document.

Choices: a document's side depends on its text and the seed alone, so it stays where it is when others come or go.
Documents follow each other with the tokenizer's end-of-text token between them, which is how pretraining marks that
what comes next has nothing to do with what came before; the blocks are cut from that one stream, and what does not
fill a last block is left out.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from lesa.documents import Document
from lesa.errors import LesaError
from lesa.meter import Meter

SIDES = ("train", "heldout")
BATCH = 16


def prepare(
    documents: Iterable[Document],
    tokenizer: Any,
    out: Path,
    sequence_length: int,
    heldout_fraction: float,
    seed: int,
) -> dict[str, Any]:
    """Write ``train.npy``, ``heldout.npy`` (tokens, ``[blocks, sequence_length]``) and ``heldout.jsonl``.

    The arrays are uint16 where the vocabulary allows, else uint32, and open with ``np.load(mmap_mode="r")``. Memory
    needed is that of a few documents, and 16 bytes for each one seen.

    Args:
        documents: the texts; of exact duplicates the first is kept.
        tokenizer: a transformers tokenizer with an end-of-text token.
        out: an existing folder.
        sequence_length: tokens a block.
        heldout_fraction: expected share of documents held out; both sides get at least one.
        seed: another one gives another split.

    Returns:
        Metrics: for each side ``documents``, ``characters``, ``tokens`` and ``blocks``; ``duplicates``,
        ``vocabulary_size``, ``seconds`` and ``peak_memory_bytes``.

    Raises:
        LesaError: fewer than two documents, too little text for one block a side, or no end-of-text token.
    """
    meter = Meter()
    if tokenizer.eos_token_id is None:
        raise LesaError("the base model's tokenizer has no end-of-text token (eos_token), which separates documents")
    vocabulary = max(tokenizer.get_vocab().values()) + 1
    dtype = np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")
    spool = out / "documents.jsonl"
    keys, duplicates = _spool(documents, spool, seed)
    if len(keys) < 2:
        raise LesaError(
            f"corpus.source gave {len(keys)} document(s) with text; at least 2 are needed, one to train on and one to "
            "hold out"
        )
    limit = heldout_fraction * 2**64
    heldout = [key < limit for key in keys]
    if not any(heldout):
        heldout[keys.index(min(keys))] = True
    if all(heldout):
        heldout[keys.index(max(keys))] = False

    writers = {side: _Blocks(out / f"{side}.npy", sequence_length, dtype) for side in SIDES}
    counts = {side: {"documents": 0, "characters": 0, "tokens": 0, "blocks": 0} for side in SIDES}
    with (out / "heldout.jsonl").open("w", encoding="utf-8") as jsonl:
        for lines in _chunks(zip(_lines(spool), heldout, strict=True), BATCH):
            records = [json.loads(line) for line, _ in lines]
            batch = tokenizer([record["text"] for record in records], add_special_tokens=False, verbose=False)
            for (line, held), record, tokens in zip(lines, records, batch["input_ids"], strict=True):
                side = SIDES[held]
                writers[side].append([*tokens, tokenizer.eos_token_id])
                counts[side]["documents"] += 1
                counts[side]["characters"] += len(record["text"])
                counts[side]["tokens"] += len(tokens) + 1
                if held:
                    jsonl.write(line)
    spool.unlink()
    for side, writer in writers.items():
        counts[side]["blocks"] = writer.close()
        if not counts[side]["blocks"]:
            raise LesaError(
                f"corpus.source gave {counts[side]['tokens']} tokens for the {side} side, and one block takes "
                f"corpus.sequence_length = {sequence_length}; use more text or shorter blocks"
            )
    return {
        **counts,
        "duplicates": duplicates,
        "vocabulary_size": vocabulary,
        "seconds": meter.seconds,
        "peak_memory_bytes": meter.peak_memory_bytes,
    }


def _spool(documents: Iterable[Document], path: Path, seed: int) -> tuple[list[int], int]:
    """Write the distinct documents to a file; a number in 0..2**64-1 for each, drawn from its text, and duplicates."""
    seen: set[bytes] = set()
    keys = []
    duplicates = 0
    with path.open("w", encoding="utf-8") as file:
        for document in documents:
            digest = hashlib.sha256(f"{seed}\n{document.text}".encode("utf-8", "surrogatepass")).digest()[:16]
            if digest in seen:
                duplicates += 1
                continue
            seen.add(digest)
            keys.append(int.from_bytes(digest[:8], "big"))
            record = {"id": document.id, "title": document.title, "text": document.text}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return keys, duplicates


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        yield from file


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


class _Blocks:
    """A .npy file of token blocks that grows as tokens come; its header is corrected at the end."""

    def __init__(self, path: Path, sequence_length: int, dtype: np.dtype[Any]) -> None:
        self._file = path.open("wb")
        self._length = sequence_length
        self._dtype = dtype
        self._rest: list[int] = []
        self._blocks = 0
        self._write_header()

    def append(self, tokens: list[int]) -> None:
        stream = self._rest + tokens
        end = len(stream) // self._length * self._length
        self._file.write(np.asarray(stream[:end], self._dtype).tobytes())
        self._rest = stream[end:]
        self._blocks += end // self._length

    def close(self) -> int:
        """Finish the file; the number of blocks in it."""
        self._file.seek(0)
        self._write_header()  # numpy pads headers so that a longer first axis fits
        self._file.close()
        return self._blocks

    def _write_header(self) -> None:
        shape = (self._blocks, self._length)
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)
