"""Train one predictor a weight kind, and measure what it can say of layers it has not seen."""

from pathlib import Path

import pandas as pd
from tqdm import tqdm

from common import run
from lesa import predictor, skill
from lesa.checkpoint import Checkpoint
from lesa.devices import pick
from lesa.files import whole_folder, write_json
from lesa.layers import Layers
from lesa.meter import Meter
from lesa.settings import Settings
from lesa.spectrum import Spectrum
from lesa.triples import triples


def main(settings: Settings, base: Path, spectrum_folder: Path, out: Path, report: Path) -> None:
    meter = Meter()
    device = pick(settings.device)
    layers = Layers(Checkpoint(base))
    spectrum = Spectrum(spectrum_folder)
    metrics: dict[str, object] = {}
    losses = []
    predictors = {}
    everything = triples(range(len(layers)))
    kinds = spectrum.kinds if everything else []  # methods that learn nothing do with fewer layers
    for kind in tqdm(kinds, desc="predictors", unit="kind"):
        read = spectrum.reader(layers, kind, device)
        predictors[kind], curve = predictor.train(read, everything, settings.predictor, settings.seed, device)
        losses += [{"kind": kind, "epoch": epoch, "loss": loss} for epoch, loss in enumerate(curve, start=1)]
        heldout, controls = skill.measure(read, len(layers), settings.predictor, settings.seed, device)
        metrics[kind] = {"train_loss": curve[-1], "heldout_skill": heldout, "controls": controls}
    with whole_folder(out) as folder:
        predictor.save(predictors, folder)
    report.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(losses, columns=["kind", "epoch", "loss"]).to_csv(report / "loss.csv", index=False)
    write_json(
        report / "metrics.json",
        {**metrics, "seconds": meter.seconds, "peak_memory_bytes": meter.peak_memory_bytes},
    )


if __name__ == "__main__":
    run(main)
