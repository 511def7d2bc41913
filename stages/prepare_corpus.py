"""Turn the text into clean documents, split them by document, pack both sides into token blocks."""

from itertools import islice
from pathlib import Path

from transformers import AutoTokenizer

from common import run
from lesa.checkpoint import read_config
from lesa.corpus import prepare
from lesa.documents import documents
from lesa.families import check_length
from lesa.files import whole_folder, write_json
from lesa.settings import Settings


def main(settings: Settings, base: Path, out: Path, report: Path) -> None:
    corpus = settings.corpus
    check_length(read_config(base), corpus.sequence_length)
    tokenizer = AutoTokenizer.from_pretrained(base, trust_remote_code=settings.base.trust_remote_code)
    with whole_folder(out) as folder:
        metrics = prepare(
            islice(documents(corpus), corpus.max_documents),
            tokenizer,
            folder,
            corpus.sequence_length,
            corpus.heldout_fraction,
            settings.seed,
        )
    write_json(report / "metrics.json", metrics)


if __name__ == "__main__":
    run(main)
