"""The section ``data`` of a configuration: loads a data set, deals it to clients, and holds examples out."""

import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import fedax
from fedax.data import FEDERATIONS, PARTITIONS, SETS, by_column, by_value, folder
from fedax.data.paths import data_at, title_of
from fedax.errors import ConfigError, unknown
from fedax.experiments.config.sections import DataSection, SplitSection, Table
from fedax.experiments.named import check_named
from fedax.federation.census import Census
from fedax.files import name_of
from fedax.registry import Component, within
from fedax.sites.protocol.fleet import Fleet

EACH = "each"
HeldOut = fedax.FederatedData | Table | None


class Dealt(NamedTuple):
    """The data of a configuration.

    Attributes:
        pooled: the data set in one piece; ``None`` where it comes in clients.
        data, val, test: the clients' training examples, or their census; and the held-out parts.
        config: the section as it is written to config.toml.
        fleet: the nodes that split their rows; ``None`` in a simulation.
        whole: the clients' examples before the split, where no seed draws the clients.
    """

    pooled: Any
    data: fedax.FederatedData | Census
    val: fedax.FederatedData | None
    test: HeldOut
    config: Table
    fleet: Fleet | None = None
    whole: fedax.FederatedData | None = None


def deal(section: DataSection, fleet: Fleet | None = None) -> Dealt:
    pooled, data, test, config = unsplit(section, fleet)
    if section.split is None:
        return Dealt(pooled, data, None, test, config, fleet)
    split = _split_arguments(section.split)
    if test is not None and split["test"] and fleet is not None:
        hint = "the server has held-out examples already, data.test; leave one of them out"
        raise ConfigError("data.split.test", split["test"], hint)
    if fleet is not None and "clients" in split:
        hint = "which clients take part is for simulations; real ones leave a round by their own will"
        raise ConfigError("data.split.clients", split["clients"], hint)
    if fleet is not None:
        dealt = dealt_by(split, fleet)
        return Dealt(pooled, dealt.census, None, test, {**config, "split": split}, dealt)
    assert isinstance(data, fedax.FederatedData)
    train, val, test = parts_of(data, test, section.split)
    given_clients = pooled is None and "seed" not in config
    return Dealt(pooled, train, val, test, {**config, "split": split}, None, data if given_clients else None)


def _split_arguments(section: SplitSection) -> Table:
    """The section as arguments of :func:`fedax.data.split`, but for clients that are left out one by one."""
    shares = section.model_dump(exclude_none=True) | {"train": section.train}
    held = round(shares["val"] + shares["test"], 12)
    if shares["train"] is None and held >= 1 > max(shares["val"], shares["test"]):
        hint = f"with data.split.test = {shares['test']} this adds up to {held}; leave rows for training"
        raise ConfigError("data.split.val", shares["val"], hint)
    if shares["train"] is None:
        shares["train"] = round(1 - held, 12)
    return shares


def parts_of(
    data: fedax.FederatedData, test: HeldOut, section: SplitSection
) -> tuple[fedax.FederatedData, fedax.FederatedData | None, HeldOut]:
    """Split the clients' examples; ``test``: held-out examples that the data set has already, which are kept."""
    shares = arguments = _split_arguments(section)
    if shares.get("clients") == EACH:
        repetition, left_out = divmod(section.seed, data.num_clients)
        arguments = shares | {"clients": [left_out], "seed": repetition}
    parts = within("data.split", lambda: fedax.data.split(data, **arguments))
    for name in ("val", "test"):
        if shares[name] and getattr(parts, name) is None:
            hint = f"no client has enough examples for one, the largest {data.sizes.max()}; ask for a larger share"
            raise ConfigError(f"data.split.{name}", shares[name], f"{hint}, or 0")
    return parts.train, parts.val, parts.test if shares["test"] or test is None else test


def dealt_by(split: Table | None, fleet: Fleet, seed: int = 0) -> Fleet:
    """The nodes with their rows split as a run with this seed needs them; ``split``: with all its settings."""
    if split is None or (not split["val"] and not split["test"]):
        return fleet
    return fleet.dealt({**split, "seed": split["seed"] + seed})


