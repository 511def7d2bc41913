import numpy as np
import pytest
import torch

from lesa.settings import Predictor as Settings
from lesa.skill import heldout_layers, mean_of_neighbours, measure, shuffled, skill, split
from lesa.triples import Triple, triples
from test_predictor import smooth


def test_heldout_layers_are_inner_and_evenly_spaced() -> None:
    assert heldout_layers(30, 5) == [3, 9, 14, 20, 26]
    assert heldout_layers(30, 1) == [14]
    assert heldout_layers(6, 5) == [2]
    assert heldout_layers(5, 5) == []
    assert heldout_layers(2, 5) == []
    assert heldout_layers(30, 0) == []


@pytest.mark.parametrize("n_layers", [6, 7, 8, 12, 30, 32, 80])
@pytest.mark.parametrize("wanted", [1, 3, 5, 100])
def test_no_left_out_layer_is_in_training_and_something_is_left(n_layers: int, wanted: int) -> None:
    out = heldout_layers(n_layers, wanted)
    training, testing = split(range(n_layers), out)
    assert training
    assert [t.middle for t in testing] == out
    assert not {layer for t in training for layer in (t.left, t.middle, t.right)} & set(out)


def test_skill_by_hand() -> None:
    values = [torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 2.0]]), torch.tensor([[3.0, 0.0]])]
    # the mean of the neighbours is (2, 0): squared error 4, against 8 for zero
    assert skill(values.__getitem__, [Triple(0, 1, 2)], mean_of_neighbours) == pytest.approx(0.5)


def test_independent_layers_give_the_mean_of_neighbours_minus_a_half() -> None:
    torch.manual_seed(0)
    values = [torch.randn(200, 50) for _ in range(10)]
    # error of the mean = 1 + 1/4 + 1/4 of the target's size for independent vectors (METHOD.md)
    assert skill(values.__getitem__, triples(range(10)), mean_of_neighbours) == pytest.approx(-0.5, abs=0.02)


def test_measure_tells_order_from_none() -> None:
    values = smooth(16)
    settings = Settings(heldout_epochs=150, batch_size=32, learning_rate=3e-3, norm_weight=0.0, heldout_layers=3)
    found, controls = measure(values.__getitem__, 16, settings, 0, None)
    assert found is not None
    assert found > 0.9
    assert controls["zero"] == 0
    assert controls["ridge"] > 0.9
    # neighbours of layers that turn by 0.2 a step average to cos(0.2) of the truth
    assert controls["mean_of_neighbours"] == pytest.approx(1 - (1 - np.cos(0.2)) ** 2, abs=1e-4)
    assert controls["shuffled_layers"] < found - 0.3


def test_measure_of_a_shallow_model_is_none() -> None:
    assert measure(smooth().__getitem__, 5, Settings(), 0, None) == (None, {})


def test_shuffled_is_a_seeded_permutation() -> None:
    assert sorted(shuffled(20, 0)) == list(range(20))
    assert shuffled(20, 0) == shuffled(20, 0) != shuffled(20, 1)
