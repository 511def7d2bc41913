"""Continual pre-training of an expanded checkpoint: the new layers only, or every weight.

transformers' Trainer does the training. Added here: which weights train, held-out perplexity before and during it,
dvclive curves, checkpoints that are checked before they are resumed, and an output that is written from the checkpoint
it started from, with nothing but the trained tensors replaced.
"""

import math
import shutil
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers
from torch.utils.data import Dataset, Subset
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, set_seed

from lesa.callbacks import Clock, LiveCurves, StopAtNan
from lesa.checkpoint import Checkpoint, copy_other_files, write_checkpoint
from lesa.devices import pick
from lesa.errors import LesaError
from lesa.expansion import DESCRIPTION
from lesa.files import read_json, whole_folder
from lesa.layers import Layers
from lesa.meter import Meter
from lesa.resume import MarkCheckpoints, fingerprint, last_good
from lesa.settings import Pretrain
from lesa.space import need_space

IGNORED = {"target_perplexity"}
"""Settings that change what is reported, not what is trained."""


class Blocks(Dataset[dict[str, torch.Tensor]]):
    """Token blocks of the ``.npy`` files in a folder, each ``[blocks, sequence_length]``, end to end.

    A block is read from disk when it is asked for. No file stays open: there may be more than a process can hold.
    """

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.glob("*.npy"))
        self._ends = list(accumulate(len(np.load(file, mmap_mode="r")) for file in self._files))

    @property
    def sequence_length(self) -> int:
        """Tokens a block."""
        return int(np.load(self._files[0], mmap_mode="r").shape[1])

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        shard = bisect_right(self._ends, index)
        blocks = np.load(self._files[shard], mmap_mode="r")
        tokens = torch.from_numpy(blocks[index - self._ends[shard]].astype(np.int64))
        return {"input_ids": tokens, "labels": tokens}


