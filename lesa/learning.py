"""All that the ``lesa`` method must learn about a base model, in one call."""

from pathlib import Path

import torch
from tqdm import tqdm

from lesa import predictor
from lesa.checkpoint import Checkpoint
from lesa.devices import pick
from lesa.files import whole_folder
from lesa.initializers import Learned
from lesa.layers import Layers
from lesa.settings import Predictor as PredictorSettings
from lesa.spectrum import Spectrum, analyze
from lesa.triples import triples


def learn(
    base: str | Path,
    out: str | Path,
    settings: PredictorSettings | None = None,
    seed: int = 0,
    device: str = "auto",
) -> Learned:
    """Take the shared bases of a checkpoint and train a predictor for each weight kind.

    Args:
        base: a checkpoint folder with safetensors weights.
        out: a folder that gets ``spectrum/`` and ``predictor/``.
        settings: the training recipe; default as in params.yaml.
        seed: of the predictors' training.
        device: where to compute: ``cpu``, ``cuda`` or ``auto``.

    Raises:
        LesaError: the model is no decoder of a known family, or has fewer than three layers.
    """
    where = pick(device)
    layers = Layers(Checkpoint(base))
    spectrum = analyze(layers, Path(out) / "spectrum", where)
    train_predictors(layers, spectrum, Path(out) / "predictor", settings or PredictorSettings(), seed, where)
    return Learned(str(spectrum.folder), str(Path(out) / "predictor"))


def train_predictors(
    layers: Layers,
    spectrum: Spectrum,
    out: str | Path,
    settings: PredictorSettings,
    seed: int,
    device: torch.device | None = None,
) -> dict[str, list[float]]:
    """Train a predictor of every weight kind on all layers and save them in the folder ``out``, whole or not at all.

    Returns:
        For each kind the loss of each epoch.

    Raises:
        LesaError: there are fewer than three layers, or the loss is not a number.
    """
    curves = {}
    with whole_folder(out) as folder:
        models = {}
        for kind in tqdm(spectrum.kinds, desc="predictors", unit="kind"):
            reader = spectrum.reader(layers, kind, device)
            models[kind], curves[kind] = predictor.train(reader, triples(range(len(layers))), settings, seed, device)
        predictor.save(models, folder)
    return curves
