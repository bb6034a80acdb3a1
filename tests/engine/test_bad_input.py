"""Bad input ends in one error that names the field, the value and the way out, before anything is compiled."""

import importlib
import inspect
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from flax import linen

import fedax
from fedax import ConfigError, DataError
from fedax.errors import CodeError

from .problem import DATA, FEATURES, SIZES, TASK, P, federation

simulate = importlib.import_module("fedax.engine.simulate")
FEDAVG = fedax.create("fedavg", lr=0.05)
GOOD = {"x": np.zeros((6, 3)), "y": np.zeros(6)}

PEOPLE = pandas.DataFrame({"age": [31.0, 54.0, np.nan], "name": ["ann", "bob", "cid"]})


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
    ("field", "values", "hint"),
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
        ("place", [4, "host", fedax.Place], "fedax.Place"),
        ("callback", [3, "print"], "function"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_of_a_wrong_type_or_range(field, values, hint):
    for value in values:
        with pytest.raises(ConfigError, match=hint) as caught:
            run(**({"place": fedax.Place(chunk_size=value)} if field == "chunk_size" else {field: value}))
        assert caught.value.field == field and caught.value.value is value
        shown = repr(value) if "\n" not in repr(value) else f"a {type(value).__name__}"
        assert str(caught.value).startswith(f"{field} = {shown}"[:50])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("data", PEOPLE, r"data = a DataFrame: .*from_frames"),
        ("data", {"north": PEOPLE}, r"data = a dict: .*from_frames"),
        ("data", "hospitals/*.csv", r"of files make a .*fedax.data.from_csv"),
        (
            "task",
            eqx.nn.Linear(2, 2, key=jax.random.key(0)),
            r"= a Linear: of a model of Equinox make ",
        ),
        ("task", eqx.nn.Linear, r"of a model of Equinox make"),
        ("task", linen.Dense(2), r"Flax make .*classification\(init, apply, classes\)"),
    ],
)
def test_what_other_libraries_have_is_told_the_way_in(field, value, message):
    with pytest.raises(ConfigError, match=message):
        run(**{field: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"participation": fedax.Uniform(6)}, "size = 6: a cohort has at most all 5 clients"),
        ({"participation": fedax.UniformNormalized(9)}, "size = 9: a cohort has at most all 5 clients"),
        ({"participation": fedax.Trace([[0], [1]])}, "cohorts = '2 cohorts': .*each of the 3 rounds"),
        ({"participation": fedax.Trace([[0], [1], [5]])}, "cohorts = 5: there are 5 clients"),
        ({"work": fedax.Steps([1, 2, 3])}, "steps = '3 numbers': .*each of the 5"),
        ({"work": fedax.Deadline(1.0, [2.0, 3.0])}, "speed = '2 numbers': .*each of the 5"),
        ({"params": {"w": np.zeros(3)}}, "params = .*: the task's are"),
        ({"params": np.zeros(4)}, "params = .*: the task's are"),
        ({"params": {"w": np.zeros(4), "b": 0.0}}, r"params\['w'\] = \(4,\): .*\(3,\)"),
        ({"params": {"w": np.zeros(3), "b": np.zeros(1)}}, r"params\['b'\] = \(1,\): .*\(\)"),
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
    ("w", "message"), [(np.zeros(4), r"= \(4,\): the task's shape is"), (np.full(3, np.nan), "not finite")]
)
def test_a_model_of_which_a_part_is_learned(w, message):
    with pytest.raises(ConfigError, match=rf"params\['w'\] .*{message}"):
        fedax.tasks.partial(TASK, "b", {"w": w, "b": 0.0})


# What the user wrote: one error in his words, with the line.


def blamed(error, function):
    """That an error names a line of this function."""
    file, _, line = error.place.rpartition(":")
    lines, first = inspect.getsourcelines(function)
    assert file.endswith("test_bad_input.py") and first <= int(line) < first + len(lines), error


