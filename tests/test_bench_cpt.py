from pathlib import Path
from typing import Any

import pytest

from test_pretraining import folder

__all__ = ["folder"]

BENCH = Path(__file__).parent.parent / "bench"


def test_one_training_measures_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import cpt

    run = cpt._run_alone(folder / "expanded", folder / "corpus", {"train": "all", "steps": 2})
    assert run["tokens_per_second"] > 0
    assert run["peak_memory_bytes"] > 1e8  # torch alone takes as much


def test_turns_are_put_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import cpt

    order = []

    def run(model: Path, corpus: Path, settings: dict[str, Any]) -> dict[str, float]:
        order.append((settings["train"], settings["gradient_checkpointing"]))
        turn = (len(order) - 1) // 4
        speed = {"new": 30.0, "all": 10.0}[settings["train"]] + 2 * turn
        return {"tokens_per_second": speed, "peak_memory_bytes": 100.0 + turn}

    monkeypatch.setattr(cpt, "_run_alone", run)
    measured = cpt.measure(Path("model"), Path("corpus"), 3)
    assert order == [("new", False), ("all", False), ("new", True), ("all", True)] * 2
    assert measured["cpt_speedup_new_only"] == pytest.approx(31 / 11)
    assert measured["all_checkpointed"] == {"tokens_per_second": 11.0, "peak_memory_bytes": 101.0}


def test_a_row_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import cpt

    one = {"tokens_per_second": 5.0, "peak_memory_bytes": 2**31}
    table = cpt.rows({"cpt_speedup_new_only": 2.0, "new": one, "all_checkpointed": one})
    assert table.to_dict("records") == [
        {"train": "new", "gradient_checkpointing": False, "tokens_per_second": 5.0, "peak_memory_gib": 2.0},
        {"train": "all", "gradient_checkpointing": True, "tokens_per_second": 5.0, "peak_memory_gib": 2.0},
    ]
