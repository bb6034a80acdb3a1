"""PyTorch modules as tasks: with the same weights and batches, PyTorch's own outputs, gradients and averages."""

import functools
import io
import json
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.errors import ConfigError, DataError
from fedax.tasks.pytorch import constants, describe, from_description

from .. import long

HERE = Path(__file__).parent / "pt2"

# ---- files: PyTorch is not needed


def saved(name):
    with np.load(HERE / f"{name}.npz") as file:
        return dict(file)


def squares(outputs, batch):
    return (outputs**2).sum(axis=tuple(range(1, outputs.ndim)))


@functools.cache
def task_of(name):
    return fedax.tasks.from_export(HERE / f"{name}.pt2", loss=squares)


@functools.cache
def answer_of(name):
    """The outputs for the examples that are beside the file; compiled as a whole."""
    task = task_of(name)
    return jax.jit(task.outputs)(task.init(None), {"x": saved(name)["x"]})


@pytest.mark.parametrize("name", ["digits", "words", "odd"])
def test_a_file_answers_as_pytorch_did(name):
    task, result = task_of(name), saved(name)
    params, batch = task.init(None), {"x": result["x"]}
    np.testing.assert_allclose(answer_of(name), result["answer"], rtol=1e-5, atol=1e-5)
    gradient = jax.jit(jax.grad(lambda params: task.loss(params, batch, None).sum()))(params)
    state = fedax.tasks.to_torch_state_dict(task, gradient)
    known = {key.removeprefix("gradient "): value for key, value in result.items() if key.startswith("gradient")}
    assert known.keys() <= state.keys()
    for key, value in known.items():
        np.testing.assert_allclose(state[key], value, rtol=1e-4, atol=1e-4, err_msg=key)


@pytest.mark.parametrize("name", ["digits", "words", "odd"])
def test_a_description_is_all_but_the_numbers(name):
    task, batch = task_of(name), {"x": saved(name)["x"]}
    text = json.dumps(describe(task), allow_nan=False)
    assert "torch_models" not in text  # no names of the author's files
    params = task.init(None)
    again = from_description(
        json.loads(text), {key: np.asarray(value) for key, value in params.items()}, constants(task)
    )
    np.testing.assert_array_equal(jax.jit(again.outputs)(params, batch), answer_of(name))
    assert describe(again) == describe(task)
    with pytest.raises(ConfigError, match="came without its loss"):
        jax.eval_shape(again.loss, params, batch, None)


def test_a_description_keeps_the_loss():
    task = fedax.tasks.from_export(HERE / "digits.pt2")
    again = from_description(json.loads(json.dumps(describe(task))), task.init(None), constants(task))
    batch = {"x": saved("digits")["x"], "y": np.array([0, 1, 2, 3, 9])}
    np.testing.assert_array_equal(*(jax.jit(one.loss)(one.init(None), batch, None) for one in (task, again)))
    assert (again.kind, list(again.metrics), again.name) == ("classification", ["accuracy"], "digits")


@pytest.mark.parametrize(
    "change",
    [
        lambda result: result | {"format": 2},
        lambda result: result | {"name": 3},
        lambda result: result | {"tied": {"a": []}},
        lambda result: result | {"state": ["no such"]},
        lambda result: result | {"graph": 7},
        lambda result: result | {"graph": result["graph"] | {"nodes": [["aten.magic.default", {}, ["y"], ""]]}},
        lambda result: result | {"graph": result["graph"] | {"nodes": result["graph"]["nodes"][1:]}},
        lambda result: result | {"graph": result["graph"] | {"shapes": []}},
        lambda result: {},
        lambda result: None,
    ],
)
def test_a_description_that_is_none(change):
    task = fedax.tasks.from_export(HERE / "digits.pt2")
    with pytest.raises(ConfigError):
        from_description(change(describe(task)), task.init(None), constants(task))


def test_tied_and_frozen_parameters():
    words, odd = task_of("words"), task_of("odd")
    assert {"embedding.weight", "head.weight"} & words.init(None).keys() in ({"embedding.weight"}, {"head.weight"})
    state = fedax.tasks.to_torch_state_dict(words)
    np.testing.assert_array_equal(state["embedding.weight"], state["head.weight"])
    assert "scale" not in odd.init(None) and "norm.running_var" not in odd.init(None)
    assert {"scale", "norm.running_var", "norm.num_batches_tracked"} <= fedax.tasks.to_torch_state_dict(odd).keys()
    assert fedax.tasks.to_torch_state_dict(odd)["depthwise.weight"].shape == (4, 1, 3, 3)  # PyTorch's order


