"""A real race: `stages/compare.py` under the real DVC, on a tiny random model and a small text."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from test_pipeline import change, ran, run, tiny_project

COMPARE = (sys.executable, "stages/compare.py", "reports/compare")
OUTPUTS = {"metrics.json", "curves.csv", "compare.png", "compare.md"}


def compare(folder: Path, methods: Sequence[object], fails: bool = False) -> str:
    change(folder, compare={"methods": list(methods), "seeds": [0, 1], "reference": "llama_pro"})
    return run(folder, *COMPARE, fails=fails)


def interpolate(rate: float) -> dict[str, object]:
    return {"name": "interpolate", "set": {"pretrain.learning_rate": rate}}


def ref(folder: Path, name: str) -> str:
    head = run(folder, "git", "rev-parse", "HEAD").strip()
    return f"refs/exps/{head[:2]}/{head[2:]}/{name}"


def from_experiment(folder: Path, name: str, path: str) -> str:
    return run(folder, "git", "show", f"{ref(folder, name)}:{path}")


def pretrained(folder: Path, name: str) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads(from_experiment(folder, name, "reports/pretrain/metrics.json"))
    return metrics


def state(folder: Path) -> dict[str, bytes]:
    """What git says of the workspace, and the bytes of all files in it but git's, DVC's and the race's own."""
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not {".git", ".dvc", "compare"} & set(path.relative_to(folder).parts)
        if "__pycache__" not in path.parts
    }
    said = [run(folder, "git", *command.split()) for command in ("stash list", "status --porcelain", "rev-parse HEAD")]
    return {**files, "git": "".join(said).encode()}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny matrices gain nothing from a second thread, and lose a lot where others want the cores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A project after a race of two methods over two seeds, and what was said meanwhile."""
    folder = tmp_path_factory.mktemp("race")
    tiny_project(folder)
    (folder / "notes.txt").write_text("not known to git")
    change(folder, compare={"methods": ["llama_pro", interpolate(0.01)], "seeds": [0, 1], "reference": "llama_pro"})
    before = state(folder)
    output = run(folder, *COMPARE)
    after = state(folder)
    assert after.pop("git").replace(b"?? reports/\n", b"") == before.pop("git")
    assert after == before
    assert not (folder / ".dvc/tmp/compare").exists()
    return folder, output


def test_every_run_is_an_experiment_with_its_settings(raced: tuple[Path, str]) -> None:
    folder, _ = raced
    shown = run(folder, "dvc", "exp", "show", "--csv")
    for name in ("llama_pro", "interpolate"):
        for seed in (0, 1):
            assert f"{name}-seed{seed}," in shown
            params = yaml.safe_load(from_experiment(folder, f"{name}-seed{seed}", "params.yaml"))
            assert (params["expansion"]["method"], params["seed"]) == (name, seed)
            assert params["pretrain"]["learning_rate"] == (0.01 if name == "interpolate" else 0.001)


def test_what_seeds_and_methods_share_is_done_once(raced: tuple[Path, str]) -> None:
    stages = ran(raced[1])
    counts = {stage: stages.count(stage) for stage in stages}
    assert counts == {
        "download": 1,
        "prepare_corpus": 1,
        "analyze": 1,
        "train_predictor": 2,
        "choose": 4,
        "expand": 4,
        "pretrain": 4,
    }


def test_methods_see_the_same_blocks_in_the_same_order(raced: tuple[Path, str]) -> None:
    folder, _ = raced
    orders = {
        name: pretrained(folder, name)["order_sha256"]
        for name in ("llama_pro-seed0", "llama_pro-seed1", "interpolate-seed0", "interpolate-seed1")
    }
    assert orders["llama_pro-seed0"] == orders["interpolate-seed0"]
    assert orders["llama_pro-seed1"] == orders["interpolate-seed1"]
    assert orders["llama_pro-seed0"] != orders["llama_pro-seed1"]
    assert len({pretrained(folder, name)["heldout_sha256"] for name in orders}) == 1


def test_the_table_holds_what_the_experiments_measured(raced: tuple[Path, str]) -> None:
    folder, _ = raced
    assert {path.name for path in (folder / "reports/compare").iterdir()} == OUTPUTS
    metrics = json.loads((folder / "reports/compare/metrics.json").read_text())
    curves = pd.read_csv(folder / "reports/compare/curves.csv")
    assert list(metrics) == ["llama_pro", "interpolate"]
    assert len(curves) == 2 * 2 * 3
    for method, found in metrics.items():
        runs = [pretrained(folder, f"{method}-seed{seed}") for seed in (0, 1)]
        assert found["perplexity"] == [measured["heldout_perplexity"] for measured in runs]
        assert found["initial_perplexity"] == pytest.approx(sum(r["initial_heldout_perplexity"] for r in runs) / 2)
        assert found["init_seconds"] > 0
    assert all(tokens <= 4 * 2 * 32 for tokens in metrics["llama_pro"]["tokens_to_target"])
    page = (folder / "reports/compare/compare.md").read_text()
    assert "**interpolate** ran with settings of its own: `pretrain.learning_rate: 0.01`." in page
    assert "llama_pro" in page


def test_the_second_time_nothing_runs(raced: tuple[Path, str]) -> None:
    folder, _ = raced
    output = compare(folder, ["llama_pro", interpolate(0.01)])
    assert "compare: 4 runs, 0 of them to do" in output
    assert ran(output) == []


def test_stopped_it_leaves_the_workspace_alone_and_then_does_what_changed(raced: tuple[Path, str]) -> None:
    folder, _ = raced
    change(folder, compare={"methods": ["llama_pro", interpolate(0.02)]})
    before = state(folder)
    table = (folder / "reports/compare/metrics.json").read_bytes()
    log = folder / "reports/compare/log"
    with log.open("wb") as file:
        process = subprocess.Popen(COMPARE, cwd=folder, stdout=file, stderr=file, env={**os.environ, "LC_ALL": "C"})
        wait_for(log, "Running stage 'pretrain'")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1
    said = log.read_text()
    log.unlink()
    assert "lesa: stopped; 2 of 4 runs are kept, make compare does the rest" in said
    assert "Traceback" not in said.split("lesa: stopped")[1]
    assert state(folder) == before
    assert (folder / "reports/compare/metrics.json").read_bytes() == table
    assert not (folder / ".dvc/tmp/compare").exists()
    output = run(folder, *COMPARE)
    assert "compare: 4 runs, 2 of them to do" in output
    assert set(ran(output)) == {"choose", "pretrain"}  # the choice would be made by a race at that rate
    assert (folder / "reports/compare/metrics.json").read_bytes() != table


def wait_for(log: Path, words: str) -> None:
    end = time.monotonic() + 120
    while words not in log.read_text(errors="replace"):
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["llama_pro", "magic"], "compare.methods.1: magic is no method"),
        (["llama_pro", {"name": "x", "set": {"expansion.method": "lesa", "pretrain.steps": 0}}], "pretrain.steps"),
        (["llama_pro", {"name": "x", "set": {"expansion.method": "lesa", "base.model": "mine"}}], "give it in full"),
    ],
)
def test_a_mistake_is_refused_before_any_run(raced: tuple[Path, str], methods: list[object], message: str) -> None:
    folder, _ = raced
    (folder / "mine").mkdir(exist_ok=True)
    output = compare(folder, methods, fails=True)
    said = [line for line in output.splitlines() if line.startswith("lesa: ")]
    assert len(said) == 1
    assert message in said[0]
    assert "compare:" not in output.replace(said[0], "")


def test_a_run_that_fails_is_named_and_the_others_are_kept(raced: tuple[Path, str]) -> None:
    folder, _ = raced
    short = {"name": "short", "set": {"expansion.method": "llama_pro", "pretrain.batch_size": 5000}}
    table = (folder / "reports/compare/metrics.json").read_bytes()
    change(folder, compare={"methods": ["llama_pro", short], "seeds": [0], "reference": "llama_pro"})
    output = run(folder, *COMPARE, fails=True)
    assert "1 of 2 failed (the others are kept): short-seed0: data/corpus has" in output.splitlines()[-1]
    assert (folder / "reports/compare/metrics.json").read_bytes() == table
    assert run(folder, "git", "rev-parse", ref(folder, "llama_pro-seed0"))


def test_without_a_commit_or_a_repository_it_says_so(raced: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = raced
    for part in ("stages", "lesa", "tasks", ".dvc/config", "params.yaml", "dvc.yaml"):
        (tmp_path / part).parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (folder / part).is_dir() else shutil.copy
        copy(folder / part, tmp_path / part)
    assert "lesa: experiments are kept in git, and this is no git repository" in run(tmp_path, *COMPARE, fails=True)
    run(tmp_path, "git", "init", "-q")
    assert "lesa: experiments belong to a commit, and there is none" in run(tmp_path, *COMPARE, fails=True)
