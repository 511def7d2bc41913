"""transformers' Trainer as this project uses it: how settings become its arguments, and how it measures."""

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainingArguments

from lesa.devices import multiplies_bf16
from lesa.errors import LesaError
from lesa.optimizers import BETAS
from lesa.packing import predicted
from lesa.settings import Pretrain

BLOCKS = "blocks_sha256"
"""In a Trainer's log: the SHA-256 of the tokens that a step trained on, in the order they came."""
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"optim": "adamw_torch"},
    "adamw_fused": {"optim": "adamw_torch_fused"},
    "muon": {},  # made by lesa.optimizers, since the Trainer has none
}
"""What each value of ``pretrain.optimizer`` sets in TrainingArguments."""


class HeldoutTrainer(Trainer):
    """A Trainer whose held-out loss is the mean over all predicted tokens of all held-out blocks.

    The Trainer's own is a mean over blocks, whatever a block has to predict, and with several processes leaves out
    the last blocks that do not divide among them.

    The log says of each step which blocks it trained on (``BLOCKS``; with several processes, those of the first). It is
    saved with the checkpoints, so a resumed run still knows of the steps before.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        counts = [predicted(self.data_collator([block])) for block in self.eval_dataset]
        self._tokens_per_block = sum(counts) / len(counts)
        self._trained_on: list[torch.Tensor] = []

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """As in the Trainer, but with every block: the argument ``dataloader_drop_last`` is meant for training."""
        drop, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.args.dataloader_drop_last = drop

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """As in the Trainer; a held-out block's loss is divided by the mean count of predicted tokens."""
        if not model.training:
            # The Trainer multiplies by the number of processes, for counts that were summed over them.
            num_items_in_batch = self._tokens_per_block * self.accelerator.num_processes
        else:
            self._trained_on.append(inputs["input_ids"])
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in the Trainer, which calls it after every step; the blocks go into the saved log alone."""
        super().log(logs, start_time)
        if self._trained_on:
            self.state.log_history[-1][BLOCKS] = tokens_hash(self._trained_on)
            self._trained_on = []


def tokens_hash(blocks: Iterable[torch.Tensor]) -> str:
    """SHA-256 of token ids, in order, however they are cut into tensors."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block.to("cpu", torch.int64).numpy().tobytes())
    return digest.hexdigest()


def training_arguments(
    settings: Pretrain, seed: int, device: torch.device, bf16: bool, checkpoints: Path
) -> TrainingArguments:
    """The Trainer's arguments for a recipe.

    Raises:
        LesaError: ``settings.torch_compile`` is set, and there is no C++ compiler.
    """
    if settings.torch_compile:
        need_compiler()
    arguments = TrainingArguments(
        output_dir=str(checkpoints),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=1,  # with more, several processes weigh a last, smaller batch wrongly
        gradient_accumulation_steps=settings.gradient_accumulation,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=settings.warmup_steps,
        weight_decay=settings.weight_decay,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        max_grad_norm=1.0,
        bf16=bf16,
        torch_compile=settings.torch_compile,
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
        **OPTIMIZERS[settings.optimizer],
    )
    if bf16 and sharded():
        # accelerate's own policy also rounds the loss to bf16, three digits, and sums gradients in it.
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        arguments.fsdp_plugin_args = {"mixed_precision_policy": policy}
    return arguments


def sharded() -> bool:
    """Whether the launcher asked for FSDP."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def use_bf16(precision: str, device: torch.device) -> bool:
    """Whether to train under bf16 autocast: where the machine computes in it, unless told otherwise.

    Raises:
        LesaError: bf16 was asked for, and this machine has none.
    """
    there = multiplies_bf16(device)
    if precision == "bf16" and not there:
        raise LesaError(f"pretrain.precision is bf16, which this {device.type} does not compute in; use fp32 or auto")
    return there and precision != "fp32"


def need_compiler() -> None:
    """See that there is the C++ compiler with which torch.compile makes its kernels.

    Raises:
        LesaError: there is none.
    """
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise LesaError(
            f"pretrain.torch_compile is true, which needs a C++ compiler, and {compiler} is not there; install it "
            "(Debian: apt-get install g++), name another in the environment variable CXX, or set it to false"
        )


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Have a model compute its activations again in the backward pass instead of keeping them.

    transformers then also asks for gradients of the embedded tokens, which reentrant checkpoints need. These do not,
    and the frozen layers before the first that trains are to run without a graph, so it is taken back.

    Raises:
        LesaError: the model's code has no such thing.
    """
    if not model.supports_gradient_checkpointing:
        raise LesaError(
            f"pretrain.gradient_checkpointing is true, and {type(model).__name__} cannot do that; use false"
        )
    # Newer releases of transformers call it activation checkpointing, and warn of the older name.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    model.disable_input_require_grads()
