"""One page on one run: a verdict, tables, figures, settings, as HTML that needs nothing beside it and as Markdown."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader

from lesa import initializers, pictures, tables
from lesa.files import whole_file, whole_folder
from lesa.pictures import Picture
from lesa.results import read
from lesa.settings import AUTO, Settings
from lesa.tables import Table
from lesa.verdict import verdict

PACKAGES = ("torch", "transformers", "lm_eval", "dvc")


@dataclass(frozen=True)
class Section:
    """A headline with its tables and pictures."""

    title: str
    tables: list[Table]
    pictures: list[Picture]


def write_report(
    reports: str | Path,
    settings: Settings,
    command: str,
    reproduce: Sequence[str] = (),
    revision: str | None = None,
) -> None:
    """Write ``report.md``, ``report.html``, ``scores.csv`` and ``figures/*.png`` into a reports folder.

    The same inputs give the same files. Measurements that are missing are left out, and named as such.

    Args:
        reports: the folder with the metrics and tables of the other stages (see ``lesa.results``).
        settings: what the run was made with.
        command: what made the run.
        reproduce: shell lines that make it again.
        revision: the code's version.
    """
    reports = Path(reports)
    results = read(reports)
    target = settings.pretrain.target_perplexity
    sections = [
        Section("The three models", [tables.models(results)], pictures.of_models(results)),
        Section("Continual pre-training", [tables.training(results)], pictures.of_training(results, target)),
        Section("The predictor", [tables.skills(results)], pictures.of_predictor(results)),
        Section("The shared basis", [], pictures.of_basis(results)),
        Section("Time and memory", [tables.times(results)], []),
    ]
    name = _without_folders(settings.base.model.rstrip("/")).rsplit("/", 1)[-1].removesuffix(".gguf")
    method = results.method(settings)
    sizes = results.stages.get("expand")
    layers = f"{sizes['layers_before']} → {sizes['layers_after']} layers" if sizes else "deeper"
    page = {
        "title": f"{name}, {layers} with {method}",
        "verdict": verdict(results, settings, method != AUTO and initializers.get(method).learned),
        "sections": sections,
        "settings": yaml.safe_dump(
            _portable(settings.model_dump(exclude={"compare"})), sort_keys=False, allow_unicode=True, width=1000
        ),
        "versions": {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}},
        "revision": revision,
        "seed": settings.seed,
        "command": command,
        "reproduce": reproduce,
    }
    with whole_folder(reports / "figures") as folder:
        for picture in (picture for section in sections for picture in section.pictures):
            if picture.image:
                (folder / f"{picture.name}.png").write_bytes(picture.image)
    with whole_file(reports / "scores.csv") as partial:
        results.scores.drop(columns="chance").to_csv(partial, index=False)
    environment = Environment(
        loader=PackageLoader("lesa"),
        autoescape=lambda template: "html" in (template or ""),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for suffix in ("md", "html"):
        with whole_file(reports / f"report.{suffix}") as partial:
            text = environment.get_template(f"report.{suffix}.j2").render(page)
            partial.write_text(text, encoding="utf-8")


def _portable(value: Any) -> Any:
    """The settings without the folders of the machine they were used on."""
    if isinstance(value, dict):
        return {key: _portable(item) for key, item in value.items()}
    return _without_folders(value) if isinstance(value, str) else value


def _without_folders(text: str) -> str:
    for path in (PurePosixPath(text), PureWindowsPath(text)):
        if path.is_absolute() or text.startswith("~"):
            return path.name
    return text
