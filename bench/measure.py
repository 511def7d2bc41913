"""Run a command and say how long it took and how much memory it needed.

A process starts with the peak of the one that made it, so a small one of its own, this file as a script, starts each
command that is measured.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Run:
    """What a command took.

    Attributes:
        seconds: wall-clock time, the start of Python included.
        peak_memory_bytes: largest resident set of its process.
        output: what it printed.
    """

    seconds: float
    peak_memory_bytes: int
    output: str


def measured(command: Sequence[str | Path]) -> Run:
    """Run a command in a process of its own and wait for it.

    Raises:
        SystemExit: it failed; its output is shown.
    """
    quiet = {**os.environ, "TQDM_DISABLE": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.NamedTemporaryFile() as figures:
        starter = [sys.executable, "-I", "-S", __file__, figures.name]
        done = subprocess.run(
            [*starter, *map(str, command)],
            cwd=ROOT,
            env=quiet,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))} failed with {done.returncode}\n{done.stdout}")
        found = json.load(figures)
    return Run(found["seconds"], found["peak_memory_bytes"], done.stdout)


def script(name: str, *arguments: object) -> list[str]:
    """The command that runs a script of this folder."""
    return [sys.executable, str(Path(__file__).with_name(f"{name}.py")), *map(str, arguments)]


def _start(figures: str, command: list[str]) -> int:
    start = time.monotonic()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    Path(figures).write_text(json.dumps({"seconds": time.monotonic() - start, "peak_memory_bytes": peak}))
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(_start(sys.argv[1], sys.argv[2:]))
