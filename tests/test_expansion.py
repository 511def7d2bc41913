import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
    Starcoder2Config,
)

from conftest import tiny_llama
from lesa import initializers, predictor
from lesa.checkpoint import SINGLE, Checkpoint
from lesa.errors import LesaError
from lesa.expansion import expand
from lesa.families import check_length
from lesa.layers import Layers
from lesa.learning import learn
from lesa.plan import Placement
from lesa.settings import Predictor as PredictorSettings
from lesa.spectrum import Spectrum

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LOCAL, GLOBAL = "sliding_attention", "full_attention"
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "llama tied, biases": LlamaConfig(**SHAPE, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "mistral": MistralConfig(**SHAPE, sliding_window=16),
    "qwen2": Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=16, max_window_layers=3),
    "qwen3": Qwen3Config(**SHAPE),
    "gemma": GemmaConfig(**SHAPE),
    "gemma2": Gemma2Config(**SHAPE, sliding_window=16),
    "gemma3_text": Gemma3TextConfig(**SHAPE, sliding_window=16, layer_types=[LOCAL, LOCAL, GLOBAL] * 2),
    "olmo2": Olmo2Config(**SHAPE),
    "smollm3": SmolLM3Config(**SHAPE, no_rope_layers=[1, 1, 1, 0, 1, 1]),
    "phi3": Phi3Config(**SHAPE),
    "starcoder2": Starcoder2Config(**SHAPE, sliding_window=16),
    "gpt2": GPT2Config(
        vocab_size=97, n_embd=32, n_layer=6, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2, pad_token_id=0
    ),
    "gpt_neox": GPTNeoXConfig(**{k: v for k, v in SHAPE.items() if k not in ("num_key_value_heads", "head_dim")}),
    "falcon": FalconConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=6, num_attention_heads=4, bias=True, bos_token_id=1
    ),
    "mixtral": MixtralConfig(**SHAPE, num_local_experts=3),
    "qwen3_moe": Qwen3MoeConfig(**SHAPE, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=24),
}