def unsplit(
    section: DataSection, fleet: Fleet | None = None
) -> tuple[Any, fedax.FederatedData | Census, HeldOut, Table]:
    """The data before the split: ``(data set or None, clients' data, held-out examples, configuration)``."""
    if section.name == "nodes":
        return _at_nodes(section, fleet)
    pool = data_set(section.name)
    if pool.name in FEDERATIONS:
        return _in_clients(section, pool)
    partition = PARTITIONS.get(section.partition or "iid", "data.partition")
    takes_clients = "clients" in partition.arguments
    if takes_clients and section.clients is None:
        raise ConfigError("data.clients", None, "this is missing; give the number of clients")
    pooled = fedax.data.load(pool.name)
    if partition.make is by_column:
        parts, parameters = _by_column(section, pooled)
    else:
        arguments, columns = section.parameters, {}
        first: Any = pooled.train["y"]
        if partition.make is by_value and "column" in arguments:
            columns["column"] = arguments.pop("column")
            if columns["column"] not in pooled.groups:
                raise unknown("data.column", columns["column"], pooled.groups)
            first = pooled.groups[columns["column"]]
        first = len(first) if "n" in partition.arguments else first
        arguments |= {"seed": section.seed} | ({"clients": section.clients} if section.clients is not None else {})
        parts, parameters = partition.bind(arguments, first, section="data")
        parameters |= columns
    data = _weighted(fedax.FederatedData.from_partition(pooled.train, parts), section.weights)
    config = {"name": pool.name, "partition": partition.name, **parameters, "weights": section.weights}
    return pooled, data, pooled.test, config


def _at_nodes(section: DataSection, fleet: Fleet | None) -> tuple[None, Census, Table | None, Table]:
    """:func:`unsplit` for real clients; held-out examples are at the nodes, or in a folder at the server."""
    if fleet is None:
        raise ConfigError(
            "data.name", "nodes", "these are real clients: fedax deploy run; to simulate, name a data set"
        )
    for name in ("partition", "clients"):
        if getattr(section, name) is not None:
            raise ConfigError(f"data.{name}", getattr(section, name), "the data are at the nodes; leave it out")
    if differ := section.parameters.keys() - {"test"}:
        name = min(differ)
        raise unknown(f"data.{name}", name, ["name", "test", "weights"], section.parameters[name])
    folder_, census = section.parameters.get("test"), fleet.whole.census
    test = None if folder_ is None else within("data", lambda: fedax.FederatedData.open(folder_).examples)
    n = census.num_clients
    if section.weights == "uniform":
        census = census._replace(weights=np.full(n, 1 / n))
    fleet.whole.census = census
    config = {"name": "nodes", **section.parameters, "weights": section.weights}
    return None, census, test, config


def _in_clients(section: DataSection, federation: Component) -> tuple[None, fedax.FederatedData, HeldOut, Table]:
    """:func:`unsplit` for data sets that come in clients."""
    if section.partition is not None:
        raise ConfigError("data.partition", section.partition, f"{federation.name} comes in clients; leave it out")
    arguments = section.parameters
    if "seed" in federation.arguments or "seed" in section.model_fields_set:
        arguments = arguments | {"seed": section.seed}
    if section.clients is not None:
        arguments["clients"] = section.clients
    made, parameters = federation.bind(arguments, section="data")
    data, test = made if isinstance(made, tuple) else (made, None)
    data = data if federation.make is folder and section.weights == "sizes" else _weighted(data, section.weights)
    label = None if data.transform is None else data.transform.label
    if "positive" in federation.arguments and not parameters.get("transform") and label and label.positive:
        parameters["positive"] = label.positive  # the rarer class now, whatever is added to the files
    return None, data, test, {"name": federation.name, **parameters, "weights": section.weights}


def leaves_out_each(split: SplitSection | None) -> bool:
    """Whether each run leaves out another client: number (data.split.seed + seed) mod N."""
    return split is not None and split.clients == EACH


def split_of_seed(split: SplitSection, seed: int) -> SplitSection:
    """The split for this training seed, where each seed has its own: data.split.seed + seed."""
    return split.model_copy(update={"seed": split.seed + seed})


def of_seed(section: DataSection, seed: int) -> DataSection:
    """The section with the seeds of its clients and its split moved by a training seed."""
    drawn = section.name not in FEDERATIONS or "seed" in FEDERATIONS.get(section.name).arguments
    drawn = drawn and not leaves_out_each(section.split)  # of the same clients
    update: Table = {"seed": section.seed + seed} if drawn else {}
    if section.split is not None:
        update["split"] = split_of_seed(section.split, seed)
    return section.model_copy(update=update) if seed else section