def with_loss(loss):
    return fedax.Task(TASK.init, loss)


def helper(params, batch):
    return batch["x"] @ params["weights"]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda p, b, key: jnp.mean(TASK.loss(p, b, key)), r"returned float32\[\]; return one loss per .*here \[32\]"),
        (lambda p, b, key: TASK.loss(p, b, key)[:, None], r"returned float32\[32, 1\]"),
        (lambda p, b, key: b["x"].sum(axis=0) @ p["w"] * jnp.ones(3), r"returned float32\[3\]; return one loss"),
        (lambda p, b, key: 0.0, "returned float; return one loss per example"),
        (lambda p, b, key: None, "returned nothing"),
        (lambda p, b, key: (TASK.loss(p, b, key), {}), r"returned \[0\] float32\[32\]"),
        (lambda p, b, key: b["x"] @ p["w"] > 0, r"returned bool\[32\]; return one loss per example, real numbers"),
        (
            lambda p, b: TASK.loss(p, b, None),
            r"cannot take its arguments .*; it is called as loss\(params, batch, key\)",
        ),
        (lambda p, b, key: b["label"], r"raised KeyError: 'label'; .*the batch is \['x'\] float32\[32, 3\], \['y'\]"),
        (lambda p, b, key: b["x"].T @ p["w"], "raised TypeError: dot_general .*the batch is"),
        (
            lambda p, b, key: np.square(b["y"]) * np.asarray(p["b"]),
            "raised TracerArray.*use jax.numpy in place of numpy",
        ),
        (lambda p, b, key: TASK.loss(p, b, key) if p["b"] > 0 else b["y"], "raised TracerBool.*use jnp.where"),
        (lambda p, b, key: float(p["b"]) * b["y"], r"raised Concretization.*float\(\).*keep them as arrays"),
        (lambda p, b, key: b["y"] * jax.random.uniform(key), "raised TypeError.*key is None in evaluation"),
    ],
    ids=[
        *("mean", "column", "per feature", "number", "nothing", "with aux", "bool", "signature", "key", "shapes"),
        *("numpy", "if", "float", "random"),
    ],
)
def test_losses_of_ones_own(loss, message):
    with pytest.raises(CodeError, match=f"task.loss {message}") as caught:
        run(task=with_loss(loss))
    blamed(caught.value, loss)


def test_the_line_is_the_innermost_of_the_users():
    with pytest.raises(CodeError, match=r"task\.loss raised KeyError: 'weights'") as caught:
        run(task=with_loss(lambda p, b, key: helper(p, b) - b["y"]))
    blamed(caught.value, helper)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fedax.Task({"w": np.zeros(3)}, TASK.loss), r"init = .*function, init\(key\)"),
        (lambda: fedax.Task(TASK.init, 3), r"loss = 3: .*loss\(params, batch, key\)"),
        (lambda: fedax.Task(TASK.init, TASK.loss, [TASK.loss]), "metrics = .*: give a dictionary: name -> "),
        (lambda: fedax.Task(TASK.init, TASK.loss, {"m": 1}), r"metrics\['m'\] = 1: give a function"),
        *(
            (
                lambda name=name: fedax.Task(TASK.init, TASK.loss, {name: TASK.metrics["error"]}),
                f"metrics = .*{name}.*name",
            )
            for name in ("loss", "error_personal", "error_per_client", 3)
        ),
        (
            lambda: with_init(lambda key: {"w": jnp.zeros(3, int), "b": 0.0}),
            r"task.init\['w'\] = .*int.*floating-point",
        ),
        (
            lambda: with_init(lambda key: {"w": jnp.zeros(3, complex)}),
            "complex.*the imaginary part as two",
        ),
        (lambda: with_init(lambda key: {"w": jnp.zeros(3, jnp.float16)}), "float16.*: use bfloat16 or float32"),
        (
            lambda: with_init(lambda: {"w": jnp.zeros(3)}),
            r"task.init .*called as init\(key\) .*bad_input.py:",
        ),
        (lambda: with_init(lambda key: None), "task.init returned no array; .*bad_input.py:"),
        (lambda: with_init(lambda key: {"w": jnp.zeros(3), "f": jnp.tanh}), "returned a PjitFunction at .*eqx.filter"),
        (lambda: with_init(lambda key: {"w": "relu"}), r"a str at task.init\['w'\]; .*bad_input.py:"),
        (lambda: with_init(lambda key: {"w": jnp.full(3, jnp.nan)}), "task.init = .*float32.*not finite"),
        (
            lambda: with_metric(lambda p, b: jnp.mean(b["y"])),
            r"metrics\['m'\] returned float32\[\].*\[b\].*put.py:",
        ),
        (lambda: with_metric(TASK.loss), r"metrics\['m'\] .*called as fn\(params, batch\)"),
        (
            lambda: fedax.Task(TASK.init, TASK.loss, check=lambda e: e["z"]),
            "task.check raised KeyError: 'z'; .*put.py:",
        ),
    ],
)
def test_tasks_of_ones_own(make, message):
    with pytest.raises(ConfigError, match=message):
        run(task=make(), test=GOOD)


