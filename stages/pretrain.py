"""Continue pre-training, on several processes where pretrain.launch says so."""

import os
import subprocess
import sys
from pathlib import Path

from common import run
from lesa.files import write_json
from lesa.launch import launch_command, launch_environment
from lesa.pretraining import pretrain
from lesa.settings import Settings

RANK = "RANK"  # what launchers set in each process they start, if there are several
LAUNCHED = "LESA_LAUNCHED"  # what is set here in the processes of a launcher


def main(settings: Settings, expanded: Path, corpus: Path, out: Path, report: Path) -> None:
    if settings.pretrain.launch and not {RANK, LAUNCHED} & os.environ.keys():
        command = launch_command(settings.pretrain.launch, sys.argv)
        sys.exit(subprocess.run(command, env={**os.environ, LAUNCHED: "1"}).returncode)
    if settings.pretrain.launch:
        for name, value in launch_environment(settings.pretrain.launch).items():
            os.environ.setdefault(name, value)
    metrics = pretrain(
        expanded,
        corpus,
        out,
        report,
        settings.pretrain,
        settings.seed,
        settings.device,
        checkpoints=out.with_name(out.name + ".checkpoints"),
    )
    if os.environ.get(RANK, "0") == "0":
        write_json(report / "metrics.json", metrics)


if __name__ == "__main__":
    run(main)
