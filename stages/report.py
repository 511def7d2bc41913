"""Put tables, figures and settings on one page."""

import subprocess
from pathlib import Path

from common import run
from lesa.report import write_report
from lesa.settings import Settings

MAKES_RESULTS = ("lesa", "stages", "tasks", "configs", "params.yaml", "dvc.yaml")


def main(settings: Settings, reports: Path) -> None:
    revision = git("rev-parse", "--short=12", "HEAD")
    checkout = [f"git checkout {revision}"] if revision else []
    if revision and git("status", "--porcelain", "--", *MAKES_RESULTS):
        revision += " with changes that were not committed"
        checkout.append("# then make the same changes; the settings are below")
    write_report(reports, settings, "dvc repro", [*checkout, "make repro"], revision)


def git(*arguments: str) -> str | None:
    """What git says, or nothing where there is no git, no repository or no commit."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


if __name__ == "__main__":
    run(main)