def with_init(init):
    return fedax.Task(init, TASK.loss)


def with_metric(metric):
    return fedax.Task(TASK.init, TASK.loss, {"m": metric})


def test_plain_numbers_and_numpy_arrays_are_parameters():
    with pytest.raises(AssertionError, match="compiled"):
        run(task=with_init(lambda key: {"w": np.zeros(3), "b": 0.0}))


class Server(NamedTuple):
    x: Any


class WithControl(NamedTuple):
    x: Any
    c: Any


class Mine(fedax.Algorithm):
    """A method that is right; each mistake below replaces one of its functions."""

    lr: float = 0.1

    def init(self, x):
        return Server(x)

    def client(self, download, memory, oracle):
        return fedax.local_steps(lambda y, k: y - self.lr * oracle.grad(y, k), download.x, oracle) - download.x, memory

    def server(self, server, mean, round):
        return Server(server.x + mean)


def loops(self, download, memory, oracle):
    y = download.x
    for k in range(oracle.steps):
        y = y - self.lr * oracle.grad(y, k)
    return y - download.x, memory


def decides(self, download, memory, oracle):
    g = oracle.grad(download.x)
    if g.dot(g) > 1:
        g = 0.5 * g
    return -self.lr * g, memory


def assigns(self, server, mean, round):
    self.lr = 0.5
    return server


def step(download, oracle):
    return -0.1 * oracle.grad(download.x)


