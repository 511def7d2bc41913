"""A linear predictor of a layer's coefficients in closed form, beside the network of LESA (arXiv 2502.13794).

The map from ``[V_left, V_right]`` to ``V_middle`` is a ridge regression, scaled so that the loss of LESA is smallest.
Wide inputs are first projected onto ``FEATURES / 2`` random directions a neighbour, so that memory does not grow with
the square of ``d_in``.

The left side of ``V = S^-1 U^T W`` plays no part in such a map: ``U S [S^-1 U^T W_l, S^-1 U^T W_r] B = [W_l, W_r] B``,
so it takes the neighbours' weights to the new layer's as it takes their coefficients.
"""

import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from lesa.errors import LesaError
from lesa.spectrum import Coefficients
from lesa.triples import Triple

PENALTIES = (10.0, 1.0, 0.1)
"""Ridge penalties to choose from, largest first, in units of the mean diagonal of the inputs' second moment."""
FEATURES = 8192


class Linear(nn.Module):
    """``[V_left P, V_right P] B`` with a fixed ``P`` (``d_in x FEATURES / 2``); without it, ``[V_left, V_right] B``."""

    def __init__(self, weight: Tensor, projection: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Buffer(weight)
        self.projection = None if projection is None else nn.Buffer(projection)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Coefficients of the layer between, from those of its neighbours; all ``... x d_in``."""
        if self.projection is not None:
            left, right = left @ self.projection, right @ self.projection
        half = left.shape[-1]
        return left @ self.weight[:half] + right @ self.weight[half:]


class Moments:
    """Sums over triples, of features ``X = [X_left, X_right]`` and targets ``Y``.

    Attributes:
        inputs: ``X^T X``.
        outputs: ``X^T Y``.
        total: squared norm of ``Y``.
        size: number of entries of ``Y``.
    """

    def __init__(self, example: Tensor, projection: Tensor | None) -> None:
        features = 2 * (example if projection is None else projection).shape[1]
        self.inputs = example.new_zeros(features, features)
        self.outputs = example.new_zeros(features, example.shape[1])
        self.total = 0.0
        self.size = 0
        self._projection = projection

    def add(self, coefficients: Coefficients, samples: Iterable[Triple]) -> None:
        """Take in more triples; a product of two layers that has several places in the sums is computed once."""
        squares = {}

        @functools.lru_cache(3)
        def target(layer: int) -> Tensor:
            value = coefficients(layer)
            squares[layer] = value.double().square().sum().item(), value.numel()
            return value

        feature = target
        if (projection := self._projection) is not None:
            feature = functools.lru_cache(3)(lambda layer: target(layer) @ projection)
        half = len(self.inputs) // 2
        places = defaultdict(list)

        def wanted(place: Tensor, i: int, j: int, right: Coefficients = feature) -> None:
            if right is feature and i > j:
                place, i, j = place.T, j, i
            places[i, j, right].append(place)

        samples = list(samples)
        for triple in samples:
            wanted(self.inputs[:half, :half], triple.left, triple.left)
            wanted(self.inputs[:half, half:], triple.left, triple.right)
            wanted(self.inputs[half:, :half], triple.right, triple.left)
            wanted(self.inputs[half:, half:], triple.right, triple.right)
            wanted(self.outputs[:half], triple.left, triple.middle, target)
            wanted(self.outputs[half:], triple.right, triple.middle, target)
        for i, j, right in sorted(places, key=lambda key: (max(key[:2]), min(key[:2]))):
            product = feature(i).T @ right(j)
            for place in places[i, j, right]:
                place += product
        for triple in samples:
            square, size = squares[triple.middle]
            self.total += square
            self.size += size

    def solve(self, penalty: float) -> Tensor:
        """The ridge solution ``B = (X^T X + penalty * mean diagonal)^-1 X^T Y``."""
        mean = self.inputs.diagonal().mean().item()
        regular = self.inputs.clone()
        regular.diagonal().add_(penalty * mean if mean > 0 else 1.0)
        return torch.cholesky_solve(self.outputs, torch.linalg.cholesky(regular)).contiguous()


def ridge(coefficients: Coefficients, samples: Sequence[Triple], seed: int) -> tuple[Linear, Moments]:
    """The best linear map in the least-squares sense, regularized, and the moments of all samples.

    The penalty is lowered along ``PENALTIES`` for as long as the last triple, left out of the fit, is predicted better;
    the fit to all triples then uses it.

    Args:
        coefficients: reads ``V_i`` of a layer.
        samples: the triples to learn from.
        seed: of the projection, where there is one.

    Raises:
        LesaError: there is no triple.
    """
    if not samples:
        raise LesaError("the predictor needs at least three layers in a row to learn from")
    *fitted, last = samples
    projection = _projection(coefficients(last.middle), seed)
    moments = Moments(coefficients(last.middle), projection)
    moments.add(coefficients, fitted or samples)
    true = coefficients(last.middle)

    def error(penalty: float) -> float:
        guess = Linear(moments.solve(penalty), projection)(coefficients(last.left), coefficients(last.right))
        return (guess - true).square().sum().item()

    best, lowest = PENALTIES[0], error(PENALTIES[0])
    for penalty in PENALTIES[1:]:
        if (found := error(penalty)) >= lowest:
            break
        best, lowest = penalty, found
    if fitted:
        moments.add(coefficients, [last])
    return Linear(moments.solve(best), projection), moments


def fit(
    coefficients: Coefficients, samples: Sequence[Triple], batch_size: int, norm_weight: float, seed: int
) -> Linear:
    """Ridge regression, scaled to the smallest loss of LESA over batches of ``batch_size`` rows.

    That loss is ``(1 - lambda) MSE + lambda (|predicted| - |true|)^2`` with norms over a batch, so a scale ``c`` costs
    ``a (c^2 p - 2 c q) + lambda (c sqrt(p) - sqrt(t))^2``, where ``p``, ``q``, ``t`` are the mean over the batches of
    ``|predicted|^2``, ``<predicted, true>`` and ``|true|^2``, and ``a = (1 - lambda) / entries of a batch``.

    Raises:
        LesaError: there is no triple.
    """
    model, moments = ridge(coefficients, samples, seed)
    entries = min(batch_size * moments.outputs.shape[1], moments.size)
    share = entries / moments.size
    p = share * (model.weight * (moments.inputs @ model.weight)).sum().item()
    q = share * (model.weight * moments.outputs).sum().item()
    t = share * moments.total
    if p > 0:
        a = (1 - norm_weight) / entries
        model.weight.mul_((a * q + norm_weight * (p * t) ** 0.5) / (p * (a + norm_weight)))
    return model


def _projection(example: Tensor, seed: int) -> Tensor | None:
    d_in = example.shape[1]
    if 2 * d_in <= FEATURES:
        return None
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(d_in, FEATURES // 2, generator=generator).to(example) / d_in**0.5
