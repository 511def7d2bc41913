"""The report's pictures: each figure with what it shows and how to read it."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from lesa import figures
from lesa.results import MODELS, Results

MAX_KINDS = 12
"""Kinds in one figure at most: a mixture of experts has a kind for each projection of each expert."""


@dataclass(frozen=True)
class Picture:
    """A figure, by what it shows and how to read it; without an image where the run did not measure it."""

    name: str
    title: str
    caption: str
    image: bytes | None

    @property
    def uri(self) -> str:
        """The image as a data URI."""
        return f"data:image/png;base64,{base64.b64encode(self.image or b'').decode()}"


def of_models(results: Results) -> list[Picture]:
    """The three models side by side."""
    values = {name: results.models[name]["perplexity"] for name in MODELS if name in results.models}
    scores = results.scores
    shown = scores[scores["score"].between(0, 1)]
    return [
        _picture(
            "perplexity",
            "Held-out perplexity of the three models",
            "Further left is better. The way from expanded to pretrained is what training bought; where "
            "pretrained lies against base is the result.",
            figures.perplexities,
            values,
        ),
        _picture(
            "scores",
            "Task scores of the three models",
            "Longer is better; a thin line spans one standard error to each side. All models answer the same "
            "items, so differences are usually surer than separate error bars suggest.",
            figures.scores,
            shown,
        ),
    ]


def of_training(results: Results, target: float | None) -> list[Picture]:
    """Continual pre-training; ``target`` is the perplexity to reach."""
    have = results.tables.keys() >= {"train", "heldout"}
    return [
        _picture(
            "pretraining",
            "Loss and held-out perplexity against tokens",
            "Left, the loss on each training batch; right, perplexity on the first held-out blocks. It is not to be "
            "held against the perplexities of the table above, which are of whole documents, and of all of them.",
            figures.pretraining,
            results.tables["train"] if have else None,
            results.tables.get("heldout"),
            target,
        )
    ]


def of_predictor(results: Results) -> list[Picture]:
    """Training and skill of the predictor."""
    skills = results.skills
    return [
        _picture(
            "skill",
            "Predictor skill beside simpler predictions",
            "Above zero, a prediction is better than zeros; numbers of the right size that point nowhere score "
            "about −1. The predictor has learned something about the order of layers only where its bar is above "
            f"all others. Bars that go below −{-figures.SKILL_FLOOR} are cut off and carry their value.",
            figures.skills,
            skills.iloc[:MAX_KINDS],
        ),
        _of_kinds(
            "predictor_loss",
            "Predictor training loss",
            "One line a weight kind. A curve that is flat from early on has nothing more to learn from these "
            "rows. The loss is small because the predicted rows are: it says little by itself, skill says more.",
            figures.predictor_loss,
            results.tables.get("predictor_loss"),
        ),
    ]


def of_basis(results: Results) -> list[Picture]:
    """What the layers share."""
    return [
        _of_kinds(
            "spectra",
            "Singular values, one line a weight kind",
            "How strongly each component of the basis is used over all layers. A steep line means that few components "
            "carry most of the weights; a flat one that all matter about alike.",
            figures.spectra,
            results.tables.get("spectrum"),
        ),
        _of_kinds(
            "continuity",
            "Continuity: how alike neighboring layers are, component by component",
            "Each cell is the cosine between one component's coefficients in a layer and in the next. Strong "
            "color along a row is a component that carries over from layer to layer, and so can be predicted; "
            "cells of the color of 0 are unrelated.",
            figures.continuity,
            results.tables.get("continuity"),
        ),
        _of_kinds(
            "components",
            "First components of every layer, in two dimensions",
            "One point a layer and component, by principal component analysis of that component's coefficients. "
            "Colors that change smoothly along a path mean that layers follow one another there; a mixed cloud "
            "means they do not.",
            figures.components,
            results.tables.get("coefficients"),
        ),
    ]


def _picture(name: str, title: str, caption: str, draw: Callable[..., Figure], *data: Any) -> Picture:
    """Draw where there is something to draw: the first of the data is neither missing nor empty."""
    image = None if data[0] is None or not len(data[0]) else figures.png(draw(*data))
    return Picture(name, title, caption, image)


def _of_kinds(
    name: str, title: str, caption: str, draw: Callable[[pd.DataFrame], Figure], table: pd.DataFrame | None
) -> Picture:
    """A figure of the first ``MAX_KINDS`` weight kinds of a table with a column ``kind``."""
    if table is None:
        return Picture(name, title, caption, None)
    kinds = table["kind"].unique()
    if len(kinds) > MAX_KINDS:
        caption += f" Shown are the first {MAX_KINDS} of {len(kinds)} weight kinds."
    return _picture(name, title, caption, draw, table[table["kind"].isin(kinds[:MAX_KINDS])])