TABLE = {
    "memory forgotten": ("client", lambda self, d, m, o: step(d, o), "returned Vector alone; return .upload, memory."),
    "of a named tuple": ("client", lambda self, d, m, o: WithControl(step(d, o), d.x), "returned WithControl alone"),
    "dictionary": (
        "client",
        lambda self, d, m, o: {"dx": step(d, o), "m": m},
        "returned dict alone; return .upload, mem",
    ),
    "nothing": ("client", lambda self, d, m, o: None, "returned NoneType alone"),
    "three things": (
        "client",
        lambda self, d, m, o: (step(d, o), m, 1.0),
        "returned 3 things; return .upload, memory.",
    ),
    "text": ("client", lambda self, d, m, o: ("hi", m), "returned str; uploads and memory are pytrees of arrays"),
    "other memory": (
        "client",
        lambda self, d, m, o: (step(d, o), d.x),
        r"the memory .tree\['b'\].*init_client.. returns no",
    ),
    "client's signature": (
        "client",
        lambda self, d, o: (step(d, o), ()),
        "cannot take .*called as client.self, download, m",
    ),
    "range(steps)": (
        "client",
        loops,
        r"TracerIntegerConversionError; .*use fedax.local_steps\(step, x, oracle\) in place",
    ),
    "if": ("client", decides, "TracerBoolConversionError; .*use jnp.where"),
    "numpy": (
        "client",
        lambda self, d, m, o: (step(d, o).map(lambda leaf: np.clip(np.asarray(leaf), -1, 1)), m),
        "TracerArrayConversionError; .*use jax.numpy",
    ),
    "gradient at a tree": ("client", lambda self, d, m, o: (o.grad(d.x.tree), m), "raised AttributeError: .*tree"),
    "bug": ("client", lambda self, d, m, o: 1 / 0, "raised ZeroDivisionError: division by zero"),
    "server without return": (
        "server",
        lambda self, server, mean, round: None,
        "returned None; return the new server s",
    ),
    "server returns x": ("server", lambda self, server, mean, round: server.x + mean, "changes in a round its state"),
    "server's signature": (
        "server",
        lambda self, server, mean: server,
        "cannot take .*called as server.self, server, mean",
    ),
    "another upload": (
        "server",
        lambda self, server, mean, round: Server(server.x + mean.dx),
        "AttributeError: .*'dx'",
    ),
    "an array": (
        "server",
        lambda self, server, mean, round: Server(server.x + np.ones(2)),
        "raised TypeError: a Vector co",
    ),
    "assignment": ("server", assigns, "raised FrozenInstanceError; a method holds no state: what changes goes into"),
    "no .x": (
        "init",
        lambda self, x: {"x": x},
        "returned dict, which has no .x; return the model, or a state .*or define model.self, server.",
    ),
    "another x": ("init", lambda self, x: fedax.Vector((x.tree,)), "it has to be a Vector like the initial model"),
    "no state": ("init", lambda self, x: None, "returned NoneType, which has no .x"),
    "model's tree": ("model", lambda self, server: server.x.tree, "it has to be a Vector like the initial model"),
    "one exchange": (
        "exchanges",
        lambda self: fedax.Exchange(self.client, self.server),
        "returned Exchange; return a tuple",
    ),
}


@pytest.mark.parametrize(("name", "function", "message"), TABLE.values(), ids=TABLE)
def test_methods_of_ones_own(name, function, message):
    method = type("Mine", (Mine,), {name: function})()
    with pytest.raises(CodeError, match=f"Mine.*{message}") as caught:
        run(algorithm=method, work=fedax.Steps([1, 2, 3, 2, 1]))
    blamed(caught.value, function)


def test_a_method_without_its_functions():
    for missing, functions in {"init": {"client": Mine.client}, "client": {"init": Mine.init}}.items():
        with pytest.raises(CodeError, match=rf"Half has no {missing}\(\); define"):
            run(algorithm=type("Half", (fedax.Algorithm,), functions | {"__module__": __name__})())


@pytest.mark.parametrize(
    ("value", "message"),
    [("fast", r"rate = 'fast': .*rate: Any = equinox.field\(static=True\)"), (jnp.cos, "rate = .*FromFunction")],
)
def test_a_field_that_is_no_number_has_to_be_static(value, message):
    class Fast(Mine):
        rate: Any = 0.5

    with pytest.raises(ConfigError, match=message):
        run(algorithm=Fast(rate=value))


def test_words_of_traits_are_known():
    class Whole(Mine):
        def traits(self):
            return fedax.Traits("Whole", cohorts="full")

    with pytest.raises(ConfigError, match=r"traits\.cohorts = 'full'.*all, any"):
        run(algorithm=Whole())


class Drawn(fedax.Participation):
    cohort: Any = eqx.field(static=True)

    def draw(self, key, weights, index):
        return self.cohort(index)

    def places(self, num_clients):
        return 3


