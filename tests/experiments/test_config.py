"""A configuration: its defaults, and its errors on mistakes."""

import copy
import functools
import re
import tomllib

import numpy as np
import pytest

import fedax
from fedax.experiments import build, datasets, override, read_toml, recipes, tasks, toml
from fedax.experiments.config import codec
from fedax.experiments.config.data import deal
from fedax.experiments.defaults import TASKS_OF, comparison

GOOD = {
    "data": {"name": "digits", "clients": 4, "partition": "dirichlet", "alpha": 0.5, "min_size": 5},
    "work": {"kind": "steps", "steps": 2},
    "run": {"rounds": 3, "batch_size": 16, "seeds": 2},
    "methods": [{"name": "fedavg", "lr": 0.1}, {"name": "fedprox", "lr": 0.1, "prox": 0.5}],
}


def test_all_defaults_are_filled_in():
    config = build({k: GOOD[k] for k in ("data", "run", "methods")}).config
    assert config["name"] == "digits"
    assert config["data"] == {**GOOD["data"], "seed": 0, "weights": "sizes"}
    assert config["task"]["name"] == "softmax_regression" and config["task"]["l2"] == 0.0
    assert config["work"] == {"kind": "epochs", "epochs": 1}
    assert config["participation"] == {"kind": "full"}
    assert config["run"] == {
        "rounds": 3, "batch_size": 16, "seeds": [0, 1], "grad_norm": False, "split_seeds": False,
    }  # fmt: skip
    assert config["methods"][0]["label"] == "fedavg" and config["methods"][0]["nesterov"] is False


def test_each_seed_has_a_split_of_its_own():
    data = GOOD["data"] | {"seed": 10}
    one = build(GOOD | {"data": data, "run": GOOD["run"] | {"seeds": [3, 0], "split_seeds": True}})
    again = build(tomllib.loads(toml.dumps(one.config)))
    assert again.config == one.config and one.config["data"]["seed"] == 10
    for seed in (3, 0):
        alone = build(GOOD | {"data": data | {"seed": 10 + seed}})
        for experiment in (one, again):
            np.testing.assert_array_equal(experiment.split(seed)[0].examples["x"], alone.data.examples["x"])
    assert one.data is one.split(3)[0] and one.split(0)[0].sizes.tolist() != one.data.sizes.tolist()
    plain = build(GOOD)
    assert plain.split(1) == (plain.data, None, plain.test)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run": {"split_seeds": "yes"}}, "run.split_seeds = 'yes'"),
        ({"run": {"judge": "test_los"}}, "run.judge = 'test_los': did you mean"),
        ({"run": {"judge": "grad_norm_sq"}}, "run.judge = 'grad_norm_sq'"),
        ({"run": {"judge": "density", "density": 0.1}}, "does not tell which way is better"),
    ],
)
def test_bad_choices_of_what_is_compared(changes, message):
    with pytest.raises(fedax.ConfigError, match=re.escape(message)):
        build(GOOD | {name: GOOD[name] | table for name, table in changes.items()})


def test_objectives_with_unlike_penalties_do_not_decide():
    penalties = [{"name": "l1", "weight": weight} for weight in (0.1, 0.2)]
    methods = [{"name": "fedavg", "label": str(k), "regularizer": psi} for k, psi in enumerate(penalties)]
    with pytest.raises(fedax.ConfigError, match="different regularizers"):
        build(GOOD | {"run": GOOD["run"] | {"judge": "objective"}, "methods": methods})
    same = [method | {"regularizer": penalties[0]} for method in methods]
    assert build(GOOD | {"run": GOOD["run"] | {"judge": "objective"}, "methods": same}).config["run"]["judge"]


def test_clients_that_are_given_have_no_other_split(tmp_path):
    fedax.data.quadratics(4, 2).save(tmp_path / "own")
    config = {
        "data": {"name": "folder", "path": str(tmp_path / "own")},
        "task": {"name": "quadratic"},
        "run": {"rounds": 1, "seeds": 2, "split_seeds": True},
        "methods": [{"name": "fedavg"}],
    }
    with pytest.raises(fedax.ConfigError, match=r"split_seeds = True: .*clients are given"):
        build(config)


