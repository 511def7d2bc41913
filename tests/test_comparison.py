import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from lesa.comparison import Run, check, run_of, write_comparison
from lesa.errors import LesaError
from lesa.fairness import FACTS, differences
from lesa.settings import Contestant

PRO, MEAN, LESA = (Contestant(name=name) for name in ("llama_pro", "interpolate", "lesa"))
FAST = Contestant(name="fast", set={"expansion.method": "llama_pro", "pretrain.learning_rate": 0.002})
MIB = 2**20


def stages(seed: int = 0, **facts: Any) -> dict[str, dict[str, Any]]:
    pretrain = {"tokens": 200, "trained_parameters": 5000, "order_sha256": f"order{seed}", "heldout_sha256": "text"}
    return {
        "analyze": {"seconds": 1.0, "peak_memory_bytes": 300 * MIB},
        "train_predictor": {"seconds": 10.0, "peak_memory_bytes": 500 * MIB},
        "choose": {"seconds": 20.0, "peak_memory_bytes": 900 * MIB},
        "expand": {"seconds": 4.0, "peak_memory_bytes": 400 * MIB, "layers_before": 8, "layers_after": 11},
        "pretrain": {**pretrain, **facts},
    }


def run(contestant: Contestant, seed: int, perplexity: Sequence[float], **facts: Any) -> Run:
    heldout = pd.DataFrame({"step": range(len(perplexity)), "heldout_perplexity": perplexity})
    return run_of(contestant, seed, stages(seed, **facts), heldout.assign(tokens=heldout["step"] * 100))


def write(folder: Path, runs: list[tuple[Contestant, list[Run]]]) -> str:
    everything = [one for _, of_one in runs for one in of_one]
    write_comparison(folder / "compare", everything, [contestant for contestant, _ in runs], "llama_pro", "abc")
    return (folder / "compare/compare.md").read_text()


def test_what_auto_takes_to_choose_counts() -> None:
    auto = run(Contestant(name="auto"), 0, [20, 12])
    assert (auto.init_seconds, auto.init_peak_memory_bytes) == (35, 900 * MIB)


def test_the_reference_is_named_in_what_comes_out(tmp_path: Path) -> None:
    pro = [run(PRO, 0, [20, 12, 10]), run(PRO, 1, [20, 13, 11])]
    lesa = [run(LESA, 0, [32, 16, 8]), run(LESA, 1, [30, 14, 12])]
    page = write(tmp_path, [(PRO, pro), (LESA, lesa)])
    metrics = json.loads((tmp_path / "compare/metrics.json").read_text())
    assert metrics == {
        "llama_pro": {
            "initial_perplexity": 20,
            "perplexity": [10, 11],
            "tokens_to_target": [200, 200],
            "init_seconds": 4,  # of expand alone
            "init_peak_memory_bytes": 400 * MIB,
        },
        "lesa": {
            "initial_perplexity": 31,
            "perplexity": [8, 12],
            "tokens_to_target": [168, None],  # 100 + 100 log(16/10) / log(16/8)
            "init_seconds": 15,  # of analyze, train_predictor and expand
            "init_peak_memory_bytes": 500 * MIB,
        },
    }
    # differences -2 and 1: mean -0.5, standard error 1.5, t 12.706 with one degree of freedom
    assert "| lesa | 31.00 ± 1.4 | 10.00 ± 2.8 | −0.5 (−19.6 to +18.6) | 168 (1 of 2 seeds) | 15.0 | 0.49 |" in page
    assert "The lowest perplexity at the end, on average over 2 seeds, is that of lesa: 10." in page
    assert "lesa ends at 10, 0.5 below llama_pro; the 95% interval" in page
    assert "who is better is open" in page
    curves = pd.read_csv(tmp_path / "compare/curves.csv")
    assert curves.columns.tolist() == ["method", "seed", "tokens", "perplexity"]
    assert len(curves) == 12
    assert Image.open(tmp_path / "compare/compare.png").size[0] == 1800


def test_a_difference_larger_than_the_spread_is_called_so(tmp_path: Path) -> None:
    pro = [run(PRO, seed, [20, 10 + seed]) for seed in range(3)]
    mean = [run(MEAN, seed, [20, 15 + seed + seed / 10]) for seed in range(3)]
    page = write(tmp_path, [(PRO, pro), (MEAN, mean)])
    assert "interpolate ends at 16.1, 5.1 above llama_pro, more than the spread over seeds" in page


def test_one_seed_proves_nothing(tmp_path: Path) -> None:
    page = write(tmp_path, [(PRO, [run(PRO, 0, [20, 10])]), (MEAN, [run(MEAN, 0, [20, 12])])])
    assert "interpolate ends at 12, 2 above llama_pro; one seed gives no spread, so this may be luck." in page
    assert "nan" not in page


def test_a_race_of_one_has_a_page(tmp_path: Path) -> None:
    assert "is that of llama_pro: 10." in write(tmp_path, [(PRO, [run(PRO, 0, [20, 10])])])


@pytest.mark.parametrize("fact", ["tokens", "trained_parameters", "order_sha256", "heldout_sha256"])
def test_other_conditions_are_refused(tmp_path: Path, fact: str) -> None:
    other = run(MEAN, 0, [20, 12], **{fact: "x" if "sha" in fact else 7})
    with pytest.raises(LesaError, match=f"interpolate and llama_pro did not run under.* {FACTS[fact]}"):
        write(tmp_path, [(PRO, [run(PRO, 0, [20, 10])]), (MEAN, [other])])
    assert not (tmp_path / "compare").exists()


def test_other_conditions_that_were_asked_for_are_in_the_page(tmp_path: Path) -> None:
    fast = run(FAST, 0, [20, 9], tokens=400)
    assert check(fast, run(PRO, 0, [20, 10]), FAST) == ["tokens trained on (400 against 200)"]
    page = write(tmp_path, [(PRO, [run(PRO, 0, [20, 10])]), (FAST, [fast])])
    assert "- **fast** ran with settings of its own: `pretrain.learning_rate: 0.002`.\n" in page
    assert "did not run under the same conditions as llama_pro: it differs in tokens trained on (400 ag" in page


def test_perplexities_of_other_text_win_nothing(tmp_path: Path) -> None:
    fast = run(FAST, 0, [20, 1], heldout_sha256="other")
    page = write(tmp_path, [(PRO, [run(PRO, 0, [20, 10])]), (FAST, [fast])])
    assert "was measured on other text, so its perplexities compare with no other's" in page
    assert "is that of llama_pro: 10." in page


def test_a_method_with_places_of_its_own_is_named(tmp_path: Path) -> None:
    solar = Contestant(name="solar")
    page = write(tmp_path, [(PRO, [run(PRO, 0, [20, 10])]), (solar, [run(solar, 0, [20, 12])])])
    assert "**solar** puts its new layers in places of its own." in page


def test_no_difference_between_equals() -> None:
    facts = run(PRO, 0, [1]).facts
    assert facts.keys() == FACTS.keys()
    assert differences(facts, dict(facts)) == []
    assert differences({**facts, "new_layers": 2}, facts) == ["new layers (2 against 3)"]
