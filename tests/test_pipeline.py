"""The real pipeline under the real DVC, on a tiny random model and a small text."""

import csv
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from conftest import tiny_llama

REPOSITORY = Path(__file__).parent.parent
PARTS = ["lesa", "stages", "tasks", ".dvc/config", ".dvc/.gitignore", ".dvc/plots", ".dvcignore", ".gitignore"]
PARTS += ["dvc.yaml", "params.yaml"]
STAGES = [
    "download",
    "prepare_corpus",
    "prepare_tasks",
    "analyze",
    "train_predictor",
    "expand",
    "pretrain",
    "evaluate@base",
    "evaluate@expanded",
    "evaluate@pretrained",
    "report",
]
SETTINGS = {
    "base": {"dtype": "float32", "sha256": None},
    "corpus": {"sequence_length": 32, "heldout_fraction": 0.2, "sha256": None},
    "predictor": {"epochs": 1, "heldout_epochs": 1, "hidden_size": 16, "heldout_layers": 1},
    "expansion": {"first": 2, "last": 5},
    "pretrain": {"steps": 4, "warmup_steps": 1, "eval_every": 2, "eval_blocks": 4, "save_every": 2},
    "evaluate": {"tasks": ["wiki_cloze"], "limit": 4},
}
WORDS = re.findall(
    r"\w+",
    """river mountain harbor village castle market garden bridge valley forest island temple library museum school
    history culture music language science painting railway factory theater election festival orchard""",
)


def run(folder: Path, *command: str, fails: bool = False, seconds: int = 600) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "DVC_NO_ANALYTICS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, timeout=seconds)
    output = done.stdout + done.stderr
    assert (done.returncode != 0) == fails, output
    return output


def change(folder: Path, **sections: dict[str, object]) -> None:
    params = yaml.safe_load((folder / "params.yaml").read_text())
    for section, keys in sections.items():
        params[section].update(keys)
    (folder / "params.yaml").write_text(yaml.safe_dump(params))


def ran(output: str) -> list[str]:
    """The stages that DVC ran, from its own words."""
    return re.findall(r"Running stage '([^']+)'", output)


def sentence(rng: random.Random) -> str:
    place = rng.choice(["Alberton", "Brenmouth", "Caldwick", "Dunmere", "Eastholm", "Farleigh", "Grenton", "Holmby"])
    first, second, third = rng.sample(WORDS, 3)
    return f"The {first} of {place} was built near the old {second} and it is known for the {third} of the region."


def write_model(folder: Path, text: list[str]) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(text, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[0], bos_token=special[0])
    torch.manual_seed(0)
    config = tiny_llama(vocab_size=400, bos_token_id=0, eos_token_id=0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    fast.save_pretrained(folder)


def copy_repository(folder: Path) -> None:
    """What a clone holds, as it is in the working tree, under a git of its own."""
    for part in PARTS:
        source = REPOSITORY / part
        (folder / part).parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / part)
    run(folder, "git", "init", "-q")
    run(folder, "git", "config", "user.email", "test@example.org")
    run(folder, "git", "config", "user.name", "test")


