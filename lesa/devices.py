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


def multiplies_bf16(device: torch.device) -> bool:
    """Whether the device has instructions for bf16 products; a CPU without them takes up to 100 times as long."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    # No public name yet tells which CPUs multiply bf16 in hardware.
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, test, lambda: False)() for test in tests)