def test_dropout_is_random_in_training_alone():
    task = task_of("odd")
    params, batch = task.init(None), {"x": saved("odd")["x"]}
    loss = jax.jit(task.loss)
    draws = np.stack([loss(params, batch, jax.random.key(i)) for i in range(20)])
    assert len(np.unique(draws[:, 0])) > 5
    np.testing.assert_array_equal(loss(params, batch, None), loss(params, batch, None))
    answers = jax.jit(jax.vmap(lambda key: answer_with(task, params, batch, key)))
    kept = answers(jax.random.split(jax.random.key(0), 2000))
    np.testing.assert_allclose(kept.mean(axis=0), answer_of("odd"), atol=0.15)  # the mean of all masks


def answer_with(task, params, batch, key):
    return task.init.__self__.apply(params, (batch["x"],), key)[0]


@pytest.mark.parametrize(
    ("loss", "answers", "y", "expected"),
    [
        ("mse", [1.0, 3.0], [0.0, 1.0], [1.0, 4.0]),
        ("binary_cross_entropy", [0.0, 2.0], [1, 0], [np.log(2), 2 + np.log1p(np.exp(-2))]),
    ],
)
def test_losses(loss, answers, y, expected):
    with_shape = describe(task_of("odd"))
    nodes = [["aten.mul.Tensor", {"self": {"value": "x"}, "other": {"value": "w"}}, ["z"], ""]]
    graph = {"inputs": [["x", [None], "float32"]], "tensors": {"w": "w"}, "nodes": nodes}
    graph |= {"outputs": [{"value": "z"}], "shapes": [[None]]}
    description = with_shape | {"loss": loss, "graph": graph, "tied": {}, "state": ["w"]}
    task = from_description(description, {"w": np.float32(1)}, {})
    batch = {"x": np.array(answers, np.float32), "y": np.array(y)}
    task.check_examples(batch)
    np.testing.assert_allclose(task.loss(task.init(None), batch, None), expected, rtol=1e-5, atol=1e-6)
    if loss == "binary_cross_entropy":
        assert task.metrics["accuracy"](task.init(None), batch).tolist() == [0, 0]
        with pytest.raises(DataError, match="example 1 has label 2"):
            task.check_examples(batch | {"y": np.array([0, 2])})
    assert task.kind == ("regression" if loss == "mse" else "classification")


def test_examples_that_do_not_fit():
    digits, words = (fedax.tasks.from_export(HERE / f"{name}.pt2") for name in ("digits", "words"))
    y = np.zeros(2, int)
    for x, message in [
        (np.zeros((2, 8, 8), np.float32), r"give x\[:, None\]"),
        (np.zeros((2, 8, 8, 1), np.float32), "numpy.moveaxis"),
        (np.zeros((2, 64), np.float32), r"reshape\(len\(x\), 1, 8, 8\)"),
        (np.zeros((2, 1, 8, 8), int), "real numbers"),
    ]:
        with pytest.raises(DataError, match=message):
            digits.check_examples({"x": x, "y": y})
    with pytest.raises(DataError, match="label 10"):
        digits.check_examples({"x": np.zeros((2, 1, 8, 8), np.float32), "y": y + 10})
    with pytest.raises(DataError, match=r"'x'.: example 1 has 11, .*has 11 rows"):
        words.check_examples({"x": np.array([[1] * 7, [11] * 7]), "y": np.zeros((2, 7), int)})
    with pytest.raises(DataError, match=r"use \.astype"):
        words.check_examples({"x": np.zeros((2, 7)), "y": np.zeros((2, 7), int)})
    words.check_examples({"x": np.ones((2, 7), int), "y": np.zeros((2, 7), int)})


def test_bytes_are_pictures():
    task, x = task_of("digits"), saved("digits")["x"]
    pixels = np.round(x * 255).astype(np.uint8)
    params = task.init(None)
    expected = task.outputs(params, {"x": pixels / np.float32(255)})
    np.testing.assert_allclose(task.outputs(params, {"x": pixels}), expected, rtol=1e-5, atol=1e-6)


