from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, FalconConfig, PreTrainedConfig

from conftest import tiny_llama
from lesa.alignment import align
from lesa.checkpoint import SINGLE, Checkpoint
from lesa.families import is_norm
from lesa.layers import Layers
from test_expansion import CONFIGS

FALCON = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4, "bos_token_id": 1}
MODELS: dict[str, PreTrainedConfig] = {
    **CONFIGS,
    "llama, one key head": tiny_llama(num_key_value_heads=1),
    "llama, a key head each": tiny_llama(num_key_value_heads=4),
    "falcon, key heads": FalconConfig(**FALCON, new_decoder_architecture=True, num_kv_heads=2),
    "falcon, a key head each": FalconConfig(**FALCON, multi_query=False),
    "falcon, alibi": FalconConfig(**FALCON, multi_query=False, alibi=True),
}
CPU = torch.device("cpu")


def squared_distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return sum(((one[name] - other[name]) ** 2).sum().item() for name in one if one[name].dim() == 2)


def logits(folder: Path) -> Tensor:
    # grouped_mm, the default for experts, takes no float64
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", experts_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.arange(3, 93).view(3, 30)).logits


@pytest.mark.parametrize("model", MODELS)
def test_a_layer_in_another_s_order_computes_the_same(model: str, save_tiny: Callable[..., Path]) -> None:
    base = save_tiny(MODELS[model], dtype=torch.float64)
    before = logits(base)
    layers = Layers(Checkpoint(base))
    tensors, moved = load_file(base / SINGLE), set()
    for number in range(1, len(layers)):
        left, right = layers.read(number - 1), layers.read(number)
        aligned = align(layers, left, right, CPU)
        assert squared_distance(left, aligned) < squared_distance(left, right)
        moved |= {name for name in right if not torch.equal(aligned[name], right[name])}
        tensors |= {layers.full_name(number, name): tensor.contiguous() for name, tensor in aligned.items()}
    assert moved >= {name for name in layers.kinds.values() if not may_stay(model, name)}
    save_file(tensors, base / SINGLE, metadata={"format": "pt"})
    # norms and softmax are computed in float32 by some families
    torch.testing.assert_close(logits(base), before, rtol=1e-5, atol=1e-5)


def may_stay(model: str, name: str) -> bool:
    if "gate.weight" in name:  # the routers
        return True
    if "alibi" in model:
        return "attention" in name
    return model == "llama, one key head" and ("k_proj" in name or "v_proj" in name)


@pytest.mark.parametrize("model", MODELS)
def test_the_order_of_a_shuffled_copy_is_found(model: str, save_tiny: Callable[..., Path]) -> None:
    layers = Layers(Checkpoint(save_tiny(MODELS[model])))
    layer = layers.read(3)
    shuffled = align(layers, layers.read(1), layer, CPU)
    found = align(layers, layer, shuffled, CPU)
    assert all(torch.equal(found[name], layer[name]) for name in layer)
    assert not all(torch.equal(shuffled[name], layer[name]) for name in layer)


def test_a_copy_shuffled_by_hand(save_tiny: Callable[..., Path]) -> None:
    layers = Layers(Checkpoint(save_tiny(tiny_llama(attention_bias=True, mlp_bias=True))))
    layer = layers.read(2)
    shuffled = dict(layer)
    neurons = torch.randperm(48)
    for name in ("gate_proj", "up_proj"):
        shuffled[f"mlp.{name}.weight"] = layer[f"mlp.{name}.weight"][neurons]
        shuffled[f"mlp.{name}.bias"] = layer[f"mlp.{name}.bias"][neurons]
    shuffled["mlp.down_proj.weight"] = layer["mlp.down_proj.weight"][:, neurons]
    # heads of 8 dimensions: 0 and 1 use key head 0, 2 and 3 use key head 1
    queries = torch.cat([torch.arange(8) + 8 * head for head in (3, 2, 0, 1)])
    keys = torch.cat([torch.arange(8) + 8 * head for head in (1, 0)])
    for name, order in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        shuffled[f"self_attn.{name}.weight"] = layer[f"self_attn.{name}.weight"][order]
        shuffled[f"self_attn.{name}.bias"] = layer[f"self_attn.{name}.bias"][order]
    shuffled["self_attn.o_proj.weight"] = layer["self_attn.o_proj.weight"][:, queries]
    found = align(layers, layer, shuffled, CPU)
    assert all(torch.equal(found[name], layer[name]) for name in layer)


def test_no_order_lies_nearer(save_tiny: Callable[..., Path]) -> None:
    layers = Layers(Checkpoint(save_tiny(tiny_llama(intermediate_size=4))))
    left, right = layers.read(1), layers.read(3)
    tried = []
    for order in map(list, permutations(range(4))):
        mlp = {f"mlp.{name}.weight": right[f"mlp.{name}.weight"][order] for name in ("gate_proj", "up_proj")}
        mlp["mlp.down_proj.weight"] = right["mlp.down_proj.weight"][:, order]
        tried.append(squared_distance(mlp, left))
    moved = align(layers, left, right, CPU)
    assert squared_distance({name: moved[name] for name in mlp}, left) == pytest.approx(min(tried))
    tried = []
    for heads in ([0, 1, 2, 3], [1, 0, 2, 3], [0, 1, 3, 2], [1, 0, 3, 2]):
        for swapped in (heads, heads[2:] + heads[:2]):
            rows = torch.cat([torch.arange(8) + 8 * head for head in swapped])
            keys = torch.arange(16).roll(8 if swapped is not heads else 0)
            attention = {
                "self_attn.q_proj.weight": right["self_attn.q_proj.weight"][rows],
                "self_attn.k_proj.weight": right["self_attn.k_proj.weight"][keys],
                "self_attn.v_proj.weight": right["self_attn.v_proj.weight"][keys],
                "self_attn.o_proj.weight": right["self_attn.o_proj.weight"][:, rows],
            }
            tried.append(squared_distance(attention, left))
    assert squared_distance({name: moved[name] for name in attention}, left) == pytest.approx(min(tried))


def test_norms_over_all_heads_move_with_them_and_norms_inside_a_head_stay(save_tiny: Callable[..., Path]) -> None:
    for family, moves in (("olmo2", True), ("qwen3", False)):
        layers = Layers(Checkpoint(save_tiny(CONFIGS[family], family)))
        right = layers.read(3)
        moved = align(layers, layers.read(1), right, CPU)
        same = torch.equal(moved["self_attn.q_norm.weight"], right["self_attn.q_norm.weight"])
        assert same != moves
        assert all(
            torch.equal(moved[n], right[n]) for n in right if is_norm(n) and "q_norm" not in n and "k_norm" not in n
        )
