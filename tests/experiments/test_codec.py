"""The codec: each part of a configuration is read back as it was written."""

import inspect

import jax
import optax
import pytest

import fedax
from fedax.algorithms import METHODS
from fedax.contract.compression import COMPRESSORS
from fedax.contract.regularizers import REGULARIZERS
from fedax.engine.options import OPTIONS
from fedax.experiments import build, read, toml
from fedax.experiments.config.codec import (
    ADAPTIVE,
    CLOCK,
    PARTICIPATIONS,
    PRIVACY,
    SCHEDULE,
    WORKS,
    ComponentCodec,
    codec_of,
    setting,
)
from fedax.federation import DISTRIBUTIONS, PARTICIPATION, WORK
from fedax.wire import AVERAGES

RUN = {name: codec_of(each) for name, each in OPTIONS.items() if each.path[:1] == ["run"]}

# ArgumentsCodec that have to be given.
GIVEN = {
    "top-k": {"share": 0.5}, "random-k": {"share": 0.5}, "qsgd": {"levels": 4},
    "rotated": {"of": {"name": "qsgd", "levels": 4}},
    "error-feedback": {"of": {"name": "top-k", "share": 0.5}}, "l1": {"weight": 0.1},
    "elastic-net": {"l1": 0.1, "l2": 0.2}, "l1-ball": {"radius": 2.0}, "l2-ball": {"radius": 2.0},
    "box": {"low": -1.0, "high": 1.0}, "trimmed-mean": {"share": 0.2}, "steps": {"steps": 3}, "epochs": {"epochs": 2},
    "random-epochs": {"low": 1, "high": 3}, "random-steps": {"mean": 2.0, "std": 1.0, "low": 1, "high": 4},
    "geometric-steps": {"mean": 2.0}, "deadline": {"time": 2.0, "speed": [1.0, 2.0]}, "uniform": {"size": 2},
    "proportional": {"size": 2}, "systematic": {"size": 2}, "uniform-normalized": {"size": 2},
    "poisson": {"rate": 0.5}, "cyclic": {"groups": 2}, "trace": {"cohorts": [[0, 1], [2]]},
    "clipped-mean": {"norm": 1.0}, "half-normal": {"scale": 2.0}, "lognormal": {"median": 2.0, "sigma": 0.5},
    "exponential": {"mean": 2.0}, "uniform-between": {"low": 1.0, "high": 2.0},
}  # fmt: skip
REGISTRIES = {"name": (COMPRESSORS, REGULARIZERS, AVERAGES, DISTRIBUTIONS), "kind": (WORK, PARTICIPATION)}
CASES = [
    pytest.param(registry, key, name, id=f"{registry.kind} {name}")
    for key, registries in REGISTRIES.items()
    for registry in registries
    for name in registry
]


def given(registry, name):
    arguments = registry.get(name).arguments
    missing = {key for key, default in arguments.items() if default is inspect.Parameter.empty}
    assert missing <= GIVEN.get(name, {}).keys(), f"{name} takes {arguments}"
    return GIVEN.get(name, {})


@pytest.mark.parametrize(("registry", "key", "name"), CASES)
def test_registered_parts_are_read_as_they_are_written(registry, key, name):
    kinds = ComponentCodec(registry, key)
    part = kinds.read("section", {key: name, **given(registry, name)})
    table = kinds.write(part)
    assert table[key] == name
    again = toml.loads(toml.dumps({"part": table}).encode())["part"]
    assert again == table and repr(kinds.read("section", again)) == repr(part)


