"""What makes a run is the same text in every process, and another one for every other problem."""

import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.engine import fingerprint
from fedax.engine.make import make_job
from fedax.errors import CheckpointError

from .problem import DATA, SIZES, TASK, P, federation, residual

ROOT = pathlib.Path(__file__).parents[2]
TEST = federation([11], [1.0], seed=5).examples
TABLE = np.arange(1.0, 4.0)


def task(scale=1.0, penalty=0.0, start=1.0, error=1.0, tables=TABLE):
    """Constants that are closed over: numbers, and an array."""

    def loss(params, batch, key):
        return scale * residual(params, batch) ** 2 + penalty * jnp.sum(params["w"] * tables)

    init = lambda key: {"w": start * jnp.ones(3), "b": jnp.zeros(())}  # noqa: E731
    return fedax.Task(init, loss, {"error": lambda params, batch: error * jnp.abs(residual(params, batch))})


def own(factor):
    """A user's participation, whose code is not determined by its name and fields."""

    class Own(fedax.Uniform):
        def draw(self, key, weights, index):
            cohort = super().draw(key, weights, index)
            return cohort._replace(weights=factor * cohort.weights)

    return Own(2)


def changed(x=DATA.examples["x"], y=DATA.examples["y"]):
    return fedax.FederatedData({"x": x, "y": y}, SIZES, P)


def schedule(power):
    return fedax.FromFunction(lambda t: 0.1 / (1.0 + t) ** power)


def one_bit(array):
    other = array.copy()
    other[7] = np.nextafter(other[7], 9)
    return other


PARAMS = TASK.init(None)
OWN = task()
# What is changed: the field that is named, the same as before, and the change.
CHANGES = {
    "l2": (
        "task was .*l2=0.0.*, is .*l2=0.1",
        "task",
        *(fedax.tasks.softmax_regression(3, 2, l2=v) for v in (0.0, 0.1)),
    ),
    "a loss times seven": ("program of task.loss was", "task", OWN, task(scale=7.0)),
    "a constant in the loss": ("program of task.loss was", "task", task(penalty=0.1), task(penalty=0.2)),
    "an array in the loss": ("program of task.loss was", "task", OWN, task(tables=TABLE[::-1].copy())),
    "a metric": ("program of task.metrics['error'] was", "task", OWN, task(error=2.0)),
    "an initial model": ("program of task.init was", "task", OWN, task(start=2.0)),
    "a schedule's body": ("program of method.solver.lr was", "lr", schedule(0.5), schedule(1.0)),
    "labels": ("data['y'] was", "data", DATA, changed(y=np.roll(DATA.examples["y"], 1))),
    "features": ("data['x'] was", "data", DATA, changed(x=DATA.examples["x"][:, ::-1])),
    "one bit of a label": ("data['y'] was", "data", DATA, changed(y=one_bit(DATA.examples["y"]))),
    "test": ("test['y'] was", "test", TEST, TEST | {"y": TEST["y"] + 1}),
    "no test": ("test['x'] was .*, is None", "test", TEST, None),
    "params": ("params was", "params", PARAMS, PARAMS | {"b": jnp.ones(())}),
    "no params": ("params was .*, is task.init", "params", PARAMS, None),
}


def made(lr=0.05, task=TASK, data=DATA, method=None, **options):
    if task.name == "softmax_regression":
        data = changed(y=np.arange(SIZES.sum()) % 2)
    method = fedax.create("fedavg", lr=lr) if method is None else method
    return make_job(method, task, data, rounds=2, work=fedax.Steps(2), batch_size=2, **options).settings()


@pytest.mark.parametrize("name", CHANGES)
def test_another_problem_differs(name):
    message, field, one, other = CHANGES[name]
    was, now = made(**{field: one}), made(**{field: other})
    assert fingerprint.differences(was, made(**{field: one}), True) == []
    assert re.search(
        message.replace("[", r"\[").replace("]", r"\]"), "; ".join(fingerprint.differences(was, now, True))
    )


def test_a_part_of_ones_own_of_which_the_body_changes():
    was = made(participation=own(1.0))
    assert fingerprint.differences(was, made(participation=own(1.0)), True) == []
    (result,) = fingerprint.differences(was, made(participation=own(2.0)), True)
    assert result.startswith("program of a round was")


def part(base, name, answer):
    return type("Mine", (base,), {name: staticmethod(answer), "__module__": __name__})()