class Taken(fedax.Work):
    steps: Any

    def draw(self, key, ids, sizes, batch_size):
        return jnp.broadcast_to(self.steps, ids.shape)

    def largest(self, sizes, batch_size):
        return 3

    def usual(self, sizes, batch_size):
        return np.full(len(sizes), 2)


def cohort(ids, weights=(0.2, 0.3, 0.5)):
    return lambda index: (jnp.array(ids), jnp.array(weights))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"participation": Drawn(cohort([2, 0, 2]))}, "participation = Drawn.*round 0.*twice"),
        ({"participation": Drawn(lambda r: cohort([0, 1, jnp.where(r < 4, 2, 7)])(r))}, "round 4.*client 7 of 5"),
        ({"participation": Drawn(cohort([0, 1, -1]))}, "client -1 of 5"),
        ({"participation": Drawn(cohort([True, False, True]))}, "ids of bool"),
        ({"participation": Drawn(cohort([0, 1, 2], (0.5, -0.5, 1.0)))}, "weights are .*-0.5"),
        ({"participation": Drawn(cohort([0, 1, 2], (0.5, np.nan, 1.0)))}, "weights are .*nan"),
        ({"participation": Drawn(cohort([0, 1]))}, "two arrays of one length, at most 3"),
        ({"participation": Drawn(lambda index: ([0, 1, 2], [0.2, 0.3, 0.5]))}, "two arrays of one length"),
        ({"participation": Drawn(cohort([0, 1, 2, 3], (0.2, 0.3, 0.4, 0.1)))}, "at most 3"),
        ({"participation": Drawn(lambda index: None)}, "two arrays of one length"),
        ({"participation": Drawn(lambda index: index["r"])}, r"participation raised .*input.py:"),
        ({"participation": fedax.Dropout(Drawn(lambda r: fedax.Cohort(*cohort([2, 0, 2])(r))), 0.1)}, "twice"),
        ({"work": Taken(0)}, "work = Taken.*round 0.*takes 0 local steps.* 1 to .* 3"),
        ({"work": Taken(4)}, "takes 4 local steps"),
        ({"work": Taken(1.5)}, r"whole numbers \[5\]"),
        ({"work": Taken(0), "participation": Drawn(cohort([0, 1, 2]))}, "takes 0 local steps"),
    ],
)
def test_cohorts_and_steps_of_ones_own(options, message):
    with pytest.raises(ConfigError, match=message):
        run(**options, rounds=6)


def test_cohorts_and_steps_of_ones_own_that_are_right_get_as_far_as_the_run():
    """With an empty place, with arithmetic that needs a tracer, with fewer clients than places."""
    for draw in (cohort([0, 1, 5]), lambda r: cohort([0, r.astype(int) % 2 + 1])(r)[:1] * 1 + (jnp.array([0.5, 0.5]),)):
        with pytest.raises(AssertionError, match="compiled"):
            run(participation=Drawn(draw), work=Taken(jnp.array(2)))


def test_a_staleness_need_only_know_what_can_occur():
    class Table(fedax.Staleness):
        def weight(self, staleness):
            return np.array([1.0, 0.5, 0.25, 0.1])[staleness]

    assert fedax.Async(4, 2, staleness=Table(), max_staleness=3).max_staleness == 3
    with pytest.raises(CodeError, match=r"pace\.staleness raised IndexError.*input.py:"):
        fedax.Async(4, 2, staleness=Table())


def test_parts_of_ones_own_that_the_host_calls():
    class Wrong(fedax.Staleness):
        def weight(self, staleness):
            return 1.0 - staleness

    class Constant(fedax.Distribution):
        def quantile(self, u):
            return 1.0

    with pytest.raises(ConfigError, match=r"pace\.staleness = Wrong.*weight\(2\) is -1"):
        fedax.Async(4, 2, staleness=Wrong())
    with pytest.raises(ConfigError, match=r"step = Constant.*one number for each"):
        fedax.Clock(step=Constant())
    with pytest.raises(TypeError, match=r"abstract.*weight"):
        type("Half", (fedax.Staleness,), {"__module__": __name__})()


