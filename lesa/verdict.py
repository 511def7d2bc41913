"""What one run showed, in plain words, worked out from its numbers."""

import math
from typing import Any

from lesa.results import Results
from lesa.settings import Settings

SAME = 0.005
"""Perplexities closer than this share count as the same."""


def verdict(results: Results, settings: Settings, learned: bool) -> list[str]:
    """Sentences on what expansion and training did; those whose numbers are missing are left out.

    Args:
        results: what was measured.
        settings: how it was made.
        learned: whether the expansion method uses the predictor.
    """
    sentences = [
        *_race(results),
        *_expansion(results, settings),
        *_training(results, settings),
        *_tasks(results),
        *_predictor(results, settings, learned),
    ]
    return sentences or ["This run has no measurements yet."]


def _race(results: Results) -> list[str]:
    chosen = results.stages.get("choose", {})
    if not (race := chosen.get("race")):
        return []
    leaders = list(race)[:2]  # best first; there is one where all others diverged
    figures = [f"{race[method]['perplexity']:,.4g} for {method}" for method in leaders]
    return [
        f"Of {', '.join(race)}, {chosen['method']} won the race: after {race[leaders[0]]['steps']} steps, "
        f"the perplexity on training text kept apart was {' and '.join(figures)}."
    ]


def _expansion(results: Results, settings: Settings) -> list[str]:
    said = []
    if sizes := results.stages.get("expand"):
        growth = sizes["parameters_after"] / sizes["parameters_before"] - 1
        said.append(
            f"The method {results.method(settings)} took the model from {sizes['layers_before']} to "
            f"{sizes['layers_after']} layers and from {millions(sizes['parameters_before'])} to "
            f"{millions(sizes['parameters_after'])} parameters ({growth:+.0%})."
        )
    if results.models.keys() >= {"base", "expanded"}:
        base, expanded = (results.models[name]["perplexity"] for name in ("base", "expanded"))
        ratio = expanded / base
        numbers = f"held-out perplexity {expanded:,.4g} against {base:,.4g}"
        if abs(ratio - 1) < SAME:
            said.append(f"Before any training the deeper model is as good as the base: {numbers}.")
        elif ratio < 1:
            said.append(f"Before any training the deeper model is already better than the base: {numbers}.")
        else:
            said.append(f"Before any training the deeper model is worse than the base: {numbers}, {_times(ratio)}.")
    return said


def _training(results: Results, settings: Settings) -> list[str]:
    if not (results.models.keys() >= {"base", "pretrained"} and "pretrain" in results.stages):
        return []
    base, after = (results.models[name]["perplexity"] for name in ("base", "pretrained"))
    tokens = results.stages["pretrain"]["tokens"]
    what = "the new layers only" if settings.pretrain.train == "new" else "all layers"
    start = f"Continual pre-training of {what} on {tokens:,} tokens"
    change = after / base - 1
    expanded = results.models.get("expanded", {}).get("perplexity", base)
    if abs(change) < SAME:
        end = f"ended level with the base, at {after:,.4g}"
    elif change < 0:
        end = f"ended {-change:.1%} below the base, at {after:,.4g}"
    elif after < expanded:
        share = math.log(expanded / after) / math.log(expanded / base)
        end = f"won back {min(share, 0.999):.1%} of the loss (in nats) that the expansion had cost"
        end += f", but the deeper model is still worse than the base: {after:,.4g}, {change:.1%} above it"
    else:
        end = f"did not help: the perplexity is {after:,.4g}, {change:.1%} above the base"
    if change <= -SAME:
        caveat = "so part or all of this gain may be adaptation to the text and not the added depth"
    else:
        caveat = "so even this comparison favors the deeper model"
    return [
        f"{start} {end}.",
        f"The base got no such training, and its text comes from the same source as the held-out text, {caveat}; "
        "only the base trained on the same tokens could tell depth and text apart.",
    ]


def _tasks(results: Results) -> list[str]:
    if not results.models.keys() >= {"base", "pretrained"}:
        return []
    base, after = (results.models[name]["tasks"] for name in ("base", "pretrained"))
    accuracies = [task for task in base if task in after and "metric" not in base[task]]
    outcomes = {task: _compare(after[task], base[task]) for task in accuracies}
    if not outcomes:
        return []
    wording = {"better": "better", "worse": "worse", "level": "not told apart from it (within two standard errors)"}
    parts = []
    for outcome, words in wording.items():
        tasks = [f"{task} ({_signed(change)})" for task, (change, found) in outcomes.items() if found == outcome]
        if tasks:
            parts.append(f"{words} on {', '.join(tasks)}")
    return [f"Against the base, the deeper model after training is {'; '.join(parts)}."]


def _compare(after: dict[str, Any], base: dict[str, Any]) -> tuple[float, str]:
    difference = after["acc"] - base["acc"]
    noise = 2 * math.hypot(after.get("stderr") or 0, base.get("stderr") or 0)
    if abs(difference) <= noise:
        return difference, "level"
    return difference, "better" if difference > 0 else "worse"


def _predictor(results: Results, settings: Settings, learned: bool) -> list[str]:
    skills = results.skills
    unused = "" if learned else f" (The method {results.method(settings)} does not use the predictor.)"
    if skills.empty:
        if "train_predictor" not in results.stages:
            return []
        return [f"How well the predictor does on layers it has not seen was not measured.{unused}"]
    best = skills.drop(columns="predictor").max(axis=1)
    useful = int((skills["predictor"] > 0).sum())
    ahead = int((skills["predictor"] > best).sum())
    mean = _signed(skills["predictor"].mean())
    start = (
        f"On layers left out of its training, the predictor's mean skill is {mean} (1 is exact, 0 is predicting zeros)"
    )
    if ahead == len(skills):
        end = "and it beats every control for every weight kind"
    elif useful == 0:
        end = f"which is no better than predicting zeros for any of the {len(skills)} weight kinds"
    else:
        end = f"it is better than zeros for {useful} of {len(skills)} weight kinds and beats every control for {ahead}"
    return [f"{start}, {end}.{unused}"]


def millions(parameters: float) -> str:
    """A count of parameters as people say it."""
    return f"{parameters / 1e9:.2f}B" if parameters >= 1e9 else f"{parameters / 1e6:.1f}M"


def _times(ratio: float) -> str:
    return f"{ratio:,.3g} times as high" if ratio >= 2 else f"{ratio - 1:.1%} higher"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")
