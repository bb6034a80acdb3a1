"""Bad input ends in one error that names the field, the value and the way out, before anything is compiled."""

import importlib

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import ConfigError, DataError

from .problem import DATA, FEATURES, SIZES, TASK, P, federation

simulate = importlib.import_module("fedax.engine.simulate")
FEDAVG = fedax.create("fedavg", lr=0.05)
GOOD = {"x": np.zeros((6, 3)), "y": np.zeros(6)}


def check(examples):
    if (examples["y"] < -50).any():
        raise DataError("y: label -99 is out of range; labels are at least -50")


CHECKED = fedax.Task(TASK.init, TASK.loss, TASK.metrics, check)


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    """The run itself is out of order: an error has to come before it."""

    def never(*args, **options):
        raise AssertionError("compiled before the input was checked")

    for name in ("_prepare", "_advance"):
        monkeypatch.setattr(simulate, name, never)


def run(**changed):
    options = {"algorithm": FEDAVG, "task": TASK, "data": DATA, "rounds": 3} | changed
    return fedax.simulate(options.pop("algorithm"), options.pop("task"), options.pop("data"), **options)


def test_good_input_gets_as_far_as_the_run():
    with pytest.raises(AssertionError, match="compiled"):
        run(task=CHECKED, test=GOOD, params={"w": np.zeros(3), "b": 0.0})


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("field", "values", "way_out"),
    [
        ("algorithm", ["fedavg", None, fedax.FedAvg, fedax.SGD(0.1)], "fedax.create"),
        ("task", ["mlp", None, TASK.loss], "fedax.Task"),
        ("data", [None, DATA.examples, "cifar10"], "fedax.FederatedData"),
        ("work", [5, "epochs", fedax.Epochs], "Steps, Epochs"),
        ("participation", [0.5, "full", fedax.Full], "Full, Uniform"),
        ("rounds", [-1, 2.5, "3", None, True], "whole number of at least 0"),
        ("seed", [-1, 0.5, "0", None, True], "whole number of at least 0"),
        ("seed", [2**32, 2**64], "whole number"),
        ("batch_size", [0, -4, 2.0, "32", False], "whole number of at least 1"),
        ("evaluate_every", [0, -1, 1.5, "2"], "whole number of at least 1"),
        ("chunk_size", [0, -1, 1.5, "2"], "whole number of at least 1"),
        ("callback", [3, "print"], "function"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_of_a_wrong_type_or_range(field, values, way_out):
    for value in values:
        with pytest.raises(ConfigError, match=way_out) as caught:
            run(**{field: value})
        assert caught.value.field == field and caught.value.value is value
        assert str(caught.value).startswith(f"{field} = {value!r}"[:50])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"participation": fedax.Uniform(6)}, "size = 6: a cohort has at most all 5 clients"),
        ({"participation": fedax.UniformNormalized(9)}, "size = 9: a cohort has at most all 5 clients"),
        ({"participation": fedax.Trace([[0], [1]])}, "cohorts = '2 cohorts': give one for each of the 3 rounds"),
        ({"participation": fedax.Trace([[0], [1], [5]])}, "cohorts = 5: there are 5 clients"),
        ({"work": fedax.Steps([1, 2, 3])}, "steps = '3 numbers': give one for each of the 5 clients"),
        ({"work": fedax.Deadline(1.0, [2.0, 3.0])}, "steps = '2 numbers'|speed = '2 numbers'"),
        ({"algorithm": fedax.FedAvg(fedax.SGD(-0.1))}, r"lr = -0.1: give a number in \(0, ∞\)"),
        ({"algorithm": fedax.FedAvg(fedax.SGD(0.1, momentum=1.0))}, r"momentum = 1.0: give a number in \[0, 1\)"),
        ({"params": {"w": np.zeros(3)}}, "params = .*: the task's are"),
        ({"params": np.zeros(4)}, "params = .*: the task's are"),
        ({"params": {"w": np.zeros(4), "b": 0.0}}, r"params\['w'\] = \(4,\): the task's shape is \(3,\)"),
        ({"params": {"w": np.zeros(3), "b": np.zeros(1)}}, r"params\['b'\] = \(1,\): the task's shape is \(\)"),
        (
            {"params": {"w": np.array([0.0, np.nan, 0.0]), "b": 0.0}},
            r"params\['w'\] = .*: .*not finite",
        ),
    ],
)
def test_settings_that_do_not_fit_each_other(options, message):
    with pytest.raises(ConfigError, match=message):
        run(**options)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (fedax.Task(lambda key: {"w": jnp.zeros(3, int), "b": jnp.zeros(())}, TASK.loss), r"task.init\['w'\] = .*int"),
        (fedax.Task(TASK.init, lambda *a: jnp.mean(TASK.loss(*a))), r"task.loss = .*one loss per example.* \[b\]"),
        (fedax.Task(TASK.init, lambda *a: TASK.loss(*a)[:, None]), "task.loss"),
        (fedax.Task(TASK.init, lambda *a: 0.0), "task.loss = "),
        (fedax.Task(TASK.init, TASK.loss, {"mean": lambda p, b: jnp.mean(b["y"])}), r"task.metrics.*mean.*\[b\]"),
    ],
    ids=["integer parameters", "mean loss", "column of losses", "number as loss", "mean as metric"],
)
def test_tasks_that_break_the_contract(task, message):
    with pytest.raises(ConfigError, match=message):
        run(task=task, test=GOOD)


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ({"x": GOOD["x"]}, "test: its structure"),
        ((GOOD["x"], GOOD["y"]), "test: its structure"),
        ({"x": GOOD["x"], "y": GOOD["y"][:5]}, "leading axes"),
        ({"x": GOOD["x"][:0], "y": GOOD["y"][:0]}, "0 examples|no example"),
        ({"x": np.zeros((6, FEATURES + 1)), "y": GOOD["y"]}, r"test.*x.*\(4,\).*\(3,\)"),
        ({"x": np.full((6, 3), np.nan), "y": GOOD["y"]}, "not finite"),
        ({"x": GOOD["x"], "y": np.full(6, -99.0)}, "label -99"),
    ],
    ids=["missing", "tuple", "lengths", "empty", "shape", "nan", "label"],
)
def test_held_out_data_that_do_not_fit(test, message):
    with pytest.raises(DataError, match=message):
        run(task=CHECKED, test=test)


