"""All that the ``lesa`` method must learn about a base model, in one call."""

from pathlib import Path

from tqdm import tqdm

from lesa import predictor
from lesa.checkpoint import Checkpoint
from lesa.devices import pick
from lesa.files import whole_folder
from lesa.initializers import Learned
from lesa.layers import Layers
from lesa.settings import Predictor as PredictorSettings
from lesa.spectrum import analyze


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
    samples = predictor.triples(range(len(layers)))
    trained = {}
    for kind in tqdm(spectrum.kinds, desc="predictors", unit="kind"):
        reader = spectrum.reader(layers, kind, where)
        trained[kind], _ = predictor.train(reader, samples, settings or PredictorSettings(), seed, where)
    with whole_folder(Path(out) / "predictor") as folder:
        predictor.save(trained, folder)
    return Learned(str(spectrum.folder), str(Path(out) / "predictor"))
