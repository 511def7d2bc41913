"""The network that predicts a layer's coefficients from its two neighbours (LESA, arXiv 2502.13794).

One network a weight kind. One sample is one component of one layer: input ``[V_{i-1}[r], V_{i+1}[r]]``, target
``V_i[r]``, for every inner layer ``i`` and every component ``r``.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lesa.errors import LesaError
from lesa.files import read_json, write_json
from lesa.settings import Predictor as PredictorSettings
from lesa.spectrum import Coefficients

RESIDENT_BYTES = 2 * 2**30


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


@dataclass(frozen=True)
class Triple:
    """Three layers in a row, of which the middle one is predicted from the outer two."""

    left: int
    middle: int
    right: int


def triples(order: Sequence[int]) -> list[Triple]:
    """All neighbouring triples of layers in the given order."""
    return [Triple(*order[i : i + 3]) for i in range(len(order) - 2)]


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
) -> tuple[Predictor, list[float]]:
    """Train a predictor of one weight kind on the given triples.

    The coefficients of as many layers as fit in ``resident_bytes`` are held at a time (at least three); rows are
    drawn at random among the triples held.

    Args:
        coefficients: reads ``V_i`` of a layer.
        samples: the triples to learn from.
        settings: the recipe.
        seed: of the initial weights and of the order of the samples.
        device: where to train; default CPU.
        resident_bytes: see above.

    Returns:
        The predictor, and the mean loss over the batches of each epoch.

    Raises:
        LesaError: there is no triple, or the loss is not a number.
    """
    if not samples:
        raise LesaError("the predictor needs at least three layers in a row to learn from")
    example = coefficients(samples[0].middle)
    groups = _groups(samples, max(3, resident_bytes // (example.numel() * example.element_size())))
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Predictor(example.shape[1], settings.hidden_size)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, fused=True)
    curve: list[float] = []
    resident: Batches | None = None
    for epoch in range(1, settings.epochs + 1):
        losses = []
        for number in torch.randperm(len(groups), generator=generator).tolist():
            if resident is None or len(groups) > 1:
                resident = None  # before the next group is read, so that only one is held
                resident = Batches(coefficients, groups[number], device)
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
    return model.to("cpu").eval().requires_grad_(False), curve


class Batches:
    """The coefficients of some triples, held in memory, given out in random batches of rows."""

    def __init__(self, coefficients: Coefficients, samples: Sequence[Triple], device: torch.device | None) -> None:
        needed = sorted({layer for triple in samples for layer in (triple.left, triple.middle, triple.right)})
        place = {layer: number for number, layer in enumerate(needed)}
        shape = coefficients(needed[0]).shape
        self._values = torch.empty(len(needed), *shape, device=device)
        for number, layer in enumerate(needed):
            self._values[number] = coefficients(layer)
        self._values = self._values.flatten(0, 1)
        starts = [[place[t.left], place[t.middle], place[t.right]] for t in samples]
        self._starts = torch.tensor(starts) * shape[0]
        self._rows = shape[0]

    def shuffled(self, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Every row of every triple once, in random order: left, middle, right, each ``size x d_in``."""
        for chosen in torch.randperm(len(self._starts) * self._rows, generator=generator).split(size):
            rows = (self._starts[chosen // self._rows] + (chosen % self._rows)[:, None]).to(self._values.device)
            yield self._values[rows[:, 0]], self._values[rows[:, 1]], self._values[rows[:, 2]]


def _groups(samples: Sequence[Triple], resident_layers: int) -> list[list[Triple]]:
    """Split triples into runs whose layers, at most ``resident_layers``, fit in memory together."""
    groups: list[list[Triple]] = [[]]
    held: set[int] = set()
    for triple in samples:
        wanted = {triple.left, triple.middle, triple.right}
        if groups[-1] and len(held | wanted) > resident_layers:
            groups.append([])
            held = set()
        groups[-1].append(triple)
        held |= wanted
    return groups


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

    def predictor(self, kind: str) -> Predictor:
        """The predictor of one kind, ready to use."""
        model = Predictor(**self._sizes[kind])
        model.load_state_dict(load_file(self.folder / f"{kind}.safetensors"))
        return model.eval().requires_grad_(False)


def save(predictors: dict[str, Predictor], folder: Path) -> None:
    """Save the predictors of all kinds into an existing folder, to be opened by ``Predictors``."""
    for kind, model in predictors.items():
        save_file(model.state_dict(), folder / f"{kind}.safetensors")
    sizes = {kind: {"d_in": model.d_in, "hidden_size": model.hidden_size} for kind, model in predictors.items()}
    write_json(folder / "predictor.json", sizes)