def test_a_method_of_ones_own_that_is_right_gets_as_far_as_the_run():
    for options in ({}, {"work": fedax.Steps([1, 2, 3, 2, 1])}, {"guard": True}):
        with pytest.raises(AssertionError, match="compiled"):
            run(algorithm=Mine(), **options)


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ({"x": GOOD["x"]}, "test: its structure"),
        ((GOOD["x"], GOOD["y"]), "test: its structure"),
        ({"x": GOOD["x"], "y": GOOD["y"][:5]}, "leading axes"),
        ({"x": GOOD["x"][:0], "y": GOOD["y"][:0]}, "0 examples|no example"),
        ({"x": np.zeros((6, FEATURES + 1)), "y": GOOD["y"]}, r"test.*x.*\(4,\).*\(3,\)"),
        ({"x": np.full((6, 3), np.nan), "y": GOOD["y"]}, r"test: .*'x'\], column 0: example 0 is NaN"),
        ({"x": GOOD["x"], "y": np.full(6, -99.0)}, "label -99"),
    ],
    ids=["missing", "tuple", "lengths", "empty", "shape", "nan", "label"],
)
def test_held_out_data_that_do_not_fit(test, message):
    with pytest.raises(DataError, match=message):
        run(task=CHECKED, test=test)


def test_examples_that_the_task_refuses():
    for labels, message in {
        (
            0,
            1,
            0,
            1,
            2,
            1,
        ): r"client 1, .*'y'\], row 1 has label 2, .*classes=3",
        (0, 1, 0, 1, -1, 1): r"client 1, .*'y'\], row 1 has label -1, .*from 0$",
    }.items():
        examples = {"x": np.zeros((6, 2)), "y": np.array(labels)}
        for call in (fedax.simulate, fedax.theory.diagnose):
            with pytest.raises(DataError, match=message):
                request = {"rounds": 1} if call is fedax.simulate else {}
                call(FEDAVG, fedax.tasks.mlp(2, 2), fedax.FederatedData(examples, [3, 3]), **request)
    with pytest.raises(DataError, match=r"^test: examples\['y'\]: .*1 has label 2"):
        data = fedax.FederatedData({"x": np.zeros((2, 2)), "y": np.array([0, 1])}, [1, 1])
        run(task=fedax.tasks.mlp(2, 2), data=data, test={"x": np.zeros((2, 2)), "y": np.array([0, 2])})
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
        (
            lambda: fedax.FederatedData(changed("x", 7, np.nan), SIZES),
            r"client 2, .*'x'\], column 0, row 3 is NaN",
        ),
        (lambda: fedax.FederatedData(changed("y", 2, np.inf), SIZES), r"client 0, examples\['y'\], row 2 is inf"),
        (lambda: fedax.FederatedData({"x": X, "y": Y[:-1]}, SIZES), r"examples\['y'\]: shape \(15,\).* sum to 16"),
        (lambda: fedax.FederatedData({"x": X, "y": 1.0}, SIZES), r"examples\['y'\]: shape \(\)"),
        (lambda: fedax.FederatedData({"x": X, "y": Y.astype(object)}, SIZES), r"examples\['y'\]: .*Python objects"),
        (lambda: fedax.FederatedData({"x": X, "y": Y.astype("M8[s]")}, SIZES), r"examples\['y'\]: .*numbers"),
        (lambda: fedax.FederatedData({}, SIZES), "examples: there is no array in it"),
        (lambda: fedax.FederatedData(DATA.examples, SIZES[:-1]), "sizes of the clients sum to 10"),
        (lambda: fedax.FederatedData(DATA.examples, [3, 0, 5, 2, 6]), "client 1 has 0 examples"),
        (lambda: fedax.FederatedData(DATA.examples, [3, -1, 6, 2, 6]), "client 1 has -1 examples"),
        (lambda: fedax.FederatedData(DATA.examples, SIZES * 1.0), "sizes: need one whole number a client"),
        (lambda: fedax.FederatedData(DATA.examples, 16), "sizes: need one whole number a client"),
        (lambda: fedax.FederatedData(DATA.examples, []), "sizes: need one whole number a client"),
        (lambda: fedax.FederatedData(DATA.examples, None), "sizes: need one whole number a client"),
        (lambda: federation(weights=P * 2), r"weights: .*sum to 2, .*weights.sum\(\)"),
        (lambda: federation(weights=P[:4] / P[:4].sum()), r"weights: shape \(4,\), .*5 clients"),
        (lambda: federation(weights=np.array([0.5, 0.6, -0.1, 0, 0])), "weights: client 2 has weight -0.1"),
        (lambda: federation(weights=np.array([0.5, np.nan, 0.5, 0, 0])), "weights: client 1 has weight nan"),
        (lambda: federation(weights="uniform"), "weights: .*uniform"),
        (lambda: fedax.FederatedData.from_clients([]), "clients: the list is empty"),
        (lambda: fedax.FederatedData.from_clients([{"x": X[:2]}, {"z": X[:2]}]), r"clients\[1\]: .*columns 'z'.*'x'"),
        (lambda: fedax.FederatedData.from_clients([{"x": X[:2], "y": Y[:3]}]), r"clients\[0\]: .*leading axes"),
        (lambda: fedax.FederatedData.from_clients([{"x": X[:2]}, {"x": X[:2, :2]}]), r"clients\[1\].*\(2,\).*\(3,\)"),
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