@pytest.mark.parametrize(
    ("field", "make"),
    [
        (
            "pace.staleness",
            lambda b: {"pace": fedax.Async(2, 2, staleness=part(fedax.Staleness, "weight", lambda s: b**s))},
        ),
        (
            "clock.step",
            lambda b: {"clock": fedax.Clock(step=part(fedax.Distribution, "quantile", lambda u: 1 + b * u))},
        ),
        ("compress.up", lambda b: {"compress": of_bits(b)}),
    ],
)
def test_parts_of_ones_own_that_the_host_calls_are_told_by_what_they_answer(field, make):
    clock = {"clock": fedax.Clock(step=1.0)} if "pace" in field else {}
    was = made(**clock | make(0.5))
    assert fingerprint.differences(was, made(**clock | make(0.5)), True) == []
    (result,) = fingerprint.differences(was, made(**clock | make(0.25)), True)
    assert result.startswith(f"program of {field} was")


def of_bits(share):
    class Mine(fedax.Compressor):
        def compress(self, key, x):
            return x

        def bits(self, form):
            return int(32 * share * form.size)

        def alpha(self, d):
            return 1.0

    return Mine()


def test_another_problem_is_refused_before_anything_is_compiled(tmp_path, monkeypatch):
    """Of each kind one; the others are compared alike."""

    def run(task=TASK, data=DATA, lr=0.05, **options):
        return fedax.simulate(
            fedax.create("fedavg", lr=lr), task, data, rounds=2, work=fedax.Steps(2), batch_size=2,
            checkpoint=tmp_path, test=TEST, **options,
        )  # fmt: skip

    run()
    monkeypatch.setattr("fedax.engine.simulate.drive", lambda *_: pytest.fail("it began"))
    seven = fedax.Task(TASK.init, lambda *given: 7 * TASK.loss(*given), TASK.metrics)
    for options, name in (({"task": seven}, "task.loss"), ({"data": changed(y=-DATA.examples["y"])}, "data")):
        with pytest.raises(CheckpointError, match=rf"of another run: .*{name}.* was"):
            run(**options)


def test_files_are_told_by_size_time_and_samples(tmp_path, monkeypatch):
    rows = np.arange(40_000.0).reshape(20_000, 2)
    federated = fedax.FederatedData({"x": rows, "y": np.zeros(20_000)}, [10_000, 10_000])
    federated.save(tmp_path / "data")
    monkeypatch.setattr(fingerprint, "_SAMPLE", 16)
    monkeypatch.setattr(fingerprint, "_SAMPLES", 8)
    task = fedax.tasks.linear_regression(2)
    in_memory, was = made(task=task, data=federated), made(task=task, data=fedax.FederatedData.open(tmp_path / "data"))
    assert "sampled" not in in_memory["data['x']"] and was["data['x']"].endswith(" (sampled)")
    assert fingerprint.FILES not in in_memory and "160128 bytes of 20" in was[fingerprint.FILES]
    file = tmp_path / "data" / "examples" / "x.npy"
    seconds = file.stat().st_mtime_ns

    def now():
        return fingerprint.differences(was, made(task=task, data=fedax.FederatedData.open(tmp_path / "data")), True)

    assert now() == []
    mapped = np.load(file, mmap_mode="r+")
    mapped[1] += 1.0  # between the samples, and with the time of before: this cannot be told
    mapped.flush()
    os.utime(file, ns=(seconds, seconds))
    assert now() == []
    os.utime(file, ns=(seconds, seconds + 1))
    assert [text.split()[0] for text in now()] == ["files"]
    mapped[0] += 1.0  # which is a sample
    mapped.flush()
    assert [text.split()[0] for text in now()] == ["data['x']", "files"]


def test_programs_of_other_versions_are_not_compared():
    was = {"seed": "0", "program of a round": "ab"}
    with pytest.warns(UserWarning, match="another version of JAX or fedax"):
        assert fingerprint.differences(was, was | {"program of a round": "cd"}, False) == []
    assert fingerprint.differences(was, was | {"seed": "1"}, False) == ["seed was 0, is 1"]


def everything():
    """Methods with client memory, warm-up, several exchanges, proximal steps; constants of all kinds."""
    results = {name: made(method=fedax.create(name, lr=0.1), task=OWN, guard=True, participation=fedax.Uniform(3))
             for name in ("scaffold-m-vr", "fedda-mvr")}  # fmt: skip
    results["schedule"] = made(lr=schedule(0.5), params=PARAMS, test=TEST)
    results["platforms"] = made(task=fedax.tasks.softmax_regression(3, 2))  # another program on each
    return results


def test_it_is_the_same_in_another_process_and_on_other_devices():
    script = "import json; from tests.engine.test_fingerprint import everything; print(json.dumps(everything()))"
    number = "1" if len(jax.devices()) > 1 else "2"
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": number, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    assert json.loads(result.stdout.splitlines()[-1]) == everything()
