"""A linear predictor of a layer's coefficients in closed form, beside the network of LESA (arXiv 2502.13794).

The map from ``[V_left, V_right]`` to ``V_middle`` is a ridge regression, scaled so that the loss of LESA is smallest.
Wide inputs are first projected onto ``FEATURES`` random directions, so that memory does not grow with the square of
``d_in``.

The left side of ``V = S^-1 U^T W`` plays no part in such a map: ``U S [S^-1 U^T W_l, S^-1 U^T W_r] B = [W_l, W_r] B``,
so it takes the neighbours' weights to the new layer's as it takes their coefficients.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from lesa.errors import LesaError
from lesa.spectrum import Coefficients
from lesa.triples import Triple

PENALTIES = (0.1, 1.0, 10.0)
"""Ridge penalties to choose from, in units of the mean diagonal of the inputs' second moment."""
FEATURES = 8192


class Linear(nn.Module):
    """``[V_left, V_right] P B``, where ``P`` (``2 d_in x features``) is fixed; without it, ``[V_left, V_right] B``."""

    def __init__(self, weight: Tensor, projection: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Buffer(weight)
        self.projection = None if projection is None else nn.Buffer(projection)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Coefficients of the layer between, from those of its neighbours; all ``... x d_in``."""
        return _features(left, right, self.projection) @ self.weight


class Moments:
    """Sums over triples, of features ``X`` and targets ``Y``.

    Attributes:
        inputs: ``X^T X``.
        outputs: ``X^T Y``.
        total: squared norm of ``Y``.
        size: number of entries of ``Y``.
    """

    def __init__(self, projection: Tensor | None) -> None:
        self.inputs = self.outputs = torch.zeros(())
        self.total = 0.0
        self.size = 0
        self._projection = projection

    def add(self, coefficients: Coefficients, samples: Iterable[Triple]) -> None:
        """Take in more triples."""
        for triple in samples:
            x = _features(coefficients(triple.left), coefficients(triple.right), self._projection)
            y = coefficients(triple.middle)
            if not self.size:
                self.inputs, self.outputs = x.new_zeros(x.shape[1], x.shape[1]), x.new_zeros(x.shape[1], y.shape[1])
            self.inputs.addmm_(x.T, x)
            self.outputs.addmm_(x.T, y)
            self.total += y.double().square().sum().item()
            self.size += y.numel()

    def solve(self, penalty: float) -> Tensor:
        """The ridge solution ``B = (X^T X + penalty * mean diagonal)^-1 X^T Y``."""
        mean = self.inputs.diagonal().mean().item()
        regular = self.inputs.clone()
        regular.diagonal().add_(penalty * mean if mean > 0 else 1.0)
        return torch.cholesky_solve(self.outputs, torch.linalg.cholesky(regular)).contiguous()


def ridge(coefficients: Coefficients, samples: Sequence[Triple], seed: int) -> tuple[Linear, Moments]:
    """The best linear map in the least-squares sense, regularized, and the moments of all samples.

    Of ``PENALTIES`` the one that predicts the last triple best, fitted without it, is taken and fitted to all triples.

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
    moments = Moments(projection)
    moments.add(coefficients, fitted or samples)
    true = coefficients(last.middle)

    def error(penalty: float) -> float:
        guess = Linear(moments.solve(penalty), projection)(coefficients(last.left), coefficients(last.right))
        return (guess - true).square().sum().item()

    best = min(PENALTIES, key=error)
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
    inputs = 2 * example.shape[1]
    if inputs <= FEATURES:
        return None
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(inputs, FEATURES, generator=generator).to(example) / inputs**0.5


def _features(left: Tensor, right: Tensor, projection: Tensor | None) -> Tensor:
    if projection is None:
        return torch.cat((left, right), dim=-1)
    middle = projection.shape[0] // 2
    return left @ projection[:middle] + right @ projection[middle:]
