import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lesa.errors import LesaError
from lesa.executor import Workers


def note(folder: Path, number: int) -> None:
    with (folder / str(number)).open("a") as file:
        file.write("done\n")


def note_or_die(folder: Path, number: int) -> None:
    if number == 3 and not (folder / "spared").exists():
        os._exit(9)
    note(folder, number)


def note_or_fail(folder: Path, number: int) -> None:
    if number == 3 and not (folder / "spared").exists():
        raise LesaError("number 3 cannot be done")
    note(folder, number)


def run(task: Callable[[int], None], count: int, processes: int, folder: Path) -> None:
    with Workers(processes) as workers:
        workers.run(task, count, folder, "noting")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_failed_task_is_done_again_and_finished_ones_are_not(
    tmp_path: Path, processes: int, capfd: pytest.CaptureFixture[str]
) -> None:
    task = partial(note_or_fail, tmp_path)
    with pytest.raises(LesaError, match=r"^number 3 cannot be done$"):
        run(task, 5, processes, tmp_path / "marks")
    assert "Traceback" not in capfd.readouterr().err
    (tmp_path / "spared").touch()
    run(task, 5, processes, tmp_path / "marks")
    run(task, 5, processes, tmp_path / "marks")
    assert [(tmp_path / str(number)).read_text() for number in range(5)] == ["done\n"] * 5


def test_a_killed_worker_is_noticed(tmp_path: Path) -> None:
    task = partial(note_or_die, tmp_path)
    with pytest.raises(LesaError, match=r"was killed.*smaller corpus\.processes"):
        run(task, 6, 2, tmp_path / "marks")
    (tmp_path / "spared").touch()
    run(task, 6, 2, tmp_path / "marks")
    assert all((tmp_path / str(number)).exists() for number in range(6))