@pytest.mark.parametrize(
    ("codec", "part"),
    [
        (RUN["guard"], fedax.Guard(5.0)),
        (RUN["faults"], fedax.Faults([1], times=-1.0)),
        (RUN["secure"], fedax.SecureSum(clip=10.0)),
        (RUN["until"], fedax.Patience(evaluations=3)),
        (RUN["aggregate"], fedax.TrimmedMean(0.2)),
        (RUN["compress"], {"up": fedax.TopK(0.5), "down": fedax.Natural()}),
        (PRIVACY, fedax.DP(1.0, 0.5, 1e-5, epsilon=3.0, adaptive=fedax.AdaptiveClip(0.6))),
        (ADAPTIVE, fedax.AdaptiveClip(0.6)),
        (SCHEDULE, fedax.Piecewise(1.0, {5: 0.1, 7: 0.5})),
        (SCHEDULE, fedax.PowerDecay(1.0, power=0.5)),
        (SCHEDULE, fedax.Cosine(0.5, 100, warmup=5)),
        (SCHEDULE, fedax.StepDecay(0.5, 30, 0.1)),
        (CLOCK, fedax.Clock()),
        (CLOCK, fedax.Clock(0.5, up=fedax.Lognormal(1.0, 0.5, anew=True), latency=[1, 2], server=3)),
        (CLOCK, fedax.Clock({"a": 1, "b": 2}, available={"b": [[0, 9]], "a": {"on": [[0, 1], [2, 3]], "repeat": 5}})),
        (CLOCK, fedax.Clock(available=[True, [[0, 2.5]]])),
        (CLOCK, fedax.Clock.phones()),
        (WORKS, fedax.RandomEpochs(2, 5)),
        (PARTICIPATIONS, fedax.Dropout(fedax.Uniform(4), 0.1)),
        (PARTICIPATIONS, fedax.Dropout(fedax.Full(), available=[[True, False], [True, True]])),
    ],
    ids=lambda given: type(given).__name__,
)
def test_other_parts_too(codec, part):
    table = toml.loads(toml.dumps({"part": codec.write(part)}).encode())["part"]
    results = codec.read("run.part", table)
    if isinstance(part, dict):
        results = {"up": results.up, "down": results.down}
    assert repr(results) == repr(part) and codec.write(results) == table


def test_what_stands_alone():
    assert RUN["guard"].read("run.guard", True) is True and RUN["guard"].write(False) is False
    assert RUN["until"].read("run.patience", 3) == fedax.Patience(evaluations=3)
    assert RUN["aggregate"].read("run.aggregate", "coordinate-median") == fedax.CoordinateMedian()
    assert setting(lambda row: True) == "python:function" and setting(fedax.FromFunction(abs))[:12] == "FromFunction"


@pytest.mark.parametrize("name", [*METHODS])
def test_every_method_is_written_with_its_defaults(name):
    """Compressors that a method has by itself among them."""
    data = {"name": "quadratics", "clients": 3, "dimension": 2}
    config = {"data": data, "run": {"rounds": 1}, "methods": [{"name": name}]}
    made = build(config)
    written = toml.loads(toml.dumps(made.config).encode())
    assert written == made.config
    again = build(written)
    assert again.config == made.config and repr(again.methods) == repr(made.methods)


def test_a_comparison_of_secure_sums_is_read_again(tmp_path):
    data, task = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)
    fedax.compare(["fedavg"], task, data, rounds=1, seeds=1, secure=fedax.SecureSum(clip=10.0), out=tmp_path / "run")
    assert read(tmp_path / "run").config["run"]["secure"] == {"clip": 10.0, "bits": 32}


PAPER = {
    "data": {"name": "digits", "clients": 4, "split": {"val": 0.1}},
    "run": {"rounds": 4, "batch_size": 32},
}


def _trained(row):
    built = build({**PAPER, "methods": [row]})
    (method,) = built.methods.values()
    run = fedax.simulate(method, built.task, built.data, rounds=4, batch_size=32)
    again = build(built.config).methods
    assert repr(again) == repr(built.methods)  # config.toml makes the same method
    return [float(leaf.sum()) for leaf in jax.tree.leaves(run.params)], built


@pytest.mark.parametrize(
    ("table", "solver"),
    [
        ({"name": "adamw", "learning_rate": 0.01, "weight_decay": 0.1},
         lambda: fedax.Optax(optax.adamw, learning_rate=0.01, weight_decay=0.1)),
        ({"name": "AdamW", "learning_rate": 0.01}, lambda: fedax.Optax(optax.adamw, learning_rate=0.01)),
        ([{"name": "clip_by_global_norm", "max_norm": 0.1}, {"name": "sgd", "learning_rate": 0.5, "momentum": 0.9}],
         lambda: fedax.Optax(optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.5, momentum=0.9)))),
    ],
)  # fmt: skip
def test_a_solver_of_a_file_is_that_of_optax(table, solver):
    found, built = _trained({"name": "fedavg", "solver": table})
    run = fedax.simulate(fedax.create("fedavg", solver=solver()), built.task, built.data, rounds=4, batch_size=32)
    assert found == pytest.approx([float(leaf.sum()) for leaf in jax.tree.leaves(run.params)], rel=1e-5)


