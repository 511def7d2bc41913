import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import processors
from transformers import AutoModelForCausalLM, AutoTokenizer

from lesa.errors import LesaError
from lesa.evaluation import _score, check_tasks, evaluate
from test_pipeline import write_model

REPOSITORY = Path(__file__).parent.parent
TEXTS = [
    "The river of Alberton was built near the old bridge.",
    "A market. " * 12 + "The end of a text that takes several windows — with a few bytes more than letters.",
    "x",
]
TASK = """
task: pick
dataset_path: json
dataset_kwargs:
  data_files:
    test: {items}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{query}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - metric: acc
metadata:
  version: 1.0
  chance: 0.3
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny random model with a tokenizer; the datasets library keeps its cache in the test's folder."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    write_model(tmp_path / "model", TEXTS)
    return tmp_path / "model"


@pytest.fixture
def heldout(tmp_path: Path) -> Path:
    path = tmp_path / "heldout.jsonl"
    path.write_text("".join(json.dumps({"id": "", "title": "", "text": text}) + "\n" for text in TEXTS))
    return path


def independent_nats(folder: Path, window: int) -> tuple[float, int]:
    """Each token's loss from a forward pass over what it may see, one token at a time, in float64."""
    model = AutoModelForCausalLM.from_pretrained(folder).double().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    total, count = 0.0, 0
    for text in TEXTS:
        stream = [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]
        n = len(stream) - 1
        for k in range(1, n + 1):
            end = min(-(-k // window) * window, n)  # of the window that token k is in; the last one may end early
            start = max(end - window, 0)
            with torch.no_grad():
                logits = model(torch.tensor([stream[start:k]])).logits[0, -1]
            total -= torch.log_softmax(logits, -1)[stream[k]].item()
            count += 1
    return total, count


@pytest.mark.parametrize("window", [8, 64])
def test_perplexity_scores_every_token_once(model: Path, heldout: Path, window: int) -> None:
    result = evaluate(model, heldout, [], sequence_length=window, device="cpu")
    nats, count = independent_nats(model, window)
    assert result["heldout_tokens"] == count
    assert result["perplexity"] == pytest.approx(math.exp(nats / count), rel=1e-5)
    size = sum(len(text.encode("utf-8")) for text in TEXTS)
    assert result["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert result["tasks"] == {}


def test_a_beginning_of_text_token_that_the_tokenizer_adds_is_not_scored(model: Path, heldout: Path) -> None:
    plain = evaluate(model, heldout, [], sequence_length=8, device="cpu")
    tokenizer = AutoTokenizer.from_pretrained(model)
    name, number = tokenizer.bos_token, tokenizer.bos_token_id
    adds = processors.TemplateProcessing(single=f"{name} $A", special_tokens=[(name, number)])
    tokenizer.backend_tokenizer.post_processor = adds
    tokenizer.save_pretrained(model)
    assert AutoTokenizer.from_pretrained(model)("x")["input_ids"][0] == number
    adding = evaluate(model, heldout, [], sequence_length=8, device="cpu")
    for figure in ("perplexity", "bits_per_byte", "heldout_tokens"):
        assert adding[figure] == plain[figure]


@pytest.mark.parametrize(
    ("row", "score"),
    [
        (
            {"alias": "a", "acc_norm,none": 0.6, "acc_norm_stderr,none": 0.2, "acc,none": 0.5, "acc_stderr,none": 0.1},
            {"acc": 0.5, "stderr": 0.1},
        ),
        (
            {"sample_len": 8, "exact_match,strict-match": 0.25, "exact_match_stderr,strict-match": 0.125},
            {"acc": 0.25, "stderr": 0.125, "metric": "exact_match"},
        ),
        (
            {"word_perplexity,none": 9.0, "word_perplexity_stderr,none": "N/A"},
            {"acc": 9.0, "stderr": None, "metric": "word_perplexity"},
        ),
        ({"alias": "a group without a score of its own", " ": " "}, {}),
    ],
)
def test_the_figure_of_a_task(row: dict[str, object], score: dict[str, object]) -> None:
    assert _score(row, {}) == score


def test_tied_parameters_count_once(model: Path, heldout: Path) -> None:
    result = evaluate(model, heldout, [], device="cpu")
    layer = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 48 + 2 * 32
    assert result["parameters"] == 400 * 32 + 8 * layer + 32


def test_a_task_is_scored_by_the_likeliest_choice(model: Path, heldout: Path, tmp_path: Path) -> None:
    items = [
        {"query": query, "choices": [" river of", " the old bridge", " zq"], "answer": answer}
        for query, answer in [("The", 0), ("near", 1), ("of Alberton", 2), ("was built", 0), ("x", 1), ("end", 2)]
    ]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "pick.yaml").write_text(TASK.format(items=tmp_path / "items.jsonl"))
    result = evaluate(model, heldout, ["pick"], tmp_path / "tasks", limit=5, device="cpu")

    lm = AutoModelForCausalLM.from_pretrained(model).double().eval()
    tokenizer = AutoTokenizer.from_pretrained(model)

    def score(query: str, choice: str) -> float:
        prompt = tokenizer(query, add_special_tokens=False)["input_ids"]
        tokens = tokenizer(query + choice, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logs = torch.log_softmax(lm(torch.tensor([tokens])).logits[0], -1)
        return sum(logs[i - 1, tokens[i]].item() for i in range(len(prompt), len(tokens)))

    right = [
        max(range(3), key=lambda c, item=item: score(item["query"], item["choices"][c])) == item["answer"]
        for item in items[:5]
    ]
    mean = sum(right) / 5
    assert result["tasks"]["pick"]["acc"] == pytest.approx(mean)
    assert result["tasks"]["pick"]["chance"] == 0.3
    assert result["tasks"]["pick"]["stderr"] == pytest.approx(math.sqrt(mean * (1 - mean) / 4))


def test_unknown_tasks_are_named() -> None:
    tasks = REPOSITORY / "tasks"
    check_tasks(["wiki_cloze", "analogies"], tasks)
    check_tasks(["piqa"], tasks)
    with pytest.raises(LesaError, match=r"evaluate\.tasks names wiki_clozze.*near it: wiki_cloze"):
        check_tasks(["analogies", "wiki_clozze"], tasks)


def test_local_tasks_need_no_look_at_lm_eval_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError

    monkeypatch.setattr("lm_eval.tasks.TaskManager", never)
    check_tasks(["wiki_cloze", "analogies"], REPOSITORY / "tasks")


def test_checking_local_tasks_loads_no_heavy_library() -> None:
    code = (
        "import sys; from pathlib import Path; from lesa.evaluation import check_tasks; "
        "check_tasks(['wiki_cloze'], Path(sys.argv[1])); "
        "print({'torch', 'transformers', 'lm_eval'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(REPOSITORY / "tasks")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "set()"


def test_line_separators_inside_a_text_do_not_end_it(model: Path, tmp_path: Path) -> None:
    text = "The river\u2028of Alberton\x85was built."
    (tmp_path / "odd.jsonl").write_text(json.dumps({"text": text}, ensure_ascii=False) + "\n", encoding="utf-8")
    result = evaluate(model, tmp_path / "odd.jsonl", [], device="cpu")
    count = len(AutoTokenizer.from_pretrained(model)(text, add_special_tokens=False)["input_ids"])
    assert result["heldout_tokens"] == count


def test_damaged_weights_are_said(model: Path, heldout: Path) -> None:
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(LesaError, match="nan nats a token"):
        evaluate(model, heldout, [], device="cpu")


def test_no_text_is_said(model: Path, tmp_path: Path) -> None:
    (tmp_path / "heldout.jsonl").write_text("")
    with pytest.raises(LesaError, match="holds no text"):
        evaluate(model, tmp_path / "heldout.jsonl", [], device="cpu")


@pytest.mark.parametrize(("there", "computed"), [(True, torch.bfloat16), (False, torch.float32)])
def test_bf16_weights_are_computed_in_float32_where_the_machine_has_no_bf16(
    there: bool, computed: torch.dtype, model: Path, heldout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).save_pretrained(model)
    monkeypatch.setattr("lesa.devices.multiplies_bf16", lambda device: there)
    result = evaluate(model, heldout, [], sequence_length=8, device="cpu")
    assert result["dtype"] == str(computed).removeprefix("torch.")
    nats, count = independent_nats(model, 8)
    assert result["perplexity"] == pytest.approx(math.exp(nats / count), rel=2e-2 if there else 1e-5)
