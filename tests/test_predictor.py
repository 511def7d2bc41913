import math
from pathlib import Path

import numpy as np
import pytest
import torch

from lesa.errors import LesaError
from lesa.predictor import Predictor, Predictors, loss_of, save, train
from lesa.settings import Predictor as Settings
from lesa.triples import Batches, Triple, groups_of, triples


def test_loss_by_hand() -> None:
    rng = np.random.default_rng(0)
    predicted, true = rng.normal(size=(2, 5, 3))
    weight = 0.25
    mse = ((predicted - true) ** 2).mean()
    norms = math.sqrt((predicted**2).sum()) - math.sqrt((true**2).sum())
    found = loss_of(torch.tensor(predicted), torch.tensor(true), weight).item()
    assert found == pytest.approx(0.75 * mse + 0.25 * norms**2)


def test_network_is_three_linear_layers_with_relu() -> None:
    torch.manual_seed(0)
    model = Predictor(4, 6).double()
    w = {name: value.numpy() for name, value in model.state_dict().items()}
    assert [tuple(v.shape) for n, v in w.items() if n.endswith("weight")] == [(6, 8), (6, 6), (4, 6)]
    left, right = torch.randn(2, 5, 4, dtype=torch.float64)
    x = np.concatenate((left.numpy(), right.numpy()), axis=1)
    x = np.maximum(x @ w["layers.0.weight"].T + w["layers.0.bias"], 0)
    x = np.maximum(x @ w["layers.2.weight"].T + w["layers.2.bias"], 0)
    x = x @ w["layers.4.weight"].T + w["layers.4.bias"]
    assert model(left, right).detach().numpy() == pytest.approx(x)


def test_triples_of_any_order() -> None:
    assert triples([3, 0, 2, 1]) == [Triple(3, 0, 2), Triple(0, 2, 1)]
    assert triples([0, 1]) == []


def test_a_pass_gives_every_row_of_every_triple_once() -> None:
    values = {i: torch.arange(i * 100, i * 100 + 8, dtype=torch.float32).reshape(4, 2) for i in range(5)}
    batches = Batches(values.__getitem__, [Triple(0, 1, 2), Triple(4, 2, 1)])
    seen = []
    for left, middle, right in batches.shuffled(3, torch.Generator().manual_seed(0)):
        assert len(left) in (3, 2)
        seen += [(a[0].item(), b[0].item(), c[0].item()) for a, b, c in zip(left, middle, right, strict=True)]
    expected = [(2 * r, 100 + 2 * r, 200 + 2 * r) for r in range(4)]
    expected += [(400 + 2 * r, 200 + 2 * r, 100 + 2 * r) for r in range(4)]
    assert sorted(seen) == sorted(expected)


def test_groups_hold_no_more_layers_than_allowed() -> None:
    groups = groups_of(triples(range(10)), 4)
    assert [triple for group in groups for triple in group] == triples(range(10))
    for group in groups:
        assert len({layer for t in group for layer in (t.left, t.middle, t.right)}) <= 4
    assert len(groups_of(triples(range(10)), 10)) == 1


def smooth(n_layers: int = 10) -> list[torch.Tensor]:
    """Coefficients that turn evenly from layer to layer, so that a linear map of the neighbours predicts exactly."""
    torch.manual_seed(5)
    a, b = torch.randn(2, 40, 6) * 0.3
    return [math.cos(0.2 * i) * a + math.sin(0.2 * i) * b for i in range(n_layers)]


@pytest.mark.parametrize("resident_bytes", [2**30, 1])
def test_training_learns_what_can_be_learned(resident_bytes: int) -> None:
    values = smooth()
    settings = Settings(epochs=200, batch_size=32, learning_rate=3e-3, norm_weight=0.0)
    model, curve = train(values.__getitem__, triples(range(10)), settings, seed=0, resident_bytes=resident_bytes)
    assert len(curve) == 200
    error = sum((model(values[i - 1], values[i + 1]) - values[i]).square().sum().item() for i in range(1, 9))
    total = sum(values[i].square().sum().item() for i in range(1, 9))
    assert error / total < 0.05
    assert curve[-1] < 0.05 * curve[0]


def test_same_seed_same_predictor_whatever_ran_before() -> None:
    values = smooth()
    settings = Settings(epochs=2, batch_size=16)
    first, curve = train(values.__getitem__, triples(range(10)), settings, seed=3)
    torch.randn(7)
    second, again = train(values.__getitem__, triples(range(10)), settings, seed=3)
    other, _ = train(values.__getitem__, triples(range(10)), settings, seed=4)
    assert curve == again
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_divergence_is_reported() -> None:
    values = [value * 1e20 for value in smooth()]
    with pytest.raises(LesaError, match=r"diverged in epoch 1.*predictor\.learning_rate"):
        train(values.__getitem__, triples(range(10)), Settings(norm_weight=1.0), seed=0)


def test_too_few_layers_are_said() -> None:
    with pytest.raises(LesaError, match="three layers in a row"):
        train(smooth().__getitem__, triples(range(2)), Settings(), seed=0)


def test_saved_predictors_predict_the_same(tmp_path: Path) -> None:
    values = smooth()
    model, _ = train(values.__getitem__, triples(range(10)), Settings(epochs=1, hidden_size=8), seed=0)
    save({"q_proj": model}, tmp_path)
    loaded = Predictors(tmp_path).predictor("q_proj")
    assert torch.equal(loaded(values[0], values[2]), model(values[0], values[2]))
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_an_unknown_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(LesaError, match="train the predictor first"):
        Predictors(tmp_path)
