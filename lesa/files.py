"""Outputs that appear whole or not at all."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """Give a temporary folder beside ``path`` that takes its place when the block ends without an error.

    On an error the temporary folder is removed and what was at ``path`` stays as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        partial.chmod(0o755)
        yield partial
        if path.exists():
            old = partial.with_name(partial.name + ".old")
            path.rename(old)
            partial.rename(path)
            shutil.rmtree(old)
        else:
            partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside ``path`` that takes its place when the block ends without an error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(descriptor)
    partial = Path(name)
    try:
        partial.chmod(0o644)
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: str | Path, content: Any) -> None:
    """Write ``content`` as indented JSON, whole or not at all; NaN and infinity are refused."""
    with whole_file(path) as partial:
        partial.write_text(json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file."""
    return json.loads(Path(path).read_text())
