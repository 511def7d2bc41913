import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.linear_model import Ridge

from lesa import linear
from lesa.errors import LesaError
from lesa.linear import PENALTIES, Linear, fit, ridge
from lesa.predictor import Predictors, loss_of, save, train
from lesa.settings import Predictor as Settings
from lesa.spectrum import basis_of
from lesa.triples import Triple, triples
from test_predictor import smooth


def test_ridge_equals_scikit_learn() -> None:
    torch.manual_seed(1)
    values = [v + 0.3 * torch.randn_like(v) for v in smooth()]
    samples = triples(range(10))

    def stack(chosen: list[Triple]) -> tuple[np.ndarray, np.ndarray]:
        x = torch.cat([torch.cat((values[t.left], values[t.right]), dim=1) for t in chosen])
        return x.numpy(), torch.cat([values[t.middle] for t in chosen]).numpy()

    x, y = stack(samples[:-1])
    xs, ys = stack(samples[-1:])
    diagonal = np.square(x).sum(0).mean()
    scores = {p: Ridge(alpha=p * diagonal, fit_intercept=False).fit(x, y).predict(xs) for p in PENALTIES}
    best = min(PENALTIES, key=lambda p: np.square(scores[p] - ys).sum())
    x, y = stack(samples)
    expected = Ridge(alpha=best * np.square(x).sum(0).mean(), fit_intercept=False).fit(x, y).predict(xs)
    found = ridge(values.__getitem__, samples, 0)[0](values[samples[-1].left], values[samples[-1].right])
    assert found.numpy() == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_the_scale_is_the_one_of_the_smallest_loss() -> None:
    torch.manual_seed(2)
    values = [torch.randn(40, 6, dtype=torch.float64) for _ in range(8)]
    samples = triples(range(8))
    weight = 0.3
    # one batch of everything, so that the mean over batches is exact
    model = fit(values.__getitem__, samples, 10**9, weight, 0)
    left, middle, right = (
        torch.cat([values[getattr(t, side)] for t in samples]) for side in ("left", "middle", "right")
    )
    predicted = model(left, right)
    best = minimize_scalar(
        lambda c: loss_of(c * predicted, middle, weight).item(), bounds=(0.01, 100), method="bounded"
    )
    assert best.x == pytest.approx(1, abs=1e-4)
    plain = fit(values.__getitem__, samples, 10**9, 0.0, 0)(left, right)
    assert (plain * (middle - plain)).sum().item() == pytest.approx(0, abs=1e-8)  # least squares along its direction


def test_a_projection_keeps_what_few_directions_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    values = smooth(12)
    monkeypatch.setattr(linear, "FEATURES", 8)
    model, moments = ridge(values.__getitem__, triples(range(12)), 0)
    assert model.projection is not None
    assert model.projection.shape == (6, 4)
    assert model.weight.shape == (8, 6)
    z = [value @ model.projection for value in values]
    x = torch.cat((z[0], z[2]), dim=1)
    expected = x @ model.weight
    assert torch.allclose(model(values[0], values[2]), expected, atol=1e-5)
    inputs = torch.cat([torch.cat((z[i - 1], z[i + 1]), dim=1) for i in range(1, 11)])
    targets = torch.cat(values[1:11])
    assert torch.allclose(moments.inputs, inputs.T @ inputs, rtol=1e-4, atol=1e-4)
    assert torch.allclose(moments.outputs, inputs.T @ targets, rtol=1e-4, atol=1e-4)
    assert moments.total == pytest.approx(targets.double().square().sum().item())
    again, _ = ridge(values.__getitem__, triples(range(12)), 0)
    other, _ = ridge(values.__getitem__, triples(range(12)), 1)
    assert torch.equal(model.weight, again.weight)
    assert not torch.equal(model.weight, other.weight)


def test_it_takes_weights_as_it_takes_their_coefficients() -> None:
    torch.manual_seed(3)
    left, right = torch.randn(2, 5, 7, dtype=torch.float64)
    basis = basis_of(iter([left, right, torch.randn(5, 7, dtype=torch.float64)]))
    model = Linear(torch.randn(14, 7))
    direct = model(left.float(), right.float())
    by_basis = basis.weight(model(basis.coefficients(left), basis.coefficients(right)))
    assert torch.allclose(direct, by_basis, atol=1e-4)


def test_train_gives_the_loss_over_batches_and_saves_a_linear_map(tmp_path: Path) -> None:
    values = smooth()
    settings = Settings(kind="linear", batch_size=10**6, norm_weight=0.25)
    model, curve = train(values.__getitem__, triples(range(10)), settings, seed=0)
    true = torch.cat(values[1:9])
    predicted = torch.cat([model(values[i - 1], values[i + 1]) for i in range(1, 9)])
    expected = 0.75 * (predicted - true).square().mean() + 0.25 * (predicted.norm() - true.norm()) ** 2
    assert curve == pytest.approx([expected.item()], rel=1e-5)
    save({"q_proj": model}, tmp_path)
    loaded = Predictors(tmp_path).predictor("q_proj")
    assert torch.equal(loaded(values[0], values[2]), model(values[0], values[2]))


def test_nothing_to_learn_from_is_said_and_zeros_stay_zero() -> None:
    with pytest.raises(LesaError, match="three layers in a row"):
        ridge(smooth().__getitem__, [], 0)
    model = fit([torch.zeros(4, 3)].__getitem__, [Triple(0, 0, 0)], 64, 5e-4, 0)
    assert model(torch.ones(4, 3), torch.ones(4, 3)).tolist() == [[0.0] * 3] * 4
    assert math.isfinite(model.weight.sum().item())
