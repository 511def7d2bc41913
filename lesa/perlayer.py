"""Config fields that depend on the number of layers, after the plan of a deeper model."""

from itertools import takewhile
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from lesa.checkpoint import read_config
from lesa.families import family_of
from lesa.plan import Plan


def expand_config(base: Path, plan: Plan) -> dict[str, Any]:
    """``config.json`` of the deeper model.

    A list with one entry a layer (``layer_types``) gets the entry of the layer that each layer comes from. Where the
    file lacks it and transformers derives it from the layer's number, it is written out: derived anew, it would be
    wrong for layers that moved. A count of leading layers (``max_window_layers``) counts those that come from them;
    the numbers of the layers without experts follow the layers.
    """
    config = read_config(base)
    family = family_of(config)
    # Reading the config class runs no code from the model folder: only families of the table come here.
    derived = AutoConfig.from_pretrained(base).to_dict()
    origins = [planned.sources[0] for planned in plan]
    for key in family.layer_lists:
        if values := config.get(key) or derived.get(key):
            config[key] = [values[origin] for origin in origins]
    for key in family.leading_counts:
        if key in config:
            config[key] = len(list(takewhile(config[key].__gt__, origins)))
    if family.dense_keys:
        numbers, step = family.dense_keys
        dense = set(derived[numbers] or []) | {i for i in range(config[family.depth_key]) if (i + 1) % derived[step]}
        config[numbers] = [number for number, origin in enumerate(origins) if origin in dense]
        config[step] = 1
    config[family.depth_key] = len(plan)
    return config
