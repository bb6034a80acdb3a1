"""Data: what each client holds. Data sets by name, partitions, generators, and the container of them all."""

import os
from typing import Any

from fedax.data.federated import FederatedData
from fedax.data.generators import linear_regression, quadratics, sparse_regression, synthetic
from fedax.data.partitions import by_column, dirichlet, dirichlet_labels, dominant, iid, power_law, shards
from fedax.data.readers import CHARACTERS, SETS, Dataset, available, load
from fedax.registry import Registry

__all__ = [
    "CHARACTERS",
    "FEDERATIONS",
    "PARTITIONS",
    "SETS",
    "Dataset",
    "FederatedData",
    "available",
    "by_column",
    "dirichlet",
    "dirichlet_labels",
    "dominant",
    "folder",
    "iid",
    "linear_regression",
    "load",
    "power_law",
    "quadratics",
    "shards",
    "sparse_regression",
    "synthetic",
]


def folder(path: str | os.PathLike, test: str | os.PathLike | None = None) -> Any:
    """Your own clients' data, as FederatedData.save writes them.

    Args:
        path: the folder of the clients' examples.
        test: a folder of held-out examples; ``None``: there are none.

    Returns:
        The clients' data, or the pair of it and the held-out data.

    Raises:
        DataError: there are no such data.

    Example:
        >>> import tempfile
        >>> import fedax
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as place:
        ...     fedax.FederatedData({"x": np.ones((2, 1))}, sizes=[1, 1]).save(f"{place}/mine")
        ...     folder(f"{place}/mine").num_clients
        2
    """
    data = FederatedData.open(path)
    return data if test is None else (data, FederatedData.open(test))


PARTITIONS = Registry("partition")
PARTITIONS.add("iid", iid)
PARTITIONS.add("dirichlet", dirichlet)
PARTITIONS.add("dirichlet-labels", dirichlet_labels)
PARTITIONS.add("shards", shards)
PARTITIONS.add("dominant", dominant)
PARTITIONS.add("power-law", power_law)
PARTITIONS.add("column", by_column)

FEDERATIONS = Registry("data set")  # those that come in clients
FEDERATIONS.add("synthetic", synthetic, "FedProx's Synthetic(alpha, beta): softmax labels, a model for each client")
FEDERATIONS.add("sparse_regression", sparse_regression, "linear models that agree on which few features matter")
FEDERATIONS.add("folder", folder, "your own clients' data, as FederatedData.save writes them")
FEDERATIONS.add(
    "quadratics",
    quadratics,
    "quadratic objectives whose optimum is known in closed form",
    fixed={"H": None, "e": None, "weights": None},
)
