"""Ways to make a new layer, one file a method; the file's name is the method's name.

A method is a module with ``initialize(layer: NewLayer) -> dict[str, Tensor]``, which gives every tensor of the new
layer by its name inside the layer. It may also have ``arrange(n_layers, placement) -> Plan`` where it knows itself
where its layers go, and ``LEARNED = True`` where it needs a spectrum and trained predictors.
"""

from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

import torch
from torch import Tensor

from lesa.errors import LesaError
from lesa.layers import Layers
from lesa.plan import Placement, Plan, between


@dataclass(frozen=True)
class Learned:
    """Folders with what was learned about the base model.

    Attributes:
        spectrum: made by ``lesa.spectrum.analyze``.
        predictor: made by ``lesa.predictor.save``.
    """

    spectrum: str
    predictor: str


@dataclass(frozen=True)
class NewLayer:
    """What a method may use to make one new layer.

    Attributes:
        layers: the base model's layers.
        sources: the base layers it is made from; for a layer between two neighbours, left and right.
        fraction: where it lies between them: 0 would be the left one, 1 the right one.
        number: its place in the deeper model; with ``seed``, what its random numbers come from.
        seed: of random weights.
        norms: where norm weights come from, for methods that leave it open: ``first``, ``left`` or ``mean``.
        router: ``left`` (the left neighbour's) or ``predict``, for methods that can predict it.
        learned: what was learned about the base, for methods with ``LEARNED``.
        device: where to compute.
    """

    layers: Layers
    sources: tuple[int, ...]
    fraction: float
    number: int
    seed: int
    norms: str
    router: str
    learned: Learned | None
    device: torch.device

    def left(self) -> dict[str, Tensor]:
        """The tensors of the first source layer."""
        return self.layers.read(self.sources[0])

    def right(self) -> dict[str, Tensor]:
        """The tensors of the last source layer."""
        return self.layers.read(self.sources[-1])

    def between(self, left: Tensor, right: Tensor) -> Tensor:
        """The mean of two tensors, each weighed by how near the layer lies to it, in float32."""
        return left.float() * (1 - self.fraction) + right.float() * self.fraction

    def silent(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """A layer's tensors with zeros in the modules that write to the residual stream: the layer is the identity."""
        is_output = self.layers.family.is_output
        return {name: torch.zeros_like(tensor) if is_output(name) else tensor for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Initializer:
    """A method, found by name."""

    name: str
    module: ModuleType

    @property
    def learned(self) -> bool:
        """Whether the method needs a spectrum and trained predictors."""
        return getattr(self.module, "LEARNED", False)

    @property
    def arranges(self) -> bool:
        """Whether the method has its own places for new layers."""
        return hasattr(self.module, "arrange")

    def arrange(self, n_layers: int, placement: Placement) -> Plan:
        """The layers of the deeper model: new ones where the placement says, unless the method says otherwise.

        Raises:
            LesaError: the placement does not fit the model or the method.
        """
        if not self.arranges:
            return between(placement.counts(n_layers))
        plan: Plan = self.module.arrange(n_layers, placement)
        return plan

    def initialize(self, layer: NewLayer) -> dict[str, Tensor]:
        """The tensors of one new layer, by their names inside the layer."""
        tensors: dict[str, Tensor] = self.module.initialize(layer)
        return tensors


def names() -> list[str]:
    """The names of all methods."""
    return sorted(module.name for module in iter_modules(__path__))


def get(name: str) -> Initializer:
    """The method of that name.

    Raises:
        LesaError: there is none.
    """
    if name not in names():
        raise LesaError(f"there is no expansion method {name!r}; there are {', '.join(names())}")
    return Initializer(name, import_module(f"{__name__}.{name}"))
