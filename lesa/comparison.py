"""A race between methods as a page: a table, a figure, and in plain words who won by how much."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader

from lesa import figures, race
from lesa.errors import LesaError
from lesa.fairness import FACTS, differences
from lesa.files import whole_folder, write_json
from lesa.initializers import get
from lesa.settings import AUTO, Contestant

LEARNING = ("analyze", "train_predictor")
"""The stages that only methods with a predictor need; all of them need ``expand``."""
GIB = 2**30


@dataclass(frozen=True)
class Run:
    """One contestant with one seed.

    Attributes:
        name: the contestant's.
        seed: of the run.
        facts: what has to be the same for all, the keys of ``lesa.fairness.FACTS``.
        heldout: columns ``tokens``, ``heldout_perplexity``.
        init_seconds: of all that the method needs to make its new layers.
        init_peak_memory_bytes: the largest of the steps of that.
    """

    name: str
    seed: int
    facts: dict[str, Any]
    heldout: pd.DataFrame
    init_seconds: float
    init_peak_memory_bytes: int


def run_of(contestant: Contestant, seed: int, stages: Mapping[str, Mapping[str, Any]], heldout: pd.DataFrame) -> Run:
    """A run from the metrics of its stages.

    Args:
        contestant: whose run.
        seed: of the run.
        stages: the metrics.json of ``analyze``, ``train_predictor``, ``choose``, ``expand`` and ``pretrain``.
        heldout: the held-out curve of ``pretrain``.
    """
    expand, pretrain = stages["expand"], stages["pretrain"]
    facts = {
        **{name: pretrain[name] for name in ("tokens", "trained_parameters", "order_sha256", "heldout_sha256")},
        "new_layers": expand["layers_after"] - expand["layers_before"],
    }
    steps = [stages[name] for name in _making(contestant.method)]
    return Run(
        contestant.name,
        seed,
        facts,
        heldout,
        sum(step["seconds"] for step in steps),
        max(step["peak_memory_bytes"] for step in steps),
    )


def _making(method: str) -> tuple[str, ...]:
    """The stages that a method needs to make its new layers; auto has its candidates learn and race first."""
    if method == AUTO:
        return (*LEARNING, "choose", "expand")
    return (*LEARNING, "expand") if get(method).learned else ("expand",)


def check(run: Run, reference: Run, contestant: Contestant) -> list[str]:
    """What differs between a run and the reference's of the same seed.

    Raises:
        LesaError: something does, and the contestant has no settings of its own that could be the reason.
    """
    found = differences(run.facts, reference.facts)
    if found and not contestant.own:
        raise LesaError(
            f"{run.name} and {reference.name} did not run under the same conditions with seed {run.seed}: they differ "
            f"in {', '.join(found)}; to race them all the same, give {run.name} settings of its own in compare.methods"
        )
    return found


def write_comparison(
    out: str | Path, runs: Sequence[Run], contestants: Sequence[Contestant], reference: str, revision: str
) -> None:
    """Write ``metrics.json``, ``curves.csv``, ``compare.png`` and ``compare.md`` into a folder, all of them or none.

    Args:
        out: the folder, which is replaced.
        runs: every contestant with every seed.
        contestants: in the order of the table.
        reference: the contestant that the others are held against.
        revision: the commit that the runs belong to.

    Raises:
        LesaError: the runs did not run under the same conditions (see ``check``).
    """
    by_key = {(run.name, run.seed): run for run in runs}
    seeds = list(dict.fromkeys(run.seed for run in runs))
    names = [contestant.name for contestant in contestants]
    notes = {contestant.name: _notes(contestant, by_key, seeds, reference) for contestant in contestants}
    texts = {name: {by_key[name, seed].facts["heldout_sha256"] for seed in seeds} for name in names}
    if len(texts[reference]) > 1:
        raise LesaError(f"the runs of {reference} were measured on other held-out blocks with each seed")
    curves = _curves([by_key[name, seed] for name in names for seed in seeds])
    initial, finals = race.first(curves), race.final(curves)
    reached = race.tokens_to_level(curves, finals[reference])
    metrics: dict[str, dict[str, Any]] = {
        name: {
            "initial_perplexity": float(initial[name].mean()),
            "perplexity": finals[name].tolist(),
            "tokens_to_target": [None if math.isnan(tokens) else round(tokens) for tokens in reached[name]],
            "init_seconds": sum(by_key[name, seed].init_seconds for seed in seeds) / len(seeds),
            "init_peak_memory_bytes": max(by_key[name, seed].init_peak_memory_bytes for seed in seeds),
        }
        for name in names
    }
    against: dict[Any, dict[Any, float]] = race.against(finals, reference).to_dict("index")
    first = by_key[reference, seeds[0]]
    page = {
        "rows": [
            [
                name,
                _mean(initial[name]),
                _mean(finals[name]),
                _difference(against[name]) if name in against else "–",
                _tokens(reached[name]),
                f"{metrics[name]['init_seconds']:,.1f}",
                f"{metrics[name]['init_peak_memory_bytes'] / GIB:,.2f}",
            ]
            for name in names
        ],
        "verdict": _verdict(finals[[name for name in names if texts[name] == texts[reference]]], against, reference),
        "notes": [f"**{name}** {note}." for name in names for note in notes[name]],
        "reference": reference,
        "seeds": seeds,
        "names": names,
        "facts": first.facts,
        "measurements": len(first.heldout),
        "revision": revision,
        "level": f"{race.LEVEL:.0%}",
    }
    environment = Environment(
        loader=PackageLoader("lesa"), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    with whole_folder(out) as folder:
        write_json(folder / "metrics.json", metrics)
        curves.to_csv(folder / "curves.csv", index=False)
        picture = figures.race(race.spread(curves), float(finals[reference].mean()), reference)
        (folder / "compare.png").write_bytes(figures.png(picture))
        text = environment.get_template("compare.md.j2").render(page)
        (folder / "compare.md").write_text(text, encoding="utf-8")


def _curves(runs: Sequence[Run]) -> pd.DataFrame:
    tables = [run.heldout.assign(method=run.name, seed=run.seed) for run in runs]
    table = pd.concat(tables, ignore_index=True).rename(columns={"heldout_perplexity": "perplexity"})
    return table[["method", "seed", "tokens", "perplexity"]]


def _notes(
    contestant: Contestant, runs: Mapping[tuple[str, int], Run], seeds: Sequence[int], reference: str
) -> list[str]:
    """What a reader has to know of a contestant beside its numbers."""
    notes = []
    if contestant.own:
        settings = ", ".join(f"`{key}: {value}`" for key, value in contestant.own.items())
        notes.append(f"ran with settings of its own: {settings}")
    found = {
        difference: None
        for seed in seeds
        for difference in check(runs[contestant.name, seed], runs[reference, seed], contestant)
    }
    if found:
        notes.append(f"did not run under the same conditions as {reference}: it differs in {', '.join(found)}")
    if FACTS["heldout_sha256"] in found:
        notes.append("was measured on other text, so its perplexities compare with no other's")
    if contestant.method != AUTO and get(contestant.method).arranges:
        notes.append("puts its new layers in places of its own")
    return notes


def _verdict(finals: pd.DataFrame, against: Mapping[str, Mapping[str, float]], reference: str) -> list[str]:
    """Who won by how much, and whether that is more than chance."""
    means = finals.mean()
    count = len(finals)
    over = f"on average over {count} seeds" if count > 1 else "with one seed"
    said = [f"The lowest perplexity at the end, {over}, is that of {means.idxmin()}: {means.min():,.4g}."]
    for name in finals.columns.drop(reference):
        row = against[name]
        ends = f"{name} ends at {means[name]:,.4g}, {_apart(row['mean'])} {reference}"
        if count < 2:
            sure = "; one seed gives no spread, so this may be luck"
        elif row["low"] <= 0 <= row["high"]:
            sure = (
                f"; the {race.LEVEL:.0%} interval of this difference reaches from {_signed(row['low'])} to "
                f"{_signed(row['high'])}, so it is not more than the spread over seeds: who is better is open"
            )
        else:
            sure = (
                f", more than the spread over seeds: the {race.LEVEL:.0%} interval of the difference, taken seed by "
                f"seed, reaches from {_signed(row['low'])} to {_signed(row['high'])}"
            )
        said.append(f"{ends}{sure}.")
    return said


def _apart(difference: float) -> str:
    if not difference:
        return "level with"
    return f"{abs(difference):.3g} {'above' if difference > 0 else 'below'}"


def _mean(values: pd.Series) -> str:
    deviation = values.std()
    return f"{values.mean():,.2f}" + ("" if math.isnan(deviation) else f" ± {deviation:,.2g}")


def _difference(row: Mapping[str, float]) -> str:
    between = "" if math.isnan(row["low"]) else f" ({_signed(row['low'])} to {_signed(row['high'])})"
    return _signed(row["mean"]) + between


def _tokens(values: pd.Series) -> str:
    there = values.dropna()
    if there.empty:
        return "not reached"
    deviation = there.std()
    text = f"{there.mean():,.0f}" + ("" if math.isnan(deviation) else f" ± {deviation:,.0f}")
    return text if len(there) == len(values) else f"{text} ({len(there)} of {len(values)} seeds)"


def _signed(value: float) -> str:
    return f"{value:+,.3g}".replace("-", "\N{MINUS SIGN}")
