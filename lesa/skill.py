"""How well layers can be predicted that the predictor has not seen, beside simpler ways to predict them.

Skill is ``1 - SSE / SSE of predicting zero``, over all rows of the layers left out: 1 is perfect, 0 is as good as
predicting zero, below 0 is worse. A layer that is left out is in no training triple, neither as target nor as
neighbour.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lesa.linear import ridge
from lesa.predictor import train
from lesa.settings import Predictor as PredictorSettings
from lesa.spectrum import Coefficients
from lesa.triples import Triple, triples

Guess = Callable[[Tensor, Tensor], Tensor]


def heldout_layers(n_layers: int, wanted: int) -> list[int]:
    """Inner layers to leave out, evenly spaced, as many as wanted or as leave triples to learn from.

    Fewer than six layers leave none.
    """
    count = min(wanted, (n_layers - 2) // 4)
    return [round(1 + (k + 0.5) * (n_layers - 2) / count - 0.5) for k in range(count)]


def split(order: Sequence[int], left_out: Sequence[int]) -> tuple[list[Triple], list[Triple]]:
    """Triples of layers in ``order``: those that hold no left-out layer, and those with one in the middle."""
    everything = triples(order)
    out = set(left_out)
    training = [t for t in everything if not out & {t.left, t.middle, t.right}]
    return training, [t for t in everything if t.middle in out]


def skill(coefficients: Coefficients, samples: Sequence[Triple], guess: Guess) -> float:
    """Skill of ``guess(V_left, V_right)`` on the middle layers of the given triples."""
    error = total = 0.0
    for triple in samples:
        true = coefficients(triple.middle)
        guessed = guess(coefficients(triple.left), coefficients(triple.right))
        error += (guessed - true).double().square().sum().item()
        total += true.double().square().sum().item()
    return 1 - error / total if total else 0.0


def mean_of_neighbours(left: Tensor, right: Tensor) -> Tensor:
    """The plain average of the two neighbours."""
    return (left + right) / 2


def shuffled(n_layers: int, seed: int) -> list[int]:
    """All layers in a random order."""
    return torch.randperm(n_layers, generator=torch.Generator().manual_seed(seed)).tolist()


def measure(
    coefficients: Coefficients, n_layers: int, settings: PredictorSettings, seed: int, device: torch.device | None
) -> tuple[float | None, dict[str, float]]:
    """Held-out skill of the predictor and of its controls, for one weight kind.

    The same recipe is trained anew without the left-out layers, for ``settings.heldout_epochs``. ``shuffled_layers``
    does so once more with the layers in a random order and the same places left out: what remains of the skill then
    cannot come from the order.

    Returns:
        The predictor's skill (None when the model has too few layers, or none are to be left out), and the controls'.
    """
    places = heldout_layers(n_layers, settings.heldout_layers)
    if not places:
        return None, {}

    recipe = settings.model_copy(update={"epochs": settings.heldout_epochs})

    def trained(order: Sequence[int]) -> float:
        training, testing = split(order, [order[place] for place in places])
        model, _ = train(coefficients, training, recipe, seed, device)
        return skill(coefficients, testing, model.to(device or "cpu"))

    order = range(n_layers)
    training, testing = split(order, places)
    return trained(order), {
        "zero": skill(coefficients, testing, lambda left, right: torch.zeros_like(left)),
        "mean_of_neighbours": skill(coefficients, testing, mean_of_neighbours),
        "ridge": skill(coefficients, testing, ridge(coefficients, training, seed)[0]),
        "shuffled_layers": trained(shuffled(n_layers, seed)),
    }
