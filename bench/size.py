"""Time and peak memory of lesa's three steps on random checkpoints in the shape of Llama-3-8B."""

import json
import shutil
from pathlib import Path

import pandas as pd

from measure import measured, script

WIDTH, DEPTH = 1024, 4
WIDTHS = (512, 1024, 2048)
DEPTHS = (4, 8, 16, 32)
FULL_WIDTH = 4096
PLAIN_LAYERS = 32


def measure(scratch: Path, kind: str, full_layers: int) -> pd.DataFrame:
    """One row a step of each checkpoint: the sweeps over depth and width, and the full width with some layers."""
    shapes = [(WIDTH, depth) for depth in DEPTHS]
    shapes += [(width, DEPTH) for width in WIDTHS if width != WIDTH]
    return pd.DataFrame(
        [row for shape in [*shapes, (FULL_WIDTH, full_layers)] for row in _steps(scratch, *shape, kind)]
    )


def peak_gib(table: pd.DataFrame, hidden_size: int) -> float:
    """Largest peak of the three steps at one width."""
    return float(table.loc[table["hidden_size"] == hidden_size, "peak_memory_gib"].max())


def plain_gib(hidden_size: int, layers: int) -> tuple[float, float]:
    """What the released recipe must hold, by calculation: the model in float32, and the widest matrix beside it."""
    inner, keys = hidden_size * 7 // 2, hidden_size // 4
    layer = 2 * hidden_size**2 + 2 * keys * hidden_size + 3 * inner * hidden_size
    embeddings = 2 * 128256 * hidden_size
    return 4 * (layers * layer + embeddings) / 2**30, 4 * hidden_size * inner * layers / 2**30


def _steps(scratch: Path, hidden_size: int, layers: int, kind: str) -> list[dict[str, object]]:
    base, spectrum, predictor, out = (scratch / name for name in ("random", "spectrum", "predictor", "expanded"))
    measured(script("random_model", base, hidden_size, layers))
    commands = {
        "analyze": script("recipe", "analyze", base, spectrum),
        "train_predictor": script("recipe", "train_predictor", base, spectrum, predictor, kind),
        "expand": script("recipe", "expand", base, out, "lesa", 0, layers - 1, spectrum, predictor),
    }
    rows = []
    for step, command in commands.items():
        run = measured(command)
        found = json.loads(run.output.splitlines()[-1])
        rows.append(
            {
                "hidden_size": hidden_size,
                "layers": layers,
                "step": step,
                "seconds": found["seconds"],
                "peak_memory_gib": run.peak_memory_bytes / 2**30,
                "checkpoint_gib": found["base_bytes"] / 2**30,
            }
        )
    for folder in (base, spectrum, predictor, out):
        shutil.rmtree(folder)
    return rows
