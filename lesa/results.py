"""What the stages of one run measured, read from its reports folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lesa.files import read_json
from lesa.settings import AUTO, Settings

STAGES = ("download", "prepare_corpus", "prepare_tasks", "analyze", "train_predictor", "choose", "expand", "pretrain")
MODELS = ("base", "expanded", "pretrained")
TABLES = {
    "spectrum": "analyze/spectrum.csv",
    "continuity": "analyze/continuity.csv",
    "coefficients": "analyze/coefficients.csv",
    "predictor_loss": "train_predictor/loss.csv",
    "train": "pretrain/train.csv",
    "heldout": "pretrain/heldout.csv",
}


@dataclass(frozen=True)
class Results:
    """Metrics and tables; what a run did not write is missing or empty.

    Attributes:
        stages: each stage's metrics.json by the stage's name.
        models: ``base``, ``expanded`` and ``pretrained``: the evaluation of each.
        tables: non-empty tables by the names of ``TABLES``.
    """

    stages: dict[str, dict[str, Any]]
    models: dict[str, dict[str, Any]]
    tables: dict[str, pd.DataFrame]

    def method(self, settings: Settings) -> str:
        """The method of the expansion; with ``expansion.method: auto`` the one that was chosen, once it was."""
        chosen: str = self.stages.get("choose", {}).get("method", settings.expansion.method)
        return chosen if settings.expansion.method == AUTO else settings.expansion.method

    @property
    def skills(self) -> pd.DataFrame:
        """Held-out skill, a row a kind; ``predictor`` and one column a control, NaN where not measured."""
        rows = {
            kind: {"predictor": values["heldout_skill"], **(values.get("controls") or {})}
            for kind, values in self.stages.get("train_predictor", {}).items()
            if isinstance(values, dict)
        }
        table = pd.DataFrame.from_dict(rows, orient="index", dtype=float)
        return table.dropna(subset=["predictor"]) if len(table) else table

    @property
    def scores(self) -> pd.DataFrame:
        """Columns ``task``, ``model``, ``metric``, ``score``, ``stderr``, ``chance`` (NaN if unknown)."""
        rows = [
            (task, model, score.get("metric", "acc"), score["acc"], score.get("stderr"), score.get("chance"))
            for model, result in self.models.items()
            for task, score in result["tasks"].items()
        ]
        table = pd.DataFrame(rows, columns=["task", "model", "metric", "score", "stderr", "chance"])
        return table.astype({"score": float, "stderr": float, "chance": float})


def read(reports: str | Path) -> Results:
    """Read a reports folder."""
    reports = Path(reports)
    metrics = {name: reports / name / "metrics.json" for name in STAGES}
    models = {name: reports / "evaluate" / f"{name}.json" for name in MODELS}
    tables = {name: pd.read_csv(reports / file) for name, file in TABLES.items() if (reports / file).exists()}
    return Results(
        {name: read_json(file) for name, file in metrics.items() if file.exists()},
        {name: read_json(file) for name, file in models.items() if file.exists()},
        {name: table for name, table in tables.items() if len(table)},
    )
