"""Continue pre-training."""

from pathlib import Path

from common import run
from lesa.files import write_json
from lesa.pretraining import pretrain
from lesa.settings import Settings


def main(settings: Settings, expanded: Path, corpus: Path, out: Path, report: Path) -> None:
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
    write_json(report / "metrics.json", metrics)


if __name__ == "__main__":
    run(main)
