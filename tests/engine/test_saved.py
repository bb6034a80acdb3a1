"""A model goes to a file and comes back: the same predictions, wherever the file is read."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.engine.job import Origin
from fedax.engine.saved import load_model, model_of, read_model, write_model
from fedax.errors import ConfigError, DataError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 6)).astype(np.float32)
IMAGES = RNG.integers(0, 256, (30, 16, 16, 3)).astype(np.uint8)
TEXT = RNG.integers(0, 7, (30, 5))

ZOO = [
    (fedax.tasks.linear_regression(6), {"x": X, "y": X[:, 0]}),
    (fedax.tasks.mlp_regression(6, hidden=(4,)), {"x": X, "y": X[:, 0]}),
    (fedax.tasks.logistic_regression(6), {"x": X, "y": np.sign(X[:, 0])}),
    (fedax.tasks.softmax_regression(6, 3, mean=0.1, std=(1.0,) * 6), {"x": X, "y": RNG.integers(0, 3, 30)}),
    (fedax.tasks.mlp(6, 2, hidden=(4, 3), l2=0.1), {"x": X, "y": RNG.integers(0, 2, 30)}),
    (fedax.tasks.cnn((16, 16, 3), 4, filters=2), {"x": IMAGES, "y": RNG.integers(0, 4, 30)}),
    (fedax.tasks.char_lstm(7, embedding=2, hidden=40, layers=2), {"x": TEXT, "y": TEXT}),
]


def saved(task, examples, path, labels=None):
    form = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), examples)
    params = jax.tree.map(np.asarray, jax.jit(task.init)(jax.random.key(1)))
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf + RNG.normal(size=leaf.shape) / 9, leaf.dtype), params)
    model = model_of(Origin(task, form, labels, None), params)
    model.save(path)
    return model


@pytest.mark.parametrize(("task", "examples"), ZOO, ids=[task.name for task, _ in ZOO])
def test_a_model_of_the_zoo_comes_back(task, examples, tmp_path):
    model = saved(task, examples, tmp_path / "m.safetensors")
    again = load_model(tmp_path / "m.safetensors")
    assert again.task is task and list(again.example) == ["x"]
    outputs = again.outputs(examples["x"])
    assert np.array_equal(outputs, model.outputs(examples["x"]))
    np.testing.assert_allclose(outputs, jax.jit(task.outputs)(model.params, examples), rtol=1e-5, atol=1e-6)
    again.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "m.safetensors").read_bytes()


WIDE = [
    (fedax.tasks.char_lstm(65), (80,)),
    (fedax.tasks.mlp(2, 2, hidden=(1000,)), (2,)),
    (fedax.tasks.mlp_regression(2, hidden=(1000,)), (2,)),
    (fedax.tasks.cnn((28, 28, 1), 10), (28, 28, 1)),
    (fedax.tasks.vgg11((32, 32, 3), 10), (32, 32, 3)),
    (fedax.tasks.resnet18((32, 32, 3), 10), (32, 32, 3)),
]


@pytest.mark.parametrize(("task", "shape"), WIDE, ids=[task.name for task, _ in WIDE])
def test_a_model_of_usual_width_comes_back(task, shape, tmp_path):
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), task.form())
    form = {"x": jax.ShapeDtypeStruct(shape, np.int32 if task.name == "char_lstm" else np.float32)}
    model_of(Origin(task, form, None, None), params).save(tmp_path / "m")
    assert jax.tree.map(np.shape, load_model(tmp_path / "m").params) == jax.tree.map(np.shape, params)


def test_predictions_are_labels_and_probabilities(tmp_path):
    task, examples = ZOO[4]
    model = saved(task, examples, tmp_path / "m", labels=("no", "yes"))
    logits = np.asarray(task.outputs(model.params, examples), float)
    again = load_model(tmp_path / "m")
    assert again.predict(X).tolist() == [("no", "yes")[k] for k in logits.argmax(1)]
    want = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(again.predict_proba(X), want, rtol=1e-5)
    signs = saved(*ZOO[2], tmp_path / "s", labels=(-1, 1))
    scores = X @ signs.params["w"]
    assert load_model(tmp_path / "s").predict(X).tolist() == np.where(scores > 0, 1, -1).tolist()
    np.testing.assert_allclose(signs.predict_proba(X)[:, 1], 1 / (1 + np.exp(-scores)), rtol=1e-5)
    with pytest.raises(ConfigError, match=r"no classification; take predict"):
        saved(*ZOO[0], tmp_path / "r").predict_proba(X)


def test_blocks_do_not_matter(monkeypatch):
    task, _ = ZOO[3]
    model = model_of(Origin(task, {"x": jax.ShapeDtypeStruct((6,), np.float32)}, None, None), task.init(None))
    whole = model.outputs(X)
    monkeypatch.setattr("fedax.engine.saved._NUMBERS", 6 * 7)
    assert np.array_equal(model.outputs(X), whole) and len(whole) == 30


def test_a_run_is_saved_with_its_labels_and_best_model(tmp_path):
    data = fedax.FederatedData(ZOO[2][1], sizes=[10, 20])
    run = fedax.simulate(
        fedax.create("fedavg", lr=0.1), ZOO[2][0], data, rounds=3, test=ZOO[2][1],
        checkpoint=fedax.Checkpoints(tmp_path / "c", best="test_loss"),
    )  # fmt: skip
    run.save(tmp_path / "run.safetensors")
    run.save(tmp_path / "best.safetensors", best=True)
    model = load_model(tmp_path / "run.safetensors")
    assert model.labels == (-1, 1) and set(model.predict(X)) <= {-1, 1}
    assert (model.predict(X) == run.model.predict(X)).all()
    assert np.array_equal(load_model(tmp_path / "best.safetensors").params["w"], run.best.params["w"])
    code = "import sys, fedax, numpy; print(fedax.load_model(sys.argv[1]).predict(numpy.ones((1, 6))))"
    result = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "run.safetensors"], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == str(run.model.predict(np.ones((1, 6)))).split()
    del run.best
    with pytest.raises(ConfigError, match="no best model was kept"):
        run.save(tmp_path / "none.safetensors", best=True)


def test_metrics_and_own_tasks(tmp_path):
    task, examples = ZOO[4]
    other = dataclasses.replace(task, metrics={})
    saved(other, examples, tmp_path / "m")
    assert load_model(tmp_path / "m").task is task  # of the same model
    own = fedax.Task(
        lambda key: jnp.zeros(6),
        lambda w, batch, key: (batch["a"] @ w - batch["target"]) ** 2 * batch["weight"],
        outputs=lambda w, batch: batch["a"] @ w + batch["b"],
        name="mine",
    )
    columns = {"a": X, "b": X[:, 0], "target": X[:, 1], "weight": X[:, 2]}
    model = saved(own, columns, tmp_path / "own")
    assert list(model.example) == ["a", "b"]  # what the loss alone needs is not asked for
    with pytest.raises(ConfigError, match=r"'mine' .*give load_model\(path, task"):
        load_model(tmp_path / "own")
    again = load_model(tmp_path / "own", own)
    np.testing.assert_allclose(again.predict({"a": X, "b": X[:, 0]}), X @ again.params + X[:, 0], rtol=1e-5, atol=1e-6)
    with pytest.raises(DataError, match="there is no column 'b'; the model takes a, b"):
        again.predict({"a": X})
    silent = dataclasses.replace(own, outputs=None)
    with pytest.raises(ConfigError, match=r"outputs = None: this task .*answers"):
        load_model(tmp_path / "own", silent).predict({"a": X, "b": X[:, 0]})


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (X[:, :5], r"x: .*shape \(5,\); .*takes \(6,\)"),
        (X[0], r"x: examples of shape \(\); the model takes"),
        (np.where(np.arange(180).reshape(30, 6) == 13, np.nan, X), "x: example 2 has nan; .*finite"),
        (X.astype(str), "x: numbers of type <U"),
        (X[:0], "x: 0 examples"),
        ({"y": X}, "there is no column 'x'"),
    ],
)
def test_what_cannot_be_predicted(x, message, tmp_path):
    with pytest.raises(DataError, match=message):
        saved(*ZOO[3], tmp_path / "m").predict(x)


def described(path, **changes):
    """A file with another description, its digest right."""
    content = path.read_bytes()
    head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    about = json.loads(head["__metadata__"]["fedax"]) | changes
    params = load_model(path).params
    write_model(path, params, json.dumps(about))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": {"name": "mlp", "features": 6, "classes": 2, "hidden": [5, 3]}}, "another model: 0.b is"),
        ({"task": {"name": "mpl"}}, "its task cannot be made .*did you mean 'mlp'"),
        (
            {"task": {"name": "mlp", "features": 10**9, "classes": 2}},
            "features = 1000000000, too much for its 6",
        ),
        ({"task": {"name": "char_lstm", "vocabulary": 5, "layers": 40}}, "layers = 40, too much"),
        ({"task": {"name": "mlp", "features": 6, "classes": 2, "hidden": [1] * 30}}, r"hidden = \(1, 1.*too much"),
        ({"task": {"name": "classification", "init": 1, "apply": 2, "classes": 2}}, "its task cannot be made"),
        ({"example": {"x": {"shape": [6], "dtype": "object"}}}, "its description cannot be used"),
        ({"example": {"x": {"shape": [-6], "dtype": "int8"}}}, "its description cannot be used"),
        ({"labels": [1.5]}, "its description cannot be used"),
        ({"kind": "magic"}, "its description cannot be used"),
        ({"more": 1}, "its description cannot be used"),
        ({"transform": {"columns": 1}}, "its description cannot be used"),
    ],
)
def test_a_description_that_cannot_be(changes, message, tmp_path):
    path = tmp_path / "m"
    saved(*ZOO[4], path)
    described(path, **changes)
    with pytest.raises(DataError, match=message):
        load_model(path)


def test_files_without_a_description_need_the_task(tmp_path):
    task, examples = ZOO[4]
    write_model(tmp_path / "old", task.init(jax.random.key(0)))
    with pytest.raises(ConfigError, match="give load_model"):
        load_model(tmp_path / "old")
    model = load_model(tmp_path / "old", task)
    assert model.predict(examples).shape == (30,)
    content = bytearray((tmp_path / "old").read_bytes())
    content[-1] ^= 1
    (tmp_path / "old").write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        load_model(tmp_path / "old", task)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_model(tmp_path / "none", task)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        load_model(tmp_path / "pipe", task)


def test_narrow_parameters_keep_their_type(tmp_path):
    params = {"w": jnp.arange(3, dtype=jnp.bfloat16)}
    write_model(tmp_path / "m", params)
    assert read_model(tmp_path / "m", params)["w"].dtype == jnp.bfloat16


def test_a_module_of_pytorch_comes_back_with_its_graph(tmp_path):
    task = fedax.tasks.from_export(pathlib.Path(__file__).parents[1] / "tasks" / "pt2" / "digits.pt2")
    digits = fedax.data.load("digits")
    examples = {"x": np.moveaxis(digits.train["x"], -1, 1)[:60], "y": digits.train["y"][:60]}
    run = fedax.simulate(fedax.create("fedavg", lr=0.1), task, fedax.FederatedData(examples, [20, 40]), rounds=2)
    run.save(tmp_path / "m")
    again = load_model(tmp_path / "m")
    np.testing.assert_allclose(again.outputs(examples["x"]), task.outputs(run.params, examples), rtol=1e-5, atol=1e-5)
    state, wanted = again.to_torch_state_dict(), fedax.tasks.to_torch_state_dict(task, run.params)
    assert list(state) == list(wanted) and all(np.array_equal(state[name], wanted[name]) for name in wanted)
    again.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "m").read_bytes()
    with pytest.raises(ConfigError, match="from_torch"):
        saved(*ZOO[4], tmp_path / "z").to_torch_state_dict()


def test_what_another_model_is_called_is_said_in_a_line(tmp_path):
    write_model(tmp_path / "model", {"9" * 5000 + "\n": np.zeros([1] * 60)})
    with pytest.raises(DataError, match=r"another model: 9{100}… is .{100}… in it, and None") as caught:
        read_model(tmp_path / "model", {})
    assert len(str(caught.value)) < 600 and str(caught.value).isprintable()
