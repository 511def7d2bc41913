import subprocess
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from lesa.checkpoint import SINGLE
from lesa.errors import LesaError
from lesa.launch import check_launch, launch_command
from test_pretraining import RECIPE, folder, train

__all__ = ["folder"]

CONFIGS = Path(__file__).parent.parent / "configs"
SCRIPT = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from lesa.pretraining import pretrain
from lesa.settings import Pretrain

folder = Path(sys.argv[1])
pretrain(folder / "expanded", folder / "corpus", folder / "out", folder / "report",
         Pretrain(**eval(sys.argv[2])), 0, "cpu", folder / "checkpoints")
"""


def test_two_processes_train_like_one_with_twice_the_accumulation(folder: Path) -> None:
    # Held-out blocks that do not divide among the processes are left out, hence four.
    one = train(folder, "out-one", gradient_accumulation=2, eval_blocks=4)
    (folder / "script.py").write_text(SCRIPT)
    recipe = repr({**RECIPE, "gradient_accumulation": 1, "eval_blocks": 4})
    script = [str(folder / "script.py"), str(folder), recipe]
    done = subprocess.run(
        launch_command(str(CONFIGS / "cpu_two_processes.yaml"), script), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for name, column in (("train", "train_loss"), ("heldout", "heldout_loss")):
        alone = pd.read_csv(folder / "report-one" / f"{name}.csv")
        together = pd.read_csv(folder / "report" / f"{name}.csv")
        assert together["tokens"].tolist() == alone["tokens"].tolist()
        assert together[column].tolist() == pytest.approx(alone[column].tolist(), rel=1e-3)
    assert one["tokens"] == 6 * 2 * 2 * 16
    before, after = load_file(folder / "expanded" / SINGLE), load_file(folder / "out" / SINGLE)
    assert before.keys() == after.keys() == load_file(folder / "out-one" / SINGLE).keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]) != name.startswith(("model.layers.3.", "model.layers.5.")), name
    assert not (folder / "checkpoints").exists()


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_file_in_configs_can_be_used(config: Path) -> None:
    check_launch(str(config))
    assert launch_command(str(config), ["script.py", "x"])[-2:] == ["script.py", "x"]


def test_a_missing_or_foreign_file_is_named(tmp_path: Path) -> None:
    check_launch(None)
    (tmp_path / "there.yaml").write_text("a: [")
    with pytest.raises(LesaError, match=r"gone\.yaml, which does not exist; there are .*there\.yaml"):
        check_launch(str(tmp_path / "gone.yaml"))
    with pytest.raises(LesaError, match="not a valid YAML file"):
        check_launch(str(tmp_path / "there.yaml"))
    (tmp_path / "there.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LesaError, match="not a valid YAML file"):
        check_launch(str(tmp_path / "there.yaml"))
    (tmp_path / "there.yaml").write_text("a: 1")
    with pytest.raises(LesaError, match="must name distributed_type and num_processes"):
        check_launch(str(tmp_path / "there.yaml"))
