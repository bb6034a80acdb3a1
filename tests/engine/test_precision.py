"""``Place(precision=…)`` holds for all that a run computes, and is part of what makes the run."""

import jax
import numpy as np
import pytest

import fedax
from fedax import programs
from fedax.engine.fingerprint import differences
from fedax.engine.make import make_job
from fedax.errors import CheckpointError, ConfigError, NodeError
from fedax.sites.protocol.agreement import Made
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.train import train

from .. import long, mostly_long
from .here import Here, sites
from .places import NODES, TEST
from .problem import DATA, TASK

OPTIONS = {"rounds": 2, "work": fedax.Steps(2), "batch_size": 2}
CLOCK = {"clock": fedax.Clock(step=1.0), "pace": fedax.Async(2, 1)}
FEDAVG = fedax.create("fedavg", lr=0.05)


@pytest.fixture(autouse=True)
def as_by_default():
    """No precision is set around the tests, whatever the environment says."""
    with jax.default_matmul_precision(None):
        yield


@pytest.fixture
def noted():
    """A task, and the set of the precisions under which its functions were traced."""
    seen = set()

    def note(function):
        def noting(*given):
            seen.add(jax.default_matmul_precision.value)
            return function(*given)

        return noting

    metrics = {name: note(metric) for name, metric in TASK.metrics.items()}
    metrics |= {"grad_norm": fedax.metrics.GradNorm(), "per_client": fedax.metrics.PerClient()}
    return fedax.Task(TASK.init, note(TASK.loss), metrics), seen


@pytest.mark.parametrize(
    ("method", "place", "options"),
    [
        pytest.param("fedavg", {}, {}, marks=long),
        ("stem", {"client_memory": "host", "stream": True}, {}),  # with a warm-up
        pytest.param("fedavg", {}, CLOCK, marks=long),
    ],
    ids=["device", "host", "paced"],
)
def test_it_holds_for_training_and_evaluation(method, place, options, noted):
    task, seen = noted
    place = fedax.Place(**place, precision="tensorfloat32")
    test = fedax.FederatedData(TEST, [4, 7])
    fedax.simulate(fedax.create(method), task, DATA, test=test, val=TEST, place=place, **OPTIONS | options)
    assert seen == {"tensorfloat32"} and jax.default_matmul_precision.value is None


def test_it_holds_for_all_lanes_of_a_sweep(noted):
    task, seen = noted
    given = {"test": fedax.FederatedData(TEST, [4, 7]), "seeds": 2, **OPTIONS}
    place = fedax.Place(precision="float32")
    fedax.sweep(lambda lr: fedax.create("fedavg", lr=lr), {"lr": [0.01, 0.1]}, task, DATA, place=place, **given)
    assert seen == {"float32"}
    make = lambda to: {"algorithm": FEDAVG, "place": fedax.Place(precision=to)}  # noqa: E731
    assert fedax.sweep(make, {"to": ["bfloat16", "float32"]}, task, DATA, **given).programs == 2
    assert seen == {"float32", "bfloat16"}


def test_it_holds_for_a_comparison_with_its_tables_and_baselines(noted, tmp_path):
    task, seen = noted
    options = {"test": fedax.FederatedData(TEST, [4, 7]), "baselines": {"lr": 0.05}, "seeds": 2, **OPTIONS}
    place = fedax.Place(precision="float32")
    (record,) = fedax.compare({"fedavg": FEDAVG}, task, DATA, place=place, out=tmp_path / "run", **options).records
    assert seen == {"float32"} and record.config["run"]["precision"] == "float32"
    assert {path.name for path in (tmp_path / "run" / "baselines").iterdir()} > {"pooled-seed0.csv"}


@pytest.mark.parametrize(
    ("precision", "word"),
    mostly_long([("float32", "HIGHEST"), ("tensorfloat32", "HIGH")], ("tensorfloat32", "HIGH"), several=True),
)
def test_the_compiler_is_told(precision, word, monkeypatch):
    texts, make = [], programs._program

    def program(function, *key):
        compiled = make(function, *key)

        def call(**given):
            texts.append(compiled.lower(**given).as_text())
            return compiled(**given)

        call.eval_shape = compiled.eval_shape
        return call

    monkeypatch.setattr(programs, "_program", program)
    fedax.simulate(FEDAVG, TASK, DATA, place=fedax.Place(precision=precision), **OPTIONS)
    with_products = [text for text in texts if "dot_general" in text]
    assert len(with_products) >= 2  # rounds, and evaluations
    for text in with_products:
        assert f"precision = [{word}, {word}]" in text and "[DEFAULT, DEFAULT]" not in text