def tiny_project(folder: Path) -> None:
    """A copy of the repository with a tiny model and text, in one commit."""
    copy_repository(folder)
    rng = random.Random(0)
    text = [" ".join(sentence(rng) for _ in range(rng.randint(12, 20))) for _ in range(60)]
    write_model(folder / "tiny", text)
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": document}) + "\n" for document in text))
    change(folder, **SETTINGS)
    change(folder, base={"model": "tiny"}, corpus={"source": "text.jsonl"})
    run(folder, "git", "add", "-A")
    run(folder, "git", "commit", "-qm", "start")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny project after a first ``dvc repro``."""
    folder = tmp_path_factory.mktemp("project")
    tiny_project(folder)
    output = run(folder, "dvc", "repro")
    assert sorted(ran(output)) == sorted(STAGES)
    run(folder, "git", "add", "-A")
    run(folder, "git", "commit", "-qm", "first run")
    return folder


def test_every_output_is_there(project: Path) -> None:
    for name in ("download", "prepare_corpus", "prepare_tasks", "analyze", "train_predictor", "expand", "pretrain"):
        assert json.loads((project / "reports" / name / "metrics.json").read_text())["seconds"] > 0
    expansion = json.loads((project / "reports/expand/metrics.json").read_text())
    assert (expansion["layers_before"], expansion["layers_after"]) == (8, 11)
    for which in ("base", "expanded", "pretrained"):
        result = json.loads((project / f"reports/evaluate/{which}.json").read_text())
        assert result.keys() >= {"perplexity", "bits_per_byte", "tasks", "parameters"}
    assert "<html" in (project / "reports/report.html").read_text()
    model = AutoModelForCausalLM.from_pretrained(project / "models/pretrained")
    assert model.config.num_hidden_layers == 11
    assert not list((project / "models").glob("*checkpoints*"))
    assert run(project, "git", "status", "--porcelain") == ""


def test_frozen_weights_are_untouched_and_new_ones_moved(project: Path) -> None:
    from lesa.checkpoint import Checkpoint

    expanded, pretrained = (Checkpoint(project / "models" / name) for name in ("expanded", "pretrained"))
    layers = json.loads((project / "models/expanded/expansion.json").read_text())["layers"]
    new = tuple(f"model.layers.{i}." for i, layer in enumerate(layers) if layer["new"])
    assert new == ("model.layers.3.", "model.layers.5.", "model.layers.7.")
    for name in expanded.names():
        assert torch.equal(expanded.tensor(name), pretrained.tensor(name)) != name.startswith(new), name


def test_nothing_reruns_the_second_time(project: Path) -> None:
    assert ran(run(project, "dvc", "repro")) == []


def test_more_processes_are_no_reason_to_prepare_the_corpus_again(project: Path) -> None:
    before = (project / "params.yaml").read_text()
    change(project, corpus={"processes": 1})
    assert ran(run(project, "dvc", "repro")) == ["report"]
    (project / "params.yaml").write_text(before)
    run(project, "dvc", "repro")


def test_dag_and_plots_draw(project: Path) -> None:
    dag = run(project, "dvc", "dag", "--dot")
    assert '"train_predictor" -> "expand"' in dag.replace("'", '"')
    run(project, "dvc", "plots", "show", "-o", "plots")
    assert "vega" in (project / "plots/index.html").read_text()
    shutil.rmtree(project / "plots")


def test_a_learning_rate_reruns_only_what_depends_on_it(project: Path) -> None:
    change(project, pretrain={"learning_rate": 0.002})
    assert sorted(ran(run(project, "dvc", "repro"))) == ["evaluate@pretrained", "pretrain", "report"]


def test_experiments_of_two_methods_stand_side_by_side(project: Path) -> None:
    output = run(project, "dvc", "exp", "run", "-S", "expansion.method=llama_pro", "-n", "pro")
    assert not {"download", "prepare_corpus", "prepare_tasks", "analyze", "train_predictor", "evaluate@base"} & set(
        ran(output)
    )
    assert {"expand", "pretrain", "evaluate@expanded", "evaluate@pretrained"} <= set(ran(output))
    rows = csv.DictReader(run(project, "dvc", "exp", "show", "--csv").splitlines())
    shown = {row["expansion.method"]: row["reports/evaluate/expanded.json:perplexity"] for row in rows}
    assert shown.keys() >= {"lesa", "llama_pro"}
    assert shown["lesa"] != shown["llama_pro"]
    base = json.loads((project / "reports/evaluate/base.json").read_text())
    assert float(shown["llama_pro"]) == pytest.approx(base["perplexity"])
    assert "learning_rate" in run(project, "dvc", "params", "diff", "HEAD")
    run(project, "dvc", "plots", "diff", "HEAD", "-o", "plots")
    shutil.rmtree(project / "plots")


@pytest.mark.parametrize(
    ("section", "wrong", "message"),
    [
        ("expansion", {"last": 8}, r"expansion\.first\.\.expansion\.last is 2\.\.8, outside the base's 8 layers"),
        ("evaluate", {"tasks": ["wiki_clozze"]}, r"evaluate\.tasks.*wiki_clozze.*wiki_cloze"),
        ("pretrain", {"stepps": 3}, r"unknown key pretrain\.stepps; did you mean steps\?"),
        ("base", {"model": "no/such/folder"}, r"base\.model.*no/such/folder"),
        ("corpus", {"source": "empty.txt"}, r"corpus\.source gave 0 document"),
    ],
)
def test_a_mistake_is_one_sentence_and_costs_nothing(
    project: Path, section: str, wrong: dict[str, object], message: str
) -> None:
    (project / "empty.txt").write_text("")
    before = (project / "params.yaml").read_text()
    kept = (project / "reports/evaluate/base.json").read_bytes()
    change(project, **{section: wrong})
    try:
        output = run(project, "dvc", "repro", fails=True)
    finally:
        (project / "params.yaml").write_text(before)
    said = [line for line in output.splitlines() if line.startswith("lesa: ")]
    assert len(said) == 1, output
    assert re.search(message, said[0]), said[0]
    assert "Traceback" not in output
    assert ran(run(project, "dvc", "repro")) == []
    assert (project / "reports/evaluate/base.json").read_bytes() == kept
