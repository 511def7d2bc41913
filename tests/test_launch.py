import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from safetensors.torch import load_file

from lesa.checkpoint import SINGLE
from lesa.errors import LesaError
from lesa.launch import check_launch, launch_command, launch_environment
from test_corpus import EOS, word_tokenizer
from test_pretraining import RECIPE, folder, train

__all__ = ["folder"]

CONFIGS = Path(__file__).parent.parent / "configs"
SCRIPT = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from lesa import callbacks, pretraining
from lesa.settings import Pretrain

# accelerate takes FSDP up on GPUs only; these are its own lines for them. All that follows runs on CPUs as well.
made = AcceleratorState.__init__
def make(state, *arguments, **settings):
    made(state, *arguments, **settings)
    if settings.get("fsdp_plugin"):
        state.fsdp_plugin = settings["fsdp_plugin"]
        if state._mixed_precision != "no":
            state.fsdp_plugin.set_mixed_precision(state._mixed_precision)
        state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
AcceleratorState.__init__ = make

class Steps(callbacks.Clock):
    def on_step_end(self, args, state, control, **settings):
        super().on_step_end(args, state, control, **settings)
        if state.is_world_process_zero:
            print("step", state.global_step, DistributedType(PartialState().distributed_type).value, flush=True)
        if state.global_step == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
pretraining.Clock = Steps

folder = Path(sys.argv[1])
pretraining.pretrain(folder / "expanded", folder / "corpus", folder / "out", folder / "report",
                     Pretrain(**eval(sys.argv[2])), 0, "cpu", folder / "checkpoints")
