"""Turn the text into clean documents, split them by document, pack both sides into token blocks."""

from pathlib import Path

from common import run
from lesa.checkpoint import read_config
from lesa.corpus import prepare
from lesa.families import check_length
from lesa.files import write_json
from lesa.settings import Settings


def main(settings: Settings, base: Path, out: Path, report: Path) -> None:
    check_length(read_config(base), settings.corpus.sequence_length)
    metrics = prepare(
        settings.corpus,
        base,
        out,
        work=out.with_name(out.name + ".work"),
        trust_remote_code=settings.base.trust_remote_code,
    )
    write_json(report / "metrics.json", metrics)


if __name__ == "__main__":
    run(main)
