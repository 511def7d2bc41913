"""The decoder layers of a checkpoint, each as a mapping from the name inside the layer to the tensor."""

from torch import Tensor

from lesa.checkpoint import Checkpoint
from lesa.errors import LesaError
from lesa.families import Family, family_of, num_layers


class Layers:
    """Reads a checkpoint layer by layer.

    Raises:
        LesaError: the family is unknown, or a layer has no tensors.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.family: Family = family_of(checkpoint.config)
        self.count = num_layers(checkpoint.config)
        self._names: list[list[str]] = [[] for _ in range(self.count)]
        self.outside: list[str] = []
        start = self.family.layers + "."
        for name in checkpoint.names():
            number, _, rest = name.removeprefix(start).partition(".")
            if name.startswith(start) and number.isdecimal() and int(number) < self.count:
                self._names[int(number)].append(rest)
            else:
                self.outside.append(name)
        for layer, names in enumerate(self._names):
            if not names:
                raise LesaError(f"{checkpoint.folder} has no tensors of layer {layer} ({start}{layer}.*)")

    def __len__(self) -> int:
        return self.count

    def names(self, layer: int) -> list[str]:
        """Names inside a layer."""
        return self._names[layer]

    def full_name(self, layer: int, name: str) -> str:
        """Name in the checkpoint of a tensor of a layer."""
        return self.family.prefix(layer) + name

    def shape(self, layer: int, name: str) -> tuple[int, ...]:
        """Shape of a tensor of a layer."""
        return self.checkpoint.shape(self.full_name(layer, name))

    def tensor(self, layer: int, name: str) -> Tensor:
        """Values of a tensor of a layer, as stored."""
        return self.checkpoint.tensor(self.full_name(layer, name))

    def read(self, layer: int) -> dict[str, Tensor]:
        """All tensors of a layer."""
        return {name: self.tensor(layer, name) for name in self.names(layer)}

    def kinds(self) -> list[str]:
        """The weight kinds that the layers hold, in the family's order."""
        return [kind for kind in self.family.projections if self.family.weight(kind) in self.names(0)]

    def check_alike(self, layers: list[int]) -> None:
        """See that the given layers hold tensors of the same names and shapes.

        Raises:
            LesaError: two of them differ.
        """
        if not layers:
            return
        first = {name: self.shape(layers[0], name) for name in self.names(layers[0])}
        for layer in layers[1:]:
            other = {name: self.shape(layer, name) for name in self.names(layer)}
            for name in sorted(first.keys() | other.keys()):
                if first.get(name) != other.get(name):
                    raise LesaError(
                        f"layers {layers[0]} and {layer} of {self.checkpoint.folder} differ: {name} is "
                        f"{first.get(name, 'missing')} in one and {other.get(name, 'missing')} in the other; "
                        "a new layer can only be made from layers of one shape"
                    )
