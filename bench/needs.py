"""What larger models need, worked out from their shapes and from what `make bench` measured.

    python bench/needs.py reports/bench

Memory and disk are sums over weights. The time of pre-training is arithmetic over an assumed speed, since no GPU was
there to measure: the multiplications of a token, at ``USE`` of what the card's maker gives for dense bf16. The same
arithmetic says how much faster training only the new layers is; ``main`` shows that beside the measured figure.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

CARD, CARD_FLOPS, CARD_GB = "H100 80 GB", 989e12, 80
USE = 0.4
TOKENS = 10**9


@dataclass(frozen=True)
class Shape:
    """A Llama-like model, and the new layers: one between every two neighbours in ``first..last``."""

    name: str
    hidden_size: int
    intermediate_size: int
    heads: int
    key_value_heads: int
    layers: int
    vocabulary: int
    first: int
    last: int
    tied: bool = False
    cards: int = 1

    @property
    def new(self) -> int:
        """Number of new layers."""
        return self.last - self.first

    @property
    def matrices(self) -> int:
        """Parameters of a layer's projections."""
        keys = self.hidden_size // self.heads * self.key_value_heads
        return 2 * self.hidden_size * (self.hidden_size + keys) + 3 * self.hidden_size * self.intermediate_size

    @property
    def layer(self) -> int:
        """Parameters of a layer."""
        return self.matrices + 2 * self.hidden_size

    @property
    def trained(self) -> int:
        """Parameters of the new layers."""
        return self.new * self.layer

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, as many as of the head."""
        return self.vocabulary * self.hidden_size

    def parameters(self, layers: int) -> int:
        """All parameters with so many layers."""
        return layers * self.layer + (1 if self.tied else 2) * self.embedding + self.hidden_size

    def flops(self, train: str) -> int:
        """Floating-point operations of the projections and the head, a token of one training step.

        Forward takes two a weight, the gradient of a layer's input two more, that of its weights another two. With
        ``new``, no layer before the first new one has either gradient, and no old layer has the second.
        """
        forward = (self.layers + self.new) * self.matrices + self.embedding
        if train == "all":
            return 6 * forward
        behind = (self.layers + self.new - self.first - 1) * self.matrices + self.embedding
        return 2 * forward + 2 * behind + 2 * self.new * self.matrices


DEFAULT = Shape("SmolLM2-135M", 576, 1536, 9, 3, 30, 49152, 14, 29, tied=True)
SHAPES = [
    Shape("Llama-3-8B", 4096, 14336, 32, 8, 32, 128256, 15, 31, cards=8),
    Shape("Llama-3-70B", 8192, 28672, 64, 8, 80, 128256, 39, 79, cards=16),
]


def table(measured: pd.DataFrame) -> pd.DataFrame:
    """One column a model; ``measured`` is ``size.csv``, whose widest checkpoint is scaled to each model.

    Time a layer grows with the cube of the width (the eigenvectors and the products) and memory with its square.
    """
    widest = measured[measured["hidden_size"] == measured["hidden_size"].max()]
    seconds, width, layers = widest["seconds"].sum(), widest["hidden_size"].iloc[0], widest["layers"].iloc[0]
    return pd.DataFrame(
        {
            shape.name: _column(
                shape,
                hours=seconds / layers * shape.layers * (shape.hidden_size / width) ** 3 / 3600,
                gib=widest["peak_memory_gib"].max() * (shape.hidden_size / width) ** 2,
            )
            for shape in SHAPES
        }
    ).rename_axis("figure")


def speedup(shape: Shape) -> float:
    """Tokens per second of training the new layers over training all, by arithmetic."""
    return shape.flops("all") / shape.flops("new")


def _column(shape: Shape, hours: float, gib: float) -> dict[str, float]:
    weights = shape.parameters(shape.layers + shape.new)
    state = 4 * weights + 12 * shape.trained
    saved = 2 * 4 * weights + 8 * shape.trained
    speed = {train: shape.cards * CARD_FLOPS * USE / shape.flops(train) for train in ("new", "all")}
    return {
        "layers, base": shape.layers,
        "layers, deeper": shape.layers + shape.new,
        "parameters, base (10^9)": shape.parameters(shape.layers) / 1e9,
        "parameters, deeper (10^9)": weights / 1e9,
        "parameters that train (10^9)": shape.trained / 1e9,
        "analysis, predictor and expansion, on the measured machine: hours": hours,
        "analysis, predictor and expansion: peak memory, GiB": gib,
        "checkpoint in bf16, GB": 2 * weights / 1e9,
        "pre-training, new layers: weights, gradients and AdamW's moments, GB": state / 1e9,
        "pre-training, all weights: the same, GB": 16 * weights / 1e9,
        f"GPUs ({CARD})": shape.cards,
        "of which on each, new layers, GB": state / shape.cards / 1e9,
        "of which on each, all weights, GB": 16 * weights / shape.cards / 1e9,
        "main memory of the first machine, to load and to save, GB": 4 * weights / 1e9,
        "disk, one training checkpoint under FSDP, GB": saved / 1e9,
        "disk, the three that lie there at most, GB": 3 * saved / 1e9,
        "10^9 operations a token, new layers": shape.flops("new") / 1e9,
        "10^9 operations a token, all weights": shape.flops("all") / 1e9,
        f"hours for 10^9 tokens at {USE:.0%} of the cards' speed, new layers": TOKENS / speed["new"] / 3600,
        f"hours for 10^9 tokens at {USE:.0%} of the cards' speed, all weights": TOKENS / speed["all"] / 3600,
    }


def main(folder: Path) -> None:
    """Print the table, and the arithmetic's speedup beside the measured one."""
    print(table(pd.read_csv(folder / "size.csv")).to_markdown(floatfmt=".3g"))
    training = pd.read_csv(folder / "pretraining.csv")
    plain = training[~training["gradient_checkpointing"]].set_index("train")["tokens_per_second"]
    print(f"\nNew layers only on {DEFAULT.name}: {speedup(DEFAULT):.2f} times the tokens per second of all by")
    print(f"arithmetic, {plain['new'] / plain['all']:.2f} measured.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
