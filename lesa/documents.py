"""Readers of text: a piece of a source in, its documents out, one at a time."""

import bz2
import json
import multiprocessing
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any
from xml.etree.ElementTree import Element, ParseError

from lesa.errors import LesaError
from lesa.settings import Corpus

SHORTEST_ARTICLE = 300
"""Characters of prose below which a wiki page is a stub or a list of meanings, and is left out."""

HUB = "hub://"
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Document:
    """A text that is trained on, or held out, as a whole."""

    id: str
    title: str
    text: str


@dataclass(frozen=True)
class Piece:
    """A part of a source, from ``start`` up to ``stop``.

    Both count bytes of a JSONL file, row groups of a parquet file, or shards of a Hub dataset, where ``name`` is what
    follows ``hub://``. A file of another kind is always whole.
    """

    name: str
    start: int = 0
    stop: int | None = None


def read(pieces: Iterable[Piece], corpus: Corpus) -> Iterator[Document]:
    """The documents of some pieces, in a fixed order.

    A .txt file is one document, a line of JSONL or a row of parquet another, a MediaWiki dump (.xml, .xml.bz2) one an
    article: redirects, pages outside the main namespace and pages with next to no prose are left out. A line of JSONL
    belongs to the piece that its first byte lies in.

    Raises:
        LesaError: a file is of no known kind, unreadable, or without ``corpus.text_field``.
    """
    for piece in pieces:
        if corpus.source.startswith(HUB):
            yield from _hub(piece, corpus)
        else:
            yield from _file(piece, corpus)


def readable(path: Path) -> bool:
    """Whether a file is of a kind that can be read, by its name."""
    return _reader(path) is not None


def known_kinds() -> str:
    """The endings of file names that can be read."""
    return ", ".join(_READERS)


def open_hub(name: str, revision: str | None) -> Any:
    """The split ``train`` of a Hub dataset, as a stream. ``name`` is ``DATASET`` or ``ORG/NAME/CONFIG``."""
    return hub_builder(name, revision).as_streaming_dataset(split="train")


@lru_cache(maxsize=1)  # every opening asks the Hub for the list of files
def hub_builder(name: str, revision: str | None) -> Any:
    """What ``datasets`` knows of a Hub dataset before it reads any of it."""
    from datasets import load_dataset_builder

    parts = [name] if Path(name).is_dir() else name.split("/")
    with hub_errors(name):
        return load_dataset_builder("/".join(parts[:2]), "/".join(parts[2:]) or None, revision=revision)


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """Turn whatever ``datasets`` lets through from its readers and the network into one sentence."""
    try:
        yield
    except LesaError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise LesaError(f"corpus.source is {HUB}{name}, which cannot be read from the Hub: {reason}") from error


def _reader(path: Path) -> Any:
    name = path.name.lower()
    return next((read for suffix, read in _READERS.items() if name.endswith(suffix)), None)


def _file(piece: Piece, corpus: Corpus) -> Iterator[Document]:
    path = Path(piece.name)
    reader = _reader(path)
    if reader is None:
        raise LesaError(f"corpus.source: {path.name} is of no known kind; it takes {known_kinds()}")
    try:
        yield from reader(path, piece, corpus)
    except UnicodeDecodeError as error:
        raise LesaError(f"corpus.source: {path} is not UTF-8 text ({error})") from None


def _text(path: Path, piece: Piece, corpus: Corpus) -> Iterator[Document]:
    text = path.read_text(encoding="utf-8-sig").strip()
    if text:
        yield Document(path.name, path.stem, text)


def _jsonl(path: Path, piece: Piece, corpus: Corpus) -> Iterator[Document]:
    stop = path.stat().st_size if piece.stop is None else piece.stop
    with path.open("rb") as file:
        if piece.start:
            file.seek(piece.start - 1)
            file.readline()  # the rest of a line that belongs to the piece before
        while (place := file.tell()) < stop:
            line = file.readline()
            if place == 0:
                line = line.removeprefix(BOM)
            if not line.strip():
                continue
            try:
                record = json.loads(line.decode())
            except UnicodeDecodeError:
                raise
            except ValueError as error:
                raise LesaError(
                    f"corpus.source: line {_line_number(path, place)} of {path} is not JSON: {error}"
                ) from None
            if not isinstance(record, dict):
                raise LesaError(f"corpus.source: line {_line_number(path, place)} of {path} is no JSON object")
            yield from _record(record, f"{path.name}@{place}", corpus)


