from pathlib import Path

import pytest

from lesa.resume import FINGERPRINT, MARKER, fingerprint, is_whole, last_good, mark_whole

WANTED = {"settings": {"steps": 4}, "folders": [{"a": "1"}]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints 2, 4 and 10, all whole."""
    assert last_good(tmp_path / "checkpoints", WANTED) is None
    for step in (2, 4, 10):
        checkpoint = tmp_path / "checkpoints" / f"checkpoint-{step}"
        (checkpoint / "inner").mkdir(parents=True)
        (checkpoint / "model.safetensors").write_bytes(bytes(range(200)))
        (checkpoint / "inner" / "optimizer.pt").write_bytes(b"x" * 100)
        mark_whole(checkpoint)
    return tmp_path / "checkpoints"


def test_the_newest_whole_checkpoint_is_taken(folder: Path) -> None:
    assert last_good(folder, WANTED) == folder / "checkpoint-10"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[50] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", ["model.safetensors", "inner/optimizer.pt"])
@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
def test_a_damaged_one_is_deleted_and_the_one_before_taken(folder: Path, name: str, damage: object) -> None:
    damage(folder / "checkpoint-10" / name)  # type: ignore[operator]
    assert not is_whole(folder / "checkpoint-10")
    assert last_good(folder, WANTED) == folder / "checkpoint-4"
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-2", "checkpoint-4", FINGERPRINT]


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model.safetensors": "00"}', None])
def test_one_without_a_whole_marker_does_not_count(folder: Path, content: str | None) -> None:
    marker = folder / "checkpoint-10" / MARKER
    marker.unlink()
    if content is not None:
        marker.write_text(content)
    assert last_good(folder, WANTED) == folder / "checkpoint-4"


def test_other_inputs_start_anew(folder: Path) -> None:
    assert last_good(folder, {**WANTED, "folders": [{"a": "2"}]}) is None
    assert [path.name for path in folder.iterdir()] == [FINGERPRINT]
    assert last_good(folder, WANTED) is None


def test_a_folder_without_fingerprint_is_not_trusted(folder: Path) -> None:
    (folder / FINGERPRINT).unlink()
    assert last_good(folder, WANTED) is None


def test_fingerprint_changes_with_any_byte(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    before = fingerprint({"steps": 1}, [tmp_path / "a"])
    assert fingerprint({"steps": 1}, [tmp_path / "a"]) == before
    assert fingerprint({"steps": 2}, [tmp_path / "a"]) != before
    (tmp_path / "a" / "x").write_text("2")
    assert fingerprint({"steps": 1}, [tmp_path / "a"]) != before


def test_fingerprint_keeps_files_of_one_name_apart(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "config.json").write_text(folder.name)
    before = fingerprint({}, folders)
    (tmp_path / "a" / "config.json").write_text("other")
    assert fingerprint({}, folders) != before
