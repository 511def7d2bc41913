import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lesa import figures
from lesa.report import write_report
from lesa.results import read
from lesa.settings import Settings
from lesa.verdict import verdict

KINDS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SETTINGS = Settings.model_validate({"base": {"model": "org/Tiny-135M"}, "corpus": {"source": "text.jsonl"}, "seed": 7})
FIGURES = {
    *("spectra", "continuity", "components", "predictor_loss"),
    *("skill", "pretraining", "perplexity", "scores"),
}


def put(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, pd.DataFrame):
        content.to_csv(path, index=False)
    else:
        path.write_text(json.dumps(content))


def evaluation(perplexity: float, accuracy: float, seconds: float) -> dict[str, Any]:
    return {
        "perplexity": perplexity,
        "bits_per_byte": perplexity / 20,
        "tasks": {
            "cloze": {"acc": accuracy, "stderr": 0.05, "chance": 0.25},
            "analogies": {"acc": 0.4, "stderr": None},
        },
        "parameters": 134_515_008,
        "seconds": seconds,
    }


def predictor(skill: float | None, controls: dict[str, float] | None = None) -> dict[str, Any]:
    controls = controls or {"zero": 0.0, "mean_of_neighbours": -0.5, "ridge": 0.01, "shuffled_layers": -0.8}
    each = {"train_loss": 1e-4, "heldout_skill": skill, "controls": {} if skill is None else controls}
    return {**dict.fromkeys(KINDS, each), "seconds": 30.0, "peak_memory_bytes": 2**30}


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the stages of a run on a small model leave behind."""
    monkeypatch.setattr(figures, "DPI", 30)  # drawing is what takes the time here
    rng = np.random.default_rng(0)
    spectrum = [(kind, c, 10.0 / (c + 1), 0.5) for kind in KINDS for c in range(8)]
    continuity = [(kind, c, n, rng.uniform(-1, 1)) for kind in KINDS for c in range(4) for n in range(5)]
    points = [(kind, n, c, rng.normal(), rng.normal()) for kind in KINDS for n in range(6) for c in range(4)]
    put(tmp_path / "download/metrics.json", {"layers": 6, "seconds": 1.0})
    put(tmp_path / "prepare_corpus/metrics.json", {"train": {"tokens": 509_690}, "seconds": 2.5})
    put(tmp_path / "analyze/metrics.json", {"seconds": 4.0})
    for name, rows, columns in [
        ("spectrum", spectrum, ["kind", "component", "singular_value", "energy"]),
        ("continuity", continuity, ["kind", "component", "layer", "cosine"]),
        ("coefficients", points, ["kind", "layer", "component", "x", "y"]),
    ]:
        put(tmp_path / f"analyze/{name}.csv", pd.DataFrame(rows, columns=columns))
    losses = [(kind, epoch, 0.1 / epoch) for kind in KINDS for epoch in (1, 2)]
    put(tmp_path / "train_predictor/metrics.json", predictor(-0.9))
    put(tmp_path / "train_predictor/loss.csv", pd.DataFrame(losses, columns=["kind", "epoch", "loss"]))
    put(
        tmp_path / "expand/metrics.json",
        {"layers_before": 30, "layers_after": 45, "parameters_before": 100, "parameters_after": 139, "seconds": 3.0},
    )
    put(
        tmp_path / "pretrain/metrics.json",
        {"tokens": 61_440, "train_loss": 2.9, "tokens_to_target": None, "seconds": 200.0},
    )
    train = pd.DataFrame({"step": [1, 2], "tokens": [512, 1024], "train_loss": [5.0, 3.0], "learning_rate": 1e-3})
    heldout = pd.DataFrame({"step": [0, 2], "tokens": [0, 1024], "heldout_perplexity": [200.0, 22.0]})
    put(tmp_path / "pretrain/train.csv", train)
    put(tmp_path / "pretrain/heldout.csv", heldout)
    put(tmp_path / "evaluate/base.json", evaluation(20.0, 0.60, 10.0))
    put(tmp_path / "evaluate/expanded.json", evaluation(200.0, 0.25, 11.0))
    put(tmp_path / "evaluate/pretrained.json", evaluation(22.0, 0.55, 12.0))
    return tmp_path


def write(reports: Path, settings: Settings = SETTINGS) -> tuple[str, str]:
    write_report(reports, settings, "dvc repro", ["git checkout abc123", "make repro"], "abc123")
    return (reports / "report.html").read_text(), (reports / "report.md").read_text()


def said(reports: Path, learned: bool = True) -> str:
    return " ".join(verdict(read(reports), SETTINGS, learned))


class Page(HTMLParser):
    """Everything that a browser would fetch, and a balance of tags."""

    void = frozenset({"meta", "link", "img", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.void:
            self.open.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in {"src", "href", "srcset"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_beside_it(reports: Path) -> None:
    html, _ = write(reports)
    page = Page()
    page.feed(html)
    assert page.open == []
    assert page.fetched
    assert all(address.startswith("data:") for address in page.fetched)
    assert not re.search(r"@import|url\(|fetch\(|https?://", html)
    images = [base64.b64decode(text) for text in re.findall(r"data:image/png;base64,([^\"]+)", html)]
    assert sorted(images) == sorted(file.read_bytes() for file in (reports / "figures").iterdir())
    assert {file.stem for file in (reports / "figures").iterdir()} == FIGURES


def test_tables_hold_the_measured_values(reports: Path) -> None:
    html, markdown = write(reports)
    assert "# Tiny-135M, 30 → 45 layers with lesa\n" in markdown
    assert "<title>Tiny-135M, 30 → 45 layers with lesa</title>" in html
    assert "| base | 20 | 1.0000 | 0.600 ± 0.050 | 0.400 | 30 | 134.5M |\n" in markdown
    assert "| pretrained | 22 | 1.1000 | 0.550 ± 0.050 | 0.400 | 45 | 134.5M |\n" in markdown
    assert "Chance on cloze is 0.25." in markdown
    assert "| q_proj | 0.0001 | −0.900 | 0.010 | −0.500 | −0.800 |\n" in markdown
    assert "| train_predictor | 30.0 | 1.00 |\n" in markdown
    assert "273.5 seconds in all" in markdown
    assert '<td data-order="134515008">134.5M</td>' in html


def test_the_page_says_how_it_was_made(reports: Path) -> None:
    html, markdown = write(reports)
    for text in (html, markdown):
        assert "git checkout abc123\nmake repro" in text
        assert "dvc repro" in text
        assert "seed: 7" in text
        assert "pretrain:\n  steps: 60\n" in text
        for package in ("python 3.", "torch 2.", "transformers 5.", "lm_eval 0.", "dvc 3."):
            assert package in text


def test_markdown_links_are_files(reports: Path) -> None:
    _, markdown = write(reports)
    links = re.findall(r"!\[[^]]+\]\(([^)]+)\)", markdown)
    assert len(links) == len(FIGURES)
    assert all((reports / link).is_file() for link in links)


def test_the_same_inputs_give_the_same_files(reports: Path) -> None:
    first = write(reports)
    assert write(reports) == first


def test_scores_are_a_flat_table(reports: Path) -> None:
    write(reports)
    table = pd.read_csv(reports / "scores.csv")
    assert list(table.columns) == ["task", "model", "metric", "score", "stderr"]
    row = table[(table["model"] == "pretrained") & (table["task"] == "cloze")]
    assert row[["score", "stderr"]].to_numpy().tolist() == [[0.55, 0.05]]
    assert len(table) == 6


def test_no_machine_path_gets_on_the_page(reports: Path) -> None:
    settings = Settings.model_validate(
        {"base": {"model": "/home/someone/models/mine/"}, "corpus": {"source": "C:\\Users\\someone\\text.jsonl"}}
    )
    html, markdown = write(reports, settings)
    assert "# mine, 30 → 45 layers" in markdown
    for text in (html, markdown):
        assert "someone" not in text
        assert "source: text.jsonl" in text
        assert str(reports) not in text


def test_a_name_with_markup_stays_text(reports: Path) -> None:
    settings = Settings.model_validate({"base": {"model": "org/<b>x&y"}, "corpus": {"source": "text"}})
    html, _ = write(reports, settings)
    assert "<h1>&lt;b&gt;x&amp;y, 30" in html


def test_a_model_too_small_for_held_out_layers_and_no_tasks(reports: Path) -> None:
    put(reports / "train_predictor/metrics.json", predictor(None))
    for name in ("base", "expanded", "pretrained"):
        put(reports / f"evaluate/{name}.json", {**evaluation(20.0, 0.5, 1.0), "tasks": {}})
    html, markdown = write(reports)
    assert {file.stem for file in (reports / "figures").iterdir()} == FIGURES - {"skill", "scores"}
    assert "*Predictor skill beside simpler predictions:* not measured in this run." in markdown
    assert "| q_proj | 0.0001 | – |\n" in markdown
    assert "No tasks were run." in markdown
    assert "on layers it has not seen was not measured" in html
    assert "nan" not in markdown.lower()


def test_figures_of_an_earlier_run_go(reports: Path) -> None:
    write(reports)
    put(reports / "train_predictor/metrics.json", predictor(None))
    write(reports)
    assert not (reports / "figures/skill.png").exists()


def test_an_empty_folder_gives_a_page_that_says_so(tmp_path: Path) -> None:
    _, markdown = write(tmp_path)
    assert "This run has no measurements yet." in markdown
    assert list((tmp_path / "figures").iterdir()) == []


def test_many_kinds_do_not_make_endless_panels(reports: Path) -> None:
    names = [f"expert_{e}" for e in range(40)]
    rows = [(kind, c, n, 0.1) for kind in names for c in range(2) for n in range(2)]
    put(reports / "analyze/continuity.csv", pd.DataFrame(rows, columns=["kind", "component", "layer", "cosine"]))
    _, markdown = write(reports)
    assert "first 12 of 40 weight kinds" in markdown


def test_verdict_on_a_model_that_stays_worse(reports: Path) -> None:
    text = said(reports)
    assert "from 30 to 45 layers" in text
    assert "(+39%)" in text
    assert "worse than the base: held-out perplexity 200 against 20, 10 times as high" in text
    # ln(200/22) / ln(200/20)
    assert "61,440 tokens won back 95.9% of the loss" in text
    assert "still worse than the base: 22, 10.0% above it" in text
    assert "even this comparison favors the deeper model" in text
    assert "not told apart from it (within two standard errors) on cloze (−0.050), analogies (+0.000)" in text
    assert "mean skill is −0.900" in text
    assert "no better than predicting zeros for any of the 7 weight kinds" in text


@pytest.mark.parametrize(
    ("race", "expected"),
    [
        (["a", "b", "c"], "after 20 steps, the perplexity on training text kept apart was 18 for a and 18.5 for b."),
        (["a"], "after 20 steps, the perplexity on training text kept apart was 18 for a."),  # the others diverged
    ],
)
def test_verdict_says_who_won_the_race(reports: Path, race: list[str], expected: str) -> None:
    runs = {name: {"round": 2, "steps": 20, "perplexity": 18 + number / 2} for number, name in enumerate(race)}
    put(reports / "choose/metrics.json", {"method": "a", "race": runs, "seconds": 1.0, "peak_memory_bytes": 1})
    assert f"Of {', '.join(race)}, a won the race: {expected}" in said(reports)


@pytest.mark.parametrize(
    ("expanded", "pretrained", "expected"),
    [
        (20.02, 18.0, ["as good as the base", "ended 10.0% below the base, at 18", "may be adaptation to the text"]),
        (200.0, 20.05, ["10 times as high", "ended level with the base", "favors the deeper model"]),
        (24.0, 30.0, ["20.0% higher", "did not help: the perplexity is 30, 50.0% above the base"]),
        (18.0, 17.0, ["already better than the base", "15.0% below"]),
        (1e9, 20.2, ["won back 99.9% of the loss", "still worse than the base: 20.2, 1.0% above"]),
    ],
)
def test_verdict_follows_the_perplexities(
    reports: Path, expanded: float, pretrained: float, expected: list[str]
) -> None:
    put(reports / "evaluate/expanded.json", evaluation(expanded, 0.5, 1.0))
    put(reports / "evaluate/pretrained.json", evaluation(pretrained, 0.5, 1.0))
    text = said(reports)
    for part in expected:
        assert part in text


@pytest.mark.parametrize(
    ("accuracy", "expected"), [(0.8, "better on cloze (+0.200)"), (0.4, "worse on cloze (−0.200)")]
)
def test_verdict_tells_a_clear_difference_on_a_task(reports: Path, accuracy: float, expected: str) -> None:
    put(reports / "evaluate/pretrained.json", evaluation(20.0, accuracy, 1.0))
    assert expected in said(reports)


def test_verdict_on_the_predictor(reports: Path) -> None:
    put(reports / "train_predictor/metrics.json", predictor(0.5))
    assert "beats every control for every weight kind" in said(reports)
    mixed = predictor(0.005)
    mixed["q_proj"] = {**mixed["q_proj"], "heldout_skill": 0.2}
    put(reports / "train_predictor/metrics.json", mixed)
    assert "better than zeros for 7 of 7 weight kinds and beats every control for 1." in said(reports)
    assert "lesa does not use the predictor" in said(reports, learned=False)
    assert "does not use the predictor" not in said(reports)
