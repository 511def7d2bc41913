"""The report's tables."""

from dataclasses import dataclass

from lesa.figures import PREDICTIONS
from lesa.results import Results
from lesa.verdict import millions


@dataclass(frozen=True)
class Cell:
    """A value in a table: as it is shown, and what the column is sorted by."""

    text: str
    order: float | str


@dataclass(frozen=True)
class Table:
    """Column titles, rows of cells, and a sentence on how to read them."""

    columns: list[str]
    rows: list[list[Cell]]
    caption: str = ""


def models(results: Results) -> Table:
    """Size, perplexity and task scores, a row a model."""
    scores = results.scores
    tasks = list(scores["task"].unique())
    sizes = results.stages.get("expand", {})
    rows = []
    for number, (name, result) in enumerate(results.models.items()):
        layers = sizes.get("layers_before" if name == "base" else "layers_after")
        row = [
            Cell(name, number),
            _number(result["perplexity"], ",.4g"),
            _number(result["bits_per_byte"], ".4f"),
        ]
        for task in tasks:
            score = result["tasks"].get(task, {})
            stderr = score.get("stderr")
            cell = _number(score.get("acc"), ".3f")
            row.append(cell if stderr is None else Cell(f"{cell.text} ± {stderr:.3f}", cell.order))
        size = Cell(millions(result["parameters"]), result["parameters"])
        rows.append([*row, _number(layers, "d"), size])
    units = {
        task: "" if metric == "acc" else f" ({metric})"
        for task, metric in zip(scores["task"], scores["metric"], strict=True)
    }
    named = [f"{task}{units[task]}" for task in tasks]
    columns = ["model", "perplexity", "bits per byte", *named, "layers", "parameters"]
    caption = "Perplexity (a token) and bits per byte are of the held-out documents; lower is better."
    if tasks:
        caption += " Task columns are accuracies ± one standard error, unless they say otherwise; higher is better."
        known = scores.dropna(subset=["chance"]).groupby("task", sort=False)["chance"].first()
        caption += "".join(f" Chance on {task} is {chance:.3g}." for task, chance in known.items())
    else:
        caption += " No tasks were run."
    return Table(columns, rows, caption)


def training(results: Results) -> Table:
    """What continual pre-training took and gave."""
    metrics = results.stages.get("pretrain", {})
    corpus = results.stages.get("prepare_corpus", {}).get("train", {})
    reached = metrics.get("tokens_to_target")
    rows = [
        ("tokens trained on", metrics.get("tokens"), ",d"),
        ("tokens in the training text", corpus.get("tokens"), ",d"),
        ("tokens per second", metrics.get("tokens_per_second"), ",.0f"),
        ("weights trained", metrics.get("trained_parameters"), ",d"),
        ("training loss at the end (nats a token)", metrics.get("train_loss"), ".4f"),
        ("held-out perplexity before", metrics.get("initial_heldout_perplexity"), ",.4g"),
        ("held-out perplexity after", metrics.get("heldout_perplexity"), ",.4g"),
        ("tokens to the target perplexity", reached, ",d"),
    ]
    cells = [[Cell(name, number), _number(value, form)] for number, (name, value, form) in enumerate(rows)]
    kept = [row for row, (_, value, _) in zip(cells, rows, strict=True) if value is not None]
    caption = "The perplexities here are taken while training, on the first held-out blocks only."
    return Table(["", "value"], kept, caption)


def skills(results: Results) -> Table:
    """The predictor beside its controls, a row a weight kind."""
    skill = results.skills
    names = ["predictor", *(name for name in PREDICTIONS if name != "predictor" and name in skill)]
    losses = results.stages.get("train_predictor", {})
    trained = [kind for kind, values in losses.items() if isinstance(values, dict)]
    rows = []
    for number, kind in enumerate(trained):
        measured = skill.loc[kind].to_dict() if kind in skill.index else {}
        row = [Cell(kind, number), _number(losses[kind].get("train_loss"), ".3g")]
        rows.append([*row, *(_number(measured.get(name), ".3f") for name in names)])
    columns = ["weight kind", "train loss", *(PREDICTIONS[name][0] for name in names)]
    caption = "Skill on layers left out of training: 1 is exact, 0 is as good as predicting zeros."
    return Table(columns, rows, caption)


def times(results: Results) -> Table:
    """Seconds and memory, a row a stage."""
    measured = {**results.stages, **{f"evaluate@{name}": result for name, result in results.models.items()}}
    rows = []
    for number, (name, values) in enumerate(measured.items()):
        peak = values.get("peak_memory_bytes")
        memory = _number(None if peak is None else peak / 2**30, ".2f")
        rows.append([Cell(name, number), _number(values.get("seconds"), ",.1f"), memory])
    total = sum(values.get("seconds") or 0 for values in measured.values())
    caption = f"{total:,.1f} seconds in all. A stage that did not have to run again keeps its time from when it did."
    return Table(["stage", "seconds", "peak memory, GiB"], rows, caption)


def _number(value: float | None, form: str) -> Cell:
    if value is None or value != value:
        return Cell("–", "")
    text = f"{value:{form}}"
    if not text.strip("-0.,"):
        text = text.removeprefix("-")
    return Cell(text.replace("-", "−"), value)
