"""The embedded default for real: its model, its text, its tasks, under DVC, with a short training."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lesa.checkpoint import Checkpoint
from test_pipeline import STAGES, change, copy_repository, ran, run

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository after ``dvc repro`` with its own params, but for a shorter training."""
    folder = tmp_path_factory.mktemp("real")
    copy_repository(folder)
    change(folder, pretrain={"steps": 12, "warmup_steps": 2, "eval_every": 6, "save_every": 6, "eval_blocks": 8})
    change(folder, evaluate={"limit": 60}, predictor={"epochs": 2, "heldout_epochs": 1})
    run(folder, "git", "add", "-A")
    run(folder, "git", "commit", "-qm", "start")
    assert sorted(ran(run(folder, "dvc", "repro", seconds=2400))) == sorted(STAGES)
    return folder


def metrics(project: Path, name: str) -> dict[str, Any]:
    return json.loads((project / "reports" / f"{name}.json").read_text())


def test_the_text_is_what_was_measured(project: Path) -> None:
    corpus = metrics(project, "prepare_corpus/metrics")
    total = {key: corpus["train"][key] + corpus["heldout"][key] for key in ("documents", "characters", "tokens")}
    assert 90 <= total["documents"] <= 100  # about 96 articles, 2.5 M characters, 0.5 M tokens (FIELD.md)
    assert 2.2e6 < total["characters"] < 2.8e6
    assert 4.5e5 < total["tokens"] < 6e5


def test_the_base_scores_as_measured(project: Path) -> None:
    base = metrics(project, "evaluate/base")
    assert base["parameters"] == 134_515_008
    assert 17 < base["perplexity"] < 26  # 21.4 in METHOD.md, on other held-out articles of the same dump
    for name, chance in (("wiki_cloze", 0.25), ("analogies", 0.25)):
        score = base["tasks"][name]
        assert score["acc"] > chance + 3 * score["stderr"], name


def test_training_mends_what_the_expansion_broke(project: Path) -> None:
    base, expanded, pretrained = (metrics(project, f"evaluate/{name}") for name in ("base", "expanded", "pretrained"))
    assert expanded["parameters"] == pretrained["parameters"] == 187_616_448
    # How far off the released recipe starts changes with every seed and epoch: from 1.5 to 160 times the base.
    assert expanded["perplexity"] > 1.2 * base["perplexity"]
    assert pretrained["perplexity"] < expanded["perplexity"]
    training = metrics(project, "pretrain/metrics")
    assert training["tokens"] == 12 * 2 * 512


def test_the_predictor_s_skill_is_as_measured(project: Path) -> None:
    learned = metrics(project, "train_predictor/metrics")
    for kind in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
        # METHOD.md: error over that of zero 1.8 to 2.0 with the released lambda, 1.5 for the mean of neighbours
        assert -1.2 < learned[kind]["heldout_skill"] < -0.7
        assert learned[kind]["controls"]["mean_of_neighbours"] == pytest.approx(-0.5, abs=0.1)


def test_frozen_weights_are_bit_for_bit_the_base_s(project: Path) -> None:
    base, pretrained = Checkpoint(project / "data/base"), Checkpoint(project / "models/pretrained")
    layers = json.loads((project / "models/pretrained/expansion.json").read_text())["layers"]
    assert [layer["from"] for layer in layers if layer["new"]] == [[i, i + 1] for i in range(14, 29)]
    compared = 0
    for name in pretrained.names():
        original = name
        if name.startswith("model.layers."):
            number, _, inner = name.removeprefix("model.layers.").partition(".")
            layer = layers[int(number)]
            if layer["new"]:
                continue
            original = f"model.layers.{layer['from'][0]}.{inner}"
        assert torch.equal(pretrained.tensor(name), base.tensor(original)), name
        compared += 1
    assert compared == len(base.names())


def test_the_checkpoint_loads_anywhere_and_speaks(project: Path) -> None:
    folder = project / "models/pretrained"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    cached = model.generate(**prompt, max_new_tokens=8, do_sample=False, use_cache=True)
    plain = model.generate(**prompt, max_new_tokens=8, do_sample=False, use_cache=False)
    assert tokenizer.decode(cached[0]) == tokenizer.decode(plain[0])
    assert len(cached[0]) == prompt["input_ids"].shape[1] + 8


def test_the_report_stands(project: Path) -> None:
    page = (project / "reports/report.html").read_text()
    assert "SmolLM2-135M-Instruct" in page
    assert str(project) not in page
    assert len(list((project / "reports/figures").glob("*.png"))) >= 6
