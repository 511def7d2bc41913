"""The network that predicts a layer's coefficients from its two neighbours (LESA, arXiv 2502.13794).

One network a weight kind, or a linear map in its place (``lesa.linear``).
"""

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lesa.errors import LesaError
from lesa.files import read_json, write_json
from lesa.linear import Linear, fit
from lesa.settings import Predictor as PredictorSettings
from lesa.spectrum import Coefficients
from lesa.triples import Batches, Triple, groups_of

RESIDENT_BYTES = 2**30
LOSS_BATCHES = 64


class Predictor(nn.Module):
    """Three linear layers with ReLU, ``2 d_in -> hidden_size -> hidden_size -> d_in``."""

    def __init__(self, d_in: int, hidden_size: int) -> None:
        super().__init__()
        self.d_in = d_in
        self.hidden_size = hidden_size
        self.layers = nn.Sequential(
            nn.Linear(2 * d_in, hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, d_in),
        )

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Coefficients of the layer between, from those of its neighbours; all ``... x d_in``."""
        return self.layers(torch.cat((left, right), dim=-1))


def loss_of(predicted: Tensor, true: Tensor, norm_weight: float) -> Tensor:
    """``(1 - lambda) MSE + lambda (|predicted| - |true|)^2``, norms taken over the whole batch (Frobenius)."""
    error = (predicted - true).square().mean()
    norm_error = (predicted.norm() - true.norm()).square()
    return (1 - norm_weight) * error + norm_weight * norm_error


def train(
    coefficients: Coefficients,
    samples: Sequence[Triple],
    settings: PredictorSettings,
    seed: int,
    device: torch.device | None = None,
    resident_bytes: int = RESIDENT_BYTES,
) -> tuple[Predictor | Linear, list[float]]:
    """Train a predictor of one weight kind on the given triples.

    A network sees the coefficients of as many layers as fit in ``resident_bytes`` at a time (at least three); rows
    are drawn at random among the triples held. A linear map is solved for, from three layers at a time.

    Args:
        coefficients: reads ``V_i`` of a layer.
        samples: the triples to learn from.
        settings: the recipe.
        seed: of the initial weights and of the order of the samples.
        device: where to train; default CPU.
        resident_bytes: see above.

    Returns:
        The predictor, and the mean loss over the batches of each epoch (of a linear map: one value, when it is done).

    Raises:
        LesaError: there is no triple, or the loss is not a number.
    """
    if not samples:
        raise LesaError("the predictor needs at least three layers in a row to learn from")
    example = coefficients(samples[0].middle)
    held = max(3, resident_bytes // (example.numel() * example.element_size()))
    model: Predictor | Linear
    if settings.kind == "linear":
        model = fit(coefficients, samples, settings.batch_size, settings.norm_weight, seed)
        curve = [mean_loss(model, coefficients, samples, settings, seed, held)]
    else:
        model, curve = _descend(coefficients, groups_of(samples, held), settings, seed, device)
    return model.to("cpu").eval().requires_grad_(False), curve


def mean_loss(
    model: nn.Module,
    coefficients: Coefficients,
    samples: Sequence[Triple],
    settings: PredictorSettings,
    seed: int,
    resident_layers: int,
) -> float:
    """Mean of ``loss_of`` over ``LOSS_BATCHES`` random batches of each group of triples held at a time."""
    generator = torch.Generator().manual_seed(seed)
    losses = []
    with torch.no_grad():
        for group in groups_of(samples, resident_layers):
            batches = Batches(coefficients, group).shuffled(settings.batch_size, generator)
            for left, middle, right in islice(batches, LOSS_BATCHES):
                losses.append(loss_of(model(left, right), middle, settings.norm_weight))
    return torch.stack(losses).mean().item()


def _descend(
    coefficients: Coefficients,
    groups: Sequence[Sequence[Triple]],
    settings: PredictorSettings,
    seed: int,
    device: torch.device | None,
) -> tuple[Predictor, list[float]]:
    d_in = coefficients(groups[0][0].middle).shape[1]
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Predictor(d_in, settings.hidden_size)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, fused=True)
    curve: list[float] = []
    resident: Batches | None = None
    for epoch in range(1, settings.epochs + 1):
        losses = []
        for number in torch.randperm(len(groups), generator=generator).tolist():
            if resident is None or len(groups) > 1:
                resident = None  # before the next group is read, so that only one is held
                resident = Batches(coefficients, groups[number])
            for left, middle, right in resident.shuffled(settings.batch_size, generator):
                loss = loss_of(model(left, right), middle, settings.norm_weight)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        curve.append(torch.stack(losses).mean().item())
        if not math.isfinite(curve[-1]):
            raise LesaError(
                f"predictor training diverged in epoch {epoch} (loss {curve[-1]}); "
                f"predictor.learning_rate is {settings.learning_rate}, a smaller one would be right"
            )
    return model, curve


class Predictors:
    """The predictors of all weight kinds, saved in a folder.

    Raises:
        LesaError: the folder was not made by predictor training.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / "predictor.json").exists():
            raise LesaError(f"{self.folder} holds no predictor.json; train the predictor first")
        self._sizes = read_json(self.folder / "predictor.json")
        self.kinds = {path.stem for path in self.folder.glob("*.safetensors")}

    def predictor(self, kind: str) -> Predictor | Linear:
        """The predictor of one kind, ready to use."""
        state = load_file(self.folder / f"{kind}.safetensors")
        if "weight" in state:
            return Linear(**state)
        model = Predictor(**self._sizes[kind])
        model.load_state_dict(state)
        return model.eval().requires_grad_(False)


def save(predictors: Mapping[str, Predictor | Linear], folder: Path) -> None:
    """Save the predictors of all kinds into an existing folder, to be opened by ``Predictors``."""
    sizes = {}
    for kind, model in predictors.items():
        save_file(model.state_dict(), folder / f"{kind}.safetensors")
        if isinstance(model, Predictor):
            sizes[kind] = {"d_in": model.d_in, "hidden_size": model.hidden_size}
    write_json(folder / "predictor.json", sizes)
