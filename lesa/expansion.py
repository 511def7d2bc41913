"""A plan, a method and a base checkpoint make a deeper checkpoint."""

import functools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lesa import initializers
from lesa.checkpoint import Checkpoint, TensorSpec, copy_other_files, write_checkpoint
from lesa.devices import pick
from lesa.errors import LesaError
from lesa.files import whole_folder, write_json
from lesa.initializers import Learned, NewLayer
from lesa.layers import Layers
from lesa.meter import Meter
from lesa.perlayer import expand_config
from lesa.plan import Placement, Plan
from lesa.space import need_space

DESCRIPTION = "expansion.json"


def expand(
    base: str | Path,
    out: str | Path,
    method: str,
    placement: Placement,
    norms: str = "first",
    router: str = "left",
    learned: Learned | None = None,
    max_shard_size: str | int = "5GB",
    device: str = "auto",
    origin: str | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Write a deeper model into the folder ``out``, whole or not at all.

    The base is read and the result written tensor by tensor; one new layer is held at a time.

    Args:
        base: a checkpoint folder with safetensors weights.
        out: the folder to write: weights, config, ``expansion.json``, and everything else of the base unchanged.
        method: a name in ``lesa.initializers``.
        placement: where new layers go, and how many.
        norms: where a predicted layer's norm weights come from: ``first``, ``left`` or ``mean``.
        router: where a new layer's choice of experts comes from: ``left`` (its left neighbour) or ``predict``.
        learned: spectrum and predictors, for methods that need them.
        max_shard_size: size of a weight file at most.
        device: where to compute: ``cpu``, ``cuda`` or ``auto``.
        origin: what ``expansion.json`` calls the base; default its folder.
        seed: of random weights, for methods that draw some.

    Returns:
        ``layers_before``, ``layers_after``, ``parameters_before``, ``parameters_after`` (tied ones once), ``seconds``,
        ``peak_memory_bytes`` (of this process since its start).

    Raises:
        LesaError: the model is no decoder of a known family, the placement does not fit it or the method, there is no
            such method, neighbours are of different shapes, the disk has no room for the result, or ``out`` is the
            base or holds something other than a deeper model.
        ValueError: the method needs ``learned``, and it was not given.
    """
    meter = Meter()
    _check_free(Path(out), Path(base))
    initializer = initializers.get(method)
    if initializer.learned and learned is None:
        raise ValueError(f"{method} needs a spectrum and predictors")
    checkpoint = Checkpoint(base)
    layers = Layers(checkpoint)
    plan = initializer.arrange(len(layers), placement)
    for sources in sorted({planned.sources for planned in plan if planned.new}):
        layers.check_alike(list(sources))
    learned = learned if initializer.learned else None
    where = pick(device)

    # A layer's tensors are asked for one after another, so keeping the latest layer makes each layer once.
    @functools.lru_cache(maxsize=1)
    def make(number: int) -> dict[str, Tensor]:
        planned = plan[number]
        return initializer.initialize(
            NewLayer(layers, planned.sources, planned.fraction, number, seed, norms, router, learned, where)
        )

    specs = [checkpoint.spec(name, layers.stored_name(name)) for name in layers.outside]
    specs += _layer_specs(layers, plan, make)
    settings = {**placement.to_json(), "norms": norms, "router": router, "seed": seed}
    with whole_folder(out) as folder:
        need_space(folder, sum(spec.nbytes for spec in specs))
        copy_other_files(base, folder)
        (folder / "config.json").write_text(json.dumps(expand_config(Path(base), plan), indent=2) + "\n")
        write_checkpoint(folder, specs, max_shard_size)
        write_json(
            folder / DESCRIPTION,
            {
                "method": method,
                "settings": settings,
                "base": {
                    "model": origin or str(base),
                    "model_type": checkpoint.config["model_type"],
                    "layers": len(layers),
                },
                "layers": [planned.to_json() for planned in plan],
            },
        )
    return {
        "layers_before": len(layers),
        "layers_after": len(plan),
        "parameters_before": sum(math.prod(checkpoint.shape(name)) for name in checkpoint.names()),
        "parameters_after": sum(math.prod(spec.shape) for spec in specs),
        "seconds": meter.seconds,
        "peak_memory_bytes": meter.peak_memory_bytes,
    }


def _check_free(out: Path, base: Path) -> None:
    """See that nothing but an earlier result is in the way, since it would be replaced."""
    if out.resolve() == base.resolve():
        raise LesaError(f"the deeper model was to be written into {out}, which is the base; name another folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not (out / DESCRIPTION).exists():
        raise LesaError(f"{out} is there already, and holds no deeper model; name another folder, or remove it")


def _layer_specs(layers: Layers, plan: Plan, make: Callable[[int], dict[str, Tensor]]) -> Iterator[TensorSpec]:
    for number, planned in enumerate(plan):
        source = planned.sources[0]
        for name in layers.names(source):
            target = layers.full_name(number, name)
            spec = layers.checkpoint.spec(target, layers.stored_name(layers.full_name(source, name)))
            if planned.new:
                spec = replace(spec, load=functools.partial(_take, make, number, name))
            yield spec


def _take(make: Callable[[int], dict[str, Tensor]], number: int, name: str) -> Tensor:
    return make(number)[name]
