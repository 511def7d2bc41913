"""A checkpoint of random weights in the shape of a Llama, written tensor by tensor.

Usage: random_model.py OUT HIDDEN_SIZE LAYERS. The other sizes are in the proportion of Llama-3-8B's (hidden 4096,
intermediate 14336, 32 heads and 8 key-value heads of 128).
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig

from lesa.checkpoint import TensorSpec, write_checkpoint
from lesa.files import whole_folder

VOCABULARY = 1000


def config_of(hidden_size: int, layers: int) -> LlamaConfig:
    """The shape of Llama-3-8B at another width and depth."""
    heads = max(4, hidden_size // 128)
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        intermediate_size=hidden_size * 7 // 2,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )


def tensors(config: LlamaConfig) -> list[TensorSpec]:
    """Its weights: normal, of standard deviation 0.02; norms of 1."""
    hidden, inner = config.hidden_size, config.intermediate_size
    keys = hidden // config.num_attention_heads * config.num_key_value_heads
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, hidden)}
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "self_attn.q_proj.weight": (hidden, hidden),
            prefix + "self_attn.k_proj.weight": (keys, hidden),
            prefix + "self_attn.v_proj.weight": (keys, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, hidden),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "post_attention_layernorm.weight": (hidden,),
        }
    shapes |= {"model.norm.weight": (hidden,), "lm_head.weight": (VOCABULARY, hidden)}
    return [
        TensorSpec(name, torch.bfloat16, shape, _values(number, shape))
        for number, (name, shape) in enumerate(shapes.items())
    ]


def _values(seed: int, shape: tuple[int, ...]) -> Callable[[], Tensor]:
    def load() -> Tensor:
        if len(shape) == 1:
            return torch.ones(shape)
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.02

    return load


def write(out: Path, hidden_size: int, layers: int) -> None:
    """Write such a checkpoint into the folder ``out``."""
    config = config_of(hidden_size, layers)
    with whole_folder(out) as folder:
        (folder / "config.json").write_text(json.dumps(config.to_dict(), indent=2) + "\n")
        write_checkpoint(folder, tensors(config))


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
