"""Room on the disk, asked before much is written."""

import shutil
from pathlib import Path

from lesa.errors import LesaError


def need_space(folder: str | Path, nbytes: int) -> None:
    """See that the disk of an existing folder has ``nbytes`` bytes free.

    Raises:
        LesaError: it has less.
    """
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise LesaError(f"the disk of {folder} has {free / 1e6:,.1f} MB free, and {nbytes / 1e6:,.1f} MB are needed")
