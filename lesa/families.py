"""What each decoder family calls its layers and their weights.

Families are data: adding one is one entry in ``FAMILIES``. Weights that a checkpoint may or may not have (biases,
query and key norms) need no entry: whatever a layer holds beside the named projections is carried along.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lesa.errors import LesaError

PROJECTIONS = {
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "o_proj": "self_attn.o_proj",
    "gate_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "down_proj": "mlp.down_proj",
}


@dataclass(frozen=True)
class Family:
    """The names in one decoder family's checkpoints and config."""

    layers: str = "model.layers"
    """Module path of the list of decoder layers."""
    projections: Mapping[str, str] = field(default_factory=lambda: PROJECTIONS)
    """Weight kind -> module path inside a layer; each module's ``weight`` is a ``d_out x d_in`` matrix."""
    outputs: tuple[str, ...] = ("o_proj", "down_proj")
    """The kinds that write to the residual stream: with these zero, a layer is the identity."""
    depth_key: str = "num_hidden_layers"
    """Config key of the number of layers."""
    layer_lists: tuple[str, ...] = ("layer_types",)
    """Config keys of lists with one entry a layer, where the config or transformers' class has them."""
    leading_counts: tuple[str, ...] = ("max_window_layers",)
    """Config keys that count the leading layers of some sort."""

    def prefix(self, layer: int) -> str:
        """What the names of a layer's tensors begin with."""
        return f"{self.layers}.{layer}."

    def weight(self, kind: str) -> str:
        """Name of a kind's matrix inside a layer."""
        return f"{self.projections[kind]}.weight"

    def is_output(self, name: str) -> bool:
        """Whether a tensor of a layer (weight or bias) belongs to a module that writes to the residual stream."""
        return any(name.startswith(self.projections[kind] + ".") for kind in self.outputs)


def is_norm(name: str) -> bool:
    """Whether a tensor of a layer belongs to a normalization, such as ``self_attn.q_norm.weight``."""
    return any("norm" in part or part.startswith("ln_") for part in name.split("."))


LLAMA = Family()

FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "gemma": LLAMA,
    "gemma2": LLAMA,
    "gemma3_text": LLAMA,
    "olmo2": LLAMA,
    "smollm3": Family(layer_lists=("layer_types", "no_rope_layers")),
}


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a checkpoint, by ``model_type`` of its config.

    Raises:
        LesaError: the family is not in the table.
    """
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise LesaError(
            f"model_type {model_type!r} in config.json is no decoder family that lesa knows ({', '.join(FAMILIES)}); "
            "adding one is an entry in lesa/families.py: the path of its layers, of each projection, and which of "
            "them write to the residual stream"
        )
    return FAMILIES[model_type]


def num_layers(config: Mapping[str, Any]) -> int:
    """Number of decoder layers that a config declares.

    Raises:
        LesaError: the family is not in the table, or its layer count is missing.
    """
    key = family_of(config).depth_key
    count = config.get(key)
    if not isinstance(count, int) or count < 1:
        raise LesaError(f"{key} in config.json must be a positive number, and is {count!r}")
    return count
