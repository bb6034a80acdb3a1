"""Data: what each client holds. Data sets by name, partitions, generators, and the container of them all."""

import os
from typing import Any

import numpy as np

from fedax.data.federated import FederatedData
from fedax.data.generators import linear_regression, quadratics, sparse_regression, synthetic
from fedax.data.hdf5 import from_tff_hdf5
from fedax.data.heart import fed_heart_disease, heart
from fedax.data.leaf import from_leaf
from fedax.data.overview import Note, Overview, overview
from fedax.data.partitions import (
    by_column,
    by_size,
    by_value,
    dirichlet,
    dirichlet_labels,
    dominant,
    growing,
    iid,
    inner_dirichlet,
    pathological,
    power_law,
    shards,
)
from fedax.data.pictures import from_image_folders
from fedax.data.readers import CHARACTERS, SETS, Dataset, available, load
from fedax.data.split import Split, split
from fedax.data.summaries import Plan, Summary, fit, plan, summarize
from fedax.data.tables import from_arrow, from_csv, from_frames, from_parquet
from fedax.data.transform import Column, Label, Transform
from fedax.registry import Registry

__all__ = [
    "CHARACTERS",
    "FEDERATIONS",
    "PARTITIONS",
    "SETS",
    "Column",
    "Dataset",
    "FederatedData",
    "Label",
    "Note",
    "Overview",
    "Plan",
    "Split",
    "Summary",
    "Transform",
    "available",
    "by_column",
    "by_size",
    "by_value",
    "dirichlet",
    "dirichlet_labels",
    "dominant",
    "fed_heart_disease",
    "fit",
    "folder",
    "from_arrow",
    "from_csv",
    "from_frames",
    "from_image_folders",
    "from_leaf",
    "from_parquet",
    "from_tff_hdf5",
    "growing",
    "heart",
    "iid",
    "inner_dirichlet",
    "linear_regression",
    "load",
    "noiseless_regression",
    "overview",
    "pathological",
    "plan",
    "power_law",
    "quadratics",
    "shards",
    "sparse_regression",
    "split",
    "summarize",
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


def noiseless_regression(clients: int, features: str = "w8a", seed: int = 0) -> FederatedData:
    """A regression that a linear model fits exactly, on the features of a data set, dealt evenly.

    The labels are those of :func:`linear_regression`; F is least, and 0, at a point that is best for every client.

    Args:
        clients: N ≥ 1.
        features: the data set whose x are taken, each as a vector of d real numbers.
        seed: ≥ 0, of the true model and of the deal.

    Returns:
        ``{"x": float32 [n, d], "y": float32 [n]}`` of each client.

    Raises:
        ConfigError: numbers out of range.
        DataError: the data set's files are not there.

    Source: FedAvg's linear speedup, section 5, case 3, and appendix I.3.

    Example:
        >>> noiseless_regression(clients=2, features="digits")
        FederatedData(2 clients, 1442 examples, 721 to 721 a client)
    """
    rows = load(features).train["x"]
    x = rows.reshape(len(rows), -1).astype(np.float32, copy=False)
    labels, _, _ = linear_regression(x, seed)
    return FederatedData.from_partition({"x": x, "y": labels}, iid(len(labels), clients, seed))


PARTITIONS = Registry("partition")
PARTITIONS.add("iid", iid)
PARTITIONS.add("dirichlet", dirichlet)
PARTITIONS.add("dirichlet-labels", dirichlet_labels)
PARTITIONS.add("shards", shards)
PARTITIONS.add("dominant", dominant)
PARTITIONS.add("power-law", power_law)
PARTITIONS.add("column", by_column)
PARTITIONS.add("pathological", pathological)
PARTITIONS.add("inner-dirichlet", inner_dirichlet)
PARTITIONS.add("size", by_size)
PARTITIONS.add("growing", growing)
PARTITIONS.add("value", by_value)

FEDERATIONS = Registry("data set")  # those that come in clients
FEDERATIONS.add("synthetic", synthetic, "FedProx's Synthetic(alpha, beta): softmax labels, a model for each client")
FEDERATIONS.add("sparse_regression", sparse_regression, "linear models that agree on which few features matter")
FEDERATIONS.add("noiseless_regression", noiseless_regression, "a linear model's labels, on the features of a data set")
FEDERATIONS.add("folder", folder, "your own clients' data, as FederatedData.save writes them")
FEDERATIONS.add("csv", from_csv, "your own clients' CSV files", fixed={"transform": None})
FEDERATIONS.add("parquet", from_parquet, "your own clients' Parquet files", fixed={"transform": None})
FEDERATIONS.add(
    "arrow", from_arrow, "Arrow files, as Hugging Face and flwr-datasets write them", fixed={"transform": None}
)
FEDERATIONS.add("heart", heart, SETS.get("heart").summary)
FEDERATIONS.add("fed_heart_disease", fed_heart_disease, "heart as FLamby's benchmark prepares it")
FEDERATIONS.add("images", from_image_folders, "your own clients' pictures, in folders <client>/<class>")
FEDERATIONS.add("leaf", from_leaf, "LEAF's JSON files, of users with examples of numbers")
FEDERATIONS.add("hdf5", from_tff_hdf5, "an HDF5 file of TensorFlow Federated: EMNIST, CIFAR-100, Shakespeare")
FEDERATIONS.add(
    "quadratics",
    quadratics,
    "quadratic objectives whose optimum is known in closed form",
    fixed={"H": None, "e": None, "weights": None},
)
