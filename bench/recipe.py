"""What lesa does for the same result: analyze, train_predictor, expand, each by itself.

Usage: recipe.py analyze BASE SPECTRUM | recipe.py train_predictor BASE SPECTRUM PREDICTOR KIND |
recipe.py expand BASE OUT METHOD FIRST LAST [SPECTRUM PREDICTOR]. Prints JSON: seconds, and what else is known.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lesa.checkpoint import Checkpoint
from lesa.devices import pick
from lesa.expansion import expand
from lesa.initializers import Learned
from lesa.layers import Layers
from lesa.learning import train_predictors
from lesa.plan import Placement
from lesa.settings import Predictor
from lesa.spectrum import Spectrum, analyze


def run_analyze(base: str, spectrum: str) -> dict[str, object]:
    analyze(Layers(Checkpoint(base)), spectrum, pick("auto"))
    return {}


def run_train_predictor(base: str, spectrum: str, predictor: str, kind: str) -> dict[str, object]:
    settings = Predictor.model_validate({"kind": kind})
    curves = train_predictors(Layers(Checkpoint(base)), Spectrum(spectrum), predictor, settings, 0, pick("auto"))
    return {"losses": {name: curve[-1] for name, curve in curves.items()}}


def run_expand(base: str, out: str, method: str, first: str, last: str, *learned: str) -> dict[str, object]:
    known = Learned(*learned) if learned else None
    placement = Placement(first=int(first), last=int(last))
    return {"layers": expand(base, out, method, placement, learned=known)["layers_after"]}


if __name__ == "__main__":
    step, *arguments = sys.argv[1:]
    start = time.monotonic()
    steps: dict[str, Callable[..., dict[str, object]]] = {
        "analyze": run_analyze,
        "train_predictor": run_train_predictor,
        "expand": run_expand,
    }
    result = steps[step](*arguments)
    size = sum(file.stat().st_size for file in Path(arguments[0]).glob("*.safetensors"))
    print(json.dumps({"seconds": time.monotonic() - start, "base_bytes": size, **result}))