def rewritten(name, change):
    """A fixture with another JSON of its graph or weights, or another text."""
    out = io.BytesIO()
    with zipfile.ZipFile(HERE / f"{name}.pt2") as given, zipfile.ZipFile(out, "w") as kept:
        for info in given.infolist():
            kept.writestr(info.filename, change(info.filename, given.read(info)))
    return out.getvalue()


def model(change):
    def changed(name, content):
        if not name.endswith("models/model.json"):
            return content
        tree = json.loads(content)
        change(tree)
        return json.dumps(tree).encode()

    return changed


def weights(change):
    def changed(name, content):
        if not name.endswith("weights_config.json"):
            return content
        tree = json.loads(content)
        change(tree["config"]["0.weight"])
        return json.dumps(tree).encode()

    return changed


def nodes(tree):
    return tree["graph_module"]["graph"]["nodes"]


def sizes(*lengths):
    return [{"as_int": n} for n in lengths]


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("digits", weights(lambda w: w.update(use_pickle=True)), DataError, "never unpickles"),
        ("digits", weights(lambda w: w["tensor_meta"].update(sizes=sizes(2**20, 1, 3, 3))), DataError, "declares"),
        ("digits", weights(lambda w: w["tensor_meta"].update(strides=sizes(0, 0, 0, 1))), None, ""),
        ("digits", weights(lambda w: w["tensor_meta"].update(strides=sizes(9, 9, 3, 2))), DataError, "declares"),
        ("digits", weights(lambda w: w["tensor_meta"].update(storage_offset={"as_int": 1})), DataError, "declares"),
        ("digits", weights(lambda w: w["tensor_meta"].update(dtype=9)), ConfigError, "fedax takes uint8"),
        ("digits", weights(lambda w: w.update(path_name="../weight_0")), DataError, "there is no"),
        ("digits", model(lambda m: m["schema_version"].update(major=9)), DataError, "schema 9; fedax reads 8"),
        ("digits", lambda name, content: b"7" if name.endswith("archive_version") else content, DataError, "version"),
        ("digits", lambda name, content: b"big" if name.endswith("byteorder") else content, DataError, "big"),
        (
            "digits",
            model(lambda m: nodes(m)[2].update(target="torch.ops.aten.fold.default")),
            ConfigError,
            r"'aten.fold.default': .*torch_models.py:1: .*no such",
        ),
        (
            "digits",
            model(lambda m: nodes(m)[2]["inputs"].append({"name": "out", "arg": {"as_none": True}})),
            ConfigError,
            r"in 2 \(ReLU\).*without the argument 'out'",
        ),
        (
            "odd",
            model(lambda m: nodes(m)[1]["inputs"][5]["arg"].update(as_bool=True)),
            ConfigError,
            r"BatchNorm2d\).*module.eval\(\).*GroupNorm",
        ),
        (
            "digits",
            model(lambda m: m["graph_module"]["graph"]["tensor_values"]["input"].update(sizes=sizes(5, 1, 8, 8))),
            ConfigError,
            "this number of examples alone",
        ),
    ],
)
def test_files_that_are_refused(tmp_path, name, change, error, message):
    path = tmp_path / "model.pt2"
    path.write_bytes(rewritten(name, change))
    if error is None:
        fedax.tasks.from_export(path)
        return
    with pytest.raises(error, match=message):
        fedax.tasks.from_export(path, loss=squares)


def test_settings_that_are_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        fedax.tasks.from_export(tmp_path / "none.pt2")
    with pytest.raises(ConfigError, match="did you mean 'cross_entropy'"):
        fedax.tasks.from_export(HERE / "digits.pt2", loss="crossentropy")
    with pytest.raises(ConfigError, match="module's 1 arguments: input"):
        fedax.tasks.from_export(HERE / "digits.pt2", inputs=("x", "z"))
    with pytest.raises(ConfigError, match=r"output is \[b\]; .*outputs \[b, C\]"):
        fedax.tasks.from_export(HERE / "odd.pt2")
    with pytest.raises(ConfigError, match="give a task of"):
        fedax.tasks.to_torch_state_dict(fedax.tasks.mlp(4, 2))
    with pytest.raises(ConfigError, match="give parameters of this task"):
        fedax.tasks.to_torch_state_dict(task_of("odd"), task_of("digits").init(None))


