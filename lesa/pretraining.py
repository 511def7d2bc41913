"""Continual pre-training of an expanded checkpoint: the new layers only, or every weight.

transformers' Trainer does the training. Added here: which weights train, held-out perplexity before and during it,
dvclive curves, checkpoints that are checked before they are resumed, and an output that is written from the checkpoint
it started from, with nothing but the trained tensors replaced.
"""

import hashlib
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
from transformers import AutoModelForCausalLM, PreTrainedModel, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, set_seed

from lesa.callbacks import Clock, LiveCurves, StopAtNan
from lesa.checkpoint import Checkpoint, copy_other_files, write_checkpoint
from lesa.devices import pick
from lesa.errors import DivergedError, LesaError
from lesa.expansion import DESCRIPTION
from lesa.files import read_json, whole_folder
from lesa.layers import Layers
from lesa.meter import Meter
from lesa.optimizers import MuonWithAdamW
from lesa.packing import Documents, check_apart, end_of_text, run_on
from lesa.resume import MarkCheckpoints, fingerprint, last_good
from lesa.settings import Pretrain
from lesa.space import need_space
from lesa.training import (
    BLOCKS,
    HeldoutTrainer,
    checkpoint_activations,
    sharded,
    tokens_hash,
    training_arguments,
    use_bf16,
)

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

    The held-out perplexity is measured as the training packs its blocks (``settings.packing``). Where documents do
    not run on into each other fewer tokens are predicted, each with less before it, so compare the two ways of packing
    by ``lesa.evaluation``, which reads every model in one way.

    Returns:
        ``tokens``, ``tokens_per_second`` (the first step and evaluation not counted; None if there was no second),
        ``train_loss`` (of the last step, nats a token), ``initial_heldout_perplexity``, ``heldout_perplexity``,
        ``tokens_to_target`` (at the first measurement at or below ``settings.target_perplexity``, else None),
        ``trained_parameters``, ``order_sha256`` (of the training blocks in the order they came; with several processes,
        those of the first), ``heldout_sha256`` (of the measured held-out blocks), ``seconds``, ``peak_memory_bytes``.

    Raises:
        LesaError: no layer is new, bf16 or a compiler was asked for and is not there, documents are to be kept apart
            and the checkpoint has no tokenizer or its model cannot do that, there are too few blocks, disk space is
            short, the tokens do not fit the model, or the loss is not a number; the last good checkpoint is kept.
        RuntimeError: a weight that should not train has changed.
    """
    meter = Meter()
    source = Checkpoint(expanded)
    prefixes = trained_prefixes(source, settings.train)
    where = pick(device)
    bf16 = use_bf16(settings.precision, where)
    train, heldout = (Blocks(Path(corpus) / side) for side in ("train", "heldout"))
    checkpoints, report = Path(checkpoints), Path(report)
    end = end_of_text(expanded) if settings.packing == "documents" else None
    arguments = training_arguments(settings, seed, where, bf16, checkpoints)
    batch = arguments.train_batch_size * settings.gradient_accumulation * arguments.world_size
    if len(train) < batch:
        raise LesaError(
            f"{corpus} has {len(train)} training blocks, fewer than one step takes ({batch}); "
            "use more text, or a smaller pretrain.batch_size or pretrain.gradient_accumulation"
        )
    recipe = {**_recipe(settings, seed, where, bf16), "processes": arguments.world_size}
    start = _start(arguments, recipe, [Path(expanded), Path(corpus)], source, prefixes)
    set_seed(seed)
    model = load_for_training(expanded, prefixes)
    if train[0]["input_ids"].max() >= model.get_input_embeddings().num_embeddings:
        raise LesaError(
            f"{corpus} holds tokens that {expanded} has no embedding for; prepare the corpus with its tokenizer"
        )
    if end is not None and arguments.process_index == 0:  # under FSDP the other processes have no weights yet
        check_apart(model, end)
    if settings.gradient_checkpointing:
        checkpoint_activations(model)
    optimizer = None
    if settings.optimizer == "muon":
        layers = Layers(source).family.layers + "."
        optimizer = MuonWithAdamW(model.named_parameters(), layers, settings.learning_rate, settings.weight_decay)
    measured = Subset(heldout, range(min(settings.eval_blocks, len(heldout))))
    clock = Clock()
    trainer = HeldoutTrainer(
        model=model,
        args=arguments,
        data_collator=run_on if end is None else Documents(end),
        train_dataset=train,
        eval_dataset=measured,
        optimizers=(optimizer, None),
        callbacks=[StopAtNan(settings), clock, MarkCheckpoints(), LiveCurves(report / "live")],
    )
    last = checkpoints / f"{PREFIX_CHECKPOINT_DIR}-{settings.steps}"
    if start != last:  # the Trainer makes one step too many when resumed at the end
        trainer.train(resume_from_checkpoint=str(start) if start else None)

    step_tokens = batch * train.sequence_length
    log = read_json(last / TRAINER_STATE_NAME)["log_history"]
    curves = history(log, step_tokens)
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
        "tokens_per_second": clock.steps * step_tokens / clock.seconds if clock.steps > 0 else None,
        **_results(curves, settings.target_perplexity),
        "trained_parameters": sum(p.numel() for p in trainer.model.parameters() if p.requires_grad),
        "order_sha256": order_hash(log),
        "heldout_sha256": tokens_hash(measured[index]["input_ids"] for index in range(len(measured))),
        "seconds": meter.seconds,
        "peak_memory_bytes": meter.peak_memory_bytes,
    }


def load_for_training(expanded: str | Path, prefixes: tuple[str, ...]) -> PreTrainedModel:
    """A checkpoint in float32, of which only the parameters whose names begin with ``prefixes`` train.

    Autograd makes no graph for the layers before the first that trains: neither their input, the embedding of the
    tokens, nor any of their weights asks for a gradient.
    """
    model = AutoModelForCausalLM.from_pretrained(expanded, dtype=torch.float32)
    model.config.use_cache = False
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(prefixes))
    return model


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


def checkpoint_bytes(source: Checkpoint, prefixes: tuple[str, ...], copies: int = 1) -> int:
    """Size of one training checkpoint: every weight in float32, and AdamW's two moments of those that train.

    ``copies`` is how often the weights are stored: under FSDP twice, to resume from and as safetensors.
    """
    moments = {name: 2 if name.startswith(prefixes) else 0 for name in source.names()}
    return sum(4 * math.prod(source.shape(name)) * (copies + count) for name, count in moments.items())


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
            "heldout_perplexity": perplexity_of(row["eval_loss"]),
        }
        for row in log
        if "eval_loss" in row
    ]
    return {"train": pd.DataFrame(train), "heldout": pd.DataFrame(heldout)}


def perplexity_of(loss: float) -> float:
    """Perplexity of a loss in nats a token.

    Raises:
        DivergedError: it is too large for a float.
    """
    try:
        return math.exp(loss)
    except OverflowError:
        raise DivergedError(f"the held-out loss is {loss:.3g} nats a token, which is no usable figure") from None


def order_hash(log: Sequence[dict[str, Any]]) -> str:
    """SHA-256 over the steps of a Trainer's log, each by the blocks that it trained on."""
    return hashlib.sha256("".join(row[BLOCKS] for row in log if BLOCKS in row).encode()).hexdigest()