"""
NEW = ("model.layers.3.", "model.layers.5.")


def launch(
    config: Path, folder: Path, recipe: dict[str, Any], kill_at: int = 0, before: str = ""
) -> "subprocess.CompletedProcess[str]":
    (folder / "script.py").write_text(SCRIPT.replace("folder = Path", f"{before}\nfolder = Path"))
    script = [str(folder / "script.py"), str(folder), repr(recipe), str(kill_at)]
    return subprocess.run(launch_command(str(config), script), capture_output=True, text=True)


def steps(done: "subprocess.CompletedProcess[str]") -> list[str]:
    return re.findall(r"step (\d+ \w+)", done.stdout)


def check_alike(folder: Path, moved: tuple[str, ...]) -> None:
    """The run of several processes against the run of one, ``out-one``."""
    for name, column in (("train", "train_loss"), ("heldout", "heldout_loss")):
        alone = pd.read_csv(folder / "report-one" / f"{name}.csv")
        together = pd.read_csv(folder / "report" / f"{name}.csv")
        assert together["tokens"].tolist() == alone["tokens"].tolist()
        assert together[column].tolist() == pytest.approx(alone[column].tolist(), rel=1e-3)
    before, after = load_file(folder / "expanded" / SINGLE), load_file(folder / "out" / SINGLE)
    alone = load_file(folder / "out-one" / SINGLE)
    assert before.keys() == after.keys() == alone.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]) != name.startswith(moved), name
        torch.testing.assert_close(after[name], alone[name], rtol=1e-2, atol=1e-3)
    assert not (folder / "checkpoints").exists()


def test_two_processes_train_like_one_with_twice_the_accumulation(folder: Path) -> None:
    one = train(folder, "out-one", gradient_accumulation=2, eval_blocks=5)
    done = launch(CONFIGS / "cpu_two_processes.yaml", folder, {**RECIPE, "gradient_accumulation": 1, "eval_blocks": 5})
    assert done.returncode == 0, done.stderr
    check_alike(folder, NEW)
    assert one["tokens"] == 6 * 2 * 2 * 16


@pytest.mark.parametrize("config", ["one_gpu", "cpu_two_processes"])
def test_the_stage_starts_its_launcher_once(folder: Path, config: str) -> None:
    recipe = {**RECIPE, "steps": 2, "warmup_steps": 0, "launch": str(CONFIGS / f"{config}.yaml")}
    settings = {"device": "cpu", "base": {"model": "base"}, "corpus": {"source": "text.txt"}, "pretrain": recipe}
    settings["evaluate"] = {"tasks": []}
    (folder / "params.yaml").write_text(yaml.safe_dump(settings))
    stage = str(CONFIGS.parent / "stages" / "pretrain.py")
    command = [sys.executable, stage, "expanded", "corpus", "models/pretrained", "report"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((folder / "report" / "metrics.json").read_text())
    assert metrics["tokens"] == 2 * 2 * 2 * 16 * (2 if config == "cpu_two_processes" else 1)
    assert (folder / "models" / "pretrained" / SINGLE).exists()


def test_processes_of_a_machine_say_a_mistake_once(folder: Path) -> None:
    script = SCRIPT.replace("pretraining.pretrain(", "common.run(lambda settings: pretraining.pretrain(") + ")"
    stages = str(CONFIGS.parent / "stages")
    prepare = f"import sys; sys.path.insert(0, {stages!r}); import common; common.checked_settings = lambda: None\n"
    (folder / "script.py").write_text(prepare + script.replace("sys.argv[1]", repr(str(folder))))
    recipe = {**RECIPE, "learning_rate": 1e18, "gradient_accumulation": 1}
    code = (folder / "script.py").read_text().replace("sys.argv[2]", repr(repr(recipe))).replace("sys.argv[3]", "0")
    (folder / "script.py").write_text(code)
    command = launch_command(str(CONFIGS / "cpu_two_processes.yaml"), [str(folder / "script.py")])
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert (
        len(
            re.findall(
                r"^lesa: the \w+ is (?:nan|inf) at step \d; pretrain\.learning_rate is 1e\+18", done.stderr, re.M
            )
        )
        == 1
    )
    assert done.stderr.count("a smaller one would be right") == 1


@pytest.fixture
def fsdp(tmp_path: Path) -> Path:
    """The file for one node, with two processes."""
    settings = yaml.safe_load((CONFIGS / "fsdp_one_node.yaml").read_text())
    (tmp_path / "fsdp.yaml").write_text(yaml.safe_dump({**settings, "num_processes": 2}))
    return tmp_path / "fsdp.yaml"


def test_fsdp_killed_and_run_again_ends_like_one_process(folder: Path, fsdp: Path) -> None:
    train(folder, "out-one", gradient_accumulation=2, eval_blocks=5)
    recipe = {**RECIPE, "gradient_accumulation": 1, "eval_blocks": 5}
    killed = launch(fsdp, folder, recipe, kill_at=5)
    assert killed.returncode != 0
    assert steps(killed) == [f"{step} FSDP" for step in range(1, 6)]
    state = torch.load(folder / "checkpoints" / "checkpoint-4" / "optimizer.bin")["state"]
    new = [name for name in load_file(folder / "expanded" / SINGLE) if name.startswith(NEW)]
    assert sorted(state) == sorted(new)
    again = launch(fsdp, folder, recipe)
    assert again.returncode == 0, again.stderr
    assert steps(again) == ["5 FSDP", "6 FSDP"]
    check_alike(folder, NEW)


def test_fsdp_with_every_option_ends_like_one_process(folder: Path, fsdp: Path) -> None:
    word_tokenizer(folder / "expanded")
    blocks = np.load(folder / "corpus" / "train" / "00000.npy")
    np.save(folder / "corpus" / "train" / "00000.npy", np.where(blocks == 3, EOS, blocks))
    heldout = np.load(folder / "corpus" / "heldout" / "00000.npy")
    np.save(folder / "corpus" / "heldout" / "00000.npy", np.where(heldout == 3, EOS, heldout))
    options = {"train": "all", "packing": "documents", "gradient_checkpointing": True, "optimizer": "adamw_fused"}
    train(folder, "out-one", gradient_accumulation=2, eval_blocks=5, **options)
    done = launch(fsdp, folder, {**RECIPE, "gradient_accumulation": 1, "eval_blocks": 5, **options})
    assert done.returncode == 0, done.stderr
    assert steps(done)[-1] == "6 FSDP"
    check_alike(folder, ("",))


def test_fsdp_in_bf16_keeps_the_digits_of_the_loss(folder: Path, fsdp: Path) -> None:
    train(folder, "out-one", gradient_accumulation=2, eval_blocks=5)
    recipe = {**RECIPE, "gradient_accumulation": 1, "eval_blocks": 5, "precision": "bf16"}
    done = launch(fsdp, folder, recipe, before="pretraining.use_bf16 = lambda *arguments: True")
    assert done.returncode == 0, done.stderr
    exact = pd.read_csv(folder / "report-one" / "heldout.csv")["heldout_loss"].to_numpy()
    loss = pd.read_csv(folder / "report" / "heldout.csv")["heldout_loss"].to_numpy()
    np.testing.assert_allclose(loss, exact, rtol=1e-2)
    assert abs(loss[0] - exact[0]) > 0, "it trained in float32"
    assert (loss != torch.tensor(loss).bfloat16().double().numpy()).all()
    before, after = load_file(folder / "expanded" / SINGLE), load_file(folder / "out" / SINGLE)
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]) != name.startswith(NEW), name


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_file_in_configs_can_be_used(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    check_launch(str(config))
    command = launch_command(str(config), ["script.py", "x"])
    assert command[-2:] == ["script.py", "x"]
    if "accelerate.commands.launch" not in command:
        assert command[2:6] == ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        return
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(command[3:]))
    environment = prepare_multi_gpu_env(arguments)
    ours = launch_environment(str(config))
    assert ours.items() <= environment.items()
    assert bool(ours) == config.stem.startswith("fsdp")
    assert arguments.num_processes == {"one_gpu": 1, "fsdp_one_node": 8, "fsdp_several_nodes": 16}[config.stem]
    assert config.stem != "fsdp_several_nodes" or (arguments.machine_rank, arguments.main_process_ip) == (1, "10.0.0.1")


def test_several_machines_must_be_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODE_RANK", raising=False)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(LesaError, match="is for several machines, and NODE_RANK and MASTER_ADDR are not set"):
        launch_command(str(CONFIGS / "fsdp_several_nodes.yaml"), ["script.py"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fsdp_version": 1}, r"fsdp_config\.fsdp_version is 1; it must be 2"),
        ({"fsdp_state_dict_type": "SHARDED_STATE_DICT"}, "is SHARDED_STATE_DICT; it must be FULL_STATE_DICT"),
        (None, r"fsdp_config\.fsdp_version is not set; it must be 2"),
    ],
)
def test_another_fsdp_is_refused(fsdp: Path, change: dict[str, object] | None, message: str) -> None:
    settings = yaml.safe_load(fsdp.read_text())
    settings["fsdp_config"] = change and {**settings["fsdp_config"], **change}
    fsdp.write_text(yaml.safe_dump(settings))
    with pytest.raises(LesaError, match=message):
        check_launch(str(fsdp))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_processes": "two"}, "num_processes must be a number from 1 on, and is 'two'"),
        ({"num_machines": 0}, "num_machines must be a number from 1 on, and is 0"),
        ({"distributed_type": "BOGUS"}, "distributed_type is BOGUS; right would be one of NO, "),
        ({"fsdp_config": [1]}, r"fsdp_config must hold keys with values, and is \[1\]"),
    ],
)
def test_what_a_launcher_would_stumble_over_is_said_first(fsdp: Path, change: dict[str, object], message: str) -> None:
    fsdp.write_text(yaml.safe_dump({**yaml.safe_load(fsdp.read_text()), **change}))
    with pytest.raises(LesaError, match=message):
        check_launch(str(fsdp))


def test_muon_is_refused_where_matrices_are_divided() -> None:
    check_launch(str(CONFIGS / "cpu_two_processes.yaml"), "muon")
    with pytest.raises(LesaError, match=r"pretrain\.optimizer is muon, .*fsdp_one_node\.yaml divides them"):
        check_launch(str(CONFIGS / "fsdp_one_node.yaml"), "muon")


def test_a_missing_or_foreign_file_is_named(tmp_path: Path) -> None:
    check_launch(None)
    (tmp_path / "there.yaml").write_text("a: [")
    with pytest.raises(LesaError, match=r"gone\.yaml', which is no file; there are .*there\.yaml"):
        check_launch(str(tmp_path / "gone.yaml"))
    with pytest.raises(LesaError, match="not a valid YAML file"):
        check_launch(str(tmp_path / "there.yaml"))
    (tmp_path / "there.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LesaError, match="not a valid YAML file"):
        check_launch(str(tmp_path / "there.yaml"))
    (tmp_path / "there.yaml").write_text("a: 1")
    with pytest.raises(LesaError, match="must name distributed_type and num_processes"):
        check_launch(str(tmp_path / "there.yaml"))
