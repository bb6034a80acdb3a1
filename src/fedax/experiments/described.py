"""The configuration of an experiment that was made in Python, for its run folder and report, and to recognise it.

Objects of fedax are written as a user would write them in a configuration. What a file cannot hold, such as a function
or a large array, is written as a text that names it. ``fedax run`` refuses such a configuration; everything that reads
run folders accepts it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import numpy as np

import fedax
from fedax.algorithms import METHODS
from fedax.contract.algorithm import Algorithm
from fedax.contract.local import LocalMethod, Solver
from fedax.contract.regularizers import Regularizer, Unconstrained
from fedax.contract.schedule import Schedule, Stepwise
from fedax.engine.options import Options
from fedax.errors import FedaxError
from fedax.experiments.config import codec
from fedax.experiments.config.codec import FROM_DATA, arguments_of, setting, written_class, written_options
from fedax.experiments.config.sections import PYTHON, Table
from fedax.tasks.factory import made_as
from fedax.tasks.trainable import LoRA, Partial


def method(label: str, algorithm: Algorithm, penalised: bool, name: str | None = None) -> Table:
    """A method's table in a configuration; an unregistered method is named by its class.

    Args:
        label: its name in the comparison.
        algorithm: the method.
        penalised: whether it minimises F + ψ with its own ψ.
        name: its registered name, where the user gave one.

    Example:
        >>> method("a", fedax.create("fedexp", lr=0.1), False)
        {'name': 'fedexp', 'label': 'a', 'lr': 0.1, 'eps': 0.001, 'average_last': True}
    """
    for setting_name, kind in (("personal", fedax.PersonalPart), ("fine_tune", fedax.FineTuned)):
        if isinstance(algorithm, kind):
            return method(label, algorithm.inner, penalised, name) | {setting_name: codec.written_layer(algorithm)}
    hyper = dict(_hyperparameters(algorithm))
    names = METHODS if name is None else [name]
    name, arguments = _registered(algorithm, hyper, names) or (written_class(algorithm), hyper.keys())
    settings = {key: setting(value) for key, value in hyper.items() if key in arguments}
    if penalised and "regularizer" not in settings:  # a regularizer of this method alone
        settings["regularizer"] = {"name": f"{PYTHON}:{label}"}
    return {"name": name, "label": label, **settings}


def _hyperparameters(part: Any) -> Iterator[tuple[str, Any]]:
    """The hyper-parameters of a method and of its parts, as (name, value); those that are off are left out."""
    for name, value in arguments_of(part).items():
        whole = isinstance(part, LocalMethod) and isinstance(value, Solver)
        if isinstance(value, eqx.Module) and not isinstance(value, Schedule | Stepwise | Regularizer) and not whole:
            yield from _hyperparameters(value)
        elif value is not None and not isinstance(value, Unconstrained):
            yield name, value.schedule if isinstance(value, Stepwise) else value


def _registered(algorithm: Algorithm, hyper: Table, names: Iterable[str]) -> tuple[str, Collection[str]] | None:
    """The name with which ``fedax.create`` makes an equal method, and the hyper-parameters to give; ``None``: no name.

    If several names do, the one that needs fewest settings is taken: FedProx, not FedAvg with ``prox``.
    """
    matches: list[tuple[int, int, str, Collection[str]]] = []
    for name in names:
        try:
            defaults = METHODS.get(name).arguments
            accepted = hyper.keys() & defaults.keys()
            made = fedax.create(name, **{key: hyper[key] for key in accepted})
        except FedaxError:  # a package that cannot be loaded, or other arguments
            continue
        if type(made) is type(algorithm) and repr(made) == repr(algorithm):
            matches.append((sum(defaults[key] is None for key in accepted), len(accepted), name, accepted))
    return min(matches)[2:] if matches else None


def data(given: fedax.FederatedData) -> Table:
    """The section ``data``."""
    weights = "given"
    if np.allclose(given.weights, given.sizes / given.sizes.sum(), rtol=1e-6):
        weights = "sizes"
    elif np.allclose(given.weights, 1 / given.num_clients, rtol=1e-6):
        weights = "uniform"
    return {"name": PYTHON, "clients": given.num_clients, "weights": weights}


def task(given: fedax.Task) -> Table:
    """The section ``task``.

    Example:
        >>> task(fedax.tasks.mlp(64, 10, hidden=(16,)))["name"], task(fedax.Task(lambda key: 0.0, lambda *a: 0.0))
        ('mlp', {'name': 'python:task'})
    """
    arguments = made_as(given.entire)
    settings: Table = {"name": f"{PYTHON}:{given.name}"}
    if arguments is not None:
        settings = {name: setting(value) for name, value in arguments.items() if name not in FROM_DATA}
    if isinstance(given, Partial):
        rule = setting(given.rule)
        settings["lora" if isinstance(given.rule, LoRA) else "trainable"] = rule
    return settings


def sections(seeds: Sequence[int], options: Mapping[str, Any], given: fedax.Task) -> Table:
    """The sections that have options, arguments of :func:`fedax.simulate`, with the metrics of a task."""
    found = written_options(Options(**options))
    run = {"seeds": list(seeds), "split_seeds": False, "grad_norm": "grad_norm" in given.run_metrics} | found["run"]
    if "density" in given.run_metrics:
        run["density"] = setting(given.run_metrics["density"].threshold)
    return found | {"run": run}
