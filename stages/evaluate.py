"""Held-out perplexity and lm-eval tasks of one of the three models."""

from pathlib import Path

from common import TASKS, run
from lesa.evaluation import evaluate
from lesa.files import write_json
from lesa.settings import Settings


def main(settings: Settings, model: Path, corpus: Path, out: Path) -> None:
    result = evaluate(
        model,
        corpus / "heldout.jsonl",
        settings.evaluate.tasks,
        TASKS,
        settings.evaluate.limit,
        settings.evaluate.batch_size,
        settings.corpus.sequence_length,
        settings.device,
        settings.corpus.seed,
    )
    write_json(out, result)


if __name__ == "__main__":
    run(main)
