from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

BENCH = Path(__file__).parent.parent / "bench"
TOKENS = 6


@pytest.fixture
def needs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    import needs

    return needs


def llama(shape: Any, layers: int) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.key_value_heads,
            tie_word_embeddings=shape.tied,
        )
    )


def test_parameters_are_those_of_the_models(needs: ModuleType) -> None:
    with torch.device("meta"):
        for shape in [needs.DEFAULT, *needs.SHAPES]:
            for layers in (shape.layers, shape.layers + shape.new):
                assert shape.parameters(layers) == sum(p.numel() for p in llama(shape, layers).parameters())


@pytest.mark.parametrize("train", ["all", "new"])
def test_operations_are_those_that_torch_counts(needs: ModuleType, train: str) -> None:
    shape = needs.Shape("tiny", 16, 40, 4, 2, 4, 64, 1, 3)
    model = llama(shape, 6)  # layers 2 and 4 are new
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(train == "all" or name.startswith(("model.layers.2.", "model.layers.4.")))
    tokens = torch.arange(TOKENS)[None]
    with FlopCounterMode(display=False) as counter:
        model(tokens, labels=tokens).loss.backward()
    counted = counter.get_flop_counts()["Global"][torch.ops.aten.mm]
    assert counted == TOKENS * shape.flops(train)


def test_the_measured_checkpoint_is_scaled(needs: ModuleType) -> None:
    rows = [(4096, 4, "analyze", 100.0, 4.0), (4096, 4, "expand", 80.0, 5.0), (512, 4, "analyze", 1.0, 1.0)]
    measured = pd.DataFrame(rows, columns=["hidden_size", "layers", "step", "seconds", "peak_memory_gib"])
    table = needs.table(measured)
    time, memory = [row for row in table.index if row.startswith("analysis")]
    assert table.loc[time, "Llama-3-8B"] == pytest.approx(180 / 4 * 32 / 3600)
    assert table.loc[time, "Llama-3-70B"] == pytest.approx(180 / 4 * 80 * 8 / 3600)
    assert table.loc[memory].tolist() == [5.0, 20.0]


def test_llama_3_8b_becomes_the_papers_size(needs: ModuleType) -> None:
    table = needs.table(pd.DataFrame({"hidden_size": [1], "layers": [1], "seconds": [1.0], "peak_memory_gib": [1.0]}))
    assert table.loc["layers, deeper", "Llama-3-8B"] == 48
    assert table.loc["parameters, deeper (10^9)", "Llama-3-8B"] == pytest.approx(11.5, abs=0.05)
