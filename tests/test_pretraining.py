import hashlib
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from conftest import tiny_llama
from lesa import pretraining
from lesa.checkpoint import SINGLE, Checkpoint
from lesa.errors import LesaError
from lesa.expansion import expand
from lesa.plan import Placement
from lesa.pretraining import Blocks, check_frozen, pretrain, tokens_to_target
from lesa.settings import Pretrain
from lesa.training import OPTIMIZERS, HeldoutTrainer, use_bf16
from test_corpus import EOS, word_tokenizer
from test_expansion import CONFIGS

RECIPE = {
    "steps": 6,
    "batch_size": 2,
    "gradient_accumulation": 2,
    "learning_rate": 0.01,
    "warmup_steps": 1,
    "precision": "fp32",
    "eval_every": 2,
    "eval_blocks": 3,
    "save_every": 2,
}
KILLED = """
import os, signal, sys
from pathlib import Path
from lesa import callbacks, pretraining
from lesa.settings import Pretrain
import torch
torch.set_num_threads(1)

class Killer(callbacks.Clock):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

pretraining.Clock = Killer
folder = Path(sys.argv[1])
pretraining.pretrain(folder / "expanded", folder / "corpus", folder / "out", folder / "report",
                     Pretrain(**eval(sys.argv[3])), 0, "cpu", folder / "checkpoints")
"""

KILLED_AFTER_TRAINING = KILLED.replace(
    "pretraining.Clock = Killer", "pretraining.check_frozen = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)"
)


@pytest.fixture
def folder(save_tiny: Callable[..., Path], tmp_path: Path) -> Path:
    """An expanded tiny model and random blocks of 16 tokens."""
    expand(save_tiny(tiny_llama()), tmp_path / "expanded", "interpolate", Placement(first=2, last=4))
    rng = np.random.default_rng(0)
    for side, blocks in (("train", 40), ("heldout", 5)):
        (tmp_path / "corpus" / side).mkdir(parents=True)
        # four tokens only, so that there is something to learn
        np.save(tmp_path / "corpus" / side / "00000.npy", rng.integers(3, 7, (blocks, 16)).astype(np.uint16))
    return tmp_path


def train(folder: Path, out: str = "out", **changes: Any) -> dict[str, Any]:
    recipe = Pretrain(**{**RECIPE, **changes})
    report = folder / f"report{out.removeprefix('out')}"
    return pretrain(
        folder / "expanded", folder / "corpus", folder / out, report, recipe, 0, "cpu", folder / "checkpoints"
    )


def curves(folder: Path) -> list[list[list[float]]]:
    return [pd.read_csv(folder / f"{name}.csv").to_numpy().tolist() for name in ("train", "heldout")]


def perplexity(model_folder: Path, corpus: Path, blocks: int) -> float:
    """From transformers' logits, the cross-entropy written out in float64."""
    model = AutoModelForCausalLM.from_pretrained(model_folder).eval()
    tokens = torch.tensor(np.load(corpus / "heldout" / "00000.npy")[:blocks].astype(np.int64))
    with torch.no_grad():
        logits = model(tokens).logits[:, :-1].double()
    log_probability = logits - logits.exp().sum(-1, keepdim=True).log()
    return math.exp(-log_probability.gather(-1, tokens[:, 1:, None]).mean().item())


def test_only_new_layers_move_and_perplexity_is_right(folder: Path) -> None:
    metrics = train(folder)
    before, after = load_file(folder / "expanded" / SINGLE), load_file(folder / "out" / SINGLE)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]) != name.startswith(("model.layers.3.", "model.layers.5.")), name
    assert metrics["tokens"] == 6 * 2 * 2 * 16
    assert metrics["tokens_per_second"] > 0
    assert metrics["initial_heldout_perplexity"] == pytest.approx(perplexity(folder / "expanded", folder / "corpus", 3))
    assert metrics["heldout_perplexity"] == pytest.approx(perplexity(folder / "out", folder / "corpus", 3))
    assert metrics["heldout_perplexity"] < metrics["initial_heldout_perplexity"]
    heldout = pd.read_csv(folder / "report" / "heldout.csv")
    assert heldout["tokens"].tolist() == [0, 128, 256, 384]
    rates = pd.read_csv(folder / "report" / "train.csv")["learning_rate"].tolist()
    # one step of warm-up, then half a cosine over the other five; the Trainer logs the rate of the step just made
    cosine = [0.01 * 0.5 * (1 + math.cos(math.pi * k / 5)) for k in range(5)]
    assert rates == pytest.approx([0.0, *cosine])
    layers = sum(p.numel() for n, p in before.items() if n.startswith(("model.layers.3.", "model.layers.5.")))
    assert metrics["trained_parameters"] == layers
    assert (folder / "out" / "expansion.json").exists()
    assert not (folder / "checkpoints").exists()


