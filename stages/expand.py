"""Write the deeper checkpoint."""

from pathlib import Path

from common import run
from lesa.expansion import expand
from lesa.files import write_json
from lesa.initializers import Learned
from lesa.settings import Settings


def main(settings: Settings, base: Path, spectrum: Path, predictor: Path, out: Path, report: Path) -> None:
    metrics = expand(
        base,
        out,
        settings.expansion.method,
        settings.expansion.places,
        settings.expansion.norms,
        settings.expansion.router,
        Learned(str(spectrum), str(predictor)),
        settings.expansion.max_shard_size,
        settings.device,
        origin=settings.base.model,
        seed=settings.seed,
    )
    write_json(report / "metrics.json", metrics)


if __name__ == "__main__":
    run(main)
