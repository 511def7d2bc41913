import json
from pathlib import Path

import pytest

from lesa.files import read_json, whole_file, whole_folder, write_json
from lesa.meter import Meter


def fail_half_way(path: Path) -> None:
    path.write_text("half")
    (path / "no such folder").write_text("")


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "a" / "out") as partial:
        (partial / "x").write_text("1")
        assert not (tmp_path / "a" / "out").exists()
    assert (tmp_path / "a" / "out" / "x").read_text() == "1"
    with whole_folder(tmp_path / "a" / "out") as partial:
        (partial / "y").write_text("2")
    assert [path.name for path in (tmp_path / "a" / "out").iterdir()] == ["y"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]


def test_an_error_keeps_the_old_folder_and_leaves_no_rest(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "out") as partial:
        (partial / "x").write_text("1")
    with pytest.raises(NotADirectoryError), whole_folder(tmp_path / "out") as partial:
        fail_half_way(partial / "x")
    assert (tmp_path / "out" / "x").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_a_killed_process_left_is_no_obstacle(tmp_path: Path) -> None:
    for leftover in (".out.partial", ".out.old"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "half").write_text("half")
    with whole_folder(tmp_path / "out") as partial:
        assert not list(partial.iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_error_keeps_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "m.json", {"a": 1})
    with pytest.raises(NotADirectoryError), whole_file(tmp_path / "m.json") as partial:
        fail_half_way(partial)
    assert read_json(tmp_path / "m.json") == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["m.json"]


def test_json_without_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "m.json", {"a": float("nan")})
    assert not list(tmp_path.iterdir())
    write_json(tmp_path / "m.json", {"ä": [1]})
    assert json.loads((tmp_path / "m.json").read_text()) == {"ä": [1]}


def test_meter_counts_up() -> None:
    meter = Meter()
    before = meter.peak_memory_bytes
    block = bytearray(300 * 2**20)
    block[::4096] = b"x" * len(block[::4096])
    assert meter.peak_memory_bytes - before > 100 * 2**20
    assert 0 <= meter.seconds < 60