def test_the_last_step_is_measured_also_between_measurements(folder: Path) -> None:
    train(folder, eval_every=4)
    assert pd.read_csv(folder / "report" / "heldout.csv")["step"].tolist() == [0, 4, 6]


def test_train_all_moves_everything(folder: Path) -> None:
    train(folder, train="all")
    before, after = load_file(folder / "expanded" / SINGLE), load_file(folder / "out" / SINGLE)
    assert before.keys() == after.keys()
    assert not any(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(("damaged", "optimizer"), [(False, "adamw"), (True, "adamw"), (False, "muon")])
def test_killed_and_run_again_it_ends_like_an_unbroken_run(folder: Path, damaged: bool, optimizer: str) -> None:
    unbroken = train(folder, "out-unbroken", optimizer=optimizer)
    recipe = repr({**RECIPE, "optimizer": optimizer})
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder), "5", recipe], capture_output=True)
    assert killed.returncode == -9, killed.stderr.decode()
    assert not (folder / "out").exists()
    assert sorted(path.name for path in (folder / "checkpoints").glob("checkpoint-*")) == [
        "checkpoint-2",
        "checkpoint-4",
    ]
    if damaged:
        weights = folder / "checkpoints" / "checkpoint-4" / SINGLE
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
    assert train(folder, optimizer=optimizer)["order_sha256"] == unbroken["order_sha256"]
    assert curves(folder / "report") == curves(folder / "report-unbroken")
    assert (folder / "out" / SINGLE).read_bytes() == (folder / "out-unbroken" / SINGLE).read_bytes()
    live, whole = (
        (folder / name / "live/plots/metrics/train/loss.tsv").read_text().splitlines()
        for name in ("report", "report-unbroken")
    )
    assert [line.split("\t")[0] for line in live] == [line.split("\t")[0] for line in whole]


@pytest.mark.parametrize("family", ["llama tied, biases", "gpt2", "gemma3_text", "phi3", "mixtral", "qwen3_moe"])
def test_other_families_keep_their_layout(family: str, save_tiny: Callable[..., Path], tmp_path: Path) -> None:
    expand(save_tiny(CONFIGS[family]), tmp_path / "expanded", "interpolate", Placement(first=1, last=2))
    for side in ("train", "heldout"):
        (tmp_path / "corpus" / side).mkdir(parents=True)
        blocks = np.random.default_rng(0).integers(3, 97, (8, 16)).astype(np.uint16)
        np.save(tmp_path / "corpus" / side / "00000.npy", blocks)
    train(tmp_path, steps=2, warmup_steps=0)
    before, after = load_file(tmp_path / "expanded" / SINGLE), load_file(tmp_path / "out" / SINGLE)
    assert before.keys() == after.keys()
    new = "transformer.h.2." if family == "gpt2" else "model.layers.2."
    for name, tensor in before.items():
        assert name.startswith(new) or torch.equal(tensor, after[name]), name
    moved = [name for name, tensor in before.items() if not torch.equal(tensor, after[name])]
    assert len(moved) > 4
    _, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


def test_killed_after_the_last_step_it_makes_no_step_more(folder: Path) -> None:
    train(folder, "out-unbroken")
    code = [sys.executable, "-c", KILLED_AFTER_TRAINING, str(folder), "0", repr(RECIPE)]
    killed = subprocess.run(code, capture_output=True)
    assert killed.returncode == -9, killed.stderr.decode()
    assert (folder / "checkpoints" / "checkpoint-6" / "complete.json").exists()
    assert not (folder / "out").exists()
    assert train(folder)["tokens_per_second"] is None
    assert curves(folder / "report") == curves(folder / "report-unbroken")
    assert (folder / "out" / SINGLE).read_bytes() == (folder / "out-unbroken" / SINGLE).read_bytes()
    assert not (folder / "checkpoints").exists()


