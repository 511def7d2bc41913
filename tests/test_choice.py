from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import tiny_llama
from lesa import choice
from lesa.choice import Run, choose, last_runs, schedule, winner
from lesa.errors import DivergedError, LesaError
from lesa.expansion import expand
from lesa.plan import Placement
from lesa.pretraining import pretrain
from lesa.settings import Pretrain

RECIPE = Pretrain(batch_size=2, gradient_accumulation=2, learning_rate=0.01, precision="fp32", eval_blocks=3)


@pytest.mark.parametrize(
    ("candidates", "rounds"),
    [(2, [(2, 10)]), (3, [(3, 10), (2, 20)]), (4, [(4, 10), (2, 20)]), (5, [(5, 10), (3, 20), (2, 40)])],
)
def test_the_better_half_goes_on_for_twice_as_long(candidates: int, rounds: list[tuple[int, int]]) -> None:
    assert schedule(candidates, 10) == rounds


def test_the_winner_is_the_best_of_the_last_round() -> None:
    runs = [Run("a", 1, 5, 30.0, 9.0), Run("b", 1, 5, 30.0, 12.0), Run("c", 1, 5, 30.0, 11.0)]
    runs += [Run("a", 2, 10, 30.0, 8.5), Run("c", 2, 10, 30.0, 8.0)]
    assert winner(runs) == "c"
    assert list(last_runs(runs)) == ["c", "a", "b"]
    assert last_runs(runs)["a"] == {"round": 2, "steps": 10, "initial_perplexity": 30.0, "perplexity": 8.5}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """40 training blocks of which the last three hold other tokens than the rest, and a held-out part of garbage."""
    rng = np.random.default_rng(0)
    (tmp_path / "corpus" / "train").mkdir(parents=True)
    (tmp_path / "corpus" / "heldout").mkdir()
    blocks = np.concatenate([rng.integers(3, 7, (37, 16)), rng.integers(20, 24, (3, 16))])
    for number, part in enumerate(np.split(blocks, [25])):
        np.save(tmp_path / "corpus" / "train" / f"{number:05}.npy", part.astype(np.uint16))
    (tmp_path / "corpus" / "heldout" / "00000.npy").write_bytes(b"not read")
    return tmp_path / "corpus"


def race(base: Path, corpus: Path, work: Path) -> tuple[list[Run], list[str]]:
    made = []

    def make(method: str, folder: Path) -> None:
        made.append(method)
        expand(base, folder, method, Placement(first=2, last=4))

    return choose(["duplicate", "llama_pro", "interpolate"], make, corpus, work, RECIPE, 2, 0, "cpu"), made


def test_a_race_takes_the_better_half_on_and_leaves_nothing_behind(
    save_tiny: Callable[..., Path], corpus: Path, tmp_path: Path
) -> None:
    base = save_tiny(tiny_llama())
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "left").write_text("by a run that was killed")
    runs, made = race(base, corpus, tmp_path / "work")
    assert made == ["duplicate", "llama_pro", "interpolate"]
    assert not (tmp_path / "work").exists()
    assert [(run.round, run.steps) for run in runs] == [(1, 2)] * 3 + [(2, 4)] * 2
    first = sorted(runs[:3], key=lambda run: run.perplexity)
    assert {run.method for run in runs[3:]} == {run.method for run in first[:2]}
    assert winner(runs) == min(runs[3:], key=lambda run: run.perplexity).method
    assert race(base, corpus, tmp_path / "work")[0] == runs


def test_what_is_measured_is_not_trained_on_and_the_held_out_text_is_left_alone(
    save_tiny: Callable[..., Path], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def watched(model: Path, blocks: Path, *rest: Any) -> dict[str, Any]:
        seen.append({side: np.load(blocks / side / "00000.npy") for side in ("train", "heldout")})
        return pretrain(model, blocks, *rest)

    monkeypatch.setattr(choice, "pretrain", watched)
    race(save_tiny(tiny_llama()), corpus, tmp_path / "work")
    everything = np.concatenate([np.load(file) for file in sorted((corpus / "train").iterdir())])
    for blocks in seen:  # four steps of the last round take four blocks each
        assert np.array_equal(blocks["train"], everything[:16])
        assert np.array_equal(blocks["heldout"], everything[37:])


def test_a_candidate_that_diverges_drops_out(
    save_tiny: Callable[..., Path], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, spoilt = save_tiny(tiny_llama()), {"duplicate"}

    def some_diverge(model: Path, *rest: Any) -> dict[str, Any]:
        if Path(model).name in spoilt:
            raise DivergedError("the loss is nan")
        return pretrain(model, *rest)

    monkeypatch.setattr(choice, "pretrain", some_diverge)
    runs, _ = race(base, corpus, tmp_path / "work")
    assert {run.method for run in runs} == {"llama_pro", "interpolate"}
    spoilt |= {"llama_pro", "interpolate"}
    with pytest.raises(DivergedError, match=r"no method of expansion\.candidates trains"):
        race(base, corpus, tmp_path / "work")


def test_too_little_text_is_refused(save_tiny: Callable[..., Path], corpus: Path, tmp_path: Path) -> None:
    (corpus / "train" / "00000.npy").unlink()
    np.save(corpus / "train" / "00001.npy", np.full((3, 16), 5, np.uint16))
    with pytest.raises(LesaError, match=r"measures on 3 training blocks \(pretrain\.eval_blocks\), and .* has 3"):
        race(save_tiny(tiny_llama()), corpus, tmp_path / "work")