def pretrain(
    expanded: str | Path,
    corpus: str | Path,
    out: str | Path,
    report: str | Path,
    settings: Pretrain,
    seed: int,
    device: str,
    checkpoints: str | Path,
) -> dict[str, Any]:
    """Train an expanded checkpoint on token blocks and write the result into ``out``, whole or not at all.

    An interrupted run goes on from its last whole checkpoint in ``checkpoints`` if settings, seed, inputs and library
    versions are the same, and starts anew otherwise. On success that folder is removed.

    Args:
        expanded: a checkpoint with ``expansion.json``.
        corpus: a folder with ``train/`` and ``heldout/``, token blocks in ``.npy`` files.
        out: the folder to write.
        report: gets ``train.csv``, ``heldout.csv``, and ``live/`` with dvclive's curves.
        settings: the recipe.
        seed: of the order of the blocks.
        device: ``cpu``, ``cuda`` or ``auto``.
        checkpoints: the folder to resume from.

    Returns:
        ``tokens``, ``tokens_per_second`` (evaluation not counted; None if no step was left), ``train_loss`` (of the
        last step, nats a token), ``initial_heldout_perplexity``, ``heldout_perplexity``, ``tokens_to_target`` (at the
        first measurement at or below ``settings.target_perplexity``, else None), ``trained_parameters``,
        ``seconds``, ``peak_memory_bytes``.

    Raises:
        LesaError: no layer is new, bf16 was asked for and is not there, disk space is short, the tokens do not fit
            the model, or the loss is not a number; the last good checkpoint is kept.
        RuntimeError: a weight that should not train has changed.
    """
    meter = Meter()
    source = Checkpoint(expanded)
    prefixes = trained_prefixes(source, settings.train)
    where = pick(device)
    bf16 = use_bf16(settings.precision, where)
    train, heldout = (Blocks(Path(corpus) / side) for side in ("train", "heldout"))
    checkpoints, report = Path(checkpoints), Path(report)
    arguments = _arguments(settings, seed, where, bf16, checkpoints)
    recipe = {**_recipe(settings, seed, where, bf16), "processes": arguments.world_size}
    with arguments.main_process_first(local=False):
        start = last_good(checkpoints, fingerprint(recipe, [Path(expanded), Path(corpus)]))
    arguments.eval_on_start = start is None
    batch = arguments.train_batch_size * settings.gradient_accumulation * arguments.world_size
    if len(train) < batch:
        raise LesaError(
            f"{corpus} has {len(train)} training blocks, fewer than one step takes ({batch}); "
            "use more text, or a smaller pretrain.batch_size or pretrain.gradient_accumulation"
        )
    if start is None:
        # The Trainer deletes the oldest of its checkpoints after it has written a third.
        need_space(
            checkpoints, min(3, math.ceil(settings.steps / settings.save_every)) * checkpoint_bytes(source, prefixes)
        )

    set_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(expanded, dtype=torch.float32)
    model.config.use_cache = False
    if train[0]["input_ids"].max() >= model.get_input_embeddings().num_embeddings:
        raise LesaError(
            f"{corpus} holds tokens that {expanded} has no embedding for; prepare the corpus with its tokenizer"
        )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(prefixes))

    clock = Clock()
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=train,
        eval_dataset=Subset(heldout, range(min(settings.eval_blocks, len(heldout)))),
        callbacks=[StopAtNan(settings), clock, MarkCheckpoints(), LiveCurves(report / "live")],
    )
    last = checkpoints / f"{PREFIX_CHECKPOINT_DIR}-{settings.steps}"
    if start != last:  # the Trainer makes one step too many when resumed at the end
        trainer.train(resume_from_checkpoint=str(start) if start else None)

    step_tokens = batch * train.sequence_length
    curves = history(read_json(last / TRAINER_STATE_NAME)["log_history"], step_tokens)
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        final = Checkpoint(last)
        check_frozen(source, final, prefixes)
        _write(source, final, prefixes, Path(out))
        report.mkdir(parents=True, exist_ok=True)
        for name, curve in curves.items():
            curve.to_csv(report / f"{name}.csv", index=False)
        shutil.rmtree(checkpoints)
    return {
        "tokens": settings.steps * step_tokens,
        "tokens_per_second": clock.steps * step_tokens / clock.seconds if clock.steps else None,
        "train_loss": float(curves["train"]["train_loss"].iloc[-1]),
        "initial_heldout_perplexity": float(curves["heldout"]["heldout_perplexity"].iloc[0]),
        "heldout_perplexity": float(curves["heldout"]["heldout_perplexity"].iloc[-1]),
        "tokens_to_target": tokens_to_target(curves["heldout"], settings.target_perplexity),
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "seconds": meter.seconds,
        "peak_memory_bytes": meter.peak_memory_bytes,
    }


def trained_prefixes(source: Checkpoint, train: str) -> tuple[str, ...]:
    """What the names of the parameters that train begin with: those of the new layers, or anything.

    Raises:
        LesaError: only new layers are to be trained, and there is none.
    """
    if train == "all":
        return ("",)
    description = source.folder / DESCRIPTION
    if not description.exists():
        raise LesaError(f"{source.folder} has no {DESCRIPTION}, which says what layers are new; expand a model first")
    layers = read_json(description)["layers"]
    prefixes = tuple(Layers(source).family.prefix(number) for number, layer in enumerate(layers) if layer["new"])
    if not prefixes:
        raise LesaError(f"{description} has no new layer, and pretrain.train is new; set it to all")
    return prefixes


def checkpoint_bytes(source: Checkpoint, prefixes: tuple[str, ...]) -> int:
    """Size of one training checkpoint: every weight in float32, and AdamW's two moments of those that train."""
    return sum(4 * math.prod(source.shape(name)) * (3 if name.startswith(prefixes) else 1) for name in source.names())


def use_bf16(precision: str, device: torch.device) -> bool:
    """Whether to train under bf16 autocast: where the machine computes in it, unless told otherwise.

    Raises:
        LesaError: bf16 was asked for, and this machine has none.
    """
    if device.type == "cuda":
        there = torch.cuda.is_bf16_supported()
    else:
        # No public name yet tells which CPUs multiply bf16 in hardware.
        tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        there = any(getattr(torch.cpu, test, lambda: False)() for test in tests)
    if precision == "bf16" and not there:
        raise LesaError(f"pretrain.precision is bf16, which this {device.type} does not compute in; use fp32 or auto")
    return there and precision != "fp32"


