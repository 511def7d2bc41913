"""Muon for the matrices of decoder layers, AdamW for every other weight, as one optimizer."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import AdamW, Muon, Optimizer

BETAS = (0.9, 0.95)
PART = "part"


class MuonWithAdamW(Optimizer):
    """torch's Muon and torch's AdamW under one learning-rate schedule, saved and loaded as one.

    Muon's step is scaled to the root mean square that AdamW's has ("match_rms_adamw", arXiv 2502.16982), so that one
    learning rate serves both. A parameter of one dimension (norm, bias) gets no weight decay.

    Args:
        named: names and parameters; those that need no gradient are left out.
        layers: what the names of parameters in decoder layers begin with. A matrix there is Muon's; embeddings, head,
            norms, biases, and experts that a model keeps in one tensor of three dimensions are AdamW's.
        learning_rate: of both.
        weight_decay: of both.
    """

    def __init__(
        self, named: Iterable[tuple[str, Parameter]], layers: str, learning_rate: float, weight_decay: float
    ) -> None:
        matrices: list[Parameter] = []
        tensors: list[Parameter] = []
        vectors: list[Parameter] = []
        for name, parameter in named:
            if parameter.requires_grad:
                muon = name.startswith(layers) and parameter.ndim == 2
                (matrices if muon else tensors if parameter.ndim > 1 else vectors).append(parameter)
        self._parts: list[Optimizer] = []
        if matrices:
            self._parts.append(Muon(matrices, learning_rate, weight_decay, adjust_lr_fn="match_rms_adamw"))
        if tensors or vectors:
            groups = [{"params": tensors, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
            self._parts.append(AdamW([group for group in groups if group["params"]], learning_rate, BETAS))
        super().__init__(
            [{**group, PART: number} for number, part in enumerate(self._parts) for group in part.param_groups], {}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of both."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number, part in enumerate(self._parts):
            # Schedules and loaded checkpoints change the groups and the state here; the two see what is here.
            part.param_groups = [group for group in self.param_groups if group[PART] == number]
            part.state = self.state
            part.step()
        return loss
