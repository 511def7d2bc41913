"""How to start a training script on several processes, from an accelerate configuration file."""

import os
import sys
from pathlib import Path
from typing import Any

import yaml

from lesa.errors import LesaError

NODE_RANK, MASTER_ADDR, MASTER_PORT = "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"
"""Environment variables that say which of several machines this is, and where the first one listens."""

KINDS = ("NO", "MULTI_CPU", "MULTI_GPU", "FSDP")
"""The values of distributed_type that a training can be started with."""

FSDP = {"fsdp_version": 2, "fsdp_state_dict_type": "FULL_STATE_DICT"}
"""What FSDP must be set to: the second version, and weights saved whole, since the result is read from them."""


def check_launch(config: str | None, optimizer: str = "adamw") -> None:
    """See that a launch configuration can be read, and that a training can be read back from what it saves.

    Raises:
        LesaError: there is no such file, it does not say how many processes of what kind to start, it asks for
            another FSDP than ``FSDP``, or for FSDP with an optimizer that needs whole matrices.
    """
    if config is not None and _read(config)["distributed_type"] == "FSDP" and optimizer == "muon":
        raise LesaError(
            f"pretrain.optimizer is muon, which needs whole matrices, and {config} divides them (FSDP); "
            "use adamw or adamw_fused"
        )


def launch_command(config: str, script: list[str]) -> list[str]:
    """The command that runs ``script`` (a file and its arguments) as the configuration says.

    ``accelerate launch`` starts several CPU processes only by way of MPI, so torch's own launcher takes those. On
    several machines each of them starts the script, with the environment variables ``NODE_RANK`` and ``MASTER_ADDR``.

    Raises:
        LesaError: see ``check_launch``; or the configuration is for several machines, and a variable is not set.
    """
    settings = _read(config)
    if settings["distributed_type"] == "MULTI_CPU":
        processes = str(settings["num_processes"])
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes, *script]
    machine = _machine(config) if settings.get("num_machines", 1) > 1 else []
    return [sys.executable, "-m", "accelerate.commands.launch", "--config_file", config, *machine, *script]


def launch_environment(config: str) -> dict[str, str]:
    """The environment variables by which accelerate learns of FSDP in a process that torchrun started, not itself.

    Raises:
        LesaError: see ``check_launch``.
    """
    settings = _read(config)
    if settings["distributed_type"] != "FSDP":
        return {}
    values = {key.upper(): str(value) for key, value in settings["fsdp_config"].items()}
    lower = {key: value.lower() if value in ("True", "False") else value for key, value in values.items()}
    return {"ACCELERATE_USE_FSDP": "true", **lower}


def _machine(config: str) -> list[str]:
    missing = [name for name in (NODE_RANK, MASTER_ADDR) if not os.environ.get(name)]
    if missing:
        raise LesaError(
            f"pretrain.launch: {config} is for several machines, and {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set; set NODE_RANK (0 on the first machine, 1 on the second) "
            "and MASTER_ADDR (the first one's address) on each of them"
        )
    options = ["--machine_rank", os.environ[NODE_RANK], "--main_process_ip", os.environ[MASTER_ADDR]]
    return [*options, "--main_process_port", os.environ.get(MASTER_PORT, "29500")]


def _read(config: str) -> dict[str, Any]:
    path = Path(config)
    if not path.is_file():
        beside = path if path.is_dir() else path.parent
        there = ", ".join(str(file) for file in sorted(beside.glob("*.yaml"))) or "none beside it"
        raise LesaError(f"pretrain.launch is {config!r}, which is no file; there are {there}")
    try:
        settings = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise LesaError(f"pretrain.launch: {config} is not a valid YAML file: {' '.join(str(error).split())}") from None
    if not isinstance(settings, dict) or not {"distributed_type", "num_processes"} <= settings.keys():
        raise LesaError(f"pretrain.launch: {config} must name distributed_type and num_processes; see configs/")
    for key in ("num_processes", "num_machines"):
        count = settings.get(key, 1)
        if not isinstance(count, int) or count < 1:
            raise LesaError(f"pretrain.launch: in {config}, {key} must be a number from 1 on, and is {count!r}")
    if settings["distributed_type"] not in KINDS:
        raise LesaError(
            f"pretrain.launch: in {config}, distributed_type is {settings['distributed_type']}; "
            f"right would be one of {', '.join(KINDS)}"
        )
    if settings["distributed_type"] == "FSDP":
        fsdp = settings.get("fsdp_config") or {}
        if not isinstance(fsdp, dict):
            raise LesaError(f"pretrain.launch: in {config}, fsdp_config must hold keys with values, and is {fsdp!r}")
        for key, value in FSDP.items():
            if fsdp.get(key) != value:
                found = f"is {fsdp[key]}" if key in fsdp else "is not set"
                raise LesaError(f"pretrain.launch: in {config}, fsdp_config.{key} {found}; it must be {value}")
    return settings