def tokens_to_target(heldout: pd.DataFrame, target: float | None) -> int | None:
    """Tokens trained on at the first measurement at or below ``target``."""
    reached = heldout[heldout["heldout_perplexity"] <= target] if target else heldout[:0]
    return int(reached["tokens"].iloc[0]) if len(reached) else None


def _results(curves: dict[str, pd.DataFrame], target: float | None) -> dict[str, Any]:
    perplexity = curves["heldout"]["heldout_perplexity"]
    return {
        "train_loss": float(curves["train"]["train_loss"].iloc[-1]),
        "initial_heldout_perplexity": float(perplexity.iloc[0]),
        "heldout_perplexity": float(perplexity.iloc[-1]),
        "tokens_to_target": tokens_to_target(curves["heldout"], target),
    }


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
    stored, known = set(final.names()), set(source.names())
    lost = sorted(name for name in stored - known if name.startswith(prefixes) and not _tied(final, name, known))
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


def _tied(final: Checkpoint, name: str, known: set[str]) -> bool:
    """Whether a weight is another one's second name; FSDP saves tied weights under both."""
    others = (other for other in final.names() if other in known and final.shape(other) == final.shape(name))
    return any(torch.equal(final.tensor(other), final.tensor(name)) for other in others)


def _start(
    arguments: TrainingArguments,
    recipe: dict[str, Any],
    inputs: list[Path],
    source: Checkpoint,
    prefixes: tuple[str, ...],
) -> Path | None:
    """The checkpoint to go on from, or None; then the Trainer measures first, and the disk has room for the rest."""
    checkpoints = Path(arguments.output_dir)
    with arguments.main_process_first(local=False):
        start = last_good(checkpoints, fingerprint(recipe, inputs))
    arguments.eval_on_start = start is None
    if start is None:
        # The Trainer deletes the oldest of its checkpoints after it has written a third.
        kept = min(3, math.ceil(arguments.max_steps / arguments.save_steps))
        need_space(checkpoints, kept * checkpoint_bytes(source, prefixes, copies=2 if sharded() else 1))
    return start


def _recipe(settings: Pretrain, seed: int, device: torch.device, bf16: bool) -> dict[str, Any]:
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    recipe = settings.model_dump(exclude=IGNORED)
    return {**recipe, "seed": seed, "device": device.type, "bf16": bf16, **versions}
