"""Race the methods of `compare` over its seeds, as DVC experiments; one table and one figure (`make compare`).

Not a stage of dvc.yaml: each run is the pipeline itself, up to pretrain.
"""

import io
import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from common import PARAMS, run
from experiments import Repository, copy_of, need_known, open_repository, run_experiment
from lesa.comparison import LEARNING, Run, check, run_of, write_comparison
from lesa.errors import LesaError
from lesa.settings import Contestant, Settings, parse

TARGET = "pretrain"
STAGES = (*LEARNING, "choose", "expand", TARGET)
UNUSED = {"compare", "evaluate"}  # sections that change nothing up to pretrain


@dataclass(frozen=True)
class Entry:
    """A run to make: of a contestant with a seed."""

    contestant: Contestant
    seed: int
    settings: Settings

    @property
    def name(self) -> str:
        """Of the experiment."""
        return f"{self.contestant.name}-seed{self.seed}"

    @property
    def changes(self) -> dict[str, Any]:
        """What differs from params.yaml, by dotted key."""
        return {**self.contestant.changes, "seed": self.seed}


def main(settings: Settings, out: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # SIGINT too: a shell's background jobs ignore it
        signal.signal(number, interrupt)
    repository = open_repository()
    compare = settings.compare
    entries = [entry(contestant, seed) for seed in compare.seeds for contestant in compare.methods]
    entries.sort(key=lambda one: one.contestant.name != compare.reference)  # what the others are checked against
    kept = {one.name for one in entries if is_current(repository, one)}
    try:
        failed = run_missing(repository, entries, kept, compare.reference)
    except KeyboardInterrupt:
        raise LesaError(f"stopped; {len(kept)} of {len(entries)} runs are kept, make compare does the rest") from None
    if failed:
        raise LesaError(
            f"there is no table before all runs are there, and {len(failed)} of {len(entries)} failed (the others are "
            f"kept): " + "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        )
    runs = [read(repository, one) for one in entries]
    write_comparison(out, runs, compare.methods, compare.reference, repository.commit[:12])
    print(f"compare: the table is in {out / 'compare.md'}")


def interrupt(*signal_and_frame: object) -> None:
    raise KeyboardInterrupt


def entry(contestant: Contestant, seed: int) -> Entry:
    """A run whose settings and files have been checked."""
    wanted = parse(
        PARAMS.read_text(), f"{PARAMS} as {contestant.name} of compare.methods", {**contestant.changes, "seed": seed}
    )
    need_known(wanted.base.model, "base.model")
    need_known(wanted.corpus.source, "corpus.source")
    return Entry(contestant, seed, wanted)


def is_current(repository: Repository, one: Entry) -> bool:
    """Whether the run is there, made with today's code and settings."""
    text = repository.read(one.name, str(PARAMS)) if repository.has(one.name) else None
    if text is None or repository.read(one.name, f"reports/{TARGET}/metrics.json") is None:
        return False
    try:
        made = parse(text, one.name)
    except LesaError:  # with settings that today's code does not know
        return False
    return made.model_dump(exclude=UNUSED) == one.settings.model_dump(exclude=UNUSED)


def run_missing(repository: Repository, entries: list[Entry], kept: set[str], reference: str) -> dict[str, str]:
    """Run what is not in ``kept`` and put it there; why each run that failed did."""
    missing = [one for one in entries if one.name not in kept]
    print(f"compare: {len(entries)} runs, {len(missing)} of them to do", flush=True)
    if not missing:
        return {}
    failed = {}
    started = time.monotonic()
    measures = {one.seed: one for one in entries if one.contestant.name == reference}
    with copy_of(repository) as copy:
        for number, one in enumerate(missing):
            print(f"compare: run {number + 1} of {len(missing)}, {one.name}", end="")
            print(left(time.monotonic() - started, number, len(missing)), flush=True)
            if reason := run_experiment(repository, copy, one.name, one.changes, TARGET):
                print(f"compare: {one.name} failed: {reason}", flush=True)
                failed[one.name] = reason
                continue
            kept.add(one.name)
            measure = measures[one.seed]
            if measure.name in kept:
                check(read(repository, one), read(repository, measure), one.contestant)
    return failed


def left(seconds: float, done: int, all_: int) -> str:
    """An estimate of the time that is left, from that of the runs so far."""
    if not done:
        return ""
    minutes = round(seconds / done * (all_ - done) / 60)
    return f"; about {minutes} min left for all" if minutes else "; less than a minute left for all"


def read(repository: Repository, one: Entry) -> Run:
    """What a run measured, from its experiment."""

    def file(path: str) -> str:
        text = repository.read(one.name, path)
        if text is None:
            raise LesaError(f"the experiment {one.name} has no {path}; dvc exp remove {one.name} and run again")
        return text

    stages = {stage: json.loads(file(f"reports/{stage}/metrics.json")) for stage in STAGES}
    heldout = pd.read_csv(io.StringIO(file(f"reports/{TARGET}/heldout.csv")))
    return run_of(one.contestant, one.seed, stages, heldout)


if __name__ == "__main__":
    run(main)
