"""params.yaml as typed, validated settings."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StrictBool,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from lesa.errors import LesaError
from lesa.plan import SAID, Placement

Count = Annotated[int, Field(ge=1, strict=True)]
Index = Annotated[int, Field(ge=0, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, Field(min_length=1)]

AUTO = "auto"
"""The ``expansion.method`` that has one of ``expansion.candidates`` chosen by a race."""


def _is_size(size: str) -> str:
    from lesa.checkpoint import parse_size

    try:
        parse_size(size)
    except LesaError as error:
        raise ValueError(str(error)) from None
    return size


def _is_place(place: object) -> str | tuple[int, ...]:
    if isinstance(place, str):
        return place
    if isinstance(place, list | tuple) and all(type(layer) is int for layer in place):
        return tuple(place)
    raise ValueError(f"no placement; right would be {SAID}")


Size = Annotated[Text, AfterValidator(_is_size)]
Place = Annotated[str | tuple[int, ...], PlainValidator(_is_place)]


class Section(BaseModel):
    """A group of keys; a key it does not know is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Base(Section):
    """The model to make deeper."""

    model: Text
    revision: str | None = None
    sha256: Sha256 | None = None
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    trust_remote_code: bool = False


class Corpus(Section):
    """The text to train and measure on."""

    source: Text
    sha256: Sha256 | None = None
    revision: str | None = None
    text_field: Text = "text"
    max_documents: Count | None = None
    heldout_fraction: float = Field(default=0.1, gt=0, lt=1)
    sequence_length: Annotated[int, Field(ge=8, strict=True)] = 512
    shard_size: Size = "64MB"
    seed: Index = 0
    """Another one gives another split, and other items of the tasks made from it."""
    processes: Count | None = None


class Predictor(Section):
    """The network that predicts a layer from its neighbours."""

    kind: Literal["mlp", "linear"] = "mlp"
    hidden_size: Count = 256
    epochs: Count = 5
    batch_size: Count = 64
    learning_rate: Positive = 1e-3
    norm_weight: float = Field(default=5e-4, ge=0, le=1)
    heldout_layers: Index = 5
    heldout_epochs: Count = 2


def _is_method(method: str) -> str:
    from lesa.initializers import names

    if method not in names():
        raise ValueError(f"no such method; there are {', '.join(names())}")
    return method


def _is_method_or_auto(method: str) -> str:
    return method if method == AUTO else _is_method(method)


Method = Annotated[Text, AfterValidator(_is_method)]


class Expansion(Section):
    """Which layers to add, and how to make them."""

    method: Annotated[Text, AfterValidator(_is_method_or_auto)] = "lesa"
    candidates: Annotated[list[Method], Field(min_length=2)] = Field(default=["llama_pro", "interpolate", "lesa"])
    race_steps: Count = 10
    placement: Place = "range"
    """``range``, ``top``, ``middle``, ``bottom``, ``spread``, or the left neighbour of each new layer."""
    new_layers: Count | None = None
    first: Index = 14
    last: Index = 29
    norms: Literal["first", "left", "mean"] = "first"
    router: Literal["left", "predict"] = "left"
    max_shard_size: Size = "5GB"

    @field_validator("candidates")
    @classmethod
    def _each_once(cls, candidates: list[str]) -> list[str]:
        if len(set(candidates)) < len(candidates):
            raise ValueError("a method is named twice")
        return candidates

    @model_validator(mode="after")
    def _placed(self) -> "Expansion":
        try:
            _ = self.places
        except LesaError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def places(self) -> Placement:
        """``placement``, ``new_layers``, ``first`` and ``last``, as the library takes them."""
        return Placement(self.placement, self.new_layers, self.first, self.last)


class Pretrain(Section):
    """Continual pre-training."""

    steps: Count = 60
    batch_size: Count = 2
    gradient_accumulation: Count = 1
    learning_rate: Positive = 1e-3
    warmup_steps: Index = 5
    optimizer: Literal["adamw", "adamw_fused", "muon"] = "adamw"
    """``adamw_fused`` updates all weights in one kernel; ``muon`` is for the matrices, AdamW for the rest."""
    weight_decay: NonNegative = 0.0
    train: Literal["new", "all"] = "new"
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    packing: Literal["concat", "documents"] = "concat"
    """``documents``: attention and positions stop at the end-of-text token, whose successor is not predicted."""
    gradient_checkpointing: StrictBool = False
    """Compute activations again in the backward pass instead of keeping them; the losses are the same."""
    torch_compile: StrictBool = False
    """Needs a C++ compiler."""
    launch: str | None = None
    eval_every: Count = 20
    eval_blocks: Count = 16
    save_every: Count = 20
    target_perplexity: Positive | None = None


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class Evaluate(Section):
    """lm-eval tasks and held-out perplexity."""

    tasks: Annotated[list[Text], BeforeValidator(_as_list)] = Field(default=["wiki_cloze", "analogies"])
    limit: Count | None = 100
    batch_size: Count = 16


