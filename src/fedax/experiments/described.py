"""An experiment that was made in Python, told in the words of a configuration: for its report, and to know it again.

Objects of fedax are written as a configuration would have them. What a file cannot hold, such as a function or a large
array, is named and not written: ``fedax run`` refuses such a configuration, all that reads run folders takes it.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import numpy as np

import fedax
from fedax.algorithms import METHODS
from fedax.contract.algorithm import Algorithm
from fedax.contract.compression import COMPRESSORS, Compressor
from fedax.contract.regularizers import REGULARIZERS, Regularizer, Unconstrained
from fedax.contract.schedule import Piecewise, Schedule, Stepwise
from fedax.contract.settings import Settings, plain
from fedax.errors import FedaxError
from fedax.experiments.config import FROM_DATA, PYTHON
from fedax.federation import PARTICIPATION, WORK
from fedax.federation.participation import Dropout
from fedax.registry import Registry
from fedax.tasks.factory import made_as
from fedax.tasks.trainable import LoRA, Partial
from fedax.wire import AVERAGES
from fedax.wire.compressed import Compression

Table = dict[str, Any]

_MOST = 1000  # entries of a list that is written, and letters of a text


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
    name, arguments = _registered(algorithm, given, names) or (own(algorithm), given.keys())
    told = {key: setting(value) for key, value in given.items() if key in arguments}
    if penalised and "regularizer" not in told:  # nobody else's
        told["regularizer"] = {"name": f"{PYTHON}:{label}"}
    return {"name": name, "label": label, **told}


def own(thing: Any) -> str:
    """What stands in a configuration for an object of a class that fedax does not know.

    Example:
        >>> own(1.5)
        'python:float'
    """
    return f"{PYTHON}:{type(thing).__name__}"


def _hyper(part: Any) -> Iterator[tuple[str, Any]]:
    """Name -> value of the hyper-parameters of a method, those of its parts among them, without those that are off."""
    for name, value in _arguments(part).items():
        if isinstance(value, eqx.Module) and not isinstance(value, Schedule | Stepwise | Regularizer):
            yield from _hyper(value)
        elif value is not None and not isinstance(value, Unconstrained):
            yield name, value.schedule if isinstance(value, Stepwise) else value


def _arguments(part: Any) -> Table:
    if isinstance(part, Settings):
        return part.arguments()
    return {field.name: getattr(part, field.name, None) for field in dataclasses.fields(part) if field.init}


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


def setting(value: Any) -> Any:
    """A value as a configuration has it; of what none can hold, a text that tells what it is.

    Example:
        >>> setting(fedax.L1(0.1)), setting(fedax.Piecewise(1.0, {5: 0.1})), setting(np.zeros((2000, 2)))
        ({'name': 'l1', 'weight': 0.1}, {'value': 1.0, 'at': {'5': 0.1}}, 'array (2000, 2)')
    """
    if isinstance(value, Regularizer):
        return _named(REGULARIZERS, "name", value)
    if isinstance(value, Compressor):
        return _named(COMPRESSORS, "name", value)
    if isinstance(value, Piecewise):
        return {"value": setting(value.value), "at": {str(at): setting(factor) for at, factor in value.at.items()}}
    if isinstance(value, fedax.PowerDecay | fedax.Guard | fedax.Faults):
        return {name: each for name, each in _told(value.arguments()).items() if each is not None}
    if isinstance(value, fedax.Patience | LoRA):
        return {name: each for name, each in _told(dataclasses.asdict(value)).items() if each is not None}
    if hasattr(value, "shape") and np.size(value) > _MOST:
        return f"array {np.shape(value)}"
    value = plain(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return _told(value)
    if isinstance(value, list | tuple):
        return [setting(each) for each in value] if len(value) <= _MOST else f"{len(value)} entries"
    text = value if isinstance(value, str) else repr(value) if isinstance(value, eqx.Module) else own(value)
    return text[:_MOST]


def _told(table: Mapping[str, Any]) -> Table:
    return {str(name): setting(value) for name, value in table.items()}


def _named(registry: Registry, key: str, part: Any) -> Table:
    """A part under its registered name with its settings; one that nobody has registered under its class's."""
    known = (component.name for component in map(registry.get, registry) if component.make is type(part))
    return {key: next(known, own(part)), **{k: v for k, v in _told(_arguments(part)).items() if v is not None}}


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
    return _named(WORK, "kind", given)


def participation(given: fedax.Participation) -> Table:
    """The section ``participation``.

    Example:
        >>> participation(fedax.Dropout(fedax.Uniform(4), 0.1))
        {'kind': 'uniform', 'size': 4, 'dropout': 0.1}
    """
    if not isinstance(given, Dropout):
        return _named(PARTICIPATION, "kind", given)
    available = None if given.available is None else [setting(np.asarray(given.available))]
    told = {"dropout": setting(given.rate), "available": available}
    return participation(given.of) | {name: value for name, value in told.items() if value is not None}


def privacy(given: fedax.DP) -> Table:
    """The section ``privacy``.

    Example:
        >>> privacy(fedax.DP(1.0, 0.5, 1e-5, adaptive=fedax.AdaptiveClip(0.6)))
        {'clip': 1.0, 'noise': 0.5, 'delta': 1e-05, 'adaptive': {'quantile': 0.6, 'rate': 0.2}}
        >>> privacy(fedax.DP(1.0, 0.0, 1e-5))
        {'clip': 1.0, 'noise': 0.0, 'delta': 1e-05}
    """
    told = {name: setting(value) for name, value in given.arguments().items() if name != "adaptive"}
    usual = {"epsilon": None, "by_leaf": False, "bands": 1, "noise_seed": None}
    found = {name: value for name, value in told.items() if name not in usual or value != usual[name]}
    if given.adaptive is not None:
        adaptive = {name: setting(value) for name, value in given.adaptive.arguments().items()}
        found["adaptive"] = {name: value for name, value in adaptive.items() if value is not None}
    return found


def run(seeds: Sequence[int], options: Mapping[str, Any]) -> Table:
    """The section ``run``, of those arguments of :func:`fedax.simulate` that a configuration has too."""
    told: Table = {"seeds": list(seeds), "split_seeds": False, "grad_norm": False}
    for name in (
        "rounds", "batch_size", "evaluate_every", "grad_norm", "density", "chunk_size", "guard", "faults", "secure",
    ):  # fmt: skip
        told[name] = setting(options.get(name, told.get(name)))
    if (until := options.get("until")) is not None:
        told["patience"] = setting(until)
    if (aggregate := options.get("aggregate")) is not None:
        told["aggregate"] = _named(AVERAGES, "name", aggregate)
    if (compress := options.get("compress")) is not None:
        how = Compression.of(compress)
        ways = {"up": how.up, "down": how.down}
        told["compress"] = {way: setting(each) for way, each in ways.items() if each is not None}
    return {name: value for name, value in told.items() if value is not None}