@pytest.mark.parametrize(
    ("table", "server"),
    [
        ({"name": "lion", "learning_rate": 0.01}, lambda: fedax.OptaxServer(optax.lion, learning_rate=0.01)),
        ([{"name": "clip_by_global_norm", "max_norm": 0.1}, {"name": "adam", "learning_rate": 0.1}],
         lambda: fedax.OptaxServer(optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.1)))),
        ({"name": "adam", "server_lr": 0.1, "beta1": 0.5}, lambda: fedax.Adaptive("adam", server_lr=0.1, beta1=0.5)),
    ],
)  # fmt: skip
def test_a_server_of_a_file_is_fedax_s_or_optax_s(table, server):
    found, built = _trained({"name": "fedavg", "server": table})
    run = fedax.simulate(fedax.create("fedavg", server=server()), built.task, built.data, rounds=4, batch_size=32)
    assert found == pytest.approx([float(leaf.sum()) for leaf in jax.tree.leaves(run.params)], rel=1e-5)


def test_the_methods_lr_is_that_of_its_solver_and_may_be_a_schedule_of_the_round():
    cosine = {"kind": "cosine", "value": 0.5, "rounds": 4, "warmup": 1}
    by_lr, _ = _trained({"name": "fedavg", "lr": cosine, "solver": "sgd"})
    inside, _ = _trained({"name": "fedavg", "solver": [{"name": "sgd", "learning_rate": cosine}]})
    plain, _ = _trained({"name": "fedavg", "lr": cosine})
    constant, _ = _trained({"name": "fedavg", "lr": 0.5})
    assert by_lr == pytest.approx(plain, rel=1e-5) and inside == pytest.approx(plain, rel=1e-5)
    assert constant != pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize(
    ("row", "field", "hint"),
    [
        ({"solver": {"name": "adamm", "learning_rate": 0.1}}, "methods.fedavg.solver.name", "'adam'"),
        ({"solver": {"name": "adam", "learning_rat": 0.1, "learning_rate": 1.0}}, "methods.fedavg.solver.learning_rat",
         "'learning_rate'"),
        ({"solver": {"name": "adam"}}, "methods.fedavg.solver.learning_rate", "lr"),
        ({"solver": {"name": "adam", "learning_rate": 0.1}, "lr": 0.1}, "methods.fedavg.solver.learning_rate", "one"),
        ({"solver": "adam", "lr": -0.1}, "methods.fedavg.lr", "(0"),
        ({"solver": {"name": "adam", "learning_rate": "fast"}}, "methods.fedavg.solver.learning_rate", "number"),
        ({"solver": {"name": "adam", "learning_rate": True}}, "methods.fedavg.solver.learning_rate", "number"),
        ({"solver": {"name": "sgd", "learning_rate": 0.1, "nesterov": 1}}, "methods.fedavg.solver.nesterov", "true"),
        ({"solver": [{"name": "sgd", "learning_rate": 0.1}, {"name": "clip", "max_delta": 1.0}]},
         "methods.fedavg.solver[1].name", "step"),
        ({"solver": [{"name": "clip", "max_norm": 1.0}, "sgd"], "lr": 0.1}, "methods.fedavg.solver[0].max_norm",
         "max_delta"),
        ({"solver": 3}, "methods.fedavg.solver", "table"),
        ({"solver": []}, "methods.fedavg.solver", "table"),
        ({"solver": "sgd", "lr": 0.1, "momentum": 0.9}, "methods.fedavg.momentum", "solver"),
        ({"server": {"name": "lion"}}, "methods.fedavg.server.learning_rate", "missing"),
        ({"server": {"name": "lyon", "learning_rate": 0.1}}, "methods.fedavg.server.name", "'lion'"),
        ({"server": {"name": "adam", "learning_rate": 0.1}}, "methods.fedavg.server.learning_rate", "server_lr"),
        ({"server": {"name": "lion", "learning_rate": 0.1}, "server_lr": 0.1}, "methods.fedavg.server_lr", "object"),
        ({"lr": {"kind": "cosin", "value": 0.1, "rounds": 9}}, "methods.fedavg.lr.kind", "'cosine'"),
        ({"lr": {"kind": "cosine", "value": 0.1}}, "methods.fedavg.lr.rounds", "missing"),
        ({"lr": {"kind": "cosine", "value": 0.1, "rounds": 5, "warmup": 5}}, "methods.fedavg.lr.rounds", "6"),
        ({"lr": {"kind": "step", "value": 0.1, "every": 5, "factor": 2.0}}, "methods.fedavg.lr.factor", "(0, 1]"),
        ({"lr": {"kind": "step", "value": 0.1, "every": 0.5, "factor": 0.5}}, "methods.fedavg.lr.every", "whole"),
    ],
)  # fmt: skip
def test_errors_of_solvers_and_schedules_name_the_setting(row, field, hint):
    with pytest.raises(fedax.ConfigError) as caught:
        build({**PAPER, "methods": [{"name": "fedavg", **row}]})
    assert caught.value.field == field and hint in caught.value.hint
