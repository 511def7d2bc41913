from io import BytesIO

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from lesa import figures

KINDS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def bars(axes: Axes, label: str) -> list[float]:
    [container] = [c for c in axes.containers if c.get_label() == label]
    return [bar.get_height() for bar in container]


def test_a_figure_is_sharp_and_the_same_each_time() -> None:
    table = pd.DataFrame({"kind": "q_proj", "component": range(4), "singular_value": [8.0, 4.0, 2.0, 1.0]})
    first, second = (figures.png(figures.spectra(table)) for _ in range(2))
    assert first == second
    width, _ = Image.open(BytesIO(first)).size
    assert width == 1800


def test_spectra_are_relative_and_leave_zeros_out() -> None:
    table = pd.DataFrame(
        {"kind": ["a"] * 3 + ["b"] * 2, "component": [0, 1, 2, 0, 1], "singular_value": [8, 2, 0, 5, 5]}
    )
    [axes] = figures.spectra(table).axes
    assert [line.get_label() for line in axes.lines] == ["a", "b"]
    assert axes.lines[0].get_xydata().tolist() == [[1, 1], [2, 0.25]]
    assert axes.lines[1].get_ydata().tolist() == [1, 1]
    assert axes.get_yscale() == "log"


def test_an_all_zero_kind_does_not_break_the_spectra() -> None:
    table = pd.DataFrame({"kind": ["a", "b"], "component": 0, "singular_value": [0.0, 3.0]})
    assert figures.png(figures.spectra(table))


@pytest.mark.parametrize("count", [1, 3, 7, 12])
def test_continuity_has_a_panel_a_kind_on_one_scale_around_zero(count: int) -> None:
    rng = np.random.default_rng(0)
    names = [f"kind{i}" for i in range(count)]
    rows = [(kind, c, layer, rng.uniform(-0.3, 0.64)) for kind in names for c in range(5) for layer in range(3)]
    table = pd.DataFrame(rows, columns=["kind", "component", "layer", "cosine"])
    table.loc[0, "cosine"] = 0.64
    figure = figures.continuity(table)
    *panels, bar = figure.axes
    assert [panel.get_title() for panel in panels] == names
    assert {panel.images[0].get_clim() for panel in panels} == {(-0.7, 0.7)}
    assert panels[0].images[0].get_array().shape == (5, 3)
    assert panels[0].images[0].get_array()[0, 0] == 0.64
    assert bar.get_ylabel() == "cosine to the next layer"
    assert figures.png(figure)


def test_components_are_colored_by_layer() -> None:
    rows = [(kind, layer, c, layer, -layer) for kind in KINDS for layer in range(6) for c in range(4)]
    figure = figures.components(pd.DataFrame(rows, columns=["kind", "layer", "component", "x", "y"]))
    panels = figure.axes[:-1]
    assert [panel.get_title() for panel in panels] == KINDS
    assert [len(panel.collections) for panel in panels] == [4] * 7
    assert panels[0].collections[0].get_array().tolist() == list(range(6))
    assert figures.png(figure)


def test_predictor_loss_draws_kinds_that_stopped_at_different_epochs() -> None:
    table = pd.DataFrame({"kind": ["a", "a", "b"], "epoch": [1, 2, 1], "loss": [1e-3, 1e-5, 2e-3]})
    [axes] = figures.predictor_loss(table).axes
    assert [len(line.get_xdata()) for line in axes.lines] == [2, 1]
    assert axes.get_yscale() == "log"


def test_skill_bars_are_cut_with_their_value_on_them() -> None:
    table = pd.DataFrame(
        {"predictor": [0.3, -0.9], "zero": 0.0, "ridge": [0.1, float("nan")], "mean_of_neighbours": [-11.3, -0.5]},
        index=["q_proj", "k_proj"],
    )
    [axes] = figures.skills(table).axes
    assert bars(axes, "this predictor") == [0.3, -0.9]
    assert bars(axes, "mean of neighbors") == [-1.5, -0.5]
    assert [text.get_text() for text in axes.texts] == ["−11.3"]
    assert [line.get_label() for line in axes.lines] == ["predicting zero"]
    assert axes.get_ylim()[0] == -1.5