def logits(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    with torch.no_grad():
        return model(tokens).logits


RECIPE = PredictorSettings(epochs=1, batch_size=16, hidden_size=8)


@pytest.mark.parametrize("method", ["llama_pro", "zero_mean", "zero_noise", "opt_deus"])
@pytest.mark.parametrize("family", CONFIGS)
def test_methods_with_zero_outputs_compute_exactly_what_the_base_does(
    family: str, method: str, save_tiny: Callable[..., Path], tmp_path: Path
) -> None:
    base = save_tiny(CONFIGS[family])
    expand(base, tmp_path / "out", method, Placement((1, 2, 2, 4)))
    tokens = torch.randint(3, 97, (2, 40))
    assert torch.equal(logits(tmp_path / "out", tokens), logits(base, tokens))


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_loads_generates_and_keeps_its_layout(
    family: str, save_tiny: Callable[..., Path], tmp_path: Path
) -> None:
    base = save_tiny(CONFIGS[family])
    learned = learn(base, tmp_path, RECIPE)
    expand(base, tmp_path / "out", "lesa", Placement(first=1, last=4), learned=learned)
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.config.num_hidden_layers == 9
    prompt = torch.randint(3, 97, (1, 20))
    made = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    assert torch.equal(model.generate(prompt, use_cache=True, **made), model.generate(prompt, use_cache=False, **made))
    tied = CONFIGS[family].tie_word_embeddings
    assert (model.get_input_embeddings().weight is model.get_output_embeddings().weight) == tied
    model.save_pretrained(tmp_path / "again")
    once = (tmp_path / "again" / SINGLE).read_bytes()
    AutoModelForCausalLM.from_pretrained(tmp_path / "again").save_pretrained(tmp_path / "twice")
    assert (tmp_path / "twice" / SINGLE).read_bytes() == once


def test_config_lists_follow_the_plan(save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    def expanded(family: str) -> dict[str, object]:
        folder = tmp_path / family
        expand(save_tiny(CONFIGS[family], family + " base"), folder, "duplicate", Placement(first=1, last=4))
        return json.loads((folder / "config.json").read_text())

    # layers of the base: 0 1 (1) 2 (2) 3 (3) 4 5
    assert expanded("gemma3_text")["layer_types"] == [LOCAL, LOCAL, LOCAL, GLOBAL, GLOBAL, LOCAL, LOCAL, LOCAL, GLOBAL]
    assert expanded("smollm3")["no_rope_layers"] == [1, 1, 1, 1, 1, 0, 0, 1, 1]
    qwen2 = expanded("qwen2")
    assert qwen2["max_window_layers"] == 5
    assert qwen2["layer_types"] == [GLOBAL] * 5 + [LOCAL] * 4


def test_config_lists_follow_several_layers_in_a_gap_and_a_repeated_base(
    save_tiny: Callable[..., Path], tmp_path: Path
) -> None:
    def expanded(family: str, method: str, placement: Placement) -> dict[str, object]:
        folder = tmp_path / f"{family} {method}"
        expand(save_tiny(CONFIGS[family], family + " base"), folder, method, placement)
        return json.loads((folder / "config.json").read_text())

    # layers of the base: 0 1 (1) (1) 2 3 (3) 4 5
    several = Placement((1, 3, 1))
    types = expanded("gemma3_text", "duplicate", several)["layer_types"]
    assert types == [LOCAL, LOCAL, LOCAL, LOCAL, GLOBAL, LOCAL, LOCAL, LOCAL, GLOBAL]
    assert expanded("smollm3", "duplicate", several)["no_rope_layers"] == [1, 1, 1, 1, 1, 0, 0, 1, 1]
    assert expanded("qwen2", "duplicate", several)["max_window_layers"] == 5
    assert expanded("gemma3_text", "stack", Placement())["layer_types"] == [LOCAL, LOCAL, GLOBAL] * 4
    assert expanded("smollm3", "stack", Placement())["no_rope_layers"] == [1, 1, 1, 0, 1, 1] * 2
    qwen2 = expanded("qwen2", "stack", Placement("top", 12))
    assert qwen2["layer_types"] == ([GLOBAL] * 3 + [LOCAL] * 3) * 3
    assert qwen2["max_window_layers"] == 3


@pytest.mark.parametrize("method", ["interpolate", "stack"])
@pytest.mark.parametrize("family", CONFIGS)
def test_three_times_as_deep_loads(family: str, method: str, save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    expand(save_tiny(CONFIGS[family]), tmp_path / "out", method, Placement("spread", 12))
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.config.num_hidden_layers == 18
    assert len(getattr(model.config, "layer_types", None) or range(18)) == 18
    assert model(torch.randint(3, 97, (1, 20))).logits.isfinite().all()


def test_layer_types_that_the_file_lacks_are_written_out(save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    base = save_tiny(CONFIGS["gemma2"])
    config = json.loads((base / "config.json").read_text())
    assert config.pop("layer_types") == [LOCAL, GLOBAL] * 3
    (base / "config.json").write_text(json.dumps(config))
    expand(base, tmp_path / "out", "llama_pro", Placement(first=0, last=2))
    found = json.loads((tmp_path / "out" / "config.json").read_text())["layer_types"]
    assert found == [LOCAL, LOCAL, GLOBAL, GLOBAL, LOCAL, GLOBAL, LOCAL, GLOBAL]


def test_layers_without_experts_keep_their_numbers(save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    shape = {**SHAPE, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    # experts in layers 1, 3, 5 (every second), of which 3 is made dense
    base = save_tiny(Qwen3MoeConfig(**shape, decoder_sparse_step=2, mlp_only_layers=[3]))
    expand(base, tmp_path / "out", "llama_pro", Placement(first=2, last=4))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["mlp_only_layers"], config["decoder_sparse_step"]) == ([0, 2, 3, 4, 5, 6], 1)
    tokens = torch.randint(3, 97, (1, 20))
    assert torch.equal(logits(tmp_path / "out", tokens), logits(base, tokens))
    with pytest.raises(LesaError, match=r"layers 1 and 2 of .* differ"):
        expand(base, tmp_path / "other", "llama_pro", Placement(first=1, last=2))


@pytest.mark.parametrize("router", ["left", "predict"])
def test_the_router_is_the_left_one_unless_told_otherwise(
    router: str, save_tiny: Callable[..., Path], tmp_path: Path
) -> None:
    base = save_tiny(CONFIGS["mixtral"])
    learned = learn(base, tmp_path, RECIPE)
    assert len(Spectrum(learned.spectrum).kinds) == 4 + 1 + 3 * 3
    expand(base, tmp_path / "out", "lesa", Placement(first=2, last=3), router=router, learned=learned)
    old, new = load_file(base / SINGLE), load_file(tmp_path / "out" / SINGLE)
    name = "block_sparse_moe.gate.weight"
    same = torch.equal(new[f"model.layers.3.{name}"], old[f"model.layers.2.{name}"])
    assert same == (router == "left")


def test_a_checkpoint_saved_without_its_head_gets_the_usual_names(
    save_tiny: Callable[..., Path], tmp_path: Path
) -> None:
    base = save_tiny(CONFIGS["gpt2"])
    tokens = torch.randint(3, 97, (1, 20))
    before = logits(base, tokens)
    bare = {name.removeprefix("transformer."): tensor for name, tensor in load_file(base / SINGLE).items()}
    save_file(bare, base / SINGLE, metadata={"format": "pt"})
    expand(base, tmp_path / "out", "llama_pro", Placement(first=1, last=4))
    assert all(name.startswith("transformer.") for name in load_file(tmp_path / "out" / SINGLE))
    assert torch.equal(logits(tmp_path / "out", tokens), before)


def test_solar_is_the_two_overlapping_halves(save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    base = save_tiny()
    expand(base, tmp_path / "out", "solar", Placement(first=3, last=7))
    old, new = load_file(base / SINGLE), load_file(tmp_path / "out" / SINGLE)
    for number, source in enumerate([0, 1, 2, 3, 4, 5, 2, 3, 4, 5, 6, 7]):
        for name in (n for n in old if n.startswith("model.layers.0.")):
            inner = name.removeprefix("model.layers.0.")
            assert torch.equal(new[f"model.layers.{number}.{inner}"], old[f"model.layers.{source}.{inner}"])
    assert len([n for n in new if n.endswith("q_proj.weight")]) == 12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_duplicate_and_interpolate_tensor_by_tensor(
    dtype: torch.dtype, save_tiny: Callable[..., Path], tmp_path: Path
) -> None:
    base = save_tiny(tiny_llama(), dtype=dtype)
    expand(base, tmp_path / "copy", "duplicate", Placement(first=2, last=4))
    expand(base, tmp_path / "mean", "interpolate", Placement(first=2, last=4))
    old, copied, mean = (load_file(folder / SINGLE) for folder in (base, tmp_path / "copy", tmp_path / "mean"))
    for layer in range(10):
        # base layers 0 1 2 (2,3) 3 (3,4) 4 5 6 7
        left, right = {3: (2, 3), 5: (3, 4)}.get(layer, ([0, 1, 2, 0, 3, 0, 4, 5, 6, 7][layer],) * 2)
        for name in (n.removeprefix("model.layers.0.") for n in old if n.startswith("model.layers.0.")):
            a, b = old[f"model.layers.{left}.{name}"], old[f"model.layers.{right}.{name}"]
            assert torch.equal(copied[f"model.layers.{layer}.{name}"], a)
            expected = (a.double() + b.double()).div(2).float().to(dtype)
            assert torch.equal(mean[f"model.layers.{layer}.{name}"], expected)


def test_several_layers_in_a_gap_are_weighed_by_where_they_lie(save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    base = save_tiny()
    learned = learn(base, tmp_path, RECIPE)
    one, three = Placement((3,)), Placement((3, 3, 3))
    for method in ("interpolate", "lesa"):
        expand(base, tmp_path / "one", method, one, norms="mean", learned=learned)
        expand(base, tmp_path / "three", method, three, norms="mean", learned=learned)
        old, middle, new = (load_file(tmp_path / name / SINGLE) for name in ("base", "one", "three"))
        for name in (n.removeprefix("model.layers.0.") for n in old if n.startswith("model.layers.0.")):
            # base layers 0 1 2 3 (3,4) (3,4) (3,4) 4 5 6 7
            left, right = (old[f"model.layers.{layer}.{name}"].double() for layer in (3, 4))
            half = middle[f"model.layers.4.{name}"]
            assert torch.equal(new[f"model.layers.5.{name}"], half)
            for number, neighbor in ((4, left), (6, right)):
                expected = ((half.double() + neighbor) / 2).float()
                torch.testing.assert_close(new[f"model.layers.{number}.{name}"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_noise_is_as_large_as_the_neighbours_and_differs_by_layer_and_seed(
    family: str, save_tiny: Callable[..., Path], tmp_path: Path
) -> None:
    base = save_tiny(CONFIGS[family])
    made = []
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        expand(base, tmp_path / folder, "noise", Placement((2, 2)), seed=seed)
        made.append(load_file(tmp_path / folder / SINGLE))
    assert (tmp_path / "a" / SINGLE).read_bytes() == (tmp_path / "b" / SINGLE).read_bytes()
    old, layers = load_file(base / SINGLE), Layers(Checkpoint(base))
    projections = {name for kind, name in layers.kinds.items() if kind != "router"}
    for name in layers.names(0):
        left, right = (old[layers.full_name(number, name)] for number in (2, 3))
        noise = [tensors[layers.full_name(number, name)] for tensors in made[1:] for number in (3, 4)]
        if name not in projections:
            assert all(torch.equal(tensor, left) for tensor in noise)
            continue
        for tensor in noise:
            torch.testing.assert_close(tensor.norm(), (left.norm() + right.norm()) / 2)
            # Independent numbers: no tensor resembles another, or a neighbour.
            others = [other for other in (*noise, left, right) if other is not tensor]
            cosines = [torch.cosine_similarity(tensor.flatten(), other.flatten(), dim=0) for other in others]
            assert max(map(abs, cosines)) < 0.25


def test_zero_noise_is_noise_inside(save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    base = save_tiny()
    for method in ("noise", "zero_noise"):
        expand(base, tmp_path / method, method, Placement((2,)), seed=3)
    noise, zeroed = (load_file(tmp_path / method / SINGLE) for method in ("noise", "zero_noise"))
    for name, tensor in zeroed.items():
        is_output = name in ("model.layers.3.self_attn.o_proj.weight", "model.layers.3.mlp.down_proj.weight")
        assert torch.equal(tensor, torch.zeros_like(tensor) if is_output else noise[name])


def test_opt_deus_is_the_mean_with_the_right_neighbour_in_the_left_one_s_order(
    save_tiny: Callable[..., Path], tmp_path: Path
) -> None:
    base = save_tiny(tiny_llama(num_key_value_heads=4))
    old = load_file(base / SINGLE)
    # layer 3 becomes layer 2 with its neurons and heads reversed, so that what is matched is equal
    neurons, heads = torch.arange(48).flip(0), torch.arange(32).view(4, 8).flip(0).flatten()
    for name, tensor in list(old.items()):
        if name.startswith("model.layers.2."):
            if "gate_proj" in name or "up_proj" in name:
                tensor = tensor[neurons]
            elif "down_proj" in name:
                tensor = tensor[:, neurons]
            elif "o_proj" in name:
                tensor = tensor[:, heads]
            elif "_proj" in name:
                tensor = tensor[heads]
            old[name.replace(".2.", ".3.")] = tensor.clone()
    save_file(old, base / SINGLE, metadata={"format": "pt"})
    expand(base, tmp_path / "out", "opt_deus", Placement((2,)))
    new = load_file(tmp_path / "out" / SINGLE)
    for name in (n.removeprefix("model.layers.0.") for n in old if n.startswith("model.layers.0.")):
        expected = old[f"model.layers.2.{name}"]
        if "o_proj" in name or "down_proj" in name:
            expected = torch.zeros_like(expected)
        assert torch.equal(new[f"model.layers.3.{name}"], expected), name


@pytest.mark.parametrize("norms", ["first", "left", "mean"])
def test_lesa_is_the_paper_s_formula(norms: str, save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    base = save_tiny()
    learned = learn(base, tmp_path, RECIPE)
    expand(base, tmp_path / "out", "lesa", Placement(first=4, last=5), norms=norms, learned=learned)
    old, new = load_file(base / SINGLE), load_file(tmp_path / "out" / SINGLE)
    predictors = predictor.Predictors(learned.predictor)
    for kind, path in Layers(Checkpoint(base)).family.projections.items():
        weights = [old[f"model.layers.{i}.{path}.weight"].double() for i in range(8)]
        # U S V^T of the matrices side by side, by the plain way: no Gram matrix, no streaming
        u, s, vt = torch.linalg.svd(torch.cat(weights, dim=1), full_matrices=False)
        signs = u.gather(0, u.abs().argmax(0, keepdim=True)).sign()
        blocks = (signs.T * vt).split(weights[0].shape[1], dim=1)
        predicted = predictors.predictor(kind).double()(blocks[4], blocks[5])
        expected = (u * signs) @ torch.diag(s) @ predicted
        torch.testing.assert_close(new[f"model.layers.5.{path}.weight"].double(), expected, rtol=1e-3, atol=1e-5)
    for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
        a, b, zero = (old[f"model.layers.{i}.{name}"] for i in (4, 5, 0))
        expected = {"first": zero, "left": a, "mean": (a + b) / 2}[norms]
        assert torch.equal(new[f"model.layers.5.{name}"], expected)


@pytest.mark.parametrize("method", initializers.names())
def test_old_layers_and_the_rest_are_unchanged(method: str, save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    base = save_tiny(tiny_llama(tie_word_embeddings=False), dtype=torch.bfloat16)
    (base / "tokenizer.json").write_text("{}")
    (base / "pytorch_model.bin").write_text("not wanted, but not ours to drop")
    # stack repeats all 8 layers, the others add one between every two of 1..6
    extra = 8 if method == "stack" else 5
    metrics = expand(base, tmp_path / "out", method, Placement(first=1, last=6), learned=learn(base, tmp_path, RECIPE))
    description = json.loads((tmp_path / "out" / "expansion.json").read_text())
    assert description["method"] == method
    placed = {"placement": "range", "new_layers": None, "first": 1, "last": 6}
    assert description["settings"] == {**placed, "norms": "first", "router": "left", "seed": 0}
    layers = description["layers"]
    assert len(layers) == metrics["layers_after"] == 8 + extra
    assert metrics["layers_before"] == 8
    assert sum(layer["new"] for layer in layers) == extra
    old, new = load_file(base / SINGLE), load_file(tmp_path / "out" / SINGLE)
    assert metrics["parameters_before"] == sum(t.numel() for t in old.values())
    assert metrics["parameters_after"] == sum(t.numel() for t in new.values())
    assert {t.dtype for t in new.values()} == {torch.bfloat16}
    for name, tensor in new.items():
        if not name.startswith("model.layers."):
            assert torch.equal(tensor, old[name])
            continue
        number, _, inner = name.removeprefix("model.layers.").partition(".")
        layer = layers[int(number)]
        if not layer["new"]:
            assert torch.equal(tensor, old[f"model.layers.{layer['from'][0]}.{inner}"])
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"


def test_shards_in_and_out_make_the_same_tensors(save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    base = save_tiny()
    model = AutoModelForCausalLM.from_pretrained(base)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    expand(base, tmp_path / "one", "interpolate", Placement(first=1, last=3))
    expand(tmp_path / "sharded", tmp_path / "many", "interpolate", Placement(first=1, last=3), max_shard_size="30KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    one, many = Checkpoint(tmp_path / "one"), Checkpoint(tmp_path / "many")
    assert set(one.names()) == set(many.names())
    assert all(torch.equal(one.tensor(name), many.tensor(name)) for name in one.names())
    tokens = torch.randint(3, 97, (1, 10))
    assert torch.equal(logits(tmp_path / "one", tokens), logits(tmp_path / "many", tokens))


def test_same_input_same_bytes(save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    base = save_tiny()
    written = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        expand(
            base,
            tmp_path / name / "out",
            "lesa",
            Placement(first=1, last=4),
            learned=learn(base, tmp_path / name, RECIPE),
        )
        written.append((tmp_path / name / "out" / SINGLE).read_bytes())
    assert written[0] == written[1]


def test_an_error_leaves_what_was_there(save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    base = save_tiny()
    expand(base, tmp_path / "out", "duplicate", Placement(first=1, last=3))
    before = (tmp_path / "out" / SINGLE).read_bytes()
    with pytest.raises(LesaError, match=r"outside the base's 8 layers"):
        expand(base, tmp_path / "out", "duplicate", Placement(first=1, last=8))
    with pytest.raises(LesaError, match="no shard size"):
        expand(base, tmp_path / "out", "duplicate", Placement(first=1, last=3), max_shard_size="big")
    assert (tmp_path / "out" / SINGLE).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "out"]


def test_a_full_disk_is_seen_before_anything_is_written(
    save_tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = save_tiny()
    needed = (base / SINGLE).stat().st_size
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=needed))
    with pytest.raises(LesaError, match=r"MB free, and .* MB are needed"):
        expand(base, tmp_path / "out", "duplicate", Placement(first=1, last=3))
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_a_model_that_is_no_known_decoder(save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    base = save_tiny()
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    with pytest.raises(LesaError, match=r"'bert' in config\.json is no decoder family that lesa knows \(llama, "):
        expand(base, tmp_path / "out", "duplicate", Placement(first=1, last=3))


def test_layers_of_different_shape_are_refused(save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    base = save_tiny()
    tensors = load_file(base / SINGLE)
    tensors["model.layers.3.mlp.up_proj.weight"] = torch.zeros(40, 32)
    save_file(tensors, base / SINGLE, metadata={"format": "pt"})
    with pytest.raises(LesaError, match=r"layers 2 and 3 of .* differ: mlp\.up_proj\.weight is \(48, 32\)"):
        expand(base, tmp_path / "out", "interpolate", Placement(first=2, last=4))


def test_what_is_in_the_way_is_kept(save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    base = save_tiny()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "precious.txt").touch()
    for out, message in ((tmp_path / "home", "holds no deeper model"), (base, "which is the base")):
        before = sorted(out.iterdir())
        with pytest.raises(LesaError, match=message):
            expand(base, out, "duplicate", Placement(first=1, last=3))
        assert sorted(out.iterdir()) == before
    for last in (3, 4):  # an earlier result is replaced
        expand(base, tmp_path / "out", "duplicate", Placement(first=1, last=last))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_hidden_layers"] == 11


def test_layers_that_compute_by_their_number_are_refused(save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    base = save_tiny(GPT2Config(n_layer=3, n_embd=32, n_head=4, vocab_size=100, scale_attn_by_inverse_layer_idx=True))
    with pytest.raises(LesaError, match=r"scale_attn_by_inverse_layer_idx in config\.json is True"):
        expand(base, tmp_path / "out", "llama_pro", Placement(first=0, last=1))


def test_dense_layers_among_experts_are_for_methods_that_learn_nothing(
    save_tiny: Callable[..., Path], tmp_path: Path
) -> None:
    config = CONFIGS["qwen3_moe"]
    mixed = type(config)(**{**config.to_dict(), "mlp_only_layers": [1]})
    base = save_tiny(mixed)
    learned = learn(base, tmp_path, RECIPE)
    assert set(Spectrum(learned.spectrum).kinds) == {"q_proj", "k_proj", "v_proj", "o_proj"}
    expand(base, tmp_path / "pro", "llama_pro", Placement(first=2, last=4))
    with pytest.raises(LesaError, match=r"lesa has learned nothing of (router|expert_0_gate_proj)"):
        expand(base, tmp_path / "out", "lesa", Placement(first=2, last=4), learned=learned)


def test_more_layers_than_the_config_says_are_refused(save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    base = save_tiny()
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 6}))
    with pytest.raises(LesaError, match=r"tensors of layer [67], and num_hidden_layers in config\.json is 6"):
        expand(base, tmp_path / "out", "duplicate", Placement(first=1, last=3))


@pytest.mark.parametrize("config", [{"max_position_embeddings": 64}, {"n_positions": 64}, {}])
def test_a_sequence_longer_than_the_positions_is_refused(config: dict[str, int]) -> None:
    check_length(config, 64)
    if config:
        with pytest.raises(LesaError, match=r"corpus\.sequence_length is 65, and the base has positions for 64"):
            check_length(config, 65)


def test_an_unknown_method_names_those_there_are() -> None:
    with pytest.raises(LesaError, match="there are duplicate, interpolate, lesa, llama_pro, noise, "):
        initializers.get("magic")


def test_spectrum_kinds_are_the_family_s(save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    learned = learn(save_tiny(), tmp_path, RECIPE)
    assert len(Spectrum(learned.spectrum).kinds) == 7
