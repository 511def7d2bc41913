"""Take the shared basis of every weight kind, and see how alike neighbouring layers are in it."""

from pathlib import Path

import pandas as pd
from tqdm import tqdm

from common import run
from lesa.checkpoint import Checkpoint
from lesa.continuity import continuity, energy, projection
from lesa.devices import pick
from lesa.files import write_json
from lesa.layers import Layers
from lesa.meter import Meter
from lesa.settings import Settings
from lesa.spectrum import analyze


def main(settings: Settings, base: Path, out: Path, report: Path) -> None:
    meter = Meter()
    device = pick(settings.device)
    layers = Layers(Checkpoint(base))
    spectrum = analyze(layers, out, device)
    metrics: dict[str, object] = {}
    tables: dict[str, list[pd.DataFrame]] = {"spectrum": [], "continuity": [], "coefficients": []}
    for kind in tqdm(spectrum.kinds, desc="continuity", unit="kind"):
        basis = spectrum.basis(kind, device)
        leading = spectrum.leading(layers, kind, device)
        tables["spectrum"].append(energy(basis.s).assign(kind=kind))
        tables["continuity"].append(continuity(leading).assign(kind=kind))
        tables["coefficients"].append(projection(leading).assign(kind=kind))
        cosine = tables["continuity"][-1].groupby("component")["cosine"].mean()
        metrics[kind] = {
            "rank": int((basis.s > 0).sum()),
            "first_component_energy": float(tables["spectrum"][-1]["energy"].iloc[0]),
            "first_component_cosine": float(cosine.iloc[0]),
            "other_components_cosine": float(cosine.iloc[1:].abs().mean()),
        }
    report.mkdir(parents=True, exist_ok=True)
    for name, parts in tables.items():
        table = pd.concat(parts)
        table[["kind", *table.columns.drop("kind")]].to_csv(report / f"{name}.csv", index=False, float_format="%.5g")
    write_json(
        report / "metrics.json",
        {**metrics, "seconds": meter.seconds, "peak_memory_bytes": meter.peak_memory_bytes},
    )


if __name__ == "__main__":
    run(main)