def _line_number(path: Path, place: int) -> int:
    with path.open("rb") as file:
        return 1 + sum(file.read(min(1 << 20, place - done)).count(b"\n") for done in range(0, place, 1 << 20))


def _parquet(path: Path, piece: Piece, corpus: Corpus) -> Iterator[Document]:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with closing(ParquetFile(path)) as file:
            groups = range(piece.start, file.num_row_groups if piece.stop is None else piece.stop)
            number = sum(file.metadata.row_group(group).num_rows for group in range(piece.start))
            names = file.schema_arrow.names
            # Without the text, all columns: the error then names them.
            columns = [name for name in (corpus.text_field, "id", "title") if name in names]
            columns = columns if corpus.text_field in names else names
            for batch in file.iter_batches(batch_size=256, row_groups=groups, columns=columns):
                for record in batch.to_pylist():
                    number += 1
                    yield from _record(record, f"{path.name}:{number}", corpus)
    except pyarrow.ArrowInvalid as error:
        raise LesaError(f"corpus.source: {path} is not a whole parquet file: {error}") from None


def _record(record: dict[str, Any], place: str, corpus: Corpus) -> Iterator[Document]:
    text = record.get(corpus.text_field)
    if corpus.text_field not in record or not isinstance(text, str | None):
        fields = ", ".join(map(str, record)) or "none"
        raise LesaError(f"corpus.text_field is {corpus.text_field}, and {place} has no such text; its fields: {fields}")
    if text and text.strip():
        # half of a surrogate pair, which JSON can hold, is no text
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        yield Document(str(record.get("id") or place), str(record.get("title") or ""), text.strip())


def _hub(piece: Piece, corpus: Corpus) -> Iterator[Document]:
    with hub_errors(piece.name):
        dataset = open_hub(piece.name, corpus.revision)
        for index in range(piece.start, dataset.num_shards if piece.stop is None else piece.stop):
            for number, record in enumerate(dataset.shard(dataset.num_shards, index)):
                yield from _record(record, f"{piece.name}:{index}:{number}", corpus)


def _mediawiki(path: Path, piece: Piece, corpus: Corpus) -> Iterator[Document]:
    from tqdm import tqdm

    from lesa.wikitext import prose

    size = path.stat().st_size
    try:
        with (
            path.open("rb") as raw,
            bz2.open(raw) if path.suffix == ".bz2" else nullcontext(raw) as file,
            tqdm(total=size, desc="articles", unit="B", unit_scale=True, disable=not _alone()) as bar,
        ):
            for page in _pages(file):
                bar.update(raw.tell() - bar.n)
                text = prose(page.findtext("{*}revision/{*}text") or "")
                if len(text) >= SHORTEST_ARTICLE:
                    yield Document(page.findtext("{*}id") or "", page.findtext("{*}title") or "", text)
    except (ParseError, EOFError, OSError) as error:
        raise LesaError(f"corpus.source: {path.name} is not a whole MediaWiki dump: {error}") from None


def _alone() -> bool:
    return multiprocessing.parent_process() is None


def _pages(file: IO[bytes]) -> Iterator[Element]:
    """The articles of a dump; each is emptied once the next is asked for, so that memory stays small."""
    from defusedxml.ElementTree import iterparse

    events = iterparse(file, events=("start", "end"))
    _, root = next(events)
    for event, element in events:
        if event == "end" and element.tag.rpartition("}")[2] == "page":
            if element.findtext("{*}ns") == "0" and element.find("{*}redirect") is None:
                yield element
            root.clear()


_READERS = {
    ".txt": _text,
    ".jsonl": _jsonl,
    ".json": _jsonl,
    ".parquet": _parquet,
    ".xml": _mediawiki,
    ".bz2": _mediawiki,
}
