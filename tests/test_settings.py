from pathlib import Path

import pytest
import yaml

from lesa.errors import LesaError
from lesa.settings import load, parse

MINIMAL = {"base": {"model": "org/name"}, "corpus": {"source": "text.jsonl"}}
REPOSITORY = Path(__file__).parent.parent


def write(folder: Path, **changes: object) -> Path:
    content = {key: dict(value) for key, value in MINIMAL.items()}
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            content.setdefault(section, {})[name] = value  # type: ignore[assignment]
        else:
            content[section] = value  # type: ignore[assignment]
    path = folder / "params.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_the_repository_s_own_file_is_valid_and_spells_out_every_key() -> None:
    path = REPOSITORY / "params.yaml"
    settings = load(path)
    written = yaml.safe_load(path.read_text())
    for name, section in settings.model_dump().items():
        if isinstance(section, dict):
            assert set(section) == set(written[name]), name


def test_defaults_fill_what_is_not_written(tmp_path: Path) -> None:
    settings = load(write(tmp_path))
    assert settings.expansion.method == "lesa"
    assert settings.predictor.norm_weight == 5e-4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"predictor__learning_rat": 1}, r"unknown key predictor\.learning_rat; did you mean learning_rate\?"),
        ({"pretrian": {}}, r"unknown key pretrian; did you mean pretrain\?"),
        ({"seed": "x"}, r"seed: input should be a valid integer \(found 'x'\)"),
        ({"expansion__method": "magic"}, r"expansion\.method: no such method; there are duplicate, interpolate, lesa"),
        ({"expansion__max_shard_size": "5GBB"}, r"expansion\.max_shard_size: '5GBB' is no shard size"),
        ({"expansion__first": 9, "expansion__last": 9}, r"expansion\.first \(9\) must be below expansion\.last \(9\)"),
        ({"expansion__placement": "up"}, r"expansion\.placement is 'up'; right would be range, top, middle, bottom"),
        ({"expansion__placement": 3}, r"expansion\.placement: no placement; right would be .* list.* \(found 3\)"),
        ({"expansion__placement": [1, "top"]}, r"expansion\.placement: no placement; right would be range"),
        (
            {"expansion__placement": [1, 2], "expansion__new_layers": 3},
            r"expansion\.new_layers is 3, and expansion\.placement lists 2 new layers; right would be null, or",
        ),
        ({"expansion__new_layers": 0}, r"expansion\.new_layers.*greater than or equal to 1 \(found 0\)"),
        ({"expansion__norms": "last"}, r"expansion\.norms: input should be 'first', 'left' or 'mean' \(found 'last'\)"),
        ({"predictor__norm_weight": 2}, r"predictor\.norm_weight.*less than or equal to 1 \(found 2\)"),
        ({"pretrain__learning_rate": 0}, r"pretrain\.learning_rate.*greater than 0 \(found 0\)"),
        ({"pretrain__learning_rate": float("nan")}, r"pretrain\.learning_rate"),
        ({"pretrain__steps": 2.5}, r"pretrain\.steps.*integer"),
        (
            {"pretrain__optimizer": "sgd"},
            r"pretrain\.optimizer: input should be 'adamw', 'adamw_fused' or 'muon' \(found 'sgd'\)",
        ),
        ({"pretrain__packing": "tight"}, r"pretrain\.packing: input should be 'concat' or 'documents'"),
        ({"pretrain__gradient_checkpointing": 1}, r"pretrain\.gradient_checkpointing.*boolean \(found 1\)"),
        ({"pretrain__torch_compile": "no"}, r"pretrain\.torch_compile.*boolean \(found 'no'\)"),
        ({"corpus__heldout_fraction": 1}, r"corpus\.heldout_fraction.*less than 1"),
        ({"base": {}}, r"base\.model is missing"),
        ({"base__sha256": "abc"}, r"base\.sha256"),
        ({"evaluate__tasks": [1]}, r"evaluate\.tasks\.0.*string"),
        ({"compare__methods": ["magic"]}, r"compare\.methods\.0: magic is no method \(there are duplicate, "),
        ({"compare__methods": ["a b"]}, r"compare\.methods\.0\.name: .*\(found 'a b'\)"),
        ({"compare__methods": ["lesa", "lesa"]}, r"compare\.methods has lesa twice"),
        ({"compare__methods": [{"name": "lesa", "sett": {}}]}, r"compare\.methods\.0\.sett; did you mean set\?"),
        (
            {"compare__methods": [{"name": "lesa", "set": {"pretrain.stepps": 1}}]},
            r"unknown key pretrain\.stepps; did you mean steps\?",
        ),
        ({"compare__methods": [{"name": "lesa", "set": {"pretrain": 1}}]}, r"unknown key pretrain; a key here"),
        ({"compare__methods": [{"name": "lesa", "set": {"seed": 1}}]}, r"compare\.seeds gives the seeds of all"),
        ({"compare__reference": "solar"}, r"compare\.reference is solar, which is none of compare\.methods"),
        ({"compare__seeds": [1, 1]}, r"compare\.seeds has 1 twice"),
        ({"compare__seeds": [-1]}, r"compare\.seeds\.0"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(LesaError, match=message):
        load(write(tmp_path, **changes))


def test_a_contestant_is_a_method_or_says_what_differs(tmp_path: Path) -> None:
    variant = {"name": "slow.0-1", "set": {"expansion.method": "llama_pro", "pretrain.learning_rate": 0.1}}
    path = write(tmp_path, compare__methods=["llama_pro", variant])
    plain, slow = load(path).compare.methods
    assert (plain.name, plain.changes) == ("llama_pro", {"expansion.method": "llama_pro"})
    changed = parse(path.read_text(), path, {**slow.changes, "seed": 7})
    assert (changed.expansion.method, changed.pretrain.learning_rate, changed.seed) == ("llama_pro", 0.1, 7)


def test_a_change_is_checked_like_what_is_written(tmp_path: Path) -> None:
    path = write(tmp_path)
    with pytest.raises(LesaError, match=r"lesa-seed0: pretrain\.steps.*greater than or equal to 1 \(found 0\)"):
        parse(path.read_text(), "lesa-seed0", {"pretrain.steps": 0})


def test_norm_weight_zero_is_allowed(tmp_path: Path) -> None:
    assert load(write(tmp_path, predictor__norm_weight=0)).predictor.norm_weight == 0


def test_first_and_last_matter_for_a_range_only(tmp_path: Path) -> None:
    settings = load(write(tmp_path, expansion__placement=[4, 4, 6], expansion__first=9, expansion__last=2))
    assert settings.expansion.places.counts(8) == [0, 0, 0, 0, 2, 0, 1]


def test_one_task_needs_no_list(tmp_path: Path) -> None:
    assert load(write(tmp_path, evaluate__tasks="piqa")).evaluate.tasks == ["piqa"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not a valid YAML file"),
        ("- 1", "must hold keys with values, and holds list"),
        ("", "holds NoneType"),
        ("x: !!python/object/apply:os.getcwd []", "not a valid YAML file"),
    ],
)
def test_a_file_that_is_no_settings(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(LesaError, match=message):
        load(tmp_path / "params.yaml")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(LesaError, match="does not exist"):
        load(tmp_path / "params.yaml")
