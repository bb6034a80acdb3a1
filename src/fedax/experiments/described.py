"""An experiment that was made in Python, told in the words of a configuration: for its report, and to know it again.

Objects of fedax are written as a configuration would have them. What a file cannot hold, such as a function or a large
array, is named and not written: ``fedax run`` refuses such a configuration, all that reads run folders takes it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import numpy as np

import fedax
from fedax.algorithms import METHODS
from fedax.contract.algorithm import Algorithm
from fedax.contract.regularizers import Regularizer, Unconstrained
from fedax.contract.schedule import Schedule, Stepwise
from fedax.errors import FedaxError
from fedax.experiments.config.codec import (
    ARGUMENTS,
    FROM_DATA,
    PARTICIPATIONS,
    PRIVACY,
    RUN,
    WORKS,
    arguments_of,
    setting,
    written_class,
)
from fedax.experiments.config.sections import PYTHON, Table
from fedax.tasks.factory import made_as
from fedax.tasks.trainable import LoRA, Partial


def method(label: str, algorithm: Algorithm, penalised: bool, name: str | None = None) -> Table:
    """A method's row of a configuration; of an own one ``name`` is that of its class.

    Args:
        label: what it is called in the comparison.
        algorithm: the method.
        penalised: whether it minimises F + ψ with a ψ of its own.
        name: its registered name, where the user gave that.

    Example:
        >>> method("a", fedax.create("fedexp", lr=0.1), False)
        {'name': 'fedexp', 'label': 'a', 'lr': 0.1, 'eps': 0.001, 'average_last': True}
    """
    given = dict(_hyper(algorithm))
    names = METHODS if name is None else [name]
    name, arguments = _registered(algorithm, given, names) or (written_class(algorithm), given.keys())
    told = {key: setting(value) for key, value in given.items() if key in arguments}
    if penalised and "regularizer" not in told:  # nobody else's
        told["regularizer"] = {"name": f"{PYTHON}:{label}"}
    return {"name": name, "label": label, **told}


def _hyper(part: Any) -> Iterator[tuple[str, Any]]:
    """Name -> value of the hyper-parameters of a method, those of its parts among them, without those that are off."""
    for name, value in arguments_of(part).items():
        if isinstance(value, eqx.Module) and not isinstance(value, Schedule | Stepwise | Regularizer):
            yield from _hyper(value)
        elif value is not None and not isinstance(value, Unconstrained):
            yield name, value.schedule if isinstance(value, Stepwise) else value


def _registered(algorithm: Algorithm, given: Table, names: Iterable[str]) -> tuple[str, Collection[str]] | None:
    """The name under which ``fedax.create`` makes this very method, and the hyper-parameters that it takes.

    Of several names that of which least has to be set: FedProx is no FedAvg with ``prox``.
    """
    found: list[tuple[int, int, str, Collection[str]]] = []
    for name in names:
        try:
            defaults = METHODS.get(name).arguments
            taken = given.keys() & defaults.keys()
            made = fedax.create(name, **{key: given[key] for key in taken})
        except FedaxError:  # a package that cannot be loaded, or a method that is made otherwise
            continue
        if type(made) is type(algorithm) and repr(made) == repr(algorithm):
            found.append((sum(defaults[key] is None for key in taken), len(taken), name, taken))
    return min(found)[2:] if found else None


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
    made = made_as(given.entire)
    told: Table = {"name": f"{PYTHON}:{given.name}"}
    if made is not None:
        told = {name: setting(value) for name, value in made.items() if name not in FROM_DATA}
    if isinstance(given, Partial):
        rule = setting(given.rule)
        told["lora" if isinstance(given.rule, LoRA) else "trainable"] = rule
    return told


def work(given: fedax.Work) -> Table:
    """The section ``work``.

    Example:
        >>> work(fedax.RandomEpochs(2, 5))
        {'kind': 'random-epochs', 'low': 2, 'high': 5}
    """
    return WORKS.write(given)


def participation(given: fedax.Participation) -> Table:
    """The section ``participation``.

    Example:
        >>> participation(fedax.Dropout(fedax.Uniform(4), 0.1))
        {'kind': 'uniform', 'size': 4, 'dropout': 0.1}
    """
    return PARTICIPATIONS.write(given)


def privacy(given: fedax.DP) -> Table:
    """The section ``privacy``.

    Example:
        >>> privacy(fedax.DP(1.0, 0.5, 1e-5, adaptive=fedax.AdaptiveClip(0.6)))
        {'clip': 1.0, 'noise': 0.5, 'delta': 1e-05, 'adaptive': {'quantile': 0.6, 'rate': 0.2}}
        >>> privacy(fedax.DP(1.0, 0.0, 1e-5))
        {'clip': 1.0, 'noise': 0.0, 'delta': 1e-05}
    """
    return PRIVACY.write(given)


def run(seeds: Sequence[int], options: Mapping[str, Any]) -> Table:
    """The section ``run``, of those arguments of :func:`fedax.simulate` that a configuration has too."""
    told: Table = {"seeds": list(seeds), "split_seeds": False, "grad_norm": False}
    for name in ("rounds", "batch_size", "evaluate_every", "grad_norm", "density"):
        told[name] = setting(options.get(name, told.get(name)))
    if (place := options.get("place")) is not None:
        told["chunk_size"] = setting(place.chunk_size)
    for name, codec in RUN.items():
        if (part := options.get(ARGUMENTS.get(name, name))) is not None:
            told[name] = codec.write(part)
    return {name: value for name, value in told.items() if value is not None}
