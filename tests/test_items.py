import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from lesa.errors import LesaError
from lesa.items import analogies, cloze

ROOT = Path(__file__).parent.parent
CAPITALS = {f"City{i}": f"Land{i}" for i in range(12)}
QUESTIONS = (
    ": capital-world\n"
    + "\n".join(f"{a} {b} {c} {d}" for a, b in CAPITALS.items() for c, d in CAPITALS.items() if a != c)
    + "\n: gram1-adjective-to-adverb\namazing amazingly calm calmly\n"
)


def article(seed: int) -> str:
    rng = random.Random(seed)
    verbs = ["walked", "jumped", "turned", "looked", "cooked", "worked", "talked", "helped", "failed", "landed"]
    nouns = ["garden", "market", "bridge", "castle", "valley", "forest", "harbor", "temple", "school", "church"]
    lines = [
        f"On day {i} the old keeper {rng.choice(verbs)} beside the {rng.choice(nouns)} until it was dark again."
        for i in range(40)
    ]
    return "\n\n".join(" ".join(lines[i : i + 8]) for i in range(0, 40, 8))


def test_analogies_are_true_and_the_wrong_options_are_not() -> None:
    items = analogies(QUESTIONS, 0)
    asked = []
    for item in items:
        a, b, c = re.fullmatch(r"(\w+) is to (\w+) as (\w+) is to", item["query"]).groups()  # type: ignore[union-attr]
        assert CAPITALS[a] == b
        assert [CAPITALS[c] == choice for choice in item["choices"]].index(True) == item["answer"]
        assert len(set(item["choices"])) == 4
        assert b not in item["choices"]
        asked.append(c)
    assert sorted(asked) == sorted(CAPITALS)
    assert asked != sorted(asked)


def test_cloze_options_share_the_rest_and_the_true_one_restores_the_article() -> None:
    texts = [article(1), article(2)]
    items = cloze(texts, 0, count=20)
    assert len(items) == 20
    plain = [" ".join(text.split()) for text in texts]
    for item in items:
        restored = [f"{item['query']} {choice}" for choice in item["choices"]]
        assert [any(option in text for text in plain) for option in restored].index(True) == item["answer"]
        words, rests = zip(*(re.match(r"(\w+)(.*)", choice).groups() for choice in item["choices"]), strict=True)  # type: ignore[union-attr]
        assert len(set(words)) == 4
        assert len(set(rests)) == 1
        assert not any(word in item["query"] for i, word in enumerate(words) if i != item["answer"])
        assert all(any(word in text for text in texts) for word in words)
    assert Counter(item["query"] + item["choices"][item["answer"]] for item in items).most_common(1)[0][1] == 1


@pytest.mark.parametrize("make", [lambda seed: analogies(QUESTIONS, seed), lambda seed: cloze([article(1)], seed)])
def test_items_depend_on_the_seed_alone(make) -> None:  # type: ignore[no-untyped-def]
    assert make(0) == make(0)
    assert make(0) != make(1)


def test_the_place_of_the_answer_is_even() -> None:
    items = cloze([article(i) for i in range(40)], 0)
    places = Counter(item["answer"] for item in items)
    assert all(abs(places[place] - len(items) / 4) < 4 * (len(items) * 3 / 16) ** 0.5 for place in range(4))
    first = Counter(item["answer"] for item in items[:100])
    assert len(first) == 4


def test_no_items_is_an_error() -> None:
    with pytest.raises(LesaError, match="hold none of the sections capital-common-countries"):
        analogies(": gram1\na b c d\n", 0)
    with pytest.raises(LesaError, match=r"take wiki_cloze out of evaluate\.tasks"):
        cloze(["One short text."], 0)
    with pytest.raises(LesaError, match="the 0 held-out documents"):
        cloze([], 0)


@pytest.mark.parametrize("name", ["analogies", "wiki_cloze"])
def test_task_file_reads_the_items_through_lm_eval(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    from lm_eval.tasks import TaskManager

    config = yaml.safe_load((ROOT / "tasks" / f"{name}.yaml").read_text())
    assert "version" in config["metadata"]
    items = analogies(QUESTIONS, 0) if name == "analogies" else cloze([article(1)], 0)
    path = tmp_path / config["dataset_kwargs"]["data_files"]["test"]
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    manager = TaskManager(include_path=str(ROOT / "tasks"), include_defaults=False)
    task = manager.load([name])["tasks"][name]
    docs = list(task.eval_docs)
    assert len(docs) == len(items)
    for doc, item in zip(docs, items, strict=True):
        assert task.doc_to_text(doc) == item["query"]
        assert task.doc_to_choice(doc) == item["choices"]
        assert task.doc_to_target(doc) == item["answer"]
    assert task.config.output_type == "multiple_choice"