def test_an_operator_that_fails_names_its_place(tmp_path):
    path = tmp_path / "model.pt2"
    path.write_bytes(rewritten("digits", model(lambda m: nodes(m)[3]["inputs"][1]["arg"].update(as_ints=[99, 99]))))
    task = fedax.tasks.from_export(path)
    with pytest.raises(ConfigError, match=r"max_pool2d.*in 3 \(MaxPool2d\), torch_models.py:1"):
        task.loss(task.init(None), {"x": saved("digits")["x"], "y": np.zeros(5, int)}, None)


def test_a_file_is_federated():
    task = fedax.tasks.from_export(HERE / "digits.pt2")
    digits = fedax.data.load("digits")
    train, test = ({"x": part["x"].reshape(-1, 1, 8, 8), "y": part["y"]} for part in (digits.train, digits.test))
    data = fedax.FederatedData.from_partition(train, fedax.data.iid(len(train["y"]), clients=4))
    run = fedax.simulate(fedax.create("fedavg", lr=0.3), task, data, rounds=5, batch_size=32, test=test)
    assert run.history["test_accuracy"][-1] > 0.8


# ---- PyTorch itself


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'fedax[torch]'")


@pytest.fixture(scope="module")
def models(torch):
    from tests.tasks import torch_models

    return torch_models


NAMES = ["resnet18", "vgg", "mobile", "lstm", "gru", "transformer", "vit", "mlp", "unet", "bag", "dropout"]
NAMES += ["batchnorm"]
LR, STEPS, ROUNDS, SIZES = 0.1, 2, 5, (4, 7, 5)


@pytest.fixture(scope="module")
def modules(torch, models, tmp_path_factory):
    """name -> the module, its task, and examples: made once, from files where dropout has to be off."""

    @functools.cache
    def make(name):
        module, batches = models.make(name)
        x, y = batches(sum(SIZES)), torch.randint(0, 5, (sum(SIZES),))
        if name != "dropout":
            return module, fedax.tasks.from_torch(module, x[:1]), x, y
        path = tmp_path_factory.mktemp("pt2") / "dropout.pt2"
        shapes = ({0: torch.export.Dim("batch")},)
        torch.export.save(torch.export.export(module.eval(), (x,), dynamic_shapes=shapes), path)
        return module, fedax.tasks.from_export(path), x, y

    return make


@pytest.mark.parametrize("name", NAMES)
def test_five_rounds_are_those_of_a_loop_in_pytorch(torch, modules, name):
    module, task, x, y = modules(name)
    module.eval()
    data = fedax.FederatedData({"x": x.numpy(), "y": y.numpy()}, SIZES)
    method, work = fedax.create("fedavg", lr=LR), fedax.Steps(STEPS)
    # Inside of one program: outputs at the end, and the gradients of the steps of all clients.
    run = fedax.simulate(method, task, data, rounds=ROUNDS, work=work, batch_size=None)
    start = {key: value.clone() for key, value in module.state_dict().items()}
    state = start
    for _ in range(ROUNDS):
        total = {key: torch.zeros_like(value) for key, value in state.items()}
        for xs, ys in zip(x.split(SIZES), y.split(SIZES), strict=True):
            module.load_state_dict(state)
            optimizer = torch.optim.SGD(module.parameters(), LR)
            for _ in range(STEPS):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(module(xs), ys).backward()
                optimizer.step()
            for key, value in module.state_dict().items():
                total[key] += (len(ys) / sum(SIZES) * value).to(value.dtype)
        state = total
    mine = fedax.tasks.to_torch_state_dict(task, run.params)
    for key, _ in module.named_parameters():
        np.testing.assert_allclose(mine[key], state[key].numpy(), atol=1e-4, rtol=1e-4, err_msg=key)
    assert any(np.abs(mine[key] - start[key].numpy()).max() > 1e-3 for key in start)  # something was learned
    module.load_state_dict(fedax.tasks.to_torch_state_dict(task, run.params, tensors=True), strict=True)
    with torch.no_grad():
        answer = module(x).numpy()
    np.testing.assert_allclose(task.outputs(run.params, {"x": x.numpy()}), answer, atol=1e-5, rtol=1e-5)
    module.load_state_dict(start)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_gradients_are_pytorchs(torch, modules, name):
    module, task, x, y = modules(name)
    module.eval()
    params, batch = task.init(None), {"x": x.numpy(), "y": y.numpy()}
    task.check_examples(batch)

    def several(params, batch):  # two clients, two gradients each
        def loss(params):
            return task.loss(params, batch, None).mean(), task.outputs(params, batch)

        return jax.lax.scan(lambda carry, _: (carry, jax.grad(loss, has_aux=True)(params)), 0, None, length=2)[1]

    two = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), params)
    gradient, answer = jax.jit(jax.vmap(several, in_axes=(0, None)))(two, batch)
    module.zero_grad()
    expected = module(x)
    torch.nn.functional.cross_entropy(expected, y).backward()
    for i, j in ((0, 0), (1, 1)):
        np.testing.assert_allclose(answer[i, j], expected.detach().numpy(), atol=1e-5, rtol=1e-5)
        state = fedax.tasks.to_torch_state_dict(task, jax.tree.map(lambda leaf, at=(i, j): leaf[at], gradient))
        for key, value in module.named_parameters():
            np.testing.assert_allclose(state[key], value.grad.numpy(), atol=1e-4, rtol=1e-4, err_msg=key)


