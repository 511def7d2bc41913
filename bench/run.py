"""Measure and write `reports/bench`: tables, the scaling figure, metrics.json and a page. See `make bench`.

Usage: run.py OUT MERGEKIT [PART ...]. Without parts all are measured; figures of other parts stay as they were.
"""

import os
import platform
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import transformers

import corpus
import cpt
import page
import passthrough
import size
import speed
from lesa.checkpoint import read_config
from lesa.expansion import expand
from lesa.files import read_json, whole_folder, write_json
from lesa.settings import load
from lesa.sources import fetch_base
from random_model import write

SCRATCH = Path("data/bench")
FULL_LAYERS = 4
CPT_STEPS = 8
CORPUS_MB = [100, 200, 300]
CORPUS_PROCESSES = 2


def main(out: Path, mergekit: Path, wanted: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(SCRATCH, ignore_errors=True)
    SCRATCH.mkdir(parents=True)
    for part in wanted or PARTS:
        print(f"bench: {part}", flush=True)
        PARTS[part](out, mergekit)
        page.write(out)
    shutil.rmtree(SCRATCH)


def run_speed(out: Path, mergekit: Path) -> None:
    table = speed.measure(base(), SCRATCH)
    save(out, "speed", table, init_speedup=speed.speedup(table))


def run_size(out: Path, mergekit: Path) -> None:
    table = size.measure(SCRATCH, load().predictor.kind, FULL_LAYERS)
    peak = size.peak_gib(table, size.FULL_WIDTH)
    save(out, "size", table, peak_memory_gib_8b_shape=peak, layers_8b_shape=FULL_LAYERS)
    page.draw_scaling(table, out / "scaling.png")


def run_copy(out: Path, mergekit: Path) -> None:
    write(SCRATCH / "wide", size.FULL_WIDTH, FULL_LAYERS)
    table = passthrough.measure(SCRATCH / "wide", SCRATCH, mergekit, FULL_LAYERS, 0, FULL_LAYERS - 1)
    time, memory = passthrough.ratios(table)
    save(out, "copy", table, mergekit_time_ratio=time, mergekit_memory_ratio=memory)


def run_pretraining(out: Path, mergekit: Path) -> None:
    settings, model, text = load(), SCRATCH / "deeper", SCRATCH / "corpus"
    expand(base(), model, "llama_pro", settings.expansion.places)
    cpt.write_blocks(text, read_config(model)["vocab_size"], settings.corpus.sequence_length)
    measured = cpt.measure(model, text, CPT_STEPS)
    save(out, "pretraining", cpt.rows(measured), cpt_speedup_new_only=measured["cpt_speedup_new_only"])


def run_corpus(out: Path, mergekit: Path) -> None:
    folder = SCRATCH / "texts"
    folder.mkdir()
    save(out, "corpus", corpus.measure(folder, CORPUS_MB, CORPUS_PROCESSES, base()))


def base() -> Path:
    """The base model of params.yaml, fetched once."""
    folder = SCRATCH / "base"
    if not folder.exists():
        with whole_folder(folder) as partial:
            fetch_base(load().base, partial)
    return folder


def save(out: Path, part: str, table: pd.DataFrame, **metrics: float) -> None:
    table.to_csv(out / f"{part}.csv", index=False, float_format="%.6g")
    known = read_json(out / "metrics.json") if (out / "metrics.json").exists() else {}
    machine = {
        "part_of": part,
        "date": datetime.now(UTC).date().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    write_json(out / "metrics.json", {**known, **metrics})
    write_json(out / f"{part}.machine.json", machine)


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


PARTS: dict[str, Callable[[Path, Path], Any]] = {
    "speed": run_speed,
    "size": run_size,
    "copy": run_copy,
    "pretraining": run_pretraining,
    "corpus": run_corpus,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
