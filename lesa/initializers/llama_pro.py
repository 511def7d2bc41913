"""LLaMA Pro (arXiv 2401.02415): copy the layer before, with outputs of zero, so that the model computes as before."""

import torch
from torch import Tensor

from lesa.initializers import NewLayer


def initialize(layer: NewLayer) -> dict[str, Tensor]:
    """The left neighbour, with zeros in the modules that write to the residual stream."""
    family = layer.layers.family
    return {
        name: torch.zeros_like(tensor) if family.is_output(name) else tensor for name, tensor in layer.left().items()
    }
