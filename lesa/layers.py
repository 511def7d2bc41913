"""The decoder layers of a checkpoint, each as a mapping from the name inside the layer to the tensor."""

from itertools import count

from torch import Tensor

from lesa.checkpoint import Checkpoint
from lesa.errors import LesaError
from lesa.families import Family, family_of, num_layers


class Layers:
    """Reads a checkpoint layer by layer.

    Attributes:
        family: what its family calls things.
        outside: names of the tensors that belong to no layer.
        kinds: weight kind -> name inside a layer of its matrix, for the kinds that the first layer holds.

    Raises:
        LesaError: the family is unknown, or a layer has no tensors, or there are more layers than the config says.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.family: Family = family_of(checkpoint.config)
        self._names: list[list[str]] = [[] for _ in range(num_layers(checkpoint.config))]
        self.outside: list[str] = []
        start = self.family.layers + "."
        root = start.partition(".")[0] + "."
        # Some checkpoints (GPT-2's on the Hub) were saved without the head, and their names lack the root.
        self._lacks_root = not any(name.startswith(root) for name in checkpoint.names())
        for stored in checkpoint.names():
            name = root + stored if self._lacks_root else stored
            number, _, rest = name.removeprefix(start).partition(".")
            if name.startswith(start) and number.isdecimal():
                if int(number) >= len(self):
                    raise LesaError(
                        f"{checkpoint.folder} has tensors of layer {number}, and {self.family.depth_key} in "
                        f"config.json is {len(self)}; the two must agree"
                    )
                self._names[int(number)].append(rest)
            else:
                self.outside.append(name)
        for layer, names in enumerate(self._names):
            if not names:
                raise LesaError(f"{checkpoint.folder} has no tensors of layer {layer} ({start}{layer}.*)")
        self.kinds = self.kinds_of(0)

    def __len__(self) -> int:
        return len(self._names)

    def names(self, layer: int) -> list[str]:
        """Names inside a layer."""
        return self._names[layer]

    def full_name(self, layer: int, name: str) -> str:
        """Name of a tensor of a layer in a checkpoint of the whole model."""
        return self.family.prefix(layer) + name

    def stored_name(self, full_name: str) -> str:
        """Name in this checkpoint of a tensor of the whole model."""
        return full_name.partition(".")[2] if self._lacks_root else full_name

    def shape(self, layer: int, name: str) -> tuple[int, ...]:
        """Shape of a tensor of a layer."""
        return self.checkpoint.shape(self.stored_name(self.full_name(layer, name)))

    def tensor(self, layer: int, name: str) -> Tensor:
        """Values of a tensor of a layer, as stored."""
        return self.checkpoint.tensor(self.stored_name(self.full_name(layer, name)))

    def read(self, layer: int) -> dict[str, Tensor]:
        """All tensors of a layer."""
        return {name: self.tensor(layer, name) for name in self.names(layer)}

    def kinds_of(self, layer: int) -> dict[str, str]:
        """Weight kind -> name inside a layer of its matrix, for the kinds that a layer holds."""
        names, found = set(self.names(layer)), {}
        for kind in self.family.projections:
            for expert in count():
                name = self.family.weight(kind, expert)
                if name in names:
                    found[kind.replace("{e}", str(expert))] = name
                if name not in names or name == self.family.weight(kind, expert + 1):
                    break
        return found

    def shared_kinds(self) -> list[str]:
        """The kinds that every layer holds in the same shape."""
        every = range(len(self))
        return [
            kind
            for kind, name in self.kinds.items()
            if all(name in self.names(i) and self.shape(i, name) == self.shape(0, name) for i in every)
        ]

    def matrix(self, layer: int, kind: str) -> Tensor:
        """The matrix of a kind in a layer, ``d_out x d_in``."""
        return self.oriented(self.tensor(layer, self.kinds[kind]))

    def matrix_shape(self, kind: str) -> tuple[int, int]:
        """``d_out, d_in`` of a kind."""
        rows, columns = self.shape(0, self.kinds[kind])
        return (columns, rows) if self.family.transposed else (rows, columns)

    def oriented(self, weight: Tensor) -> Tensor:
        """A stored weight as ``d_out x d_in``, or such a matrix as it is stored."""
        return weight.T if self.family.transposed else weight

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
