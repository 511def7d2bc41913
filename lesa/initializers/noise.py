"""Random weights as large as the neighbours': what a learned method must beat to have learned anything."""

import hashlib

import torch
from torch import Tensor

from lesa.initializers import NewLayer


def initialize(layer: NewLayer) -> dict[str, Tensor]:
    """Projections from a normal distribution; norms, biases and the choice of experts are the left neighbour's.

    The Frobenius norm of each is the mean of the two neighbours'. The numbers depend on the seed, the layer's place and
    the tensor's name alone.
    """
    made, right = layer.left(), layer.right()
    for kind, name in layer.layers.kinds_of(layer.sources[0]).items():
        if kind not in layer.layers.family.routers:
            noise = _normal(made[name].shape, f"{layer.seed} {layer.number} {name}")
            size = (_norm(made[name]) + _norm(right[name])) / 2
            made[name] = noise * (size / _norm(noise))
    return made


def _normal(shape: torch.Size, key: str) -> Tensor:
    # On the CPU, whatever computes the rest: a GPU's generator gives other numbers.
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) >> 1
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