def test_all_good_skills_fit() -> None:
    [axes] = figures.skills(pd.DataFrame({"predictor": [0.9], "ridge": [0.5]}, index=["q_proj"])).axes
    low, high = axes.get_ylim()
    assert -0.1 < low <= 0
    assert high > 0.9


def cpt(perplexity: list[float], target: float | None) -> Figure:
    train = pd.DataFrame({"tokens": [100, 200], "train_loss": [3.0, 2.9]})
    heldout = pd.DataFrame({"tokens": range(len(perplexity)), "heldout_perplexity": perplexity})
    return figures.pretraining(train, heldout, target)


def test_pretraining_shows_the_target() -> None:
    _, right = cpt([3000.0, 22.0], 20.0).axes
    assert [line.get_label() for line in right.lines] == ["deeper model, 22 at the end", "target, 20"]
    assert right.lines[1].get_ydata() == [20.0, 20.0]
    assert right.get_yscale() == "log"


def test_pretraining_without_a_target_has_a_plain_axis() -> None:
    left, right = cpt([24.0, 22.0], None).axes
    assert len(right.lines) == 1
    assert (left.get_yscale(), right.get_yscale()) == ("linear", "linear")


def race(*means: float, sd: float = 1.0) -> pd.DataFrame:
    rows = [(method, 100 * i, mean, sd) for method in ("pro", "mean") for i, mean in enumerate(means)]
    return pd.DataFrame(rows, columns=["method", "tokens", "mean", "sd"])


def test_a_race_has_a_line_and_a_band_a_method_and_the_level() -> None:
    figure = figures.race(race(30, 21, 20, 19, 18), 18.0, "pro")
    whole, late = figure.axes
    assert [line.get_label() for line in whole.lines] == ["pro", "mean", "pro at the end, 18"]
    assert whole.lines[0].get_xydata().tolist() == [[0, 30], [100, 21], [200, 20], [300, 19], [400, 18]]
    assert late.lines[0].get_xdata().tolist() == [200, 300, 400]
    assert [len(axes.collections) for axes in (whole, late)] == [2, 2]
    band = whole.collections[0].get_paths()[0].get_extents()
    assert (band.ymin, band.ymax) == (17, 31)
    assert whole.get_xlabel() == "tokens trained on"
    assert whole.get_yscale() == "linear"
    assert figures.png(figure)


def test_a_race_of_one_seed_from_far_off_is_logarithmic() -> None:
    figure = figures.race(race(1e6, 21, 20, sd=float("nan")), 18.0, "pro")
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "linear"]
    assert figures.png(figure)


def test_perplexities_are_points() -> None:
    [axes] = figures.perplexities({"base": 21.4, "pretrained": 19.8}).axes
    assert [line.get_xdata().tolist() for line in axes.lines] == [[21.4], [19.8]]
    assert [text.get_text() for text in axes.texts] == ["21.4", "19.8"]


def test_scores_of_a_model_that_lacks_a_task_and_an_error() -> None:
    rows = [
        ("cloze", "base", 0.6, 0.05, 0.25),
        ("cloze", "pretrained", 0.5, float("nan"), 0.25),
        ("analogies", "base", 0.4, 0.05, float("nan")),
    ]
    figure = figures.scores(pd.DataFrame(rows, columns=["task", "model", "score", "stderr", "chance"]))
    [axes] = figure.axes
    assert [text.get_text() for text in axes.texts] == ["0.600", "0.400", "0.500"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cloze", "analogies"]
    assert len([c for c in axes.containers if c.get_label() in figures.MODEL_COLORS]) == 2
    assert figures.png(figure)
