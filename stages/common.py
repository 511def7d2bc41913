"""What every stage does around its work: read the settings, turn a person's mistake into one sentence."""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from lesa import initializers, settings
from lesa.devices import pick
from lesa.errors import LesaError
from lesa.files import read_json
from lesa.initializers import Learned
from lesa.launch import check_launch
from lesa.settings import AUTO, Settings

NOT_WRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}
LOCAL_RANK = "LOCAL_RANK"  # what launchers set in each process they start
PARAMS = Path("params.yaml")
TASKS = Path("tasks")
DOWNLOADED = Path("reports/download/metrics.json")


def run(stage: Callable[..., None]) -> None:
    """Call ``stage(settings, *paths)`` with the paths of the command line and exit with 1 on a person's mistake."""
    try:
        stage(checked_settings(), *map(Path, sys.argv[1:]))
    except LesaError as error:
        _exit(str(error))
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise
        _exit(f"cannot write {error.filename or 'outputs'}: {error.strerror}")


def _exit(sentence: str) -> NoReturn:
    if os.environ.get(LOCAL_RANK, "0") == "0":  # of the processes of a machine one speaks for all
        print(f"\nlesa: {sentence}", file=sys.stderr, flush=True)  # on a line of its own, whatever a progress bar left
    sys.exit(1)


def write_deeper(
    settings: Settings, method: str, base: Path, spectrum: Path, predictor: Path, out: Path
) -> dict[str, Any]:
    """Expand the base as the settings say, with this method."""
    from lesa.expansion import expand

    return expand(
        base,
        out,
        method,
        settings.expansion.places,
        settings.expansion.norms,
        settings.expansion.router,
        Learned(str(spectrum), str(predictor)),
        settings.expansion.max_shard_size,
        settings.device,
        origin=settings.base.model,
        seed=settings.seed,
    )


def checked_settings() -> Settings:
    """Settings of which everything that can be checked without a model has been checked."""
    from lesa.evaluation import check_tasks

    read = settings.load(PARAMS)
    check_tasks(read.evaluate.tasks, TASKS)
    check_launch(read.pretrain.launch, read.pretrain.optimizer)
    pick(read.device)
    if DOWNLOADED.exists():
        known = read_json(DOWNLOADED)
        if (known["model"], known["revision"]) == (read.base.model, read.base.revision):
            check_places(read, known["layers"])
    return read


def check_places(settings: Settings, layers: int) -> None:
    """See that new layers can go where they are to go in a base of so many layers.

    Raises:
        LesaError: they cannot.
    """
    expansion = settings.expansion
    for method in expansion.candidates if expansion.method == AUTO else [expansion.method]:
        initializer = initializers.get(method)
        initializer.arrange(layers, expansion.places)
        if initializer.learned and layers < 3:
            raise LesaError(
                f"expansion.method is {method}, which learns from three layers in a row, and the base has {layers}; "
                "another method would be right, such as llama_pro"
            )
