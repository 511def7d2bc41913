"""Which method to expand with, found by a short race: successive halving on text that is in no other measurement.

Every candidate is expanded and trained for a few steps, the worse half drops out, the rest starts again with twice the
steps, until one is left (Jamieson and Talwalkar, arXiv 1502.07943).
"""

import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from lesa.errors import DivergedError, LesaError
from lesa.pretraining import Blocks, pretrain
from lesa.settings import Pretrain


@dataclass(frozen=True)
class Run:
    """One candidate's training in one round of the race; perplexities on the blocks kept from training."""

    method: str
    round: int
    steps: int
    initial_perplexity: float
    perplexity: float


def schedule(candidates: int, steps: int) -> list[tuple[int, int]]:
    """For every round, how many candidates run and for how many steps each.

    >>> schedule(5, 10)
    [(5, 10), (3, 20), (2, 40)]
    """
    rounds = []
    while candidates > 1:
        rounds.append((candidates, steps))
        candidates, steps = math.ceil(candidates / 2), 2 * steps
    return rounds


def choose(
    candidates: Sequence[str],
    expand: Callable[[str, Path], object],
    corpus: str | Path,
    work: str | Path,
    settings: Pretrain,
    steps: int,
    seed: int,
    device: str,
) -> list[Run]:
    """Race the candidates; the last run with the lowest perplexity is the winner's (see ``winner``).

    All train on the same blocks in the same order. They are measured on the last ``settings.eval_blocks`` blocks of the
    training text, which no candidate trains on; the held-out text is not touched, so what is measured on it later is
    not what the choice was made by. A candidate whose loss is no longer a number drops out. Each trains on one process,
    whatever ``settings.launch`` says.

    Args:
        candidates: names of methods, at least two.
        expand: writes the deeper model of a method into a folder.
        corpus: a folder with ``train/``, token blocks in ``.npy`` files.
        work: a folder for models and trainings, emptied first and removed at the end.
        settings: how to train; ``steps`` and the intervals of measuring and saving are the race's own.
        steps: of the first round.
        seed: of the order of the blocks.
        device: ``cpu``, ``cuda`` or ``auto``.

    Returns:
        Every run, in the order they were made.

    Raises:
        LesaError: the text is too short, or whatever the expansion or the training raises.
    """
    work = Path(work)
    shutil.rmtree(work, ignore_errors=True)
    rounds = schedule(len(candidates), steps)
    _write_blocks(Path(corpus), work / "corpus", settings, rounds[-1][1])
    runs: list[Run] = []
    remaining = list(candidates)
    with tqdm(total=sum(count * each for count, each in rounds), desc="race", unit="step") as progress:
        for number, (_, budget) in enumerate(rounds, start=1):
            for method in remaining:
                progress.set_description(f"race, round {number} of {len(rounds)}, {method}")
                with suppress(DivergedError):
                    runs.append(_train(method, number, expand, work, settings, budget, seed, device))
                progress.update(budget)
            ranked = ranking(runs, number)
            if not ranked:
                raise DivergedError(
                    "no method of expansion.candidates trains; a smaller pretrain.learning_rate would be right"
                )
            remaining = [run.method for run in ranked[: math.ceil(len(ranked) / 2)]]
            for method in set(candidates) - set(remaining):
                shutil.rmtree(work / method, ignore_errors=True)
    shutil.rmtree(work)
    return runs


def ranking(runs: Sequence[Run], number: int) -> list[Run]:
    """The runs of one round, best first; of two equal ones, the earlier."""
    return sorted((run for run in runs if run.round == number), key=lambda run: run.perplexity)


def winner(runs: Sequence[Run]) -> str:
    """The best method of the last round."""
    return ranking(runs, max(run.round for run in runs))[0].method


def last_runs(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """For every method the figures of its last run, best method first."""
    last = {run.method: run for run in runs}
    ordered = sorted(last.values(), key=lambda run: (-run.round, run.perplexity))
    return {run.method: {name: value for name, value in asdict(run).items() if name != "method"} for run in ordered}


def _train(
    method: str,
    number: int,
    expand: Callable[[str, Path], object],
    work: Path,
    settings: Pretrain,
    steps: int,
    seed: int,
    device: str,
) -> Run:
    model, trained = work / method, work / "trained"
    if not model.exists():
        expand(method, model)
    recipe = {"steps": steps, "eval_every": steps, "save_every": steps, "launch": None, "target_perplexity": None}
    recipe["warmup_steps"] = min(settings.warmup_steps, steps // 2)
    metrics: dict[str, Any] = pretrain(
        model,
        work / "corpus",
        trained,
        work / "report",
        settings.model_copy(update=recipe),
        seed,
        device,
        work / "checkpoints",
    )
    shutil.rmtree(trained)
    return Run(method, number, steps, metrics["initial_heldout_perplexity"], metrics["heldout_perplexity"])


def _write_blocks(corpus: Path, out: Path, settings: Pretrain, steps: int) -> None:
    """The first blocks of the training text, enough for the longest training if there are, and the last to measure."""
    blocks = Blocks(corpus / "train")
    measured = settings.eval_blocks
    wanted = steps * settings.batch_size * settings.gradient_accumulation
    if len(blocks) <= measured:
        raise LesaError(
            f"expansion.method is auto, which measures on {measured} training blocks (pretrain.eval_blocks), and "
            f"{corpus} has {len(blocks)}; use more text, or name a method"
        )
    sides = {
        "train": range(min(wanted, len(blocks) - measured)),
        "heldout": range(len(blocks) - measured, len(blocks)),
    }
    for side, numbers in sides.items():
        (out / side).mkdir(parents=True)
        taken = np.stack([blocks[number]["input_ids"].numpy() for number in numbers])
        np.save(out / side / "00000.npy", taken.astype(np.uint32))
