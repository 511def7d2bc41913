"""Tiny random models, and a folder that notices what tests leave behind."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig

# Tiny matrices gain nothing from a second thread, and lose a lot where two processes share the cores.
torch.set_num_threads(1)


def tiny_llama(**changes: object) -> LlamaConfig:
    """A Llama of 8 layers with grouped key heads, whose projections all differ in shape."""
    settings: dict[str, object] = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return LlamaConfig(**{**settings, **changes})


@pytest.fixture
def save_tiny(tmp_path: Path) -> Callable[..., Path]:
    """Save a random model, every weight of it random (norms and biases too), and give its folder."""

    def save(config: PreTrainedConfig | None = None, name: str = "base", dtype: torch.dtype = torch.float32) -> Path:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config or tiny_llama())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.2 + (parameter.dim() == 1))
        model.to(dtype).save_pretrained(tmp_path / name)
        return tmp_path / name

    return save
