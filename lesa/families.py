"""What each decoder family calls its layers and their weights.

Families are data: adding one is one entry in ``FAMILIES``. Weights that a checkpoint may or may not have (biases,
query and key norms) need no entry: whatever a layer holds beside the named projections is carried along.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lesa.errors import LesaError

ATTENTION = {
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "o_proj": "self_attn.o_proj",
}
GATED_MLP = {"gate_proj": "mlp.gate_proj", "up_proj": "mlp.up_proj", "down_proj": "mlp.down_proj"}


@dataclass(frozen=True)
class Units:
    """Parts of a layer that can change places: attention heads, or the neurons of an MLP.

    Attributes:
        inputs: the kinds whose rows belong to the units. Of heads: queries, keys and values, or all in one matrix.
        output: the kind whose columns belong to them.
        norms: module paths of normalizations over all rows of each input, where a checkpoint has such.
        grouped: of heads in one matrix: whether each key head's queries, key and value follow each other there, and not
            all queries, all keys, all values.
    """

    inputs: tuple[str, ...]
    output: str
    norms: tuple[str, ...] = ()
    grouped: bool = False


@dataclass(frozen=True)
class Family:
    """The names in one decoder family's checkpoints and config."""

    layers: str = "model.layers"
    """Module path of the list of decoder layers."""
    projections: Mapping[str, str] = field(default_factory=lambda: ATTENTION | GATED_MLP)
    """Weight kind -> module path inside a layer; ``{e}`` stands for the number of an expert, each its own kind."""
    outputs: tuple[str, ...] = ("o_proj", "down_proj")
    """The kinds that write to the residual stream: with these zero, a layer is the identity."""
    heads: Units = Units(("q_proj", "k_proj", "v_proj"), "o_proj", norms=("self_attn.q_norm", "self_attn.k_norm"))
    """The attention heads."""
    heads_key: str = "num_attention_heads"
    """Config key of the number of query heads."""
    neurons: tuple[Units, ...] = (Units(("gate_proj", "up_proj"), "down_proj"),)
    """The neurons of each MLP."""
    routers: tuple[str, ...] = ()
    """The kinds that choose experts."""
    transposed: bool = False
    """Whether a ``weight`` is stored ``d_in x d_out`` (GPT-2's Conv1D) and not ``d_out x d_in``."""
    depth_key: str = "num_hidden_layers"
    """Config key of the number of layers."""
    layer_lists: tuple[str, ...] = ("layer_types",)
    """Config keys of lists with one entry a layer, where the config or transformers' class has them."""
    leading_counts: tuple[str, ...] = ("max_window_layers",)
    """Config keys that count the leading layers of some sort."""
    numbered_keys: tuple[str, ...] = ("scale_attn_by_inverse_layer_idx",)
    """Config keys that make a layer compute by its number, so that it cannot be moved."""
    dense_keys: tuple[str, str] | None = None
    """Config keys of the numbers of the layers without experts, and of the step between layers with experts."""

    def prefix(self, layer: int) -> str:
        """What the names of a layer's tensors begin with."""
        return f"{self.layers}.{layer}."

    def weight(self, kind: str, expert: int = 0) -> str:
        """Name inside a layer of a kind's matrix."""
        return self.projections[kind].replace("{e}", str(expert)) + ".weight"

    def is_output(self, name: str) -> bool:
        """Whether a tensor of a layer (weight or bias) belongs to a module that writes to the residual stream."""
        return any(re.match(_pattern(self.projections[kind]), name) for kind in self.outputs)


def is_norm(name: str) -> bool:
    """Whether a tensor of a layer belongs to a normalization, such as ``self_attn.q_norm.weight``."""
    return any("norm" in part or part.startswith("ln_") for part in name.split("."))


