"""Checkpoints to resume from: which of them are whole, and whether they belong to this run.

transformers takes the newest checkpoint without looking at it, and a kill while one is being saved leaves it half
written. Here a checkpoint counts only with a marker, written last, that gives the hash of each of its files; and a
folder of checkpoints only with the fingerprint of what they were made from.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from lesa.files import file_hash, read_json, write_json

MARKER = "complete.json"
FINGERPRINT = "fingerprint.json"


def fingerprint(settings: dict[str, Any], folders: Iterable[Path]) -> dict[str, Any]:
    """What a run depends on: settings, and the hash of every file in the given folders."""
    return {"settings": settings, "folders": [_hashes(folder) for folder in folders]}


def mark_whole(checkpoint: Path) -> None:
    """Write the marker of a checkpoint that is complete."""
    (checkpoint / MARKER).unlink(missing_ok=True)
    write_json(checkpoint / MARKER, _hashes(checkpoint))


def is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint has its marker, and every file is what the marker says."""
    try:
        hashes = read_json(checkpoint / MARKER)
        return bool(hashes) and all(file_hash(checkpoint / name) == found for name, found in hashes.items())
    except (OSError, ValueError, AttributeError):
        return False


def last_good(folder: Path, wanted: dict[str, Any]) -> Path | None:
    """The newest whole checkpoint in ``folder`` made from what ``wanted`` says; None to start anew.

    Checkpoints that are damaged are deleted, so that nothing else takes them. If the folder was made from something
    else, all of it is. Afterwards the folder exists and carries the fingerprint ``wanted``.
    """
    try:
        known = read_json(folder / FINGERPRINT)
    except (OSError, ValueError):
        known = None
    if known != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        write_json(folder / FINGERPRINT, wanted)
        return None
    for checkpoint in sorted(folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"), key=_step, reverse=True):
        if is_whole(checkpoint):
            return checkpoint
        shutil.rmtree(checkpoint)
    return None


def _hashes(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): file_hash(path) for path in files}


def _step(checkpoint: Path) -> int:
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


class MarkCheckpoints(TrainerCallback):
    """Marks each checkpoint of a Trainer once it is saved."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer after a checkpoint is saved."""
        # Each process saves its own random state.
        args.distributed_state.wait_for_everyone()
        if state.is_world_process_zero:
            mark_whole(Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
