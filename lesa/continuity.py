"""How a weight kind's leading coefficients change from layer to layer, as tables."""

import numpy as np
import pandas as pd
import torch
from sklearn.decomposition import PCA
from torch import Tensor

PROJECTED = 4


def energy(singular_values: Tensor) -> pd.DataFrame:
    """Columns ``component``, ``singular_value``, ``energy`` (share of the squared values up to this component)."""
    values = singular_values.double().cpu().numpy()
    squares = np.square(values)
    share = np.cumsum(squares) / squares.sum() if squares.any() else np.ones_like(squares)
    return pd.DataFrame({"component": range(len(values)), "singular_value": values, "energy": share})


def continuity(leading: Tensor) -> pd.DataFrame:
    """Cosine between each layer's leading coefficient rows and the next layer's.

    Args:
        leading: ``L x components x d_in``, the first rows of each layer's ``V_i``.

    Returns:
        Columns ``component``, ``layer`` (the left one of the two), ``cosine`` (0 where a row is 0).
    """
    rows = torch.nn.functional.normalize(leading.double(), dim=2)
    cosines = (rows[:-1] * rows[1:]).sum(2).cpu()
    layer, component = torch.meshgrid(*(torch.arange(n) for n in cosines.shape), indexing="ij")
    columns = {"component": component, "layer": layer, "cosine": cosines}
    return pd.DataFrame({name: values.flatten().numpy() for name, values in columns.items()})


def projection(leading: Tensor) -> pd.DataFrame:
    """The first components of all layers, each projected to its two principal axes over the layers.

    Args:
        leading: ``L x components x d_in``, with at least two layers.

    Returns:
        Columns ``layer``, ``component``, ``x``, ``y``, for the first ``PROJECTED`` components.
    """
    tables = []
    for component in range(min(PROJECTED, leading.shape[1])):
        points = PCA(n_components=2, svd_solver="full").fit_transform(leading[:, component].double().cpu().numpy())
        layer = range(len(points))
        tables.append(pd.DataFrame({"layer": layer, "component": component, "x": points[:, 0], "y": points[:, 1]}))
    return pd.concat(tables)
