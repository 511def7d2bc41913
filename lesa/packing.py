"""Blocks of tokens as a model takes them: documents that run on into each other, or each on its own."""

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel, default_data_collator

from lesa.errors import LesaError

IGNORED = -100
"""The label of a token that is not to be predicted; transformers' losses skip it."""

Batch = dict[str, Tensor]


class Documents:
    """Puts blocks together so that neither attention nor positions run over the end of a document.

    transformers masks attention between documents where position ids start again and no attention mask is given.
    """

    def __init__(self, end: int) -> None:
        """``end`` is the token that ends each document."""
        self._end = end

    def __call__(self, blocks: Sequence[Batch]) -> Batch:
        """``input_ids``, ``labels`` and ``position_ids``, each ``[blocks, sequence_length]``.

        A document's first token is not predicted, since all that is before it belongs to another one.
        """
        tokens = torch.stack([block["input_ids"] for block in blocks])
        first = torch.zeros_like(tokens, dtype=torch.bool)
        first[:, 1:] = tokens[:, :-1] == self._end
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        starts = torch.where(first, positions, 0).cummax(-1).values
        return {
            "input_ids": tokens,
            "labels": tokens.masked_fill(first, IGNORED),
            "position_ids": positions - starts,
        }


def run_on(blocks: Sequence[Batch]) -> Batch:
    """Put blocks together as they are: a block is one text to the model, whatever ends within it."""
    return default_data_collator(list(blocks))


def end_of_text(model: str | Path) -> int:
    """The token that a checkpoint's tokenizer ends a document with.

    Raises:
        LesaError: the checkpoint has no tokenizer, or the tokenizer has no such token.
    """
    try:
        token = AutoTokenizer.from_pretrained(model).eos_token_id
    except (OSError, ValueError):
        token = None
    if token is None:
        raise LesaError(
            f"pretrain.packing is documents, and {model} has no tokenizer with an end-of-text token (eos_token), by "
            "which documents are told apart; use concat"
        )
    return int(token)


def check_apart(model: PreTrainedModel, end: int) -> None:
    """See that a model keeps documents apart, by two texts that differ only before the end of the first document.

    Raises:
        LesaError: what comes after it depends on what came before (Falcon in transformers 5.17).
    """
    first, second, third = [token for token in range(4) if token != end][:3]
    batch = Documents(end)([{"input_ids": torch.tensor([token, end, third])} for token in (first, second)])
    with torch.no_grad():
        one, other = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits[:, -1].float()
    if not torch.allclose(one, other, rtol=0, atol=1e-3 * float(one.abs().max())):
        raise LesaError(
            f"pretrain.packing is documents, and {type(model).__name__} of transformers {transformers.__version__} "
            "lets documents in a block see each other; use concat, or a newer transformers"
        )


def predicted(batch: Batch) -> int:
    """How many tokens of a batch are predicted: all with a label, but the first of each block."""
    return int((batch["labels"][:, 1:] != IGNORED).sum())
