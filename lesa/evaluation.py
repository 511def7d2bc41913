"""Held-out perplexity and lm-eval tasks of one checkpoint, both through lm-eval's own model class.

Perplexity is taken document by document in windows of a given length, every token scored exactly once (lm-eval's
rolling windows): a document's first token is predicted from the tokenizer's beginning-of-text token, a window's first
one from the last token of the window before, and the last window reaches back so far that it is full.
"""

import json
import math
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from lesa.errors import LesaError
from lesa.meter import Meter

LARGEST = 700.0
"""Nats a token from which on the perplexity is no finite number."""

WINDOW_TOKENS = 2048
"""Tokens scored at once for the perplexity: their logits over the whole vocabulary are held in float32."""


def check_tasks(tasks: Sequence[str], folder: Path | None) -> None:
    """See that every task is one of ``folder``'s files, or of lm-eval's own.

    Raises:
        LesaError: one is neither.
    """
    local = _local_tasks(folder)
    unknown = [task for task in tasks if task not in local]
    if not unknown:
        return
    from lm_eval.tasks import TaskManager

    known = local | set(TaskManager().all_tasks)
    for task in unknown:
        if task not in known:
            near = get_close_matches(task, sorted(known), n=3) or sorted(local)
            raise LesaError(f"evaluate.tasks names {task}, which is no task of lm-eval; near it: {', '.join(near)}")


def evaluate(
    model_folder: str | Path,
    heldout: str | Path,
    tasks: Sequence[str],
    tasks_folder: Path | None = None,
    limit: int | None = None,
    batch_size: int = 16,
    sequence_length: int = 512,
    device: str = "auto",
    seed: int = 0,
) -> dict[str, Any]:
    """Evaluate a checkpoint in the data type it is stored in, or in float32 on a CPU that multiplies nothing else well.

    Log-probabilities are computed in float32 either way.

    Args:
        model_folder: a checkpoint with its tokenizer.
        heldout: JSONL with the ``text`` of each held-out document.
        tasks: names of lm-eval tasks, or of YAML files in ``tasks_folder``.
        tasks_folder: a folder of lm-eval task files.
        limit: items a task at most.
        batch_size: items scored at once.
        sequence_length: tokens a window of the perplexity.
        device: ``cpu``, ``cuda`` or ``auto``.
        seed: of whatever a task draws at random (few-shot examples).

    Returns:
        ``perplexity`` (a token), ``bits_per_byte`` (of the UTF-8 text), ``heldout_tokens``, ``dtype`` (computed in),
        ``parameters``, ``seconds``, ``peak_memory_bytes``, and ``tasks`` with ``acc`` and ``stderr``, ``metric`` where
        a task has no accuracy, and ``chance`` where the metadata of its file says so. A group without a score of its
        own stands there with its members.

    Raises:
        LesaError: a task is unknown, there is no held-out text, or the model computes no finite figures.
    """
    import torch
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from lesa.devices import multiplies_bf16, pick

    meter = Meter()
    check_tasks(tasks, tasks_folder)
    with Path(heldout).open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    if not any(texts):
        raise LesaError(f"{heldout} holds no text to measure the perplexity on")
    torch.manual_seed(seed)
    place = pick(device)
    where = str(place)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    dtype = "auto" if multiplies_bf16(place) else torch.float32
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype).to(where).eval()
    common = {"pretrained": model, "tokenizer": tokenizer, "device": where, "softmax_dtype": "float32"}
    windows = HFLM(**common, max_length=sequence_length, batch_size=max(1, WINDOW_TOKENS // sequence_length))
    result = perplexity(windows, texts)
    scores = {}
    if tasks:
        try:
            results = simple_evaluate(
                model=HFLM(**common, batch_size=batch_size),
                tasks=list(tasks),
                task_manager=TaskManager(include_path=str(tasks_folder) if tasks_folder else None),
                limit=limit,
                log_samples=False,
                random_seed=seed,
                numpy_random_seed=seed,
                torch_random_seed=seed,
                fewshot_random_seed=seed,
            )
        except ConnectionError as error:
            reason = " ".join(str(error).split())
            raise LesaError(f"evaluate.tasks names a task whose data cannot be fetched: {reason}") from None
        configs = results["configs"]
        rows = {task: _score(row, configs.get(task, {})) for task, row in results["results"].items()}
        scores = {task: row for task, row in rows.items() if row}
    return {
        **result,
        "tasks": scores,
        "dtype": str(model.dtype).removeprefix("torch."),
        "parameters": model.num_parameters(),
        "seconds": meter.seconds,
        "peak_memory_bytes": meter.peak_memory_bytes,
    }


def perplexity(model: Any, texts: Sequence[str]) -> dict[str, float]:
    """``perplexity``, ``bits_per_byte`` and ``heldout_tokens`` of texts under an lm-eval model.

    Args:
        model: an ``lm_eval`` model whose ``max_length`` is the window.
        texts: documents.
    """
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    windows = [
        (None, *make_disjoint_window(window))
        for text in texts
        for window in get_rolling_token_windows(
            model.tok_encode(text, add_special_tokens=False), model.prefix_token_id, model.max_length, context_len=1
        )
    ]
    # Not loglikelihood_rolling: it scores the beginning-of-text token that some tokenizers put before a text.
    nats = -sum(score for score, _ in model._loglikelihood_tokens(windows))
    tokens = sum(len(scored) for _, _, scored in windows)
    size = sum(len(text.encode()) for text in texts)
    if not nats / tokens < LARGEST:
        raise LesaError(
            f"the model gives the held-out text {nats / tokens:.3g} nats a token, which is no usable figure; "
            "its weights are damaged, or its data type cannot hold what it computes"
        )
    return {
        "perplexity": math.exp(nats / tokens),
        "bits_per_byte": nats / math.log(2) / size,
        "heldout_tokens": tokens,
    }


def _local_tasks(folder: Path | None) -> set[str]:
    if folder is None or not folder.is_dir():
        return set()
    files = sorted(folder.rglob("*.yaml"))
    return {name for file in files for name in re.findall(r"^task:\s*['\"]?([\w.-]+)", file.read_text(), re.MULTILINE)}


def _score(row: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    values = {key: value for key, value in row.items() if "," in key and isinstance(value, float | int)}
    names = [key for key in values if not key.partition(",")[0].endswith("_stderr")]
    if not names:
        return {}
    name = "acc,none" if "acc,none" in values else names[0]
    metric, _, how = name.partition(",")
    stderr = values.get(f"{metric}_stderr,{how}")
    score = {"acc": float(values[name]), "stderr": None if stderr is None else float(stderr)}
    if "chance" in (config.get("metadata") or {}):
        score["chance"] = float(config["metadata"]["chance"])
    return score if metric == "acc" else {**score, "metric": metric}