def history(log: Sequence[dict[str, Any]], step_tokens: int) -> dict[str, pd.DataFrame]:
    """The curves in a Trainer's log: ``train`` and ``heldout``, each with columns ``step`` and ``tokens``."""
    train = [
        {
            "step": row["step"],
            "tokens": row["step"] * step_tokens,
            "train_loss": row["loss"],
            "learning_rate": row["learning_rate"],
        }
        for row in log
        if "loss" in row
    ]
    heldout = [
        {
            "step": row["step"],
            "tokens": row["step"] * step_tokens,
            "heldout_loss": row["eval_loss"],
            "heldout_perplexity": math.exp(row["eval_loss"]),
        }
        for row in log
        if "eval_loss" in row
    ]
    return {"train": pd.DataFrame(train), "heldout": pd.DataFrame(heldout)}


def tokens_to_target(heldout: pd.DataFrame, target: float | None) -> int | None:
    """Tokens trained on at the first measurement at or below ``target``."""
    reached = heldout[heldout["heldout_perplexity"] <= target] if target else heldout[:0]
    return int(reached["tokens"].iloc[0]) if len(reached) else None


def check_frozen(source: Checkpoint, final: Checkpoint, prefixes: tuple[str, ...]) -> None:
    """See that every tensor is bit for bit what it was, but those whose names begin with ``prefixes``.

    Raises:
        RuntimeError: one is not.
    """
    stored = set(final.names())
    for name in source.names():
        if name.startswith(prefixes) or name not in stored:
            continue
        # In float32, which holds any bf16 or fp16 exactly: a change too small for those types shows as well.
        if not torch.equal(final.tensor(name).float(), source.tensor(name).float()):
            raise RuntimeError(f"{name} was frozen, and training changed it")


def _write(source: Checkpoint, final: Checkpoint, prefixes: tuple[str, ...], out: Path) -> None:
    stored = set(final.names())
    lost = sorted(name for name in stored - set(source.names()) if name.startswith(prefixes))
    if lost:
        raise RuntimeError(f"{lost[0]} was trained, and {source.folder} has nothing of that name to replace")
    specs = []
    for name in source.names():
        spec = source.spec(name)
        trained = name.startswith(prefixes)
        if trained and name in stored:
            spec = replace(spec, load=final.spec(name).load)
        if not trained or name in stored:  # a tied weight that trains is stored under one name
            specs.append(spec)
    with whole_folder(out) as folder:
        copy_other_files(source.folder, folder)
        write_checkpoint(folder, specs)


def _arguments(settings: Pretrain, seed: int, device: torch.device, bf16: bool, checkpoints: Path) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(checkpoints),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=1,  # with more, several processes weigh a last, smaller batch wrongly
        gradient_accumulation_steps=settings.gradient_accumulation,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=settings.warmup_steps,
        weight_decay=settings.weight_decay,
        adam_beta2=0.95,
        max_grad_norm=1.0,
        bf16=bf16,
        use_cpu=device.type == "cpu",
        eval_strategy="steps",
        eval_steps=settings.eval_every,
        save_strategy="steps",
        save_steps=settings.save_every,
        save_total_limit=2,
        logging_steps=1,
        logging_nan_inf_filter=False,
        prediction_loss_only=True,
        remove_unused_columns=False,
        dataloader_drop_last=True,  # every step then trains on the same number of tokens
        report_to="none",
        seed=seed,
        data_seed=seed,
    )


def _recipe(settings: Pretrain, seed: int, device: torch.device, bf16: bool) -> dict[str, Any]:
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    recipe = settings.model_dump(exclude=IGNORED)
    return {**recipe, "seed": seed, "device": device.type, "bf16": bf16, **versions}
