"""Which device heavy work runs on."""

import torch

from lesa.errors import LesaError


def pick(device: str) -> torch.device:
    """The device for ``cpu``, ``cuda`` or ``auto`` (the GPU where there is one).

    Raises:
        LesaError: ``cuda`` was asked for and is not there.
    """
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise LesaError("device is cuda, and torch finds no GPU here; use cpu or auto")
    return torch.device("cuda" if available and device != "cpu" else "cpu")