def test_the_objects_are_those_configured():
    experiment = build(GOOD)
    parts = fedax.data.dirichlet(fedax.data.load("digits").train["y"], clients=4, alpha=0.5, min_size=5)
    assert experiment.data.sizes.tolist() == [len(part) for part in parts]
    assert experiment.methods["fedprox"].solver.prox == 0.5
    assert experiment.work == fedax.Steps(2)
    assert experiment.classes == [str(c) for c in range(10)]


def test_the_settings_of_the_place():
    run = GOOD["run"] | {"chunk_size": 2, "precision": "tensorfloat32"}
    experiment = build(GOOD | {"run": run})
    assert experiment.options["place"] == fedax.Place(chunk_size=2, precision="tensorfloat32")
    assert build(tomllib.loads(toml.dumps(experiment.config))).config == experiment.config
    assert [experiment.config["run"][name] for name in ("chunk_size", "precision")] == [2, "tensorfloat32"]
    (label, *_) = experiment.methods
    for problem in (experiment.problem(label), experiment.problem_alone(0.1, 3)):  # what nodes have to know
        assert problem["run"]["precision"] == "tensorfloat32" and "chunk_size" not in problem["run"]


def test_the_resolved_configuration_builds_the_same_again():
    first = build(GOOD)
    again = build(tomllib.loads(toml.dumps(first.config)))
    assert again.config == first.config
    assert again.task is first.task  # one object, or JAX would compile again
    np.testing.assert_array_equal(again.data.examples["x"], first.data.examples["x"])


@pytest.mark.parametrize(
    ("partition", "parameters"),
    [
        ("iid", {}),
        ("dirichlet", {"alpha": 0.3}),
        ("dirichlet-labels", {"alpha": 0.3}),
        ("shards", {"per_client": 2}),
        ("dominant", {"share": 0.8}),
        ("power-law", {"exponent": 1.5}),
    ],
)
def test_every_partition_has_all_examples_and_uniform_weights_on_demand(partition, parameters):
    data = {"name": "digits", "clients": 10, "partition": partition, "weights": "uniform", **parameters}
    made = build({**GOOD, "data": data}).data
    assert made.num_clients == 10 and made.num_examples == len(fedax.data.load("digits").train["y"])
    np.testing.assert_allclose(made.weights, 0.1)


@pytest.mark.parametrize(
    ("work", "kind"),
    [
        ({"kind": "epochs", "epochs": 2}, fedax.Epochs),
        ({"kind": "random-epochs", "low": 1, "high": 3}, fedax.RandomEpochs),
        ({"kind": "random-steps", "mean": 5, "std": 2, "low": 1, "high": 9}, fedax.RandomSteps),
        ({"kind": "geometric-steps", "mean": 5.0}, fedax.GeometricSteps),
        ({"kind": "deadline", "time": 2.0, "speed": [1.0, 2.0, 3.0, 4.0]}, fedax.Deadline),
    ],
)
def test_every_kind_of_work(work, kind):
    assert isinstance(build({**GOOD, "work": work}).work, kind)


def test_generated_data_bring_their_clients_and_tests():
    experiment = build({**GOOD, "data": {"name": "synthetic", "alpha": 1.0, "beta": 0.0, "clients": 5}})
    assert experiment.data.num_clients == 5 and experiment.test.examples["x"].shape[1] == 60
    quadratics = build({**GOOD, "data": {"name": "quadratics", "clients": 3, "dimension": 2}})
    assert quadratics.config["task"] == {"name": "quadratic"} and quadratics.test is None


def test_mnist_by_writer(data_folder):
    experiment = build({**GOOD, "data": {"name": "mnist", "partition": "column", "column": "writer"}})
    assert experiment.data.num_clients == 539 and experiment.data.sizes.min() == 19


