"""Write the deeper checkpoint."""

from pathlib import Path

from common import run, write_deeper
from lesa.files import read_json, write_json
from lesa.settings import Settings


def main(
    settings: Settings, base: Path, spectrum: Path, predictor: Path, choice: Path, out: Path, report: Path
) -> None:
    metrics = write_deeper(settings, read_json(choice)["method"], base, spectrum, predictor, out)
    write_json(report / "metrics.json", metrics)


if __name__ == "__main__":
    run(main)
