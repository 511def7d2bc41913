"""The arithmetic of a race between methods over seeds; nothing here reads or writes a file.

A race is a table of curves with the columns ``method``, ``seed``, ``tokens`` (trained on when measured) and
``perplexity`` (held-out), a row a measurement. Runs of one seed saw the same blocks in the same order, so methods are
compared seed by seed: what a seed does to all of them alike falls out of the differences.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.95
"""Of the confidence intervals."""


def spread(curves: pd.DataFrame) -> pd.DataFrame:
    """Columns ``method``, ``tokens``, ``mean``, ``sd`` (sample standard deviation; NaN of one seed), ``seeds``."""
    groups = curves.groupby(["method", "tokens"], sort=False)["perplexity"]
    return groups.agg(mean="mean", sd="std", seeds="count").reset_index()


def first(curves: pd.DataFrame) -> pd.DataFrame:
    """Perplexity before training, ``[seeds, methods]``, both in the order they came."""
    return _table(curves, curves.groupby(["method", "seed"], sort=False)["tokens"].idxmin())


def final(curves: pd.DataFrame) -> pd.DataFrame:
    """Perplexity at the end of the budget, ``[seeds, methods]``, both in the order they came."""
    return _table(curves, curves.groupby(["method", "seed"], sort=False)["tokens"].idxmax())


def against(finals: pd.DataFrame, reference: str) -> pd.DataFrame:
    """Differences to the reference, seed by seed: a row a method, with ``mean``, ``low``, ``high`` of its interval.

    Args:
        finals: perplexities, ``[seeds, methods]``.
        reference: the column that the others are held against; it gets no row.
    """
    differences = finals.drop(columns=reference).sub(finals[reference], axis=0)
    rows = {str(method): (values.mean(), *interval(values.to_numpy())) for method, values in differences.items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "low", "high"], dtype=float)


def interval(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Student's t interval of the mean at ``LEVEL``; NaN of fewer than two values."""
    count = len(values)
    if count < 2:
        return math.nan, math.nan
    half = stats.t.ppf((1 + LEVEL) / 2, count - 1) * np.std(values, ddof=1) / math.sqrt(count)
    mean = float(np.mean(values))
    return mean - half, mean + half


def tokens_to_level(curves: pd.DataFrame, levels: pd.Series) -> pd.DataFrame:
    """Tokens until each run is at a level for the first time, ``[seeds, methods]``; NaN where it never is.

    Args:
        curves: the race.
        levels: a perplexity a seed, by seed.
    """
    level: dict[Any, float] = levels.to_dict()
    rows = [
        (method, seed, tokens_to(run["tokens"].to_numpy(), run["perplexity"].to_numpy(), level[seed]))
        for (method, seed), run in curves.groupby(["method", "seed"], sort=False)
    ]
    table = pd.DataFrame(rows, columns=["method", "seed", "tokens"])
    return _pivot(table, "tokens")


def tokens_to(tokens: np.ndarray, perplexity: np.ndarray, level: float) -> float:
    """Tokens at which a curve first is at or below a level; NaN if it never is.

    Between two measurements the logarithm of the perplexity, which is the loss, is taken to be linear in tokens.

    Args:
        tokens: ``[measurements]``, rising.
        perplexity: ``[measurements]``.
        level: the perplexity to reach.
    """
    there = np.flatnonzero(perplexity <= level)
    if not len(there):
        return math.nan
    after = int(there[0])
    if after == 0:
        return float(tokens[0])
    above, below = math.log(perplexity[after - 1]), math.log(perplexity[after])
    share = (above - math.log(level)) / (above - below)
    return float(tokens[after - 1] + share * (tokens[after] - tokens[after - 1]))


def _table(curves: pd.DataFrame, rows: pd.Series) -> pd.DataFrame:
    return _pivot(curves.loc[rows], "perplexity")


def _pivot(table: pd.DataFrame, value: str) -> pd.DataFrame:
    wide = table.pivot(index="seed", columns="method", values=value)
    return wide.loc[table["seed"].unique(), table["method"].unique()]