def test_each_precision_has_a_program_of_its_own(compilations):
    for precision, compiled in ((None, 1), ("float32", 1), ("bfloat16", 1), ("float32", 0), (None, 0)):
        fedax.simulate(FEDAVG, TASK, DATA, place=fedax.Place(precision=precision), **OPTIONS | {"batch_size": 3})
        assert compilations("some_rounds") == compiled, precision


def settings(precision):
    return make_job(FEDAVG, TASK, DATA, place=fedax.Place(precision=precision), **OPTIONS).settings()


def test_it_is_part_of_what_makes_a_run():
    assert settings("float32")["precision"] == "float32" and "precision" not in settings(None)
    assert differences(settings(None), settings("float32"), True) == ["precision was None, is float32"]
    assert differences(settings("float32"), settings("float32"), True) == []


def test_the_program_of_a_run_does_not_depend_on_what_was_traced_before():
    """As in another process: with the caches empty, and under a precision of the caller's."""
    wanted = settings("float32")
    jax.clear_caches()
    for cache in (fedax.engine.dry_run._dry_run.cache_clear, fedax.engine.fingerprint._known_programs.clear):
        cache()
    with jax.default_matmul_precision("bfloat16"):
        assert settings("float32") == wanted
        assert differences(settings(None), settings("float32"), True) == ["precision was None, is float32"]
        others = settings(None)
    changed = {text.partition(" was")[0] for text in differences(others, settings(None), True)}
    assert changed == {"program of a round", "program of task.loss", "program of task.metrics['error']"}


def test_a_run_goes_on_with_the_same_precision_only(tmp_path):
    def run(precision, rounds):
        place = fedax.Place(precision=precision)
        return fedax.simulate(FEDAVG, TASK, DATA, checkpoint=tmp_path, place=place, **OPTIONS | {"rounds": rounds})

    run("tensorfloat32", 2)
    for precision in (None, "float32"):
        with pytest.raises(CheckpointError, match=f"precision was tensorfloat32, is {precision}"):
            run(precision, 4)
    assert run("tensorfloat32", 4).history["round"][-1] == 4


@pytest.mark.parametrize("value", ["float64", "highest", "tf32", 32, ["float32"], True])
def test_others_are_refused(value):
    with pytest.raises(ConfigError, match="float32, tensorfloat32, bfloat16; or None") as caught:
        fedax.Place(precision=value)
    assert caught.value.field == "precision"


def test_it_belongs_to_the_place_alone():
    with pytest.raises(TypeError, match="precision"):
        fedax.simulate(FEDAVG, TASK, DATA, precision="float32", **OPTIONS)


def at_nodes(task, told, precision="float32"):
    place = lambda config: {"place": fedax.Place(precision=config.get("run", {}).get("precision"))}  # noqa: E731
    where = Here(sites(DATA, NODES[::2]))  # of the same shapes
    for site in where.sites.values():
        site._make = lambda config: Made(FEDAVG, task, OPTIONS | place(config))
    problem = {} if told is None else {"run": {"precision": told}}
    return train(FEDAVG, task, Fleet(where), problem, place=fedax.Place(precision=precision), **OPTIONS)


def test_nodes_are_told(noted):
    task, seen = noted
    at_nodes(fedax.Task(task.init, task.loss, {}), "float32")
    assert seen == {"float32"}
    with pytest.raises(NodeError, match="its code differs"):
        at_nodes(TASK, None)
    with pytest.raises(NodeError, match="half"):
        at_nodes(TASK, "half")
    if jax.default_backend() == "cpu":  # which multiplies in float32 anyway
        both = [at_nodes(TASK, precision, precision).params["w"] for precision in ("float32", "bfloat16")]
        np.testing.assert_array_equal(*both)