# What newcomers hand over.

AB = np.array(list("abcabc"))
X6, Y6 = np.ones((6, 2), np.float32), np.array([0, 1, 0, 1, 0, 1])
GAP = np.where(np.arange(12).reshape(6, 2) == 9, np.nan, X6)


class Tensor:
    """One that NumPy cannot read, as of PyTorch on a GPU."""

    def __array__(self, *args, **options):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


def pooled(**columns):
    return lambda: fedax.FederatedData({"x": X6, "y": Y6} | columns, [3, 3])


def clients(*each):
    return lambda: fedax.FederatedData.from_clients([{"x": X6, "y": Y6} | one for one in each])


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            pooled(y=AB),
            r"client 0, .*'y'\], row 0 is text, 'a'; .*np.unique",
        ),
        (pooled(y=np.array([0, 1, 0, 1, "two", 1], object)), r"client 1, .*'y'\], row 1 is text, 'two'"),
        (pooled(y=np.array([0, 1, None, 1, 0, 1], object)), r"client 0, .*'y'\], row 2 is None; give"),
        (pooled(x=X6.astype(object)), r"\['x'\]: .*Python objects; use .astype"),
        (pooled(x=X6.astype(str)), r"client 0, .*'x'\], column 0, row 0 is text, '1.0'"),
        (pooled(y=Y6.astype("M8[s]")), r"examples\['y'\]: dates or times"),
        (pooled(x=GAP), r"client 1, .*'x'\], column 1, row 1 is NaN; .*clean"),
        (pooled(x=np.where(X6 > 0, -np.inf, 0)), r"client 0, .*'x'\], column 0, row 0 is -inf"),
        (pooled(x=jnp.asarray(GAP, jnp.bfloat16)), r"client 1, .*'x'\], column 1, row 1 is NaN"),
        (pooled(x=GAP[:, None, :, None]), r"client 1, .*position \(0, 1, 0\), row 1 is NaN"),
        (pooled(x=X6.tolist()), r"\['x'\]: a Python list; give .*np.asarray"),
        (pooled(y=tuple(AB)), r"\['y'\]: a Python tuple; give an array"),
        (
            pooled(x=[[1.0, 2.0], [3.0]]),
            r"\['x'\]: a Python list; .* 1 to 2 entries",
        ),
        (pooled(x=np.array([[1, 2], [3]] * 3, object)), r"client 0, .*'x'\], row 0 is a list of 2"),
        (pooled(y=None), r"\['y'\]: None; .*or leave it out"),
        (pooled(y=Tensor()), r"\['y'\]: a Tensor .*can't convert cuda:0"),
        (pooled(y=dict(enumerate(Y6))), r"\['y'\]\[0\]: shape \(\), .*sum to 6$"),
        (lambda: fedax.FederatedData({"x": X6, "y": Y6}, [3, 2]), r"examples\['x'\]: shape .* sum to 5$"),
        (lambda: fedax.FederatedData(PEOPLE, [2, 1]), "client 0, .*column 'name', row 0 is text, 'ann'"),
        (lambda: fedax.FederatedData({"x": PEOPLE[["age"]]}, [2, 1]), r"client 1, .*column 'age', row 0 is NaN"),
        (lambda: fedax.FederatedData({"ann": {"x": X6}, "bob": {"x": X6}}, [6, 6]), r"\['ann'\].*use .*from_clients"),
        (lambda: fedax.FederatedData([{"x": X6}, {"x": X6}], [6, 6]), r"examples\[0\].*from_clients"),
        (
            lambda: fedax.FederatedData.from_clients({"x": X6, "y": Y6}),
            "clients: arrays, as of one client; give",
        ),
        (
            lambda: fedax.FederatedData.from_clients({"ann": {"y": X6[:, 0]}, "bob": {"y": GAP[:, 1]}}),
            r"client 'bob', examples\['y'\], row 4 is NaN",
        ),
        (lambda: fedax.FederatedData({"y": Y6}, [3, 3], names=["ann", "ann"]), "names: two clients are called 'ann'"),
        (lambda: fedax.FederatedData({"y": Y6}, [3, 3], names="ab"), "names: 1 for 2 clients; give each"),
        (
            lambda: fedax.FederatedData({"y": Y6}, [3, 3], names=["ann", " "]),
            "names: 2 for 2 clients, ' ' among",
        ),
        (lambda: fedax.FederatedData.from_clients(X6), "clients: a ndarray; give a list"),
        (
            clients({}, {"z": X6}),
            r"clients\[1\]: .*'x', 'y', 'z', .*'x', 'y'; give",
        ),
        (clients({}, {"x": GAP}), r"client 1, .*'x'\], column 1, row 4 is NaN"),
        (clients({}, {}, {"y": AB}), r"client 2, .*'y'\], row 0 is text, 'a'"),
        (clients({}, {"y": Y6 * 1.0}), r"\[1\]\['y'\]: float64, client 0 has int64"),
        (clients({}, {"x": X6[:, 0].tolist()}), r"\[1\]\['x'\]: a Python list; give an array"),
        (
            clients({}, {"x": X6[:5]}),
            r"leading axes: .*\['x'\] \(5, 2\), .*\['y'\] \(6,",
        ),
        (lambda: fedax.FederatedData.from_partition({"x": X6.tolist()}, [[0]]), r"examples\['x'\]: a Python list"),
    ],
)
def test_data_as_newcomers_hand_them_over(make, message):
    with pytest.raises(DataError, match=message):
        make()


def test_tables_of_pandas_and_narrow_numbers_are_data():
    data = fedax.FederatedData({"x": pandas.DataFrame(X6), "y": pandas.Series(Y6)}, [3, 3])
    assert data.client(1)["x"].tolist() == X6[3:].tolist() and data.client(1)["y"].tolist() == [1, 0, 1]
    lazy = fedax.FederatedData.from_clients({"x": jnp.ones((n, 2), jnp.bfloat16)} for n in (1, 2))
    assert lazy.sizes.tolist() == [1, 2] and lazy.examples["x"].dtype == jnp.bfloat16