def _pattern(path: str) -> str:
    return re.escape(path).replace(r"\{e\}", r"\d+") + r"\."


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
    "phi3": Family(
        projections={
            "qkv_proj": "self_attn.qkv_proj",
            "o_proj": "self_attn.o_proj",
            "gate_up_proj": "mlp.gate_up_proj",
            "down_proj": "mlp.down_proj",
        },
        heads=Units(("qkv_proj",), "o_proj"),
        neurons=(Units(("gate_up_proj",), "down_proj"),),
    ),
    "starcoder2": Family(
        projections=ATTENTION | {"c_fc": "mlp.c_fc", "c_proj": "mlp.c_proj"},
        outputs=("o_proj", "c_proj"),
        neurons=(Units(("c_fc",), "c_proj"),),
    ),
    "gpt2": Family(
        layers="transformer.h",
        projections={
            "c_attn": "attn.c_attn",
            "attn_c_proj": "attn.c_proj",
            "c_fc": "mlp.c_fc",
            "mlp_c_proj": "mlp.c_proj",
        },
        outputs=("attn_c_proj", "mlp_c_proj"),
        heads=Units(("c_attn",), "attn_c_proj"),
        heads_key="n_head",
        neurons=(Units(("c_fc",), "mlp_c_proj"),),
        transposed=True,
        depth_key="n_layer",
    ),
    "gpt_neox": Family(
        layers="gpt_neox.layers",
        projections={
            "query_key_value": "attention.query_key_value",
            "dense": "attention.dense",
            "dense_h_to_4h": "mlp.dense_h_to_4h",
            "dense_4h_to_h": "mlp.dense_4h_to_h",
        },
        outputs=("dense", "dense_4h_to_h"),
        heads=Units(("query_key_value",), "dense", grouped=True),
        neurons=(Units(("dense_h_to_4h",), "dense_4h_to_h"),),
    ),
    "falcon": Family(
        layers="transformer.h",
        projections={
            "query_key_value": "self_attention.query_key_value",
            "dense": "self_attention.dense",
            "dense_h_to_4h": "mlp.dense_h_to_4h",
            "dense_4h_to_h": "mlp.dense_4h_to_h",
        },
        outputs=("dense", "dense_4h_to_h"),
        heads=Units(("query_key_value",), "dense", grouped=True),
        neurons=(Units(("dense_h_to_4h",), "dense_4h_to_h"),),
    ),
    "mixtral": Family(
        projections=ATTENTION
        | {
            "router": "block_sparse_moe.gate",
            "expert_{e}_w1": "block_sparse_moe.experts.{e}.w1",
            "expert_{e}_w2": "block_sparse_moe.experts.{e}.w2",
            "expert_{e}_w3": "block_sparse_moe.experts.{e}.w3",
        },
        outputs=("o_proj", "expert_{e}_w2"),
        neurons=(Units(("expert_{e}_w1", "expert_{e}_w3"), "expert_{e}_w2"),),
        routers=("router",),
    ),
    "qwen3_moe": Family(
        projections=ATTENTION
        | GATED_MLP
        | {
            "router": "mlp.gate",
            "expert_{e}_gate_proj": "mlp.experts.{e}.gate_proj",
            "expert_{e}_up_proj": "mlp.experts.{e}.up_proj",
            "expert_{e}_down_proj": "mlp.experts.{e}.down_proj",
        },
        outputs=("o_proj", "down_proj", "expert_{e}_down_proj"),
        neurons=(
            Units(("gate_proj", "up_proj"), "down_proj"),
            Units(("expert_{e}_gate_proj", "expert_{e}_up_proj"), "expert_{e}_down_proj"),
        ),
        routers=("router",),
        dense_keys=("mlp_only_layers", "decoder_sparse_step"),
    ),
}


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a checkpoint, by ``model_type`` of its config.

    Raises:
        LesaError: the family is not in the table, or its layers cannot be moved.
    """
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise LesaError(
            f"model_type {model_type!r} in config.json is no decoder family that lesa knows ({', '.join(FAMILIES)}); "
            "adding one is an entry in lesa/families.py: the path of its layers, of each projection, and which of "
            "them write to the residual stream"
        )
    family = FAMILIES[model_type]
    for key in family.numbered_keys:
        if config.get(key):
            raise LesaError(
                f"{key} in config.json is {config[key]!r}: what a layer computes depends on its number, so it cannot "
                "be moved; such a model cannot be made deeper"
            )
    return family


def check_length(config: Mapping[str, Any], sequence_length: int) -> None:
    """See that a model takes sequences of ``sequence_length`` tokens.

    Raises:
        LesaError: its positions end before.
    """
    longest = config.get("max_position_embeddings") or config.get("n_positions")
    if longest and sequence_length > longest:
        raise LesaError(
            f"corpus.sequence_length is {sequence_length}, and the base has positions for {longest} tokens; "
            f"right would be at most {longest}"
        )


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
