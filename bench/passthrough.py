"""Expansion without a learned part against mergekit's passthrough, and against copying the file."""

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from measure import Run, measured, script

REPEATS = 5
METHODS = ("llama_pro", "solar")


def measure(base: Path, scratch: Path, mergekit: Path, layers: int, first: int, last: int) -> pd.DataFrame:
    """One row a method and tool: median seconds and largest peak memory of ``REPEATS`` runs, and the bytes written.

    Both tools are timed as a person starts them, Python's own start included; they take turns, so that neither meets
    a colder disk.
    """
    rows = []
    for method in METHODS:
        config, out = scratch / f"{method}.yaml", scratch / "merged"
        config.write_text(yaml.safe_dump(_mergekit_config(base, method, layers, first, last)))
        commands = {
            "lesa": script("recipe", "expand", base, scratch / "expanded", method, first, last),
            "mergekit": [str(mergekit), str(config), str(out), "--no-copy-tokenizer", "--clone-tensors"],
        }
        runs: dict[str, list[Run]] = {tool: [] for tool in commands}
        for _ in range(REPEATS):
            for tool, command in commands.items():
                shutil.rmtree(out, ignore_errors=True)
                runs[tool].append(measured(command))
        written = _size(scratch / "expanded")
        if abs(_size(out) / written - 1) > 0.01:
            raise RuntimeError(f"mergekit wrote {_size(out)} bytes for {method}, and lesa {written}")
        own = [json.loads(run.output.splitlines()[-1])["seconds"] for run in runs["lesa"]]
        rows += [_row(method, tool, of_tool, written) for tool, of_tool in runs.items()]
        rows.append({**rows[-2], "tool": "lesa, without the start of Python", "seconds": statistics.median(own)})
    source, copy = scratch / "expanded", scratch / "copied"
    copies = []
    for _ in range(REPEATS):
        shutil.rmtree(copy, ignore_errors=True)
        copies.append(measured(["cp", "-r", source, copy]))
    rows.append(_row("(copy of the result)", "cp", copies, _size(source)))
    return pd.DataFrame(rows)


def ratios(table: pd.DataFrame) -> tuple[float, float]:
    """Time and memory of lesa over mergekit's, the worse of the methods."""
    by: Any = table.set_index(["method", "tool"])
    pairs = [(by.loc[(method, "lesa")], by.loc[(method, "mergekit")]) for method in METHODS]
    return (
        max(float(ours["seconds"] / theirs["seconds"]) for ours, theirs in pairs),
        max(float(ours["peak_memory_gib"] / theirs["peak_memory_gib"]) for ours, theirs in pairs),
    )


def _row(method: str, tool: str, runs: list[Run], written: int) -> dict[str, Any]:
    return {
        "method": method,
        "tool": tool,
        "seconds": statistics.median(run.seconds for run in runs),
        "peak_memory_gib": max(run.peak_memory_bytes for run in runs) / 2**30,
        "written_gib": written / 2**30,
    }


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _mergekit_config(base: Path, method: str, layers: int, first: int, last: int) -> dict[str, Any]:
    if method == "solar":
        total = layers + last - first
        front = -(-total // 2)
        ranges = [(0, front), (layers - (total - front), layers)]
        slices: list[Any] = [{"sources": [{"model": str(base), "layer_range": list(each)}]} for each in ranges]
    else:
        zero = [{"filter": name, "value": 0.0} for name in ("o_proj", "down_proj")]
        slices = []
        for layer in range(layers):
            source: dict[str, Any] = {"model": str(base), "layer_range": [layer, layer + 1]}
            slices.append({"sources": [source]})
            if first <= layer < last:
                slices.append({"sources": [{**source, "parameters": {"scale": [*zero, {"value": 1.0}]}}]})
    return {"slices": slices, "merge_method": "passthrough", "dtype": "bfloat16"}
