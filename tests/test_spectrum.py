from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lesa import spectrum
from lesa.checkpoint import Checkpoint
from lesa.continuity import continuity, energy, projection
from lesa.errors import LesaError
from lesa.layers import Layers
from lesa.spectrum import Basis, Spectrum, analyze, basis_of


@pytest.mark.parametrize(("d_out", "d_in", "block"), [(6, 10, 512), (10, 6, 512), (8, 8, 512), (8, 8, 3), (6, 10, 2)])
def test_the_basis_is_the_svd_of_the_matrices_side_by_side(
    d_out: int, d_in: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    monkeypatch.setattr(spectrum, "BLOCK", block)
    weights = [torch.randn(d_out, d_in, dtype=torch.float64) for _ in range(5)]
    u, s, vt = torch.linalg.svd(torch.cat(weights, dim=1), full_matrices=False)
    basis = basis_of(iter(weights))
    torch.testing.assert_close(basis.s, s.float(), rtol=1e-6, atol=1e-6)
    signs = (u * basis.u.double()).sum(0).sign()
    torch.testing.assert_close(basis.u, (u * signs).float(), rtol=1e-5, atol=1e-5)
    for i, weight in enumerate(weights):
        expected = signs[:, None] * vt[:, i * d_in : (i + 1) * d_in]
        torch.testing.assert_close(basis.coefficients(weight), expected.float(), rtol=1e-4, atol=1e-5)


def test_weights_come_back_from_their_coefficients() -> None:
    torch.manual_seed(2)
    weights = [torch.randn(7, 12) for _ in range(3)]
    basis = basis_of(iter(weights))
    for weight in weights:
        torch.testing.assert_close(basis.weight(basis.coefficients(weight)), weight, rtol=1e-4, atol=1e-5)


def test_the_largest_entry_of_each_component_is_positive() -> None:
    torch.manual_seed(3)
    basis = basis_of(iter([torch.randn(9, 20) for _ in range(4)]))
    assert (basis.u.gather(0, basis.u.abs().argmax(0, keepdim=True)) > 0).all()


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_kind_of_lower_rank_works(rank: int) -> None:
    torch.manual_seed(4)
    left = torch.randn(8, rank)
    weights = [left @ torch.randn(rank, 6) for _ in range(4)]
    basis = basis_of(iter(weights))
    assert int((basis.s > 0).sum()) == rank
    for weight in weights:
        rows = basis.coefficients(weight)
        assert rows.isfinite().all()
        assert (rows[rank:] == 0).all()
        torch.testing.assert_close(basis.weight(rows), weight, rtol=1e-4, atol=1e-5)


def test_a_damaged_weight_is_named() -> None:
    weights = [torch.ones(2, 3), torch.tensor([[1.0, float("nan"), 0.0], [0.0, 0.0, 0.0]])]
    with pytest.raises(LesaError, match="layer 1 holds NaN"):
        basis_of(iter(weights))


def test_fp16_weights_do_not_overflow() -> None:
    weights = [torch.full((4, 64), 60000.0, dtype=torch.float16)] * 2
    expected = torch.linalg.svdvals(torch.cat(weights, dim=1).double())[0].item()
    assert basis_of(iter(weights)).s[0].item() == pytest.approx(expected)


def test_analyze_saves_every_kind(save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    layers = Layers(Checkpoint(save_tiny()))
    analyze(layers, tmp_path / "spectrum")
    spectrum = Spectrum(tmp_path / "spectrum")
    assert spectrum.kinds == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    for kind in spectrum.kinds:
        weights = [layers.tensor(i, f"{layers.family.projections[kind]}.weight") for i in range(8)]
        singular = torch.linalg.svdvals(torch.cat(weights, dim=1).double()).float()
        torch.testing.assert_close(spectrum.basis(kind).s, singular, rtol=1e-5, atol=1e-5)
        read = spectrum.reader(layers, kind)
        leading = spectrum.leading(layers, kind)
        for i in range(8):
            torch.testing.assert_close(read(i)[: leading.shape[1]], leading[i])


def test_an_unknown_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(LesaError, match="run the analysis first"):
        Spectrum(tmp_path)


def test_continuity_by_hand() -> None:
    leading = torch.tensor([[[1.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [2.0, 0.0]], [[-3.0, -3.0], [0.0, 5.0]]])
    table = continuity(leading).set_index(["component", "layer"])["cosine"]
    assert table[0, 0] == pytest.approx(2**-0.5)
    assert table[0, 1] == pytest.approx(-1)
    assert table[1, 0] == 0
    assert table[1, 1] == pytest.approx(0)
    assert len(table) == 4


def test_energy_sums_to_one() -> None:
    table = energy(torch.tensor([2.0, 1.0, 1.0]))
    assert table["energy"].tolist() == pytest.approx([4 / 6, 5 / 6, 1])
    assert table["component"].tolist() == [0, 1, 2]


def test_projection_keeps_distances_of_planar_points() -> None:
    rng = np.random.default_rng(0)
    plane = rng.normal(size=(6, 2))
    axes = np.linalg.qr(rng.normal(size=(10, 2)))[0]
    leading = torch.tensor(plane @ axes.T)[:, None, :]
    table = projection(leading)
    found = table[["x", "y"]].to_numpy()
    distances = np.linalg.norm(plane[:, None] - plane[None], axis=2)
    assert np.linalg.norm(found[:, None] - found[None], axis=2) == pytest.approx(distances)
    assert table["layer"].tolist() == list(range(6))


def test_basis_moves_between_devices() -> None:
    basis = Basis(torch.eye(2), torch.ones(2)).to(torch.device("cpu"))
    assert basis.u.device.type == "cpu"
