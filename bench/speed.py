"""The default model made deeper: lesa's three steps against the released recipe written plainly."""

import json
from pathlib import Path

import pandas as pd

from measure import measured, script

FIRST, LAST = 14, 29
STEPS = ("analyze", "train_predictor", "expand")


def measure(base: Path, scratch: Path) -> pd.DataFrame:
    """One row a way of doing it: seconds of each step, their sum, the predictors' mean final loss, peak memory.

    Seconds are of the work itself, without the start of Python and its imports, on both sides.
    """
    rows = [_released(base, scratch)]
    for kind in ("mlp", "linear"):
        rows.append(_ours(base, scratch, kind))
    return pd.DataFrame(rows)


def speedup(table: pd.DataFrame) -> float:
    """Time of the released recipe over that of the fastest of ours that reaches its loss for every weight kind."""
    plain = table.iloc[0]
    good = [row for _, row in table.iloc[1:].iterrows() if all(row[k] <= plain[k] for k in _losses(table))]
    return float(plain["seconds"] / min(row["seconds"] for row in good)) if good else 0.0


def _losses(table: pd.DataFrame) -> list[str]:
    return [column for column in table.columns if column.startswith("loss ")]


def _released(base: Path, scratch: Path) -> dict[str, object]:
    run = measured(script("released", base, scratch / "released", FIRST, LAST))
    found = json.loads(run.output.splitlines()[-1])
    return _row("released recipe, plainly", found["seconds"], found["losses"], run.peak_memory_bytes)


def _ours(base: Path, scratch: Path, kind: str) -> dict[str, object]:
    spectrum, predictor, out = (scratch / name for name in ("spectrum", "predictor", "expanded"))
    runs = [
        measured(script("recipe", "analyze", base, spectrum)),
        measured(script("recipe", "train_predictor", base, spectrum, predictor, kind)),
        measured(script("recipe", "expand", base, out, "lesa", FIRST, LAST, spectrum, predictor)),
    ]
    found = [json.loads(run.output.splitlines()[-1]) for run in runs]
    seconds = {step: each["seconds"] for step, each in zip(STEPS, found, strict=True)}
    name = f"lesa, predictor.kind {kind}"
    return _row(name, seconds, found[1]["losses"], max(run.peak_memory_bytes for run in runs))


def _row(name: str, seconds: dict[str, float], losses: dict[str, float], memory: int) -> dict[str, object]:
    return {
        "way": name,
        **{step: seconds[step] for step in STEPS},
        "seconds": sum(seconds.values()),
        **{f"loss {kind}": loss for kind, loss in losses.items()},
        "peak_memory_gib": memory / 2**30,
    }