def test_changed_settings_start_anew(folder: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder), "5", repr(RECIPE)], capture_output=True)
    assert killed.returncode == -9, killed.stderr.decode()
    train(folder, learning_rate=0.02)
    resumed = curves(folder / "report")
    train(folder, "out-fresh", learning_rate=0.02)
    assert resumed == curves(folder / "report-fresh")


def test_a_loss_that_is_no_number_stops_and_keeps_what_was_good(folder: Path) -> None:
    with pytest.raises(LesaError, match=r"loss is (nan|inf) at step [2-6]; pretrain\.learning_rate is 1e\+18"):
        train(folder, learning_rate=1e18, warmup_steps=2, save_every=1)
    assert (folder / "checkpoints" / "checkpoint-1" / "complete.json").exists()
    assert not (folder / "out").exists()


def test_weights_spoilt_by_a_gradient_are_not_saved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of the step itself is still finite; only the gradient is not."""
    load = AutoModelForCausalLM.from_pretrained
    calls = []

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return gradient * math.inf if len(calls) == 5 else gradient  # in step 3: two batches a step

    def load_spoilt(*arguments: Any, **settings: Any) -> Any:
        model = load(*arguments, **settings)
        model.model.layers[3].mlp.up_proj.weight.register_hook(spoil)
        return model

    monkeypatch.setattr(pretraining.AutoModelForCausalLM, "from_pretrained", load_spoilt)
    with pytest.raises(LesaError, match=r"grad_norm is (nan|inf) at step 3"):
        train(folder, save_every=1)
    assert sorted(path.name for path in (folder / "checkpoints").glob("checkpoint-*")) == [
        "checkpoint-1",
        "checkpoint-2",
    ]


def test_a_frozen_weight_is_compared_in_float32(folder: Path) -> None:
    stored = {name: tensor.bfloat16() for name, tensor in load_file(folder / "expanded" / SINGLE).items()}
    save_file(stored, folder / "expanded" / SINGLE)
    (folder / "trained").mkdir()
    (folder / "trained" / "config.json").write_bytes((folder / "expanded" / "config.json").read_bytes())
    trained = {name: tensor.float() for name, tensor in stored.items()}
    moved = "model.layers.0.mlp.up_proj.weight"
    trained[moved] = trained[moved] * (1 + 1e-5)
    assert torch.equal(trained[moved].bfloat16(), stored[moved])
    save_file(trained, folder / "trained" / SINGLE)
    expanded, final = Checkpoint(folder / "expanded"), Checkpoint(folder / "trained")
    check_frozen(expanded, final, ("model.layers.0.",))
    with pytest.raises(RuntimeError, match=moved):
        check_frozen(expanded, final, ("model.layers.3.",))


def test_trained_weights_under_other_names_are_not_lost(
    folder: Path, save_tiny: Callable[..., Path], tmp_path: Path
) -> None:
    """GPT-2's own checkpoint lacks the root of its names, which transformers adds on saving."""
    stored = load_file(save_tiny(CONFIGS["gpt2"], "expanded") / SINGLE)
    bare = {name.removeprefix("transformer."): tensor for name, tensor in stored.items()}
    save_file(bare, folder / "expanded" / SINGLE, {"format": "pt"})
    with pytest.raises(RuntimeError, match="has nothing of that name to replace"):
        train(folder, train="all", steps=1)
    assert not (folder / "out").exists()


def test_a_full_disk_is_said_before_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = load_file(folder / "expanded" / SINGLE)
    new = [
        tensor.numel() for name, tensor in weights.items() if name.startswith(("model.layers.3.", "model.layers.5."))
    ]
    one = 4 * (sum(tensor.numel() for tensor in weights.values()) + 2 * sum(new))
    asked = []
    monkeypatch.setattr(pretraining, "need_space", lambda folder, nbytes: asked.append(nbytes))
    train(folder, steps=2, eval_every=2)
    train(folder, steps=8, eval_every=8)
    assert asked == [one, 3 * one]
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")  # saves the weights a second time
    monkeypatch.setattr(pretraining, "load_for_training", lambda *arguments: pytest.fail("went on"))
    with pytest.raises(pytest.fail.Exception):
        train(folder, steps=2, eval_every=2)
    assert asked[2] == one + 4 * sum(tensor.numel() for tensor in weights.values())


def test_a_model_without_new_layers_is_refused(folder: Path) -> None:
    (folder / "expanded" / "expansion.json").write_text('{"layers": [{"from": [0], "new": false}]}')
    with pytest.raises(LesaError, match=r"has no new layer, and pretrain\.train is new"):
        train(folder)
    (folder / "expanded" / "expansion.json").unlink()
    with pytest.raises(LesaError, match=r"has no expansion\.json"):
        train(folder)


