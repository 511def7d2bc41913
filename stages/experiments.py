"""DVC experiments that leave the workspace alone.

`dvc exp run`, with `--temp` as well, sets the workspace aside and brings it back: a file saved meanwhile or a kill at
the wrong moment can cost work, and each run takes what the workspace holds by then. Here DVC runs in a copy of the
repository made once, and only finished experiments come over. The cache is shared, so what ran once is not repeated.
"""

import fcntl
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lesa.errors import LesaError

COPY = Path(".dvc/tmp/compare")  # where git does not look, and on the disk of the cache, which is linked from there
CODE = ("lesa", "stages", "configs", "dvc.yaml")
PATIENCE = 20  # seconds that a run which is told to stop gets for it


@dataclass(frozen=True)
class Repository:
    """The repository in the current folder.

    Attributes:
        commit: HEAD, which experiments hang on.
        snapshot: a commit of HEAD and of all changes to files that git knows.
    """

    commit: str
    snapshot: str

    def ref(self, name: str) -> str:
        """Where DVC keeps the experiment of that name."""
        return f"refs/exps/{self.commit[:2]}/{self.commit[2:]}/{name}"

    def has(self, name: str) -> bool:
        """Whether there is such an experiment, run with the code of the snapshot."""
        same_code = ["git", "diff", "--quiet", self.snapshot, self.ref(name), "--", *CODE]
        return subprocess.run(same_code, capture_output=True).returncode == 0

    def read(self, name: str, path: str) -> str | None:
        """A file as the experiment made it, or None."""
        done = subprocess.run(["git", "show", f"{self.ref(name)}:{path}"], capture_output=True, text=True)
        return None if done.returncode else done.stdout


def open_repository() -> Repository:
    """See that experiments can run here.

    Raises:
        LesaError: git or DVC or their repository is missing, there is no commit, or code is not known to git.
    """
    if shutil.which("git") is None:
        raise LesaError("experiments are kept in git, and git is not installed")
    if importlib.util.find_spec("dvc") is None:
        raise LesaError(f"DVC is not installed beside {sys.executable}; run make setup")
    if git("rev-parse", "--show-prefix", fails="experiments are kept in git, and this is no git repository"):
        raise LesaError("this folder is only a part of a git repository; experiments need the whole of one")
    if not Path(".dvc/config").exists():
        raise LesaError("there is no .dvc/config here, so this is no DVC repository; dvc init makes one")
    commit = git("rev-parse", "--verify", "HEAD", fails="experiments belong to a commit, and there is none; git commit")
    unknown = git("ls-files", "--others", "--exclude-standard", "--", *CODE).splitlines()
    if unknown:
        raise LesaError(f"git does not know {unknown[0]}, so no experiment would have it; git add {unknown[0]}")
    return Repository(commit, git("stash", "create") or commit)


def need_known(path: str, key: str) -> None:
    """See that a copy of the repository has a file or folder of the workspace.

    Raises:
        LesaError: ``path`` is there, and git does not know it.
    """
    there = Path(path)
    if not there.is_absolute() and there.exists() and not git("ls-files", "--", path):
        raise LesaError(f"{key} is {path}, which git does not know, so no experiment would have it; give it in full")


@contextmanager
def copy_of(repository: Repository) -> Iterator[Path]:
    """The folder of a copy that holds the snapshot, gone afterwards.

    Raises:
        LesaError: another process has one.
    """
    COPY.parent.mkdir(parents=True, exist_ok=True)
    with COPY.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LesaError("another make compare runs in this folder; wait for its end") from None
        shutil.rmtree(COPY, ignore_errors=True)  # what a killed process left
        try:
            _fill(repository)
            yield COPY
        finally:
            shutil.rmtree(COPY, ignore_errors=True)


def _fill(repository: Repository) -> None:
    git("clone", "--quiet", "--shared", "--no-checkout", ".", str(COPY))
    git("checkout", "--quiet", "--detach", repository.commit, folder=COPY)
    git("read-tree", "-m", "-u", "HEAD", repository.snapshot, folder=COPY)
    for key in ("user.name", "user.email"):
        if value := git("config", "--default", "", key):
            git("config", key, value, folder=COPY)
    local = Path(".dvc/config.local")
    if local.exists():
        shutil.copy(local, COPY / local)
    cache = _dvc("cache", "dir").strip().splitlines()[-1]
    _dvc("cache", "dir", "--local", cache, folder=COPY)


def run_experiment(
    repository: Repository, copy: Path, name: str, changes: Mapping[str, Any], target: str
) -> str | None:
    """Run the pipeline up to a stage as an experiment of that name, in the place of an older one.

    What DVC and the stages say goes to standard output as it comes.

    Args:
        repository: gets the experiment.
        copy: a copy of it.
        name: of the experiment.
        changes: settings by dotted key.
        target: the stage.

    Returns:
        None, or why it failed.
    """
    overrides = [part for key, value in changes.items() for part in ("-S", f"++{key}={json.dumps(value)}")]
    said, failed = _follow([*_dvc_command("exp", "run", "--temp", "--name", name, *overrides, target)], copy)
    if failed:
        return _reason(said)
    ref = repository.ref(name)
    git("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", str(copy), f"+{ref}:{ref}")
    return None


def git(*arguments: str, folder: Path = Path(), fails: str = "") -> str:
    """What git says.

    Raises:
        LesaError: it fails; with the sentence ``fails``, if there is one.
    """
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise LesaError(fails or f"git {arguments[0]} failed: {' '.join(done.stderr.split())}")
    return done.stdout.strip()


def _dvc(*arguments: str, folder: Path = Path()) -> str:
    done = subprocess.run(_dvc_command(*arguments), cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise LesaError(f"dvc {arguments[0]} failed: {_reason(done.stdout + done.stderr)}")
    return done.stdout


def _dvc_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dvc", *arguments]


def _follow(command: list[str], folder: Path) -> tuple[str, bool]:
    """Run a command, pass on what it says; the end of that, and whether the command failed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # The copy's own lesa, not the workspace's that is installed.
    environment = {**os.environ, "PATH": path, "PYTHONPATH": "."}
    said = b""
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            while chunk := process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
                sys.stdout.buffer.write(chunk)
                sys.stdout.flush()
                said = (said + chunk)[-(1 << 16) :]
        except BaseException:
            _stop(process)
            raise
    return said.decode(errors="replace"), process.returncode != 0


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    for how in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, how)
            process.wait(PATIENCE)


def _reason(said: str) -> str:
    """Why something failed, from what it said: our own sentence, DVC's, or just the last line."""
    lines = [line.strip() for line in said.replace("\r", "\n").splitlines() if line.strip()]
    for start in ("lesa: ", "ERROR: "):
        if found := [line.removeprefix(start) for line in lines if line.startswith(start)]:
            return found[0]
    return lines[-1] if lines else "it said nothing"
