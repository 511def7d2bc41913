"""The benchmark's page and figure."""

from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

import size
from lesa.files import read_json, whole_file

matplotlib.use("Agg")
STEPS = {"analyze": "tab:blue", "train_predictor": "tab:orange", "expand": "tab:green"}
METRICS = {
    "init_speedup": "analysis, predictor and expansion: times faster than the released recipe at its loss or better",
    "peak_memory_gib_8b_shape": "peak memory in the shape of Llama-3-8B, GiB",
    "layers_8b_shape": "layers of that checkpoint",
    "mergekit_time_ratio": "time of llama_pro and solar over mergekit's (the worse of the two)",
    "mergekit_memory_ratio": "memory of llama_pro and solar over mergekit's (the worse of the two)",
    "cpt_speedup_new_only": "continual pre-training of the new layers: times the tokens per second of training all",
}


def write(out: Path) -> None:
    """Write ``benchmark.md`` from what lies in the folder."""
    metrics = read_json(out / "metrics.json")
    parts = ["# Benchmark", "", "Written by `make bench`.", ""]
    parts += [
        pd.DataFrame(
            [(METRICS[key], f"{metrics[key]:.3g}") for key in METRICS if key in metrics], columns=["figure", "value"]
        ).to_markdown(index=False),
        "",
    ]
    for name, (title, text) in _sections().items():
        if not (out / f"{name}.csv").exists():
            continue
        machine = read_json(out / f"{name}.machine.json")
        where = (
            machine["device"] if machine["device"] != "cpu" else f"{machine['cores']} cores of {machine['processor']}"
        )
        parts += [f"## {title}", "", text, ""]
        if name == "size":
            parts += ["![Time and memory against layers and width](scaling.png)", ""]
        parts += [pd.read_csv(out / f"{name}.csv").to_markdown(index=False, floatfmt=".3g"), ""]
        parts += [f"{machine['date']}, {where}, torch {machine['torch']}, transformers {machine['transformers']}.", ""]
    with whole_file(out / "benchmark.md") as partial:
        partial.write_text("\n".join(parts))


def draw_scaling(table: pd.DataFrame, path: Path) -> None:
    """Time and peak memory of each step, against layers and against hidden size."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    grid = figure.subplots(2, 2, sharex="col")
    depth = table[table["hidden_size"] == size.WIDTH]
    width = table[table["layers"] == size.DEPTH]
    sweeps = [(depth, "layers", f"hidden size {size.WIDTH}"), (width, "hidden_size", f"{size.DEPTH} layers")]
    for column, (rows, x, title) in enumerate(sweeps):
        for step, color in STEPS.items():
            of_step = rows[rows["step"] == step].sort_values(x)
            grid[0][column].plot(of_step[x], of_step["seconds"], "o-", color=color, label=step)
            grid[1][column].plot(of_step[x], of_step["peak_memory_gib"], "o-", color=color, label=step)
        grid[0][column].set(title=f"Time, {title}", ylabel="seconds")
        grid[1][column].set(title=f"Peak memory, {title}", ylabel="GiB", xlabel=x.replace("_", " "), ylim=(0, None))
    grid[0][0].set(ylim=(0, None))
    grid[0][1].set(xscale="log", yscale="log")
    grid[0][1].set_xticks(sorted(width["hidden_size"].unique()), sorted(width["hidden_size"].unique()))
    grid[0][1].minorticks_off()
    grid[0][0].legend()
    with whole_file(path) as partial:
        figure.savefig(partial, dpi=130, format="png")


def _sections() -> dict[str, tuple[str, str]]:
    model, matrix = size.plain_gib(size.FULL_WIDTH, size.PLAIN_LAYERS)
    return {
        "speed": (
            "Against the released recipe",
            "The default model from 30 to 45 layers. The plain way joins all layers of a kind, takes the full SVD and "
            "trains the network with batches of 64 for 10 epochs; its loss is measured after training on all rows. "
            "The same loss is reached in less time by a ridge regression (`predictor.kind: linear`).",
        ),
        "size": (
            "Against layers and width",
            "Random weights in the proportions of Llama-3-8B (hidden 4096, intermediate 14336). The 8B model itself "
            f"has 32 layers; the plain way would hold it in float32 ({model:.1f} GiB) and the widest matrix beside it "
            f"({matrix:.1f} GiB).",
        ),
        "copy": (
            "Against mergekit and a copy",
            "A checkpoint in the shape of Llama-3-8B with few layers, expanded by tools that learn nothing. Whole "
            "commands, the start of Python included; median of several runs.",
        ),
        "pretraining": (
            "Continual pre-training, new layers only and all weights",
            "The expanded default model, the same batch and precision, in turns in the same run; medians. With "
            "checkpointing, activations are computed again in the backward pass instead of being kept.",
        ),
        "corpus": (
            "Preparing a corpus",
            "Generated documents, with the default model's tokenizer. Memory is that of all processes at one time. "
            "The last run goes on from the one before it, which was killed half way; `same_bytes` says whether it "
            "wrote what the whole run wrote.",
        ),
    }