def test_blocks_of_several_files_are_one_row(tmp_path: Path) -> None:
    tokens = np.arange(7 * 16, dtype=np.uint16).reshape(7, 16)
    for name, part in (("00000", tokens[:3]), ("00002", tokens[3:4]), ("00010", tokens[4:])):
        np.save(tmp_path / f"{name}.npy", part)
    blocks = Blocks(tmp_path)
    assert (len(blocks), blocks.sequence_length) == (7, 16)
    assert [blocks[i]["input_ids"].tolist() for i in range(7)] == tokens.tolist()
    assert blocks[3]["labels"].dtype == torch.int64


def test_a_text_shorter_than_a_step_is_refused(folder: Path) -> None:
    np.save(folder / "corpus" / "train" / "00000.npy", np.full((3, 16), 5, np.uint16))
    with pytest.raises(LesaError, match=r"has 3 training blocks, fewer than one step takes \(4\)"):
        train(folder)


def test_every_step_of_every_epoch_is_a_whole_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(folder / "corpus" / "train" / "00000.npy", np.load(folder / "corpus" / "train" / "00000.npy")[:7])
    seen = []
    step = HeldoutTrainer.training_step

    def spy(trainer: Any, model: Any, inputs: dict[str, torch.Tensor], *rest: Any) -> Any:
        seen.append(inputs["input_ids"].numel())
        return step(trainer, model, inputs, *rest)

    monkeypatch.setattr(HeldoutTrainer, "training_step", spy)
    metrics = train(folder, gradient_accumulation=1, steps=7)
    assert seen == [2 * 16] * 7
    assert metrics["tokens"] == sum(seen)


def test_the_order_of_the_blocks_is_hashed_as_they_are_trained_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[bytes] = []
    step = HeldoutTrainer.training_step

    def spy(trainer: Any, model: Any, inputs: dict[str, torch.Tensor], *rest: Any) -> Any:
        batches.append(inputs["input_ids"].numpy().astype("<i8").tobytes())
        return step(trainer, model, inputs, *rest)

    monkeypatch.setattr(HeldoutTrainer, "training_step", spy)
    metrics = train(folder, steps=3)
    steps = [hashlib.sha256(batches[i] + batches[i + 1]).hexdigest() for i in (0, 2, 4)]
    assert len(batches) == 6
    assert metrics["order_sha256"] == hashlib.sha256("".join(steps).encode()).hexdigest()
    heldout = np.load(folder / "corpus/heldout/00000.npy")[:3].astype("<i8")
    assert metrics["heldout_sha256"] == hashlib.sha256(heldout.tobytes()).hexdigest()


def test_the_order_is_that_of_the_seed_whatever_the_recipe_and_the_model(folder: Path) -> None:
    first = train(folder, steps=3)
    expand(folder / "base", folder / "expanded", "llama_pro", Placement(first=1, last=5))
    other = train(folder, steps=3, learning_rate=0.002, batch_size=1, gradient_accumulation=4)
    assert other["order_sha256"] == first["order_sha256"]
    recipe = Pretrain(**{**RECIPE, "steps": 3})
    arguments = (folder / "expanded", folder / "corpus", folder / "out", folder / "report", recipe)
    another = pretrain(*arguments, 1, "cpu", folder / "checkpoints")
    assert another["order_sha256"] != first["order_sha256"]
    assert another["heldout_sha256"] == first["heldout_sha256"]


def test_tokens_of_another_vocabulary_are_refused(folder: Path) -> None:
    np.save(folder / "corpus" / "train" / "00000.npy", np.full((8, 16), 97, np.uint16))
    with pytest.raises(LesaError, match="no embedding for"):
        train(folder)


def test_tokens_to_target_is_the_first_measurement_there() -> None:
    heldout = pd.DataFrame({"tokens": [0, 10, 20, 30], "heldout_perplexity": [9.0, 7.0, 5.0, 6.0]})
    assert tokens_to_target(heldout, 7.0) == 10
    assert tokens_to_target(heldout, 6.5) == 20
    assert tokens_to_target(heldout, 1.0) is None
    assert tokens_to_target(heldout, None) is None


