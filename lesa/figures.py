"""The report's figures, each a function from tables to a matplotlib ``Figure``.

Palette: Okabe and Ito, which the common kinds of color blindness tell apart; layers in viridis, cosines in a diverging
map centered at 0.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from io import BytesIO
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

DPI = 240
WIDTH = 7.5
"""Inches; at ``DPI`` this stays sharp at 900 CSS pixels on a screen with two device pixels each."""

STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
}
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000",
    "#e69f00",
    "#56b4e9",
    "#009e73",
    "#0072b2",
    "#d55e00",
    "#cc79a7",
)
KIND_COLORS = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, BLACK)
MODEL_COLORS = {"base": "#777777", "expanded": ORANGE, "pretrained": BLUE}
MODEL_MARKERS = {"base": "s", "expanded": "^", "pretrained": "o"}
PREDICTIONS = {
    "predictor": ("this predictor", BLUE),
    "ridge": ("ridge regression", GREEN),
    "mean_of_neighbours": ("mean of neighbors", ORANGE),
    "shuffled_layers": ("predictor, layers shuffled", PURPLE),
}
SKILL_FLOOR = -1.5
LOG_FROM = 4
"""An axis of positive values turns logarithmic where the largest is this many times the smallest."""


def _styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    @wraps(draw)
    def wrapper(*args: Any) -> Figure:
        with rc_context(STYLE):
            return draw(*args)

    return wrapper


def png(figure: Figure) -> bytes:
    """The figure as a PNG file, the same bytes each time."""
    buffer = BytesIO()
    with rc_context(STYLE):  # ticks are made only now
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


@_styled
def spectra(table: pd.DataFrame) -> Figure:
    """Singular values over the largest one, a line a kind; columns ``kind``, ``component``, ``singular_value``."""
    figure, axes = _single(3.4)
    least = 1.0
    for number, (kind, rows) in enumerate(table.groupby("kind", sort=False)):
        values = rows["singular_value"].to_numpy()
        present = values > 0
        share = values[present] / values.max()
        least = min(least, share.min(initial=1))
        axes.plot(rows["component"].to_numpy()[present] + 1, share, label=kind, **_line(number))
    axes.set(
        xscale="log",
        title="Spectrum of the basis shared by all layers",
        xlabel="component (1 is the strongest)",
        ylabel="singular value / largest",
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    _log(axes, "y", 1 / least)
    _legend_beside(axes)
    return figure


@_styled
def continuity(table: pd.DataFrame) -> Figure:
    """Cosine between neighbors, a panel a kind; columns ``kind``, ``component``, ``layer``, ``cosine``."""
    kinds = list(table["kind"].unique())
    figure, panels, height = _grid(len(kinds))
    limit = max(0.1, np.ceil(table["cosine"].abs().max() * 10) / 10)
    for axes, kind in zip(panels, kinds, strict=False):
        cosines = table[table["kind"] == kind].pivot(index="component", columns="layer", values="cosine")
        components, layers = cosines.shape
        image = axes.imshow(
            cosines.to_numpy(),
            cmap="RdBu_r",
            vmin=-limit,
            vmax=limit,
            aspect="auto",
            interpolation="nearest",
            origin="lower",
            extent=(-0.5, layers - 0.5, 0.5, components + 0.5),
        )
        axes.set_title(kind)
        axes.grid(False)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    figure.suptitle("Continuity between neighboring layers", fontsize=10, fontweight="bold")
    figure.supxlabel("left layer of the two (0 is the first)", fontsize=9)
    figure.supylabel("component (1 is the strongest)", fontsize=9)
    figure.colorbar(image, ax=panels, label="cosine to the next layer", shrink=min(1.0, 2.6 / height), aspect=25)
    return figure


@_styled
def components(table: pd.DataFrame) -> Figure:
    """First components in two dimensions, a panel a kind; columns ``kind``, ``layer``, ``component``, ``x``, ``y``."""
    kinds = list(table["kind"].unique())
    figure, panels, height = _grid(len(kinds), sharex=False)
    markers = dict(zip(sorted(table["component"].unique()), "os^Dv<>P", strict=False))
    last = table["layer"].max()
    for axes, kind in zip(panels, kinds, strict=False):
        for component, rows in table[table["kind"] == kind].groupby("component"):
            if component in markers:
                points = axes.scatter(
                    rows["x"],
                    rows["y"],
                    c=rows["layer"],
                    cmap="viridis",
                    vmin=0,
                    vmax=last,
                    marker=markers[component],
                    s=15,
                    linewidths=0,
                    label=f"component {component + 1}",
                )
        axes.set_title(kind)
        axes.tick_params(labelsize=7)
        axes.locator_params(nbins=4)
    figure.supxlabel("first principal axis", fontsize=9)
    figure.supylabel("second principal axis", fontsize=9)
    legend = figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    legend.set_title("First components of every layer")
    legend.get_title().set(fontsize=10, fontweight="bold")
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set(array=None, facecolor="#555555")
    figure.colorbar(points, ax=panels, label="layer (0 is the first)", shrink=min(1.0, 2.6 / height), aspect=25)
    return figure


@_styled
def predictor_loss(table: pd.DataFrame) -> Figure:
    """Training loss of each predictor; columns ``kind``, ``epoch``, ``loss``."""
    figure, axes = _single(3.2)
    for number, (kind, rows) in enumerate(table.groupby("kind", sort=False)):
        axes.plot(rows["epoch"], rows["loss"], label=kind, marker="o", markersize=3.5, **_line(number))
    axes.set(title="Predictor training", xlabel="epoch", ylabel="loss on training rows")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _log_where_wide(axes, table["loss"])
    _legend_beside(axes)
    return figure


@_styled
def skills(table: pd.DataFrame) -> Figure:
    """Held-out skill beside the controls; indexed by kind, the columns those of ``PREDICTIONS`` that were measured."""
    shown = [name for name in PREDICTIONS if name in table and table[name].notna().any()]
    figure, axes = _single(3.8)
    values = table[shown].to_numpy(dtype=float)
    width = 0.84 / len(shown)
    for number, name in enumerate(shown):
        label, color = PREDICTIONS[name]
        where = np.arange(len(table)) + (number - (len(shown) - 1) / 2) * width
        axes.bar(where, np.maximum(values[:, number], SKILL_FLOOR), width * 0.92, label=label, color=color)
        for x, value in zip(where, values[:, number], strict=True):
            if value < SKILL_FLOOR:
                note = f"{value:.3g}".replace("-", "\N{MINUS SIGN}")
                axes.text(x, SKILL_FLOOR + 0.03, note, rotation=90, ha="center", va="bottom", fontsize=7)
    axes.axhline(0, color=BLACK, linewidth=1, label="predicting zero")
    top = max(0.1, np.nanmax(values))
    axes.set(
        title="Skill on layers left out of training",
        ylabel="skill (1 is exact)",
        ylim=(max(SKILL_FLOOR, min(0, np.nanmin(values)) * 1.05 - 0.02), top * 1.08),
        xticks=range(len(table)),
        xticklabels=table.index,
    )
    axes.grid(False, axis="x")
    axes.tick_params(axis="x", length=0, rotation=0 if len(table) <= 7 else 60)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5, columnspacing=1.2)
    return figure


@_styled
def pretraining(train: pd.DataFrame, heldout: pd.DataFrame, target: float | None) -> Figure:
    """Training loss and held-out perplexity against tokens.

    Args:
        train: columns ``tokens``, ``train_loss`` (nats a token).
        heldout: columns ``tokens``, ``heldout_perplexity``.
        target: the perplexity to reach, drawn as a line.
    """
    figure = Figure(figsize=(WIDTH, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(train["tokens"], train["train_loss"], color=BLUE)
    left.set(title="Training loss", xlabel="tokens trained on", ylabel="loss, nats a token")
    _log_where_wide(left, train["train_loss"])
    perplexity = heldout["heldout_perplexity"]
    label = f"deeper model, {perplexity.iloc[-1]:,.4g} at the end"
    right.plot(heldout["tokens"], perplexity, color=BLUE, marker="o", markersize=4, label=label)
    levels = list(perplexity)
    if target is not None:
        right.axhline(target, color=GREEN, linestyle=":", label=f"target, {target:,.4g}")
        levels.append(target)
    right.set(title="Held-out perplexity", xlabel="tokens trained on", ylabel="perplexity, lower is better")
    _log_where_wide(right, pd.Series(levels))
    right.legend()
    for axes in (left, right):
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_major_locator(MaxNLocator(5))
    return figure


@_styled
def race(spread: pd.DataFrame, level: float, reference: str) -> Figure:
    """Perplexity against tokens, a line a method; right, the second half of the budget by itself.

    Args:
        spread: columns ``method``, ``tokens``, ``mean``, ``sd`` (NaN of one seed), drawn as a band.
        level: the perplexity to reach, drawn as a line.
        reference: the method whose last perplexity this is.
    """
    methods = list(spread["method"].unique())
    rows = -(-(len(methods) + 1) // 3)
    figure = Figure(figsize=(WIDTH, 3.4 + 0.2 * rows), layout="constrained")
    whole, late = figure.subplots(1, 2)
    later = spread[spread["tokens"] >= spread["tokens"].max() / 2]
    for axes, table in ((whole, spread), (late, later)):
        for number, method in enumerate(methods):
            lines = table[table["method"] == method]
            style = _line(number)
            axes.plot(lines["tokens"], lines["mean"], marker="o", markersize=4, label=method, **style)
            low, high = lines["mean"] - lines["sd"], lines["mean"] + lines["sd"]
            axes.fill_between(lines["tokens"], low, high, color=style["color"], alpha=0.2, linewidth=0)
        axes.axhline(level, color="#777777", linestyle=":", label=f"{reference} at the end, {level:,.4g}")
        axes.set(xlabel="tokens trained on", ylabel="perplexity, lower is better")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        _log_where_wide(axes, table["mean"])
    whole.set_title("Held-out perplexity")
    late.set_title("The second half of the budget")
    figure.legend(*whole.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


@_styled
def perplexities(values: Mapping[str, float]) -> Figure:
    """Held-out perplexity of each model, a point a model."""
    figure, axes = _single(0.95 + 0.3 * len(values))
    for row, (name, value) in enumerate(values.items()):
        axes.plot(value, row, marker=MODEL_MARKERS[name], color=MODEL_COLORS[name], markersize=8, linestyle="none")
        axes.annotate(f"{value:,.4g}", (value, row), xytext=(9, 0), textcoords="offset points", va="center")
    axes.set(
        title="Held-out perplexity",
        xlabel="perplexity a token, lower is better",
        yticks=range(len(values)),
        yticklabels=list(values),
        ylim=(len(values) - 0.5, -0.5),
    )
    axes.grid(False, axis="y")
    axes.margins(x=0.12)
    _log_where_wide(axes, pd.Series(list(values.values())), "x")
    return figure


@_styled
def scores(table: pd.DataFrame) -> Figure:
    """Scores and standard errors; columns ``task``, ``model``, ``score``, ``stderr``, ``chance`` (NaN if unknown)."""
    tasks = list(table["task"].unique())
    models = [name for name in MODEL_COLORS if name in set(table["model"])]
    figure, axes = _single(1.1 + len(tasks) * (0.14 + 0.24 * len(models)))
    height = 0.8 / len(models)
    for number, name in enumerate(models):
        rows = table[table["model"] == name].set_index("task").reindex(tasks)
        where = np.arange(len(tasks)) + (number - (len(models) - 1) / 2) * height
        axes.barh(where, rows["score"], height * 0.9, color=MODEL_COLORS[name], label=name)
        # One error bar at a time: matplotlib draws none at all where any of them is unknown.
        for y, score, error in zip(where, rows["score"], rows["stderr"], strict=True):
            if np.isfinite(error):
                axes.errorbar(score, y, xerr=error, color=BLACK, capsize=2.5, linewidth=1)
            if np.isfinite(score):
                edge = score + (error if np.isfinite(error) else 0)
                axes.annotate(f"{score:.3f}", (edge, y), xytext=(4, 0), textcoords="offset points", va="center", size=8)
    chance = table.groupby("task")["chance"].first().reindex(tasks)
    if chance.notna().any():
        centers = np.arange(len(tasks))
        axes.vlines(chance, centers - 0.45, centers + 0.45, color=VERMILION, linestyle="--", label="chance")
    axes.set(
        title="Task scores",
        xlabel="accuracy (bars: one standard error), higher is better",
        yticks=range(len(tasks)),
        yticklabels=tasks,
        ylim=(len(tasks) - 0.5, -0.5),
        xlim=(0, 1),
    )
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    _legend_beside(axes)
    return figure


def _single(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def _grid(count: int, sharex: bool = True) -> tuple[Figure, list[Axes], float]:
    """Panels in rows of four at most; those of the last row that are not needed are taken away."""
    columns = min(4, count)
    rows = -(-count // columns)
    height = 0.6 + 1.75 * rows
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharex).flatten().tolist()
    for axes in panels[count:]:
        axes.remove()
    for axes in panels[max(0, count - columns) : count]:
        axes.tick_params(labelbottom=True)
    return figure, panels[:count], height


def _line(number: int) -> dict[str, Any]:
    styles = ("-", "--", ":", "-.")
    return {
        "color": KIND_COLORS[number % len(KIND_COLORS)],
        "linestyle": styles[number // len(KIND_COLORS) % len(styles)],
    }


def _legend_beside(axes: Axes) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _log_where_wide(axes: Axes, values: pd.Series, which: Literal["x", "y"] = "y") -> None:
    if values.min() > 0 and values.max() >= LOG_FROM * values.min():
        _log(axes, which, values.max() / values.min())


def _log(axes: Axes, which: Literal["x", "y"], ratio: float) -> None:
    """A logarithmic axis with plain numbers; 2 and 5 between the powers of ten where there are few powers."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if ratio < 1e4 else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())
