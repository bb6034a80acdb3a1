"""What holds for every method: it is a frozen pytree of numbers, and no class is built upon a finished one."""

import ast
import importlib
import inspect
import pathlib
import pkgutil
import textwrap

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
import fedax.algorithms
from fedax.contract.algorithm import Layer
from fedax.contract.compression import Compressor
from fedax.contract.local import LocalMethod
from fedax.contract.oracle import Oracle
from fedax.contract.settings import Settings

from .bed import BED, QUADRATIC, X0
from .cases import CASES

FOLDER = pathlib.Path(inspect.getfile(fedax)).parent
FILES = [*sorted((FOLDER / "algorithms").glob("*.py")), FOLDER / "contract" / "local.py"]


def classes() -> list[type]:
    """All modules of equinox that methods are made of; the dry run's stand-in for a user's method is none."""
    for results in pkgutil.iter_modules(fedax.algorithms.__path__):
        importlib.import_module(f"fedax.algorithms.{results.name}")
    results, queue = [], [eqx.Module]
    while queue:
        queue += (new := queue.pop().__subclasses__())
        results += [cls for cls in new if cls.__module__.startswith("fedax.") and ".engine." not in cls.__module__]
    return list(dict.fromkeys(results))


def body(function: object) -> list[ast.stmt]:
    """The statements of a function, without its docstring."""
    statements = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0].body
    documented = isinstance(statements[0], ast.Expr) and isinstance(statements[0].value, ast.Constant)
    return statements[1:] if documented else statements


def is_open(function: object) -> bool:
    """Whether there is nothing in it to override: it does nothing, or is not implemented."""
    statements = body(function)
    return not statements or (isinstance(statements[0], ast.Raise) and "NotImplementedError" in ast.dump(statements[0]))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_method_calls_super(file):
    names = [node.id for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Name)]
    assert len(names) > 20 and "super" not in names


def test_classes_are_abstract_or_final():
    all_classes = classes()
    assert {fedax.FedAvg, fedax.FedNovaVR, fedax.SGD, fedax.SlowMo, fedax.Normalized} <= set(all_classes)
    for cls in all_classes:
        if cls is Settings:
            continue
        parents = [base for base in cls.__mro__[1:] if base.__module__.startswith("fedax.") and base is not Settings]
        if {Layer, LocalMethod} & set(parents):  # a method around another one, or by any solver
            parents.remove(fedax.Algorithm)
        assert len(parents) <= 1, f"{cls.__name__} is built upon {parents[0].__name__}, which is finished"
        for parent in parents:
            members = [value for value in vars(parent).values() if inspect.isfunction(value)]
            abstract = parent.__abstractvars__ or parent.__abstractmethods__
            assert abstract or any("NotImplementedError" in inspect.getsource(m) for m in members), parent


def test_nothing_finished_is_overridden():
    """Apart from the defaults of the contract."""
    seen = 0
    for cls in classes():
        if cls.__module__.split(".")[1] not in ("algorithms", "contract"):
            continue
        for parent in cls.__mro__[1:]:
            if not parent.__module__.startswith("fedax.") or parent in (fedax.Algorithm, Layer, Compressor, Settings):
                continue
            for name in {n for n, value in vars(cls).items() if inspect.isfunction(value)} & set(vars(parent)):
                if not name.startswith("__"):
                    seen += 1
                    assert is_open(vars(parent)[name]), f"{cls.__name__}.{name} overrides {parent.__name__}.{name}"
    assert seen > 20


# A method is a pytree.


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_method_is_a_frozen_pytree_of_its_numbers(case):
    method = fedax.create(case.method, lr=0.04, **case.hyper, **case.own)
    numbers = [value for value in case.hyper.values() if isinstance(value, float)]
    leaves = jax.tree.leaves(method)
    assert {0.04, *numbers} <= set(leaves) and all(isinstance(leaf, float) for leaf in leaves)
    halved = jax.tree.map(lambda leaf: leaf / 2, method)
    assert type(halved) is type(method) and jax.tree.leaves(halved) == [leaf / 2 for leaf in leaves]
    with pytest.raises(AttributeError):
        method.solver = None


def test_names_and_switches_are_static():
    """They decide what is compiled; numbers do not."""
    structure = lambda **hyper: jax.tree.structure(fedax.create("fednova", **hyper))  # noqa: E731
    assert structure(lr=0.1, momentum=0.5) == structure(lr=0.2, momentum=0.9)
    assert structure(tau_eff=2.0) == structure(tau_eff=3.0)
    assert structure(tau_eff="ptau") != structure(tau_eff="mean") != structure()
    assert structure(momentum=0.5) != structure(momentum=0.5, nesterov=True) != structure()
    assert structure(server="adam") != structure(server="yogi")


@pytest.mark.parametrize("name", ["fednova-all", "fednova-vr-momentum", "vrl-sgd"])
def test_a_sweep_is_a_vmap_over_the_method(name):
    """The uploads of one client for several rates at once are those of each rate alone."""
    case = CASES[name]
    rates = [0.01, 0.02, 0.04]
    methods = [fedax.create(case.method, lr=lr, **case.hyper) for lr in rates]
    x = fedax.Vector(jnp.asarray(X0, float))

    @jax.jit
    def upload(method):
        examples = {"H": jnp.asarray(BED.H[:1], float), "e": jnp.asarray(BED.e[:1], float)}
        keys = {"key": jax.random.key(0), "round_key": jax.random.key(1)}
        places = {"offset": 0, "size": 1, "max_size": 1, "batch_size": None, "epochs": False}
        places |= {"client": jnp.int32(0), "num_clients": 7}
        oracle = Oracle(QUADRATIC, examples, **places, **keys, steps=3, round=0, start=0)
        sent, _ = method.client(method.download(method.init(x)), method.init_client(x), oracle)
        return jax.tree.leaves(sent)

    stacked = jax.tree.map(lambda *leaves: jnp.asarray(leaves, float), *methods)
    together = jax.vmap(upload)(stacked)
    for i, method in enumerate(methods):
        for swept, alone in zip(together, upload(method), strict=True):
            np.testing.assert_allclose(swept[i], alone, rtol=1e-5, atol=1e-6)
    assert np.abs(together[0][0] - together[0][-1]).max() > 1e-3


@pytest.mark.parametrize("room", ["contract", "wire", "engine"])
def test_what_has_no_type_has_a_name(room):
    """Any stands in annotations under one of the names of contract/types.py."""
    files = [path for path in sorted((FOLDER / room).rglob("*.py")) if path.name != "types.py"]
    assert len(files) > 4
    for path in files:
        names = {node.id for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Name)}
        assert "Any" not in names, path