def _by_column(section: DataSection, pooled: Any) -> tuple[list[np.ndarray], Table]:
    settings = section.parameters
    for name, value in settings.items():
        if name not in ("column", "group_size"):
            raise unknown(f"data.{name}", name, ["column", "group_size", *DataSection.model_fields], value)
    if not pooled.groups:
        raise ConfigError("data.partition", "column", f"{section.name} has no columns of clients; choose another one")
    if "column" not in settings:
        raise ConfigError("data.column", None, f"this is missing; there are: {', '.join(pooled.groups)}")
    if settings["column"] not in pooled.groups:
        raise unknown("data.column", settings["column"], pooled.groups)
    group_size = settings.get("group_size", 1)
    parts = within("data", lambda: by_column(pooled.groups[settings["column"]], group_size))
    if section.clients not in (None, len(parts)):
        raise ConfigError("data.clients", section.clients, f"the column has {len(parts)} clients; leave it out")
    return parts, settings


def _weighted(data: fedax.FederatedData, weights: str) -> fedax.FederatedData:
    return data.with_weights(None if weights == "sizes" else np.full(data.num_clients, 1 / data.num_clients))


def number_of_classes(pooled: Any, data: fedax.FederatedData | Census) -> int | None:
    if pooled is not None:
        return None if pooled.classes is None else int(pooled.classes)
    if isinstance(data, Census):
        return None
    if data.transform is not None and data.transform.label is not None:
        return None if data.transform.classes is None else len(data.transform.classes)
    labels = _labels(data)
    return int(labels.max()) + 1 if labels is not None and labels.dtype.kind in "iub" else None


def _labels(data: fedax.FederatedData) -> np.ndarray | None:
    """The labels of all clients, also of those that take no part."""
    found = [each.examples.get("y") for each in (data, *(data.unseen or ()))]
    return None if found[0] is None else np.concatenate(found)


def class_names(data: fedax.FederatedData | Census) -> list[str] | None:
    """The names of the classes of clients' examples; ``None`` where there are no classes, or nodes do not name them."""
    if data.transform is not None and data.transform.label is not None:
        return None if data.transform.classes is None else list(data.transform.classes)
    labels = None if isinstance(data, Census) else _labels(data)
    if labels is None or labels.ndim != 1:
        return None
    values = np.unique(labels)
    return [f"{value:g}" for value in values] if len(values) <= 100 else None


def datasets() -> dict[str, str]:
    """All data sets that a configuration can name: name -> one line about it."""
    return SETS.available() | FEDERATIONS.available()


def data_set(name: str) -> Component:
    """The data set of this name, in any spelling."""
    if name in FEDERATIONS or name in SETS:
        return (FEDERATIONS if name in FEDERATIONS else SETS).get(name)
    raise unknown("data.name", name, datasets())


def named(words: Sequence[str]) -> tuple[str, Table]:
    """What a data set or files are called, and the settings of the section data that say which they are.

    Args:
        words: the name of one data set; or files, folders and patterns, as of :func:`fedax.data.paths.data_at`.

    Raises:
        ConfigError: there is no such data set or file.

    Example:
        >>> named(["Digits"])
        ('digits', {'name': 'digits'})
    """
    known = [word for word in words if word in FEDERATIONS or word in SETS]
    if len(words) == 1 and known:
        name = data_set(words[0]).name
        return name, {"name": name}
    if known:
        hint = f"give one data set, or files alone; a file that is called so is ./{known[0]}"
        raise ConfigError("data", " ".join(words), hint)
    for word in words:
        if not os.path.exists(word) or os.path.isdir(word) or word.endswith(".toml"):
            check_named("data", word, "data set", "table")
        if not os.path.exists(word) and re.fullmatch(r"[\w-]*", word):
            hint = unknown("data", word, datasets()).hint.removeprefix("no such name. ")
            raise ConfigError("data", word, f"there is no such file, folder or data set; {hint}")
    where = data_at(words)
    for place in np.hstack([*where.values()]).tolist():
        if name_of(place) != place:  # a configuration is UTF-8
            hint = "this is not in UTF-8; rename it, or give its folder or a pattern such as *.csv"
            raise ConfigError("data", name_of(place), hint)
    return title_of(words), where
