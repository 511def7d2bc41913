"""A Hugging Face checkpoint on disk, read and written tensor by tensor.

Reading goes through the safetensors library. Writing does not, because its ``save_file`` wants a whole shard in
memory: the format (8 bytes of header length, a JSON header, the tensors end to end) is written here as the tensors
come, so the memory needed is that of one tensor.
"""

import json
import re
import shutil
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from tqdm import tqdm

from lesa.errors import LesaError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to write: what it is, known beforehand, and how to get its values when its turn comes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    load: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes."""
        size = self.dtype.itemsize
        for extent in self.shape:
            size *= extent
        return size


class Checkpoint:
    """A folder with ``config.json`` and safetensors weights, opened for reading.

    Raises:
        LesaError: the folder, its config, a shard or a tensor named in the index is missing or cannot be read.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.config: dict[str, Any] = read_config(self.folder)
        self._files = self._locate()
        self._header: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        for file in sorted(set(self._files.values())):
            self._read_header(file)
        lost = sorted(set(self._files) - set(self._header))
        if lost:
            raise LesaError(f"{self.folder / INDEX} names {lost[0]} in {self._files[lost[0]].name}, which lacks it")

    def names(self) -> list[str]:
        """Names of all tensors, in the order of the files."""
        return list(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        return self._header[name][1]

    def dtype(self, name: str) -> torch.dtype:
        """Data type of a tensor, without reading it."""
        return self._header[name][0]

    def tensor(self, name: str) -> Tensor:
        """Values of a tensor, on the CPU, as stored."""
        # The file is opened anew each time: its pages leave memory together with the tensor.
        with self._open(self._files[name]) as file:
            return file.get_tensor(name)

    def spec(self, name: str, source: str | None = None) -> TensorSpec:
        """The tensor ``source`` (default ``name``), unchanged, as something to write under ``name``."""
        source = source or name
        return TensorSpec(name, self.dtype(source), self.shape(source), lambda: self.tensor(source))

    def _locate(self) -> dict[str, Path]:
        index = self.folder / INDEX
        if index.exists():
            return {name: self.folder / shard for name, shard in read_index(index).items()}
        single = self.folder / SINGLE
        if not single.exists():
            found = sorted(path.name for path in self.folder.iterdir())[:8]
            raise LesaError(f"{self.folder} holds no {SINGLE} or {INDEX}; found {', '.join(found) or 'nothing'}")
        with self._open(single) as file:
            return dict.fromkeys(file.keys(), single)

    def _read_header(self, path: Path) -> None:
        with self._open(path) as file:
            for name in file.keys():  # noqa: SIM118, the file is no mapping
                part = file.get_slice(name)
                if part.get_dtype() not in DTYPES:
                    raise LesaError(f"{path}: {name} has data type {part.get_dtype()}; only plain types are handled")
                self._header[name] = (DTYPES[part.get_dtype()], tuple(part.get_shape()))

    def _open(self, path: Path) -> Any:
        try:
            return safe_open(path, framework="pt")
        except FileNotFoundError:
            raise LesaError(f"{path} is missing, though {INDEX} names it; fetch the model again") from None
        except (SafetensorError, OSError) as error:
            raise LesaError(f"{path} is not a whole safetensors file ({error}); fetch the model again") from None


def read_config(folder: str | Path) -> dict[str, Any]:
    """``config.json`` of a checkpoint folder.

    Raises:
        LesaError: there is no such folder or file, or it is not a JSON object.
    """
    path = Path(folder) / "config.json"
    if not path.exists():
        raise LesaError(f"{folder} is no model folder: it has no config.json")
    return _read_json(path)


def read_index(index: Path) -> dict[str, str]:
    """Which shard holds each tensor.

    Raises:
        LesaError: the file is no index, or points outside its folder.
    """
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise LesaError(f"{index} must hold a weight_map from the names of tensors to those of files")
    for shard in sorted(set(weight_map.values())):
        if Path(shard).name != shard:
            raise LesaError(f"{index} points outside its folder: {shard!r}; shards must lie beside the index")
    return weight_map


def write_checkpoint(folder: str | Path, tensors: Iterable[TensorSpec], max_shard_size: str | int = "5GB") -> None:
    """Write tensors as safetensors shards, and an index where there is more than one shard.

    A tensor's ``load`` is called once, when its turn comes, in the order given. Values are cast to the declared
    data type; a shape other than the declared one is an error.

    Args:
        folder: an existing folder.
        tensors: what to write, in order.
        max_shard_size: bytes, or a number with KB, MB or GB; a larger tensor gets a shard of its own.
    """
    folder = Path(folder)
    shards = _split(list(tensors), parse_size(max_shard_size))
    total = sum(spec.nbytes for shard in shards for spec in shard)
    weight_map = {}
    with tqdm(total=total, desc="writing weights", unit="B", unit_scale=True) as progress:
        for number, shard in enumerate(shards, start=1):
            name = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            _write_file(folder / name, shard, progress)
            weight_map.update({spec.name: name for spec in shard})
    if len(shards) > 1:
        content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / INDEX).write_text(json.dumps(content, indent=2) + "\n")


def copy_other_files(source: str | Path, target: str | Path) -> None:
    """Copy what is not weights from one checkpoint folder to another: tokenizer, generation config, licence."""
    for path in sorted(Path(source).iterdir()):
        if path.is_file() and path.name != INDEX and path.suffix != ".safetensors":
            shutil.copyfile(path, Path(target) / path.name)


def parse_size(size: str | int) -> int:
    """Bytes of a size such as ``5GB``, ``200MB`` or a plain number.

    Raises:
        LesaError: the text is no size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)B?", str(size).strip().upper())
    value = int(float(match[1]) * {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}[match[2]]) if match else 0
    if value < 1:
        raise LesaError(f"{size!r} is no shard size; write it like 5GB or 200MB")
    return value


def _split(tensors: Sequence[TensorSpec], limit: int) -> list[list[TensorSpec]]:
    shards: list[list[TensorSpec]] = [[]]
    filled = 0
    for spec in tensors:
        if shards[-1] and filled + spec.nbytes > limit:
            shards.append([])
            filled = 0
        shards[-1].append(spec)
        filled += spec.nbytes
    return shards


def _write_file(path: Path, tensors: Sequence[TensorSpec], progress: "tqdm[Any]") -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for spec in tensors:
        start, end = end, end + spec.nbytes
        header[spec.name] = {"dtype": NAMES[spec.dtype], "shape": list(spec.shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for spec in tensors:
            values = spec.load()
            if tuple(values.shape) != spec.shape:
                raise ValueError(f"{spec.name} has shape {tuple(values.shape)}, declared as {spec.shape}")
            flat = values.detach().to("cpu", spec.dtype).contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)
            progress.update(spec.nbytes)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise LesaError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise LesaError(f"{path} must hold a JSON object, and holds {type(content).__name__}")
    return content
