"""How well layers can be predicted that the predictor has not seen, beside simpler ways to predict them.

Skill is ``1 - SSE / SSE of predicting zero``, over all rows of the layers left out: 1 is perfect, 0 is as good as
predicting zero, below 0 is worse. A layer that is left out is in no training triple, neither as target nor as
neighbour.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lesa.predictor import Triple, train, triples
from lesa.settings import Predictor as PredictorSettings
from lesa.spectrum import Coefficients

Guess = Callable[[Tensor, Tensor], Tensor]
PENALTIES = (0.1, 1.0, 10.0)


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


def ridge(coefficients: Coefficients, samples: Sequence[Triple]) -> Guess:
    """The best linear map from ``[V_left, V_right]`` to ``V_middle``, in closed form, with ridge regularization.

    The penalty is ``PENALTIES`` times the mean diagonal of the inputs' second moment; the one that predicts the last
    training triple best, fitted without it, is taken and fitted to all triples.
    """
    *fitted, last = samples
    moments = _moments(coefficients, fitted) if fitted else _moments(coefficients, samples)
    maps = {penalty: _solve(*moments, penalty) for penalty in PENALTIES}
    best = max(PENALTIES, key=lambda penalty: skill(coefficients, [last], _linear(maps[penalty])))
    if not fitted:
        return _linear(maps[best])
    added = _moments(coefficients, [last])
    return _linear(_solve(moments[0] + added[0], moments[1] + added[1], best))


def _moments(coefficients: Coefficients, samples: Sequence[Triple]) -> tuple[Tensor, Tensor]:
    inputs = outputs = torch.zeros(())
    for triple in samples:
        x = torch.cat((coefficients(triple.left), coefficients(triple.right)), dim=1)
        inputs = inputs + x.T @ x
        outputs = outputs + x.T @ coefficients(triple.middle)
    return inputs, outputs


def _solve(inputs: Tensor, outputs: Tensor, penalty: float) -> Tensor:
    diagonal = penalty * inputs.diagonal().mean().clamp_min(torch.finfo(inputs.dtype).tiny)
    return torch.linalg.solve(inputs + diagonal * torch.eye(len(inputs)).to(inputs), outputs)


def _linear(weight: Tensor) -> Guess:
    return lambda left, right: torch.cat((left, right), dim=1) @ weight


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
        return skill(coefficients, testing, model)

    order = range(n_layers)
    training, testing = split(order, places)
    return trained(order), {
        "zero": skill(coefficients, testing, lambda left, right: torch.zeros_like(left)),
        "mean_of_neighbours": skill(coefficients, testing, mean_of_neighbours),
        "ridge": skill(coefficients, testing, ridge(coefficients, training)),
        "shuffled_layers": trained(shuffled(n_layers, seed)),
    }