def _as_contestant(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class Contestant(Section):
    """One method in a comparison: a method's name, or a name of one's own with settings of its own."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9](\.?[A-Za-z0-9_-])*$")]
    """A part of a git ref: letters, digits, ``_``, ``-`` and single dots."""
    set: dict[str, Any] = {}
    """What differs from the rest of params.yaml, by dotted key."""

    @model_validator(mode="after")
    def _complete(self) -> "Contestant":
        from lesa.initializers import names

        if "expansion.method" not in self.set and self.name not in (*names(), AUTO):
            raise ValueError(
                f"{self.name} is no method (there are {', '.join(names())}); for a variant of one say which in "
                "set: {expansion.method: ...}"
            )
        for key in self.set:
            _check_settable(key)
        return self

    @property
    def changes(self) -> dict[str, Any]:
        """What to set, by dotted key; the method is always among it."""
        return {"expansion.method": self.name, **self.set}

    @property
    def method(self) -> str:
        """The expansion method it uses."""
        return str(self.changes["expansion.method"])

    @property
    def own(self) -> dict[str, Any]:
        """What it sets besides the method."""
        return {key: value for key, value in self.set.items() if key != "expansion.method"}


def _check_settable(key: str) -> None:
    """Raise ValueError where a dotted key names no value, or one that all methods of a comparison share."""
    if key == "seed" or key.startswith("compare."):
        raise ValueError(f"{key} cannot be set for one method; compare.seeds gives the seeds of all")
    title, _, name = key.partition(".")
    section = _section(Settings, title) if title in Settings.model_fields else None
    if section is None or not name:
        raise ValueError(f"unknown key {key}; a key here is written like pretrain.learning_rate")
    if name not in section.model_fields:
        raise ValueError(f"unknown key {key}; {_near((title, name))}")


class Compare(Section):
    """A race of methods over seeds (``make compare``)."""

    methods: list[Annotated[Contestant, BeforeValidator(_as_contestant)]] = Field(
        default=[Contestant(name=name) for name in ("llama_pro", "interpolate", "lesa")], min_length=1
    )
    seeds: list[Index] = Field(default=[0, 1, 2], min_length=1)
    reference: Text = "llama_pro"

    @model_validator(mode="after")
    def _distinct(self) -> "Compare":
        names = [contestant.name for contestant in self.methods]
        for key, values in (("methods", names), ("seeds", self.seeds)):
            twice = [value for value, count in Counter(values).items() if count > 1]
            if twice:
                raise ValueError(f"compare.{key} has {twice[0]} twice")
        if self.reference not in names:
            raise ValueError(f"compare.reference is {self.reference}, which is none of compare.methods: {names}")
        return self


class Settings(Section):
    """All of params.yaml."""

    seed: Index = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    base: Base
    corpus: Corpus
    predictor: Predictor = Predictor()
    expansion: Expansion = Expansion()
    pretrain: Pretrain = Pretrain()
    evaluate: Evaluate = Evaluate()
    compare: Compare = Field(default_factory=Compare)


def load(path: str | Path = "params.yaml") -> Settings:
    """Read and check a settings file.

    Raises:
        LesaError: the file is missing or not YAML, a key is unknown or missing, or a value does not fit; the
            message names the key, what was found, and what would be right.
    """
    path = Path(path)
    try:
        return parse(path.read_text(), path)
    except FileNotFoundError:
        raise LesaError(f"{path} does not exist; run from the folder that holds it") from None
    except UnicodeDecodeError as error:
        raise LesaError(f"{path} is not a valid YAML file: {error}") from None


def parse(text: str, name: str | Path, changes: Mapping[str, Any] | None = None) -> Settings:
    """The settings in a YAML text, after changing some.

    Args:
        text: what a params.yaml holds.
        name: what messages call it.
        changes: new values by dotted key.

    Raises:
        LesaError: as ``load``.
    """
    path = Path(name)
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise LesaError(f"{path} is not a valid YAML file: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise LesaError(f"{path} must hold keys with values, and holds {type(content).__name__}")
    for key, value in (changes or {}).items():
        section, _, field = key.rpartition(".")
        (content.setdefault(section, {}) if section else content)[field] = value
    try:
        return Settings.model_validate(content)
    except ValidationError as error:
        raise LesaError("; ".join(_explain(path, problem) for problem in error.errors())) from None


def _explain(path: Path, problem: ErrorDetails) -> str:
    key = ".".join(str(part) for part in problem["loc"]) or "settings"
    if problem["type"] == "extra_forbidden":
        return f"{path}: unknown key {key}; {_near(problem['loc'])}"
    if problem["type"] == "missing":
        return f"{path}: {key} is missing"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    found = problem["input"]
    shown = f" (found {found!r})" if isinstance(found, str | int | float | bool | None) else ""
    return f"{path}: {key}: {message}{shown}"


def _near(location: tuple[str | int, ...]) -> str:
    from difflib import get_close_matches

    section: type[Section] = Settings
    for part in location[:-1]:
        if isinstance(part, str):  # a number is a place in a list
            section = _section(section, part) or section
    known = list(section.model_fields)
    close = get_close_matches(str(location[-1]), known, n=1)
    return f"did you mean {close[0]}?" if close else f"the keys here are {', '.join(known)}"


def _section(section: type[Section], name: str) -> type[Section] | None:
    """The section under a key, or in the list under it; None where there is a plain value."""
    kind: Any = section.model_fields[name].annotation
    while inside := get_args(kind):
        kind = inside[0]
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None
