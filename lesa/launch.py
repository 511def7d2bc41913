"""How to start a training script on several processes, from an accelerate configuration file."""

import sys
from pathlib import Path

import yaml

from lesa.errors import LesaError


def check_launch(config: str | None) -> None:
    """See that a launch configuration can be read.

    Raises:
        LesaError: there is no such file, or it does not say how many processes of what kind to start.
    """
    if config is not None:
        _read(config)


def launch_command(config: str, script: list[str]) -> list[str]:
    """The command that runs ``script`` (a file and its arguments) as the configuration says.

    ``accelerate launch`` starts several CPU processes only by way of MPI, so torch's own launcher takes those.

    Raises:
        LesaError: see ``check_launch``.
    """
    settings = _read(config)
    if settings["distributed_type"] == "MULTI_CPU":
        processes = str(settings["num_processes"])
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes, *script]
    return [sys.executable, "-m", "accelerate.commands.launch", "--config_file", config, *script]


def _read(config: str) -> dict[str, object]:
    path = Path(config)
    if not path.is_file():
        there = ", ".join(str(file) for file in sorted(path.parent.glob("*.yaml"))) or "none beside it"
        raise LesaError(f"pretrain.launch is {config}, which does not exist; there are {there}")
    try:
        settings = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise LesaError(f"pretrain.launch: {config} is not a valid YAML file: {' '.join(str(error).split())}") from None
    if not isinstance(settings, dict) or not {"distributed_type", "num_processes"} <= settings.keys():
        raise LesaError(f"pretrain.launch: {config} must name distributed_type and num_processes; see configs/")
    return settings
