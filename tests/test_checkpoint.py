import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lesa.checkpoint import INDEX, SINGLE, Checkpoint, TensorSpec, parse_size, write_checkpoint
from lesa.errors import LesaError

VALUES = {
    "a": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "b": torch.randn(5).to(torch.bfloat16),
    "scalar": torch.tensor(7, dtype=torch.int64),
    "empty": torch.empty(0, 3, dtype=torch.float16),
    "transposed": torch.arange(6, dtype=torch.float64).reshape(2, 3).T,
    "flags": torch.tensor([True, False]),
}


def specs(values: dict[str, torch.Tensor]) -> list[TensorSpec]:
    return [TensorSpec(name, t.dtype, tuple(t.shape), lambda t=t: t) for name, t in values.items()]


def test_written_file_is_what_the_safetensors_library_reads(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, specs(VALUES))
    loaded = load_file(tmp_path / SINGLE)
    assert loaded.keys() == VALUES.keys()
    for name, value in VALUES.items():
        assert loaded[name].dtype == value.dtype
        assert torch.equal(loaded[name], value)


def test_values_are_cast_to_the_declared_type(tmp_path: Path) -> None:
    wide = torch.randn(8, 8)
    write_checkpoint(tmp_path, [TensorSpec("w", torch.bfloat16, (8, 8), lambda: wide)])
    assert torch.equal(load_file(tmp_path / SINGLE)["w"], wide.to(torch.bfloat16))


def test_shards_stay_below_the_limit_and_the_index_names_them_all(tmp_path: Path) -> None:
    values = {f"w{i}": torch.full((100,), float(i)) for i in range(5)}  # 400 bytes each
    write_checkpoint(tmp_path, specs(values), max_shard_size=900)
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"]["total_size"] == 2000
    assert sorted(set(index["weight_map"].values())) == [f"model-0000{k}-of-00003.safetensors" for k in (1, 2, 3)]
    assert [len(load_file(tmp_path / f"model-0000{k}-of-00003.safetensors")) for k in (1, 2, 3)] == [2, 2, 1]
    (tmp_path / "config.json").write_text("{}")
    checkpoint = Checkpoint(tmp_path)
    for name, value in values.items():
        assert torch.equal(checkpoint.tensor(name), value)


def test_each_tensor_is_loaded_once_and_released_before_the_next(tmp_path: Path) -> None:
    order: list[str] = []

    def load(name: str) -> torch.Tensor:
        order.append(name)
        return torch.ones(2)

    write_checkpoint(tmp_path, [TensorSpec(n, torch.float32, (2,), lambda n=n: load(n)) for n in ("x", "y", "z")])
    assert order == ["x", "y", "z"]


def test_a_wrong_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"w has shape \(3,\), declared as \(4,\)"):
        write_checkpoint(tmp_path, [TensorSpec("w", torch.float32, (4,), lambda: torch.ones(3))])


@pytest.mark.parametrize(("text", "size"), [("5GB", 5 * 10**9), ("200 mb", 2 * 10**8), ("1.5KB", 1500), (7, 7)])
def test_parse_size(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "5TBX", 0])
def test_parse_size_refuses(text: str | int) -> None:
    with pytest.raises(LesaError, match="no shard size"):
        parse_size(text)


def test_reading_gives_shapes_types_and_values(save_tiny: Callable[..., Path]) -> None:
    folder = save_tiny(dtype=torch.bfloat16)
    expected = load_file(folder / SINGLE)
    checkpoint = Checkpoint(folder)
    assert set(checkpoint.names()) == set(expected)
    for name, value in expected.items():
        assert checkpoint.shape(name) == tuple(value.shape)
        assert checkpoint.dtype(name) == torch.bfloat16
        assert torch.equal(checkpoint.tensor(name), value)


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(LesaError, match=r"has no config\.json"):
        Checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(LesaError, match=r"config\.json must hold a JSON object"):
        Checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LesaError, match=r"holds no model\.safetensors"):
        Checkpoint(tmp_path)
    save_file({"w": torch.ones(100)}, tmp_path / SINGLE)
    (tmp_path / SINGLE).write_bytes((tmp_path / SINGLE).read_bytes()[:-8])
    with pytest.raises(LesaError, match=r"model\.safetensors is not a whole safetensors file"):
        Checkpoint(tmp_path)
    index = {"weight_map": {"w": "../elsewhere.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(LesaError, match="points outside its folder"):
        Checkpoint(tmp_path)
    index = {"weight_map": {"w": "gone.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(LesaError, match=r"gone\.safetensors is missing"):
        Checkpoint(tmp_path)
    save_file({"w": torch.ones(3)}, tmp_path / "part.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"v": "part.safetensors"}}))
    with pytest.raises(LesaError, match=r"names v in part\.safetensors, which lacks it"):
        Checkpoint(tmp_path)
