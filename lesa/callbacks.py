"""What is added to transformers' Trainer while it trains."""

import math
import time
from pathlib import Path
from typing import Any

import torch
from scmrepo.exceptions import SCMError
from transformers import TrainerCallback
from transformers.integrations import DVCLiveCallback

from lesa.errors import DivergedError, LesaError
from lesa.settings import Pretrain
from lesa.training import BLOCKS


class StopAtNan(TrainerCallback):
    """Stops a training whose loss or gradient is no longer a number, before that state is saved."""

    def __init__(self, settings: Pretrain) -> None:
        self._settings = settings

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Called by the Trainer with each step's loss."""
        for name in ("loss", "grad_norm", "eval_loss"):
            value = (logs or {}).get(name, 0.0)
            if not math.isfinite(value):
                raise DivergedError(
                    f"the {name} is {value} at step {state.global_step}; pretrain.learning_rate is "
                    f"{self._settings.learning_rate}, a smaller one would be right (checkpoints before it are kept)"
                )


class Clock(TrainerCallback):
    """Time spent in training steps; the first one, which compiles and allocates, evaluation and saving not counted."""

    def __init__(self) -> None:
        self.steps = -1
        self.seconds = 0.0
        self._start = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer before a step."""
        self._start = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer after a step."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # a step is only handed to the GPU when this is called
        self.steps += 1
        if self.steps:
            self.seconds += time.monotonic() - self._start


class LiveCurves(DVCLiveCallback):
    """dvclive's curves, by training step.

    A resumed run writes the curves anew from the log that the checkpoint kept, so that nothing that was logged after
    it stays behind or comes twice.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def setup(self, args: Any, state: Any, model: Any) -> None:
        """Open dvclive's folder, empty, on the first process."""
        from dvclive import Live

        self._initialized = True
        if state.is_world_process_zero:
            try:
                self.live = Live(str(self._folder), save_dvc_exp=False, dvcyaml=None)
            except SCMError as error:
                reason = "dvclive wants a git repository with a commit; make one (git commit) and run again"
                raise LesaError(f"{reason} ({error})") from None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer before training, with the log so far."""
        super().on_train_begin(args, state, control, **kwargs)
        for row in state.log_history:
            self._log(args, state, control, row, row["step"])

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Called by the Trainer with new figures."""
        self._log(args, state, control, logs or {}, state.global_step)

    def _log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], step: int) -> None:
        if state.is_world_process_zero and self.live is not None:
            self.live.step = step
            super().on_log(
                args, state, control, logs={key: value for key, value in logs.items() if key not in ("step", BLOCKS)}
            )
