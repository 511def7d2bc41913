"""The shared basis of one weight kind over all layers (LESA, arXiv 2502.13794).

The ``L`` matrices of a kind, each ``d_out x d_in``, put side by side have the decomposition ``U S V^T``. ``U`` and
``S`` come from the Gram matrix ``sum_i W_i W_i^T = U S^2 U^T``, summed layer by layer in float64, so that the
``d_out x (L d_in)`` matrix never exists. ``U`` is square, hence ``W_i = U U^T W_i`` holds whatever the small singular
values, and the coefficients ``V_i = S^-1 U^T W_i`` of a layer are computed when they are wanted, not kept.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scipy.linalg
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from lesa.errors import LesaError
from lesa.files import read_json, whole_folder, write_json
from lesa.layers import Layers

Coefficients = Callable[[int], Tensor]
"""Layer number -> its coefficients ``V_i``, ``d_out x d_in``, float32."""

BLOCK = 512
"""Rows of a Gram matrix that are computed together, from the diagonal on: nearly half the work is saved."""
KEPT_BYTES = 2**28
LEADING = 32


@dataclass(frozen=True)
class Basis:
    """The shared basis of one weight kind.

    Attributes:
        u: ``d_out x d_out``, orthogonal, float32; column ``r`` is component ``r``.
        s: ``d_out`` singular values, descending, float32; 0 where the kind has no more rank.
    """

    u: Tensor
    s: Tensor

    def coefficients(self, weight: Tensor) -> Tensor:
        """``V_i = S^-1 U^T W_i`` of a ``d_out x d_in`` matrix, float32; rows without a singular value are 0."""
        rows = self.u.T @ weight.to(self.u)
        inverse = torch.where(self.s > 0, 1 / self.s.clamp_min(torch.finfo(self.s.dtype).tiny), 0)
        return rows * inverse[:, None]

    def weight(self, coefficients: Tensor) -> Tensor:
        """``W = U S V`` from ``d_out x d_in`` coefficients."""
        return self.u @ (self.s[:, None] * coefficients)

    def to(self, device: torch.device) -> "Basis":
        """The same basis on another device."""
        return Basis(self.u.to(device), self.s.to(device))


def basis_of(weights: Iterator[Tensor], device: torch.device | None = None) -> Basis:
    """The shared basis of matrices of one shape, ``d_out x d_in``, taken one at a time.

    Singular values below ``d_out * eps * S_0`` (float64) of the Gram matrix's own accuracy count as 0. The largest
    entry of each column of ``U`` is positive, which settles the sign that a decomposition leaves open.

    Raises:
        LesaError: a matrix holds NaN or infinity, or there is none.
    """
    gram: Tensor | None = None
    for number, weight in enumerate(weights):
        wide = weight.to(device, torch.float64)
        if gram is None:
            gram = wide.new_zeros(len(wide), len(wide))
        for rows, start in zip(wide.split(BLOCK), range(0, len(wide), BLOCK), strict=True):
            gram[start : start + BLOCK, start:].addmm_(rows, wide[start:].T)
        if not gram.diagonal().isfinite().all():
            raise LesaError(f"the matrix of layer {number} holds NaN or infinity; the base model is damaged")
    if gram is None:
        raise LesaError("a basis needs at least one matrix")
    values, vectors = _eigh(gram)
    values[values <= values[0] * len(values) * torch.finfo(values.dtype).eps] = 0
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return Basis(vectors.mul_(largest.sign()), values.sqrt().float())


def _eigh(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, descending, and eigenvectors in float32, from the upper triangle of ``gram``, which is used up."""
    if gram.is_cuda:
        values, vectors = torch.linalg.eigh(gram, UPLO="U")
    else:
        # Of what LAPACK offers this needs the least memory: three matrices, the given one among them. The upper
        # triangle is the lower one of the transpose, which is laid out as LAPACK wants it.
        found = scipy.linalg.eigh(gram.numpy().T, driver="evd", overwrite_a=True, check_finite=False)
        values, vectors = map(torch.from_numpy, found)
    return values.flip(0).clamp_min(0), vectors.float().flip(1)


class Spectrum:
    """The bases of all weight kinds, as saved in a folder by ``analyze``.

    Raises:
        LesaError: the folder was not made by ``analyze``.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        description = self.folder / "spectrum.json"
        if not description.exists():
            raise LesaError(f"{self.folder} holds no spectrum.json; run the analysis first")
        self.kinds: list[str] = list(read_json(description)["kinds"])

    def basis(self, kind: str, device: torch.device | None = None) -> Basis:
        """The basis of one kind."""
        tensors = load_file(self.folder / f"{kind}.safetensors")
        return Basis(tensors["u"], tensors["s"]).to(device or torch.device("cpu"))

    def reader(self, layers: Layers, kind: str, device: torch.device | None = None) -> Coefficients:
        """A function that gives ``V_i`` of layer ``i``; it keeps them where all fit in ``KEPT_BYTES``."""
        basis = self.basis(kind, device)

        def read(layer: int) -> Tensor:
            return basis.coefficients(layers.matrix(layer, kind))

        size = 4 * math.prod(layers.matrix_shape(kind)) * len(layers)
        return functools.cache(read) if size <= KEPT_BYTES else read

    def leading(self, layers: Layers, kind: str, device: torch.device | None = None) -> Tensor:
        """The first rows of every layer's ``V_i``: ``L x LEADING x d_in`` (fewer rows where ``d_out`` is smaller)."""
        basis = self.basis(kind, device)
        part = Basis(basis.u[:, :LEADING], basis.s[:LEADING])
        return torch.stack([part.coefficients(layers.matrix(layer, kind)) for layer in range(len(layers))])


def analyze(layers: Layers, out: str | Path, device: torch.device | None = None) -> Spectrum:
    """Compute the basis of every weight kind that all layers share; save it in the folder ``out``, whole or not at all.

    A kind that some layer lacks, or has in another shape (dense layers among mixtures of experts), gets none.

    Raises:
        LesaError: a weight holds NaN or infinity.
    """
    description: dict[str, Any] = {"layers": len(layers), "kinds": {}}
    with whole_folder(out) as folder:
        for kind in tqdm(layers.shared_kinds(), desc="shared basis", unit="kind"):
            rank = _save_basis(layers, kind, folder, device)
            description["kinds"][kind] = {"shape": list(layers.matrix_shape(kind)), "rank": rank}
        write_json(folder / "spectrum.json", description)
    return Spectrum(out)


def _save_basis(layers: Layers, kind: str, folder: Path, device: torch.device | None) -> int:
    """Compute and save the basis of one kind, of which nothing is held afterwards; its rank."""
    try:
        basis = basis_of((layers.matrix(layer, kind) for layer in range(len(layers))), device)
    except LesaError as error:
        raise LesaError(f"{kind}: {error}") from None
    save_file({"u": basis.u.cpu().contiguous(), "s": basis.s.cpu()}, folder / f"{kind}.safetensors")
    return int((basis.s > 0).sum())