def test_schedules_are_tables():
    lr = {"value": 0.5, "at": {"2": 0.1, "7": 0.5}}
    method = build({**GOOD, "methods": [{"name": "fedavg", "lr": lr}]}).methods["fedavg"]
    np.testing.assert_allclose([method.solver.lr(r) for r in (0, 2, 7)], [0.5, 0.05, 0.025])
    power = build({**GOOD, "methods": [{"name": "fedavg", "lr": {"value": 1.0, "power": 1.0}}]}).methods["fedavg"]
    assert power.solver.lr(3) == 0.25


def test_methods_that_come_twice_are_told_apart_by_what_differs():
    methods = [{"name": "fedprox", "lr": 0.1, "prox": p} for p in (0.1, 1.0)] + [{"name": "fedavg"}]
    assert list(build({**GOOD, "methods": methods}).methods) == ["fedprox prox=0.1", "fedprox prox=1.0", "fedavg"]


def test_clients_that_fail_and_averages_that_bear_it():
    faults, run = {"clients": 0.5, "sends": float("nan")}, {"guard": {"largest": 9.0}, "aggregate": "geometric-median"}
    first = build(put(run=run | {"faults": faults}, participation={"kind": "uniform", "size": 2, "dropout": 0.1}))
    experiment = build(tomllib.loads(toml.dumps(first.config)))
    options = experiment.options
    assert options["guard"] == fedax.Guard(largest=9.0)
    assert options["aggregate"] == fedax.GeometricMedian()
    assert len(options["faults"].of(4)) == 2 and np.isnan(options["faults"].sends)
    assert {name: options[name] for name in ("rounds", "batch_size")} == {"rounds": 3, "batch_size": 16}
    assert experiment.participation.rate == 0.1 and experiment.participation.of.size == 2
    listed = build(put(run={"aggregate": {"name": "trimmed-mean", "share": 0.2}, "guard": True}))
    assert listed.options["aggregate"] == fedax.TrimmedMean(0.2) and listed.options["guard"] is True
    table = build(put(participation={"available": [[True, True, False, True]] * 3})).participation
    assert table.available.shape == (3, 4)


def test_the_pace():
    hinge = {"name": "hinge", "slope": 2.0, "after": 3}
    pairs = [
        ({"concurrency": 4, "buffer": 2, "start": "idle"}, fedax.Async(4, 2, start="idle")),
        ({"concurrency": 3, "staleness": {"name": "polynomial"}}, fedax.Async(3, 1, fedax.PolynomialStaleness())),
        ({"concurrency": 3, "staleness": hinge, "grace": 0.5}, fedax.Async(3, 1, fedax.HingeStaleness(2.0, 3), 0.5)),
        ({"concurrency": 3, "weights": "corrected", "max_staleness": 9},
         fedax.Async(3, weights="corrected", max_staleness=9)),
    ]  # fmt: skip
    for table, want in pairs:
        made = build(put(clock={"step": 1.0}, pace=table))
        assert repr(made.options["pace"]) == repr(want) and made.config["pace"] == table
        assert repr(build(tomllib.loads(toml.dumps(made.config))).options["pace"]) == repr(want)
        assert repr(build(put(clock={"step": 1.0}, pace=codec.PACE.write(want))).options["pace"]) == repr(want)


