from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from conftest import tiny_llama
from lesa.errors import LesaError
from lesa.packing import Documents, check_apart, end_of_text, predicted, run_on
from test_corpus import EOS, word_tokenizer
from test_expansion import CONFIGS

END = 2
BLOCKS = [{"input_ids": torch.tensor([END, 5, 6, END, 7, END, END, 8])}, {"input_ids": torch.arange(3, 11)}]


def test_positions_start_again_and_first_tokens_are_not_predicted() -> None:
    batch = Documents(END)(BLOCKS)
    assert batch["input_ids"].tolist() == [[2, 5, 6, 2, 7, 2, 2, 8], [3, 4, 5, 6, 7, 8, 9, 10]]
    assert batch["position_ids"].tolist() == [[0, 0, 1, 2, 0, 1, 0, 0], [0, 1, 2, 3, 4, 5, 6, 7]]
    assert batch["labels"].tolist() == [[2, -100, 6, 2, -100, 2, -100, -100], [3, 4, 5, 6, 7, 8, 9, 10]]
    assert predicted(batch) == 3 + 7
    assert predicted(run_on([{**block, "labels": block["input_ids"]} for block in BLOCKS])) == 14


@pytest.mark.parametrize("family", [family for family in CONFIGS if family != "falcon"])
def test_a_document_in_a_block_is_read_as_if_alone(family: str, save_tiny: Callable[..., Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(save_tiny(CONFIGS[family])).eval()
    model.config.use_cache = False
    tokens = torch.randint(3, 97, (2, 40))
    ends = [[7, 26, 40], [12, 40]]
    for row, stops in zip(tokens, ends, strict=True):
        row[[stop - 1 for stop in stops[:-1]]] = END
    batch = Documents(END)([{"input_ids": row} for row in tokens])
    check_apart(model, END)
    with torch.no_grad():
        packed = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits
        for row, stops in enumerate(ends):
            for start, stop in zip([0, *stops], stops, strict=False):
                alone = model(tokens[row : row + 1, start:stop]).logits[0]
                torch.testing.assert_close(packed[row, start:stop], alone, rtol=1e-4, atol=2e-4)
        assert not torch.allclose(packed, model(tokens).logits, atol=0.1)


def test_a_model_that_sees_other_documents_is_refused(save_tiny: Callable[..., Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(save_tiny(tiny_llama()))
    forward = model.forward
    model.forward = lambda input_ids, position_ids: forward(input_ids)
    with pytest.raises(LesaError, match=r"LlamaForCausalLM of transformers 5.* lets documents in a block see each"):
        check_apart(model, END)


def test_the_end_of_a_document_is_what_the_tokenizer_says(tmp_path: Path, save_tiny: Callable[..., Path]) -> None:
    word_tokenizer(tmp_path / "with")
    assert end_of_text(tmp_path / "with") == EOS
    word_tokenizer(tmp_path / "without", eos=False)
    for folder in (tmp_path / "without", save_tiny(tiny_llama())):
        with pytest.raises(LesaError, match=r"pretrain\.packing is documents, and .* has no tokenizer with an end-of"):
            end_of_text(folder)