GROUPS = ["activations", "arithmetic", "sums", "products", "shapes", "convolutions", "pooling", "normalisation"]


@pytest.mark.parametrize("group", GROUPS)
def test_operators_are_pytorchs(torch, models, group):
    torch.manual_seed(0)
    module, x = models.Operators(group), torch.randn(3, 4, 6, 6)

    def loss(outputs, batch):
        return sum((jnp.sin(one * jnp.ones(())).sum() for one in outputs), jnp.zeros(len(batch["x"])))

    task = fedax.tasks.from_torch(module, x, loss=loss)
    params, batch = task.init(None), {"x": x.numpy()}

    def both(params):
        result = task.init.__self__.apply(params, (batch["x"],), None)
        return loss(result, batch)[0], result

    gradient, result = jax.jit(jax.grad(both, has_aux=True))(params)
    expected = module(x)
    for name, mine, theirs in zip(models.GROUPS[group], result, expected, strict=True):
        np.testing.assert_allclose(mine, theirs.detach().numpy(), atol=1e-4, rtol=1e-5, err_msg=name)
    sum(torch.sin(one.float()).sum() for one in expected).backward()
    np.testing.assert_allclose(gradient["scale"], module.scale.grad.numpy(), atol=2e-3, rtol=1e-4)


def test_modules_that_are_refused(torch, models):
    nn = torch.nn

    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 4)

        def forward(self, x):
            y = self.linear(x)
            y[:, 0] = 0
            return y

    class Values(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 4)

        def forward(self, x):
            return self.linear(x) if x.sum() > 0 else x

    for module, message in [
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), r"1 \(BatchNorm1d\).*module.eval\(\)"),
        (InPlace(), "aten.fill_.Tensor.*is used later"),
        (Values(), "torch.export cannot export it"),
        (nn.Sequential(nn.Linear(3, 4), nn.Fold((2, 2), (1, 1))), r"aten.col2im.*in 1 \(Fold\): .*no such"),
        (nn.Flatten(), "no parameters"),
        (models, "give a torch.nn.Module"),
    ]:
        with pytest.raises(ConfigError, match=message):
            fedax.tasks.from_torch(module, np.zeros((2, 3), np.float32))
    for example in (np.float32(3), np.zeros((0, 3), np.float32)):
        with pytest.raises(ConfigError, match="give a batch"):
            fedax.tasks.from_torch(nn.Linear(3, 4), example)