def test_the_clock(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("client,step,up\n0,1,8\n1,2,8\n2,3,8\n3,4,8\n")
    each = {str(i): float(1 + i) for i in range(4)}
    for table, want in (
        (
            {"preset": "hospitals", "latency": 1.0},
            fedax.Clock(**{**fedax.Clock.hospitals().arguments(), "latency": 1.0}),
        ),
        (
            {"trace": str(path), "up": {"name": "exponential", "mean": 9.0}},
            fedax.Clock(each, up=fedax.Exponential(9.0)),
        ),
        ({"step": [1, 2, 3, 4], "server": 2}, fedax.Clock([1, 2, 3, 4], server=2)),
    ):
        first = build(put(clock=table))
        assert first.options["clock"] == want and first.config["clock"] == table
        assert build(tomllib.loads(toml.dumps(first.config))).options["clock"] == want
    assert "clock" not in build(GOOD).config and "clock" not in build(GOOD).options


def without(*path):
    config = copy.deepcopy(GOOD)
    table = config
    for key in path[:-1]:
        table = table[key]
    del table[path[-1]]
    return config


def put(**sections):
    config = copy.deepcopy(GOOD)
    for name, change in sections.items():
        config[name] = {**config.get(name, {}), **change} if isinstance(change, dict) else change
    return config


BAD = [
    # configuration, field that the message names, way out
    (put(runs={}), "runs", "did you mean 'run'"),
    (put(run={"round": 3}), "run.round", "did you mean 'rounds'"),
    (put(run={"rounds": 0}), "run.rounds = 0", "greater than 0"),
    (put(run={"rounds": "many"}), "run.rounds = 'many'", "valid integer"),
    (put(run={"batch_size": -1}), "run.batch_size = -1", "greater than 0"),
    (put(run={"seeds": [1, 1]}), "run.seeds = [1, 1]", "different"),
    (put(run={"seeds": "three"}), "run.seeds = 'three'", "number of seeds"),
    (put(run={"seeds": 0}), "run.seeds = 0", "number of seeds"),
    (without("run"), "run", "missing"),
    (without("run", "rounds"), "run.rounds", "missing"),
    (without("methods"), "methods", "missing"),
    (put(methods=[]), "methods", "missing"),
    (put(methods=[{"name": "fedavgg"}]), "methods.fedavgg.name", "did you mean 'fedavg'"),
    (put(methods=[{"name": "fedavg", "lrr": 1}]), "methods.fedavg.lrr", "did you mean 'lr'"),
    (put(methods=[{"name": "fedavg", "lr": -0.1}]), "methods.fedavg.lr = -0.1", "give a number in (0"),
    (put(methods=[{"name": "fedavg", "lr": "big"}]), "methods.fedavg.lr = 'big'", "give a number"),
    (put(methods=[{"name": "fedavg"}] * 2), "methods[1].label = 'fedavg'", "own label"),
    (put(methods=[{"name": "fedavg", "lr": {"value": 1, "at": {"x": 2}}}]), "methods.fedavg.lr.at", "by round"),
    (put(methods=[{"name": "fedavg", "lr": {"value": 1, "at": {"2": -1}}}]), "methods.fedavg.lr.at.2 = -1", "(0, ∞)"),
    (put(methods=[{"name": "fedavg", "lr": {"value": "x"}}]), "methods.fedavg.lr.value = 'x'", "give a number"),
    (put(methods=[{"name": "fedavg", "lr": {"valu": 1}}]), "methods.fedavg.lr.valu", "did you mean 'value'"),
    ({**GOOD, "methods": {"name": "fedavg"}}, "methods", "valid list"),
    (put(data={"name": "digit"}), "data.name", "did you mean 'digits'"),
    (put(data={"partition": "dirichlett"}), "data.partition", "did you mean 'dirichlet'"),
    (put(data={"alhpa": 1.0}), "data.alhpa", "did you mean 'alpha'"),
    (put(data={"alpha": -1.0}), "data.alpha = -1.0", "give a number"),
    (put(data={"clients": 10**6}), "data.clients", "1442"),
    (put(data={"min_size": 1000}), "data.min_size", "give at most"),
    (put(data={"weights": "all"}), "data.weights = 'all'", "'sizes' or 'uniform'"),
    (without("data", "clients"), "data.clients", "missing"),
    (without("data", "alpha"), "data.alpha", "missing"),
    (put(data={"name": "synthetic", "beta": 1.0}), "data.partition", "leave it out"),
    ({**GOOD, "data": {"name": "digits", "partition": "column", "column": "writer"}}, "data.partition", "no columns"),
    (put(task={"name": "softmax"}), "task.name", "did you mean 'softmax_regression'"),
    (put(task={"l3": 1}), "task.l3", "did you mean 'l2'"),
    (put(task={"classes": 3}), "task.classes = 3", "leave it out"),
    (put(task={"name": "quadratic"}), "task.name = 'quadratic'", "softmax_regression"),
    (put(work={"kind": "stps"}), "work.kind", "did you mean 'steps'"),
    (put(work={"steps": 0}), "work.steps = 0", "at least 1"),
    (put(work={"steps": [1, 2]}), "work.steps", "4 clients"),
    ({**GOOD, "work": {"kind": "random-epochs", "low": 3, "high": 2}}, "work.high = 2", "at least"),
    ({**GOOD, "work": {"kind": "random-epochs", "low": 3}}, "work.high", "missing"),
    (put(participation={"kind": "uniform", "size": 5}), "participation.size = 5", "all 4 clients"),
    (put(participation={"kind": "unifrm"}), "participation.kind", "did you mean 'uniform'"),
    (put(participation={"kind": "full", "size": 3}), "participation.size = 3", "leave it out"),
    (put(participation={"kind": "trace", "cohorts": [[0]]}), "participation.cohorts", "3 rounds"),
    (put(participation={"dropout": 1.0}), "participation.dropout.rate = 1.0", "[0, 1)"),
    (put(participation={"dropout": [0.5]}), "participation.dropout.rate", "4 clients"),
    (put(participation={"dropout": 0.5, "available": [[True]]}), "participation.dropout.rate", "one of them"),
    (put(participation={"available": [[True] * 4]}), "participation.dropout.available", "3 rounds"),
    (put(participation={"available": [[1, 0]]}), "participation.dropout.available", "booleans"),
    (put(run={"precision": "half"}), "run.precision = 'half'", "'float32', 'tensorfloat32' or 'bfloat16'"),
    (put(run={"guard": {"largest": 0}}), "run.guard.largest = 0", "(0, ∞)"),
    (put(run={"guard": {"most": 1}}), "run.guard.most", "There are: largest, stop"),
    (put(run={"guard": "yes"}), "run.guard", "valid"),
    (put(run={"aggregate": "coordinate-medain"}), "run.aggregate", "did you mean 'coordinate-median'"),
    (put(run={"aggregate": {"name": "trimmed-mean", "share": 1}}), "run.aggregate.share = 1", "(0, 0.5)"),
    (put(run={"aggregate": {"name": "clipped-mean"}}), "run.aggregate.norm", "missing"),
    (put(run={"aggregate": {"share": 0.1}}), "run.aggregate.name = None", "give a name: clipped-mean"),
    (put(run={"faults": {"clients": [4], "sends": 1.0}}), "run.faults.clients = 4", "4 clients"),
    (put(run={"faults": {"clients": 0.5}}), "run.faults.sends", "either"),
    (put(clock={"stepp": 1.0}), "clock.stepp", "did you mean 'step'"),
    (put(clock={"step": -1.0}), "clock.step = -1.0", "[0, ∞)"),
    (put(clock={"step": [1.0, 2.0]}), "clock.step = '2 clients'", "4 clients"),
    (put(clock={"step": {"name": "lognormall"}}), "clock.step.name", "did you mean 'lognormal'"),
    (put(clock={"step": {"name": "lognormal", "median": 1.0}}), "clock.step.sigma", "missing"),
    (put(clock={"up": {"somebody": 1.0}}), "clock.up = 'somebody'", "no such clients"),
    (put(clock={"available": {"0": [[2, 1]]}}), "clock.available.0", "0 ≤ on < off"),
    (put(clock={"preset": "phone"}), "clock.preset", "did you mean 'phones'"),
    (put(clock={"preset": "phones", "trace": "a.csv"}), "clock.preset", "one of them"),
    (put(clock={"trace": "nowhere.csv"}), "clock: nowhere.csv", "cannot be read"),
    (put(clock=1.0), "clock = 1.0", "give a table"),
    (put(pace={"concurrency": 3, "bufer": 2}), "pace.bufer", "did you mean 'buffer'"),
    (put(pace={}), "pace.concurrency", "missing"),
    (put(pace={"concurrency": 0}), "pace.concurrency = 0", "at least 1"),
    (put(pace={"concurrency": 3, "staleness": {"name": "linear"}}), "pace.staleness.name", "polynomial"),
    (put(pace={"concurrency": 3, "staleness": {"name": "hinge", "slop": 1}}), "pace.staleness.slop", "slope"),
]


@pytest.mark.parametrize(("config", "field", "hint"), BAD, ids=[f"{field}-{i}" for i, (_, field, _) in enumerate(BAD)])
def test_bad_input_names_the_field_and_the_way_out(config, field, hint):
    with pytest.raises(fedax.DataError if field == "clock: nowhere.csv" else fedax.ConfigError) as caught:
        build(config)
    assert str(caught.value).startswith(field)
    assert hint in str(caught.value)


def test_absent_data_say_where_they_are_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDAX_DATA", str(tmp_path))
    with pytest.raises(fedax.DataError, match="mnist"):
        build(put(data={"name": "mnist"}))


def test_a_misspelt_method_does_not_wait_for_the_data(monkeypatch):
    monkeypatch.setattr(fedax.data, "load", lambda name: pytest.fail("the data were loaded"))
    with pytest.raises(fedax.ConfigError, match="fedavgg"):
        build(put(methods=[{"name": "fedavgg"}]))


def test_files_that_are_no_toml(tmp_path):
    with pytest.raises(fedax.ConfigError, match="give a TOML file"):
        read_toml(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("[run\n")
    with pytest.raises(fedax.ConfigError, match="line 1"):
        read_toml(tmp_path / "bad.toml")


@pytest.fixture(scope="module")
def loaded_once():
    """Data sets, read once for all recipes, and dealt once for neighbours that deal them alike."""
    last = {}

    def dealt(section, fleet=None):
        key = section.model_dump_json()
        if key not in last:
            last.clear()  # each is as large as its data set
            last[key] = deal(section, fleet)
        return last[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedax.data, "load", functools.cache(fedax.data.load))
        patch.setattr("fedax.experiments.config.experiment.deal", dealt)
        yield


@pytest.mark.parametrize("name", recipes())
def test_recipes_are_good_configurations(name, request, loaded_once):
    config = read_toml(name)
    if config["data"]["name"] in (
        "mnist",
        "fashion_mnist",
        "cifar10",
        "a9a",
        "w8a",
        "noiseless_regression",
        "fed_heart_disease",
    ):
        request.getfixturevalue("data_folder")
    assert build(config).config["name"] == name


def test_a_misspelt_recipe():
    with pytest.raises(fedax.ConfigError, match="did you mean 'fednova-figure-2-equal'"):
        read_toml("fednova-figure-2-equl")


def test_overrides():
    config = copy.deepcopy(GOOD)
    for setting in ("run.rounds=7", "methods.*.lr=0.5", "methods.fedprox.prox = 2", "run.seeds=[3, 4]", "name=my test"):
        override(config, setting)
    assert config["run"] == {"rounds": 7, "batch_size": 16, "seeds": [3, 4]} and config["name"] == "my test"
    assert config["methods"] == [{"name": "fedavg", "lr": 0.5}, {"name": "fedprox", "lr": 0.5, "prox": 2}]


def test_an_override_names_an_entry_of_a_list():
    config = {"methods": [{"name": "fedavg", "solver": [{"name": "clip", "max_delta": 1.0}, "sgd"]}]}
    override(config, "methods.*.solver.clip.max_delta=2.0")
    override(config, "methods.fedavg.solver.sgd.momentum=0.9")
    assert config["methods"][0]["solver"] == [{"name": "clip", "max_delta": 2.0}, {"name": "sgd", "momentum": 0.9}]
    config["methods"] = [{"name": "fedavg", "solver": "adam"}]
    override(config, "methods.*.solver.weight_decay=0.1")
    assert config["methods"][0]["solver"] == {"name": "adam", "weight_decay": 0.1}


def test_another_partition_drops_the_parameters_of_the_former():
    config = copy.deepcopy(GOOD)
    override(config, "data.partition=shards")
    override(config, "work.kind=steps")  # as it is: nothing changes
    assert config["data"] == {"name": "digits", "clients": 4, "partition": "shards"}
    assert config["work"] == GOOD["work"]


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("run.rounds", "section.key=value"),
        ("=3", "section.key=value"),
        ("lr=3", "There are: clock, data"),
        ("rnu.rounds=3", "did you mean 'run'"),
        ("methods.lr=3", "name the method"),
        ("methods.fedproxx.lr=3", "did you mean 'fedprox'"),
        ("run.rounds.at=3", "rounds is a value"),
        ("run.metrics.auc=3", "name a setting"),
        ("run.metrics.acu.bins=3", "did you mean 'auc'"),
    ],
)
def test_bad_overrides(setting, hint):
    config = copy.deepcopy(GOOD)
    config["run"]["metrics"] = ["auc"]
    with pytest.raises(fedax.ConfigError) as caught:
        override(config, setting)
    assert hint in str(caught.value)


