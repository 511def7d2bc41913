"""Fetch the base model and write it as a plain safetensors checkpoint."""

import math
from pathlib import Path
from typing import Any

from common import check_places, run
from lesa.checkpoint import Checkpoint
from lesa.families import num_layers
from lesa.files import whole_folder, write_json
from lesa.meter import Meter
from lesa.settings import Settings
from lesa.sources import fetch_base


def main(settings: Settings, out: Path, report: Path) -> None:
    meter = Meter()

    def check(config: dict[str, Any]) -> None:
        check_places(settings, num_layers(config))

    with whole_folder(out) as folder:
        fetch_base(settings.base, folder, check)
    checkpoint = Checkpoint(out)
    metrics = {
        "model": settings.base.model,
        "revision": settings.base.revision,
        "layers": num_layers(checkpoint.config),
        "parameters": sum(math.prod(checkpoint.shape(name)) for name in checkpoint.names()),
        "seconds": meter.seconds,
        "peak_memory_bytes": meter.peak_memory_bytes,
    }
    write_json(report / "metrics.json", metrics)


if __name__ == "__main__":
    run(main)
