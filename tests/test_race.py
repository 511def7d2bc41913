import math
import random
import statistics

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lesa import race


def curves(*runs: tuple[str, int, list[float]]) -> pd.DataFrame:
    """Runs of a method and a seed, measured every 100 tokens from 0 on."""
    rows = [(method, seed, 100 * i, value) for method, seed, values in runs for i, value in enumerate(values)]
    return pd.DataFrame(rows, columns=["method", "seed", "tokens", "perplexity"])


RACE = curves(("pro", 3, [20, 10]), ("mean", 3, [40, 12]), ("pro", 1, [20, 11]), ("mean", 1, [44, 11]))


def test_mean_and_spread_at_each_measurement() -> None:
    found = race.spread(RACE).set_index(["method", "tokens"])
    assert found["mean"].to_dict() == {("pro", 0): 20, ("pro", 100): 10.5, ("mean", 0): 42, ("mean", 100): 11.5}
    # of two values the sample standard deviation is their distance over the root of two
    assert found.loc[("mean", 0), "sd"] == pytest.approx(4 / math.sqrt(2))
    assert found.loc[("pro", 0), "sd"] == 0
    assert set(found["seeds"]) == {2}


def test_one_seed_has_no_spread() -> None:
    assert race.spread(RACE[RACE["seed"] == 1])["sd"].isna().all()


def test_spread_is_that_of_the_statistics_module() -> None:
    rng = random.Random(0)
    values = [rng.uniform(18, 22) for _ in range(7)]
    found = race.spread(curves(*(("pro", seed, [value]) for seed, value in enumerate(values))))
    assert found["sd"].item() == pytest.approx(statistics.stdev(values))


def test_tables_keep_the_order_of_methods_and_seeds() -> None:
    for table, expected in ((race.first(RACE), [[20, 40], [20, 44]]), (race.final(RACE), [[10, 12], [11, 11]])):
        assert list(table.columns) == ["pro", "mean"]
        assert list(table.index) == [3, 1]
        assert table.to_numpy().tolist() == expected


def test_differences_are_taken_seed_by_seed() -> None:
    found = race.against(race.final(RACE), "pro")
    assert list(found.index) == ["mean"]
    # differences 2 and 0: mean 1, standard error 1; t at 97.5% with one degree of freedom is tan(0.475 pi) = 12.706
    assert found.loc["mean"].tolist() == pytest.approx([1, 1 - 12.7062, 1 + 12.7062], abs=1e-4)


def test_the_interval_is_that_of_a_paired_t_test() -> None:
    rng = np.random.default_rng(0)
    finals = pd.DataFrame({"pro": rng.normal(20, 1, 5), "mean": rng.normal(20.5, 1, 5)})
    expected = stats.ttest_rel(finals["mean"], finals["pro"]).confidence_interval(0.95)
    found = race.against(finals, "pro").loc["mean"]
    assert (found["low"], found["high"]) == pytest.approx((expected.low, expected.high))
    assert found["mean"] == pytest.approx((finals["mean"] - finals["pro"]).mean())


def test_one_seed_has_no_interval() -> None:
    found = race.against(race.final(RACE[RACE["seed"] == 3]), "pro").loc["mean"]
    assert found["mean"] == 2
    assert math.isnan(found["low"])
    assert math.isnan(found["high"])


def test_alone_the_reference_is_held_against_nothing() -> None:
    assert race.against(race.final(RACE)[["pro"]], "pro").empty


@pytest.mark.parametrize(
    ("perplexity", "level", "expected"),
    [
        ([16, 4, 1], 8, 50),  # half way in the logarithm
        ([16, 4, 1], 4, 100),  # at a measurement
        ([16, 4, 1], 2, 150),
        ([16, 4, 1], 20, 0),  # there from the start
        ([16, 4, 9, 1], 4, 100),  # the first time counts
        ([16, 16, 4], 8, 150),
        ([16, 4, 2], 1, math.nan),
    ],
)
def test_tokens_to_a_level(perplexity: list[float], level: float, expected: float) -> None:
    found = race.tokens_to(100 * np.arange(len(perplexity)), np.array(perplexity), level)
    assert found == pytest.approx(expected, nan_ok=True)


def test_each_seed_has_a_level_of_its_own() -> None:
    found = race.tokens_to_level(RACE, race.final(RACE)["pro"])
    assert found.loc[3, "pro"] == found.loc[1, "pro"] == found.loc[1, "mean"] == 100
    assert math.isnan(found.loc[3, "mean"])