def test_every_data_set_has_a_task_and_a_comparison():
    own = {"folder", "csv", "parquet", "arrow", "images", "hdf5", "leaf"}  # one's own data, whose task depends on them
    assert set(TASKS_OF) == set(datasets()) - own
    for name in TASKS_OF:
        assert TASKS_OF[name] in tasks()
        assert comparison(name, ["fedavg"])["data"]["name"] == name


@pytest.mark.parametrize("name", ["digits", "synthetic", "quadratics"])
def test_comparisons_build(name):
    assert build(comparison(name, ["fedavg"])).config["name"] == f"compare-{name}"


def test_toml_survives_odd_texts_and_numbers():
    config = {"a": 'quote " back \\ tab\t line\n μ \x7f', "b": [1, 2.5, True], "t": {"odd key.": 1e-7}, "m": [{"x": 1}]}
    assert tomllib.loads(toml.dumps(config)) == config


def test_ones_own_data_come_from_a_folder(tmp_path):
    mine = fedax.FederatedData(
        {"x": np.arange(12.0).reshape(6, 2), "y": np.array([0, 1, 2, 0, 1, 2])}, [4, 2], [0.7, 0.3]
    )
    mine.save(tmp_path / "train")
    mine.save(tmp_path / "test")
    tables = {
        "data": {"name": "folder", "path": str(tmp_path / "train"), "test": str(tmp_path / "test")},
        "task": {"name": "softmax_regression"},
        "run": {"rounds": 1},
        "methods": [{"name": "fedavg", "lr": 0.1}],
    }
    experiment = build(tables)
    assert experiment.data.sizes.tolist() == [4, 2] and experiment.data.weights.tolist() == [0.7, 0.3]
    assert experiment.test.examples["y"].tolist() == [0, 1, 2, 0, 1, 2]
    again = build(experiment.config)  # as config.toml has it
    assert again.config == experiment.config and again.data.weights.tolist() == [0.7, 0.3]
    uniform = build(tables | {"data": tables["data"] | {"weights": "uniform"}})
    assert uniform.data.weights.tolist() == [0.5, 0.5]
    for wrong, field in (
        (tables | {"task": {}}, "task.name"),
        (tables | {"data": {"name": "folder"}}, "data.path"),
        (tables | {"data": tables["data"] | {"seed": 3}}, "data.seed"),
        (tables | {"data": {"name": "folder", "path": str(tmp_path / "none")}}, "data: .*no examples"),
    ):
        with pytest.raises(fedax.FedaxError, match=field):
            build(wrong)
