"""What training only the new layers saves: tokens per second and peak memory against training every weight.

    python bench/cpt.py models/expanded data/corpus

Both trainings start from the same expanded checkpoint with the same batch and precision and take turns. Each runs in a
process of its own, so that the peak is its own, and its first step does not count.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import torch

from lesa.devices import pick
from lesa.pretraining import pretrain
from lesa.settings import Pretrain

TURNS = 2
DEVICE = "auto"


def measure(model: Path, corpus: Path, steps: int) -> dict[str, Any]:
    """Train an expanded checkpoint in four ways: new layers or all weights, with and without checkpointing.

    Args:
        model: a checkpoint with ``expansion.json``.
        corpus: token blocks as ``lesa.pretraining.pretrain`` reads them.
        steps: of each training, at least 2.

    Returns:
        ``cpt_speedup_new_only`` (tokens per second of ``new`` by those of ``all``, median over turns, without
        checkpointing), and for ``new``, ``all``, ``new_checkpointed`` and ``all_checkpointed`` the
        ``tokens_per_second`` (median) and ``peak_memory_bytes`` (largest; of the GPU where there is one, else of the
        process).
    """
    ways = {
        f"{train}{'_checkpointed' if checkpointing else ''}": {"train": train, "gradient_checkpointing": checkpointing}
        for checkpointing in (False, True)
        for train in ("new", "all")
    }
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(TURNS):
        for way, settings in ways.items():
            runs[way].append(_run_alone(model, corpus, {**settings, "steps": steps}))
    result: dict[str, Any] = {
        way: {
            "tokens_per_second": median(run["tokens_per_second"] for run in done),
            "peak_memory_bytes": max(run["peak_memory_bytes"] for run in done),
        }
        for way, done in runs.items()
    }
    speedup = result["new"]["tokens_per_second"] / result["all"]["tokens_per_second"]
    return {"cpt_speedup_new_only": speedup, **result}


def rows(measured: dict[str, Any]) -> pd.DataFrame:
    """One row a training: ``train``, ``gradient_checkpointing``, ``tokens_per_second``, ``peak_memory_gib``."""
    return pd.DataFrame(
        {
            "train": way.partition("_")[0],
            "gradient_checkpointing": way.endswith("_checkpointed"),
            "tokens_per_second": found["tokens_per_second"],
            "peak_memory_gib": found["peak_memory_bytes"] / 2**30,
        }
        for way, found in measured.items()
        if isinstance(found, dict)
    )


def write_blocks(corpus: Path, vocabulary: int, sequence_length: int) -> None:
    """Random tokens in a corpus folder's layout: what the text is changes no time and no memory."""
    rng = np.random.default_rng(0)
    for side, blocks in (("train", 64), ("heldout", 2)):
        (corpus / side).mkdir(parents=True)
        tokens = rng.integers(vocabulary, size=(blocks, sequence_length), dtype=np.int32)
        np.save(corpus / side / "00000.npy", tokens)


def _run_alone(model: Path, corpus: Path, settings: dict[str, Any]) -> dict[str, float]:
    command = [sys.executable, __file__, str(model), str(corpus), "--settings", json.dumps(settings)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _run(model: Path, corpus: Path, settings: dict[str, Any]) -> dict[str, float]:
    steps = settings["steps"]
    recipe = Pretrain(**settings, warmup_steps=0, eval_every=steps, eval_blocks=1, save_every=steps)
    with tempfile.TemporaryDirectory(prefix="lesa-bench-") as folder:
        out = Path(folder)
        metrics = pretrain(model, corpus, out / "out", out / "report", recipe, 0, DEVICE, out / "checkpoints")
    on_gpu = pick(DEVICE).type == "cuda"
    peak = torch.cuda.max_memory_allocated() if on_gpu else metrics["peak_memory_bytes"]
    return {"tokens_per_second": metrics["tokens_per_second"], "peak_memory_bytes": peak}


def main() -> None:
    """Print the measurement of the command line's checkpoint and corpus as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--settings", type=json.loads, help="train once, with these settings, in this process")
    arguments = parser.parse_args()
    if arguments.settings:
        print(json.dumps(_run(arguments.model, arguments.corpus, arguments.settings)))
    else:
        print(json.dumps(measure(arguments.model, arguments.corpus, arguments.steps), indent=2))


if __name__ == "__main__":
    main()
