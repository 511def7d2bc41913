"""Outputs that appear whole or not at all."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """Give an empty folder beside ``path`` that takes its place when the block ends without an error.

    On an error that folder is removed and what was at ``path`` stays as it was. What a killed process left of it is
    removed the next time.
    """
    path = Path(path)
    partial = _beside(path, "partial")
    for leftover in (partial, _beside(path, "old")):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        replace_folder(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def replace_folder(new: Path, path: Path) -> None:
    """Move the folder ``new`` to ``path``, on the same disk, and remove what was there."""
    old = _beside(path, "old")
    shutil.rmtree(old, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rename(old)
    new.rename(path)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Give a path beside ``path`` that takes its place when the block ends without an error."""
    path = Path(path)
    partial = _beside(path, "partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f".{path.name}.{what}")


def write_json(path: str | Path, content: Any) -> None:
    """Write ``content`` as indented JSON, whole or not at all; NaN and infinity are refused."""
    with whole_file(path) as partial:
        partial.write_text(json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: str | Path) -> Any:
    """Read a JSON file."""
    return json.loads(Path(path).read_text())