def test_the_error_of_an_export_is_all_that_is_said(torch, models, capsys):
    import logging

    names_logged = []

    class Heard(logging.Handler):
        def emit(self, record):
            names_logged.append(record.name)

    class Branches(torch.nn.Linear):
        def forward(self, x):
            logging.getLogger("mine").warning("of the user's own")
            return super().forward(x) if x.sum() > 0 else x

    names = ("", "torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")  # where torch says it
    handler = Heard()
    for name in names:
        logging.getLogger(name).addHandler(handler)
    try:
        for module, width in ((Branches(3, 4), 3), (torch.nn.Linear(3, 4), 5)):
            with pytest.raises(ConfigError, match=r"torch\.export cannot export it") as failed:
                fedax.tasks.from_torch(module, np.zeros((2, width), np.float32))
            assert isinstance(failed.value.__cause__, RuntimeError)
        assert {*names_logged} == {"mine"} and capsys.readouterr().err == ""
        logging.getLogger(names[1]).warning("after it")
        assert names_logged[-1] == names[1]
    finally:
        for name in names:
            logging.getLogger(name).removeHandler(handler)


def test_an_export_leaves_the_module_as_it_was(torch, models):
    module = models.batch_norm()
    module[0].train()
    modes = [layer.training for layer in module.modules()]
    fedax.tasks.from_torch(module, models.images(1))
    assert [layer.training for layer in module.modules()] == modes


def test_several_inputs_and_outputs(torch):
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)

        def forward(self, left, right):
            return {
                "sum": self.linear(left + right),
                "difference": self.linear(left) - right[:, :2],
                "n": left.shape[0],
            }

    left, right = torch.randn(2, 4, 3)
    module = Two()

    def loss(outputs, batch):
        return outputs[0][:, 0] + outputs[1][:, 1]

    task = fedax.tasks.from_torch(module, (left, right), loss=loss)
    batch, expected = {"left": left.numpy(), "right": right.numpy()}, module(left, right)
    task.check_examples(batch)
    due = (expected["sum"][:, 0] + expected["difference"][:, 1]).detach().numpy()
    np.testing.assert_allclose(task.loss(task.init(None), batch, None), due, rtol=1e-5, atol=1e-6)
    with pytest.raises(ConfigError, match="for modules of one output, this has 2"):
        fedax.tasks.from_torch(module, (left, right), loss="mse")
    named = fedax.tasks.from_torch(module, (left, right), loss=loss, inputs=("a", "b"))
    with pytest.raises(DataError, match="there is no 'b'"):
        named.check_examples({"a": left.numpy()})


def test_half_precision(torch):
    module = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to(torch.bfloat16)
    x = torch.randn(5, 3).to(torch.bfloat16)
    task = fedax.tasks.from_torch(module, x).trained
    params = task.init(None)
    assert {leaf.dtype for leaf in params.values()} == {jnp.dtype("float32")}
    answer = task.outputs(params, {"x": x.float().numpy(), "y": np.zeros(5, int)})
    np.testing.assert_allclose(answer, module(x).detach().float().numpy(), atol=0.02)
    state = fedax.tasks.to_torch_state_dict(fedax.tasks.from_torch(module, x), tensors=True)
    assert {value.dtype for value in state.values()} == {torch.bfloat16}
    module.load_state_dict(state, strict=True)
    with pytest.raises(ConfigError, match="bfloat16 or float32"):
        fedax.tasks.from_torch(module.half(), x.half())


@long
def test_resnet18_of_true_size(torch, models):
    torch.manual_seed(0)
    module = models.ResNet18(width=64, groups=32, classes=10)
    x, y = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
    task = fedax.tasks.from_torch(module, x)
    result = jax.jit(task.outputs)(task.init(None), {"x": x.numpy(), "y": y.numpy()})
    np.testing.assert_allclose(result, module(x).detach().numpy(), atol=1e-5, rtol=1e-5)
    # In float32 a ReLU at zero may fall either way, and gradients then differ by more than rounding.
    with jax.enable_x64(True):
        module, x = module.double(), x.double()
        task = fedax.tasks.from_torch(module, x)
        batch = {"x": x.numpy(), "y": y.numpy()}
        gradient = jax.jit(jax.grad(lambda params: task.loss(params, batch, None).mean()))(task.init(None))
        state = fedax.tasks.to_torch_state_dict(task, gradient)
    torch.nn.functional.cross_entropy(module(x), y).backward()
    for key, value in module.named_parameters():
        assert state[key].dtype == np.float64
        np.testing.assert_allclose(state[key], value.grad.numpy(), atol=1e-10, rtol=1e-10, err_msg=key)