def test_examples_that_the_task_refuses():
    with pytest.raises(DataError, match="label -99"):
        run(task=CHECKED, data=fedax.FederatedData({"x": np.zeros((2, 3)), "y": np.array([0.0, -99.0])}, [1, 1]))


X, Y = DATA.examples["x"], DATA.examples["y"]


def changed(column, row, value):
    examples = {"x": X.copy(), "y": Y.copy()}
    examples[column][row] = value
    return examples


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fedax.FederatedData(changed("x", 7, np.nan), SIZES), r"examples\['x'\]: example 7 .*not finite"),
        (lambda: fedax.FederatedData(changed("y", 2, np.inf), SIZES), r"examples\['y'\]: example 2 .*not finite"),
        (lambda: fedax.FederatedData({"x": X, "y": Y[:-1]}, SIZES), r"examples\['y'\]: shape \(15,\).* sum to 16"),
        (lambda: fedax.FederatedData({"x": X, "y": 1.0}, SIZES), r"examples\['y'\]: shape \(\)"),
        (lambda: fedax.FederatedData({"x": X, "y": Y.astype(object)}, SIZES), r"examples\['y'\]: .*object"),
        (lambda: fedax.FederatedData({"x": X, "y": Y.astype(str)}, SIZES), r"examples\['y'\]: .*numbers"),
        (lambda: fedax.FederatedData({"x": X, "y": Y.astype("M8[s]")}, SIZES), r"examples\['y'\]: .*numbers"),
        (lambda: fedax.FederatedData({}, SIZES), "examples: there is no array in it"),
        (lambda: fedax.FederatedData(DATA.examples, SIZES[:-1]), "sizes of the clients sum to 10"),
        (lambda: fedax.FederatedData(DATA.examples, [3, 0, 5, 2, 6]), "client 1 has 0 examples"),
        (lambda: fedax.FederatedData(DATA.examples, [3, -1, 6, 2, 6]), "client 1 has -1 examples"),
        (lambda: fedax.FederatedData(DATA.examples, SIZES * 1.0), "sizes: need one whole number a client"),
        (lambda: fedax.FederatedData(DATA.examples, 16), "sizes: need one whole number a client"),
        (lambda: fedax.FederatedData(DATA.examples, []), "sizes: need one whole number a client"),
        (lambda: fedax.FederatedData(DATA.examples, None), "sizes: need one whole number a client"),
        (lambda: federation(weights=P * 2), r"weights: they sum to 2, not to 1; .*weights / weights.sum\(\)"),
        (lambda: federation(weights=P[:4] / P[:4].sum()), r"weights: shape \(4,\), but there are 5 clients"),
        (lambda: federation(weights=np.array([0.5, 0.6, -0.1, 0, 0])), "weights: client 2 has weight -0.1"),
        (lambda: federation(weights=np.array([0.5, np.nan, 0.5, 0, 0])), "weights: client 1 has weight nan"),
        (lambda: federation(weights="uniform"), "weights: .*uniform"),
        (lambda: fedax.FederatedData.from_clients([]), "clients: the list is empty"),
        (lambda: fedax.FederatedData.from_clients([{"x": X[:2]}, {"z": X[:2]}]), r"clients\[1\]: its structure"),
        (lambda: fedax.FederatedData.from_clients([{"x": X[:2], "y": Y[:3]}]), r"clients\[0\]: .*leading axes"),
        (lambda: fedax.FederatedData.from_clients([{"x": X[:2]}, {"x": X[:2, :2]}]), r"clients\[1\]: .*\(2,\).*\(3,\)"),
        (lambda: fedax.FederatedData.from_clients([{"x": X[:2]}, {"x": X[:0]}]), "client 1 has 0 examples"),
        (lambda: fedax.FederatedData.from_clients([{"x": 1.0}]), r"clients\[0\]"),
        (lambda: fedax.FederatedData.from_partition({}, [[0]]), "examples: there is no array in it"),
        (lambda: fedax.FederatedData.from_partition({"x": X, "y": Y[:9]}, [np.arange(9)]), "examples.*(9|16)"),
        (lambda: fedax.FederatedData.from_partition({"x": X, "y": 1.0}, [np.arange(9)]), "examples"),
        (lambda: fedax.FederatedData.from_partition({"x": X}, []), "parts: the list is empty"),
        (lambda: fedax.FederatedData.from_partition({"x": X}, [[0], [16]]), r"parts\[1\]: .*0 to 15"),
        (lambda: fedax.FederatedData.from_partition({"x": X}, [[0], [-1]]), r"parts\[1\]: .*0 to 15"),
        (lambda: fedax.FederatedData.from_partition({"x": X}, [[0], [0.5]]), r"parts\[1\]"),
        (lambda: fedax.FederatedData.from_partition({"x": X}, [[0], [[1, 2]]]), r"parts\[1\]"),
        (lambda: fedax.FederatedData.from_partition({"x": X}, [[0], []]), "client 1 has 0 examples"),
        (lambda: fedax.FederatedData.from_partition({"x": X}, [np.arange(16) < 3]), r"parts\[0\]"),
    ],
)
def test_data_that_are_no_federation(make, message):
    with pytest.raises(DataError, match=message):
        make()
