"""Say which method the expansion takes: the one in the settings, or the winner of a race."""

from pathlib import Path

from common import run, write_deeper
from lesa.files import write_json
from lesa.meter import Meter
from lesa.settings import AUTO, Settings


def main(
    settings: Settings, base: Path, spectrum: Path, predictor: Path, corpus: Path, out: Path, report: Path
) -> None:
    meter = Meter()
    method, race = settings.expansion.method, {}
    if method == AUTO:
        from lesa.choice import choose, last_runs, winner  # which loads all that trains

        runs = choose(
            settings.expansion.candidates,
            lambda candidate, folder: write_deeper(settings, candidate, base, spectrum, predictor, folder),
            corpus,
            out.with_name(out.name + ".work"),
            settings.pretrain,
            settings.expansion.race_steps,
            settings.seed,
            settings.device,
        )
        method, race = winner(runs), last_runs(runs)
    write_json(out, {"method": method})
    resources = {"seconds": meter.seconds, "peak_memory_bytes": meter.peak_memory_bytes}
    write_json(report / "metrics.json", {"method": method, "race": race, **resources})


if __name__ == "__main__":
    run(main)