def test_bf16_only_where_the_machine_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert use_bf16("auto", cpu)
    assert use_bf16("bf16", cpu)
    assert not use_bf16("fp32", cpu)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert not use_bf16("auto", cpu)
    with pytest.raises(LesaError, match=r"pretrain\.precision is bf16"):
        use_bf16("bf16", cpu)


@pytest.fixture
def documents(folder: Path) -> Path:
    """Blocks in which documents end, and a tokenizer that says by what token."""
    word_tokenizer(folder / "expanded")
    for side in ("train", "heldout"):
        blocks = np.load(folder / "corpus" / side / "00000.npy")
        np.save(folder / "corpus" / side / "00000.npy", np.where(blocks == 3, EOS, blocks))
    return folder


def test_documents_apart_are_measured_token_by_token(documents: Path) -> None:
    metrics = train(documents, packing="documents")
    model = AutoModelForCausalLM.from_pretrained(documents / "expanded").eval()
    losses = []
    for block in np.load(documents / "corpus" / "heldout" / "00000.npy")[:3].tolist():
        start = 0
        for end in [place + 1 for place, token in enumerate(block) if token == EOS] + [len(block)]:
            tokens = torch.tensor([block[start:end]])
            if end - start > 1:
                with torch.no_grad():
                    logits = model(tokens).logits[0, :-1].double()
                losses += torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="none").tolist()
            start = end
    assert metrics["initial_heldout_perplexity"] == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)
    assert metrics["initial_heldout_perplexity"] != pytest.approx(
        perplexity(documents / "expanded", documents / "corpus", 3), rel=1e-3
    )


@pytest.mark.parametrize("packing", ["concat", "documents"])
def test_checkpointing_changes_no_loss(documents: Path, packing: str) -> None:
    train(documents, "out-plain", packing=packing)
    train(documents, packing=packing, gradient_checkpointing=True)
    for plain, checkpointed in zip(curves(documents / "report-plain"), curves(documents / "report"), strict=True):
        np.testing.assert_allclose(checkpointed, plain, rtol=1e-6)


def test_a_compiled_model_trains_alike_and_keeps_its_layout(documents: Path) -> None:
    train(documents, "out-plain", packing="documents", steps=3)
    train(documents, packing="documents", steps=3, torch_compile=True)
    for plain, compiled in zip(curves(documents / "report-plain"), curves(documents / "report"), strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-4)
    assert load_file(documents / "out" / SINGLE).keys() == load_file(documents / "out-plain" / SINGLE).keys()


def test_no_compiler_is_said_before_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(LesaError, match=r"pretrain\.torch_compile is true, which needs a C\+\+ compiler, and no-such-"):
        train(folder, torch_compile=True)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_no_graph_below_the_first_new_layer(folder: Path, checkpointing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    load, seen = pretraining.load_for_training, {}

    def load_watched(*arguments: Any) -> Any:
        model = load(*arguments)
        for number, layer in enumerate(model.model.layers):
            layer.register_forward_hook(
                lambda layer, inputs, output, number=number: (
                    seen.setdefault(number, set()).add(output.requires_grad) if layer.training else None
                )
            )
        return model

    monkeypatch.setattr(pretraining, "load_for_training", load_watched)
    train(folder, gradient_checkpointing=checkpointing)
    assert seen == {number: {number >= 3} for number in range(10)}


def test_optimizers_are_those_of_the_settings() -> None:
    assert set(OPTIMIZERS) == set(get_args(Pretrain.model_fields["optimizer"].annotation))


def test_fused_adamw_trains_alike(folder: Path) -> None:
    train(folder, "out-plain")
    train(folder, optimizer="adamw_fused")
    for plain, fused in zip(curves(folder / "report-plain"), curves(folder / "report"), strict=True):
        np.testing.assert_allclose(fused, plain, rtol=1e-4)


def test_muon_learns_and_leaves_frozen_weights_alone(folder: Path) -> None:
    metrics = train(folder, optimizer="muon")
    assert metrics["heldout_perplexity"] < metrics["initial_heldout_perplexity"]
    plain = train(folder, "out-plain")
    assert plain["heldout_perplexity"] != metrics["heldout_perplexity"]


def test_too_few_blocks_are_noticed_before_files_are_hashed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(folder / "corpus" / "train" / "00000.npy", np.full((3, 16), 5, np.uint16))
    monkeypatch.setattr(pretraining, "fingerprint", lambda *arguments: pytest.fail("hashed"))
    with pytest.raises(LesaError, match="fewer than one step takes"):
        train(folder)
