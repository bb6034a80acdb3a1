"""Tasks of PyTorch modules: made from a module or a file, written as a state dict, and described as plain JSON."""

import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.errors import ConfigError, DataError, ExampleError, unknown
from fedax.files import regular
from fedax.tasks import checks
from fedax.tasks.classification import OF_NUMBERS, OF_TWO_CLASSES
from fedax.tasks.losses import correct, cross_entropy, once
from fedax.tasks.pytorch import archive, graph
from fedax.tasks.pytorch.model import TorchModel, of_archive
from fedax.tasks.task import Task

Loss = str | Callable[[Any, Any], Any]
LOSSES = ("cross_entropy", "binary_cross_entropy", "mse")


def from_torch(
    module: Any, example: Any, loss: Loss = "cross_entropy", *, inputs: Sequence[str] | None = None, name: str = ""
) -> Task:
    """A task of a PyTorch module, which JAX then runs; needs PyTorch (``pip install 'fedax[torch]'``).

    The module is exported by ``torch.export`` with any number of examples in a batch, and its graph becomes a function
    of JAX. The parameters are a dictionary with the module's own names and values; weights of two-dimensional
    convolutions are kept as [height, width, in, out]. :func:`to_torch_state_dict` is the way back.

    Buffers and parameters without ``requires_grad`` stay constant; tied parameters stay tied. Dropout is on in
    training, whatever mode the module is in, and off in evaluation.

    Args:
        module: a ``torch.nn.Module``. BatchNorm has to be in evaluation mode, ``module.eval()``: its statistics are
            then constants.
        example: one batch as the module takes it, a tensor or array [b, ...], or a tuple of them.
        loss: of each example, of the module's output and ``batch["y"]``:

            - ``"cross_entropy"``: output [b, C], or [b, C, ...] with y [b, ...] and the mean over the rest;
            - ``"binary_cross_entropy"``: output [b] or [b, 1], log-odds of y = 1, or [b, k] with y [b, k];
            - ``"mse"``: output [b], [b, 1] or [b, k], the mean of the squared errors.

            Or a function of JAX, ``loss(outputs, batch) -> [b]``; ``outputs`` is a tuple if the module returns
            several values, ``batch`` the dictionary of examples.
        inputs: the columns of the examples that the module takes, in its order. Default: ``("x",)``, or with several
            the names of the module's arguments.
        name: for reports. Default: the module's class.

    Examples are ``{"x": [n, ...], "y": ...}``. uint8 images become numbers from 0 to 1, as in all of fedax's tasks;
    images are [n, channels, h, w], as PyTorch has them.

    Raises:
        ConfigError: PyTorch is not installed; the module cannot be exported, has BatchNorm in training mode or an
            operator that fedax does not have (the message names its place); another loss.
        DataError: by a run, examples that do not fit.

    Example:
        >>> import torch, fedax  # doctest: +SKIP
        >>> net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU())  # doctest: +SKIP
        >>> task = fedax.tasks.from_torch(net, torch.zeros(2, 64), loss="cross_entropy")  # doctest: +SKIP
    """
    from fedax.tasks.pytorch.export import exported

    content = exported(module, example)
    contents = archive.read(io.BytesIO(content), "the module's export", len(content))
    return make_task(of_archive(contents), loss, inputs, name or type(module).__name__)


def from_export(
    path: str | os.PathLike, loss: Loss = "cross_entropy", *, inputs: Sequence[str] | None = None, name: str = ""
) -> Task:
    """The same as :func:`from_torch`, of a file that ``torch.export.save`` wrote; needs no PyTorch.

    Nothing in the file is unpickled. It has to be exported with any number of examples in a batch, in training mode
    for dropout, with BatchNorm in evaluation mode::

        batch = torch.export.Dim("batch")
        torch.export.save(torch.export.export(module, (x,), dynamic_shapes=({0: batch},)), "model.pt2")

    Args:
        path: the file.
        loss, inputs: see :func:`from_torch`.
        name: for reports. Default: the file's name.

    Raises:
        DataError: the file cannot be read, or is of a version that fedax does not know; by a run, examples that do not
            fit.
        ConfigError: as :func:`from_torch`.

    Example:
        >>> task = from_export("tests/tasks/pt2/digits.pt2", loss="cross_entropy")
        >>> [(name, array.shape) for name, array in task.init(None).items()][:2]
        [('0.weight', (3, 3, 1, 4)), ('0.bias', (4,))]
    """
    file = Path(path)
    size = regular(file)
    return make_task(of_archive(archive.read(file, str(file), size)), loss, inputs, name or file.stem)


def to_torch_state_dict(
    task: Task, params: Mapping[str, Any] | None = None, *, tensors: bool = False
) -> dict[str, Any]:
    """The parameters as ``module.load_state_dict`` takes them: the module's names and layouts, with its buffers.

    Args:
        task: of :func:`from_torch` or :func:`from_export`.
        params: such as ``run.params``. Default: those that the module came with.
        tensors: PyTorch's tensors in place of NumPy arrays; needs PyTorch.

    Raises:
        ConfigError: another task, or parameters that are not its own; PyTorch is not installed.

    Example:
        >>> task = from_export("tests/tasks/pt2/digits.pt2")
        >>> to_torch_state_dict(task)["0.weight"].shape
        (4, 1, 3, 3)
    """
    model = model_of(task)
    params = model.init(None) if params is None else params
    form = {name: value.shape for name, value in model.parameters.items()}
    if not isinstance(params, Mapping) or {name: np.shape(value) for name, value in params.items()} != form:
        raise ConfigError("params", type(params).__name__, "give parameters of this task, such as run.params")
    arrays = {}
    for name in model.state:
        parameter = model.tied.get(name, name)
        value = params[parameter] if parameter in params else model.constants[parameter]
        dtype = model.parameters[parameter].dtype if parameter in params else value.dtype
        array = np.array(value).astype(dtype)
        arrays[name] = np.ascontiguousarray(array.transpose(3, 2, 0, 1)) if parameter in model.kernels else array
    if not tensors:
        return arrays
    from fedax.tasks.pytorch.export import tensor

    return {name: tensor(value) for name, value in arrays.items()}


def model_of(task: Task) -> TorchModel:
    """The PyTorch module of a task.

    Raises:
        ConfigError: there is none.
    """
    if not is_of(task):
        raise ConfigError("task", task.name, "give a task of fedax.tasks.from_torch or from_export")
    model: TorchModel = task.init.__self__  # type: ignore[attr-defined]
    return model


def is_of(task: Task) -> bool:
    """Whether a task is of a PyTorch module."""
    return isinstance(getattr(task.init, "__self__", None), TorchModel)


def describe(task: Task) -> dict[str, Any]:
    """A task of a PyTorch module without its numbers, as plain JSON; see :func:`from_description`.

    A loss that is a function cannot be described; the task that comes back then has outputs and no loss.

    Raises:
        ConfigError: another task.

    Example:
        >>> sorted(describe(from_export("tests/tasks/pt2/digits.pt2")))
        ['format', 'graph', 'inputs', 'loss', 'name', 'state', 'tied']
    """
    model, made = model_of(task), getattr(task.loss, "__self__", None)
    assert isinstance(made, _Losses)
    return {
        "format": graph.FORMAT,
        "name": task.name,
        "loss": made.kind if isinstance(made.kind, str) else None,
        "inputs": list(made.inputs),
        "state": list(model.state),
        "tied": dict(model.tied),
        "graph": model.graph.describe(),
    }


def constants(task: Task) -> dict[str, np.ndarray]:
    """The numbers of a PyTorch module that are not trained: buffers, frozen parameters and constants."""
    return dict(model_of(task).constants)


def from_description(description: Any, params: Mapping[str, np.ndarray], constants: Mapping[str, np.ndarray]) -> Task:
    """The task that :func:`describe` described.

    Args:
        description: what :func:`describe` returned, through JSON or not.
        params: the numbers that its ``init`` returns, by the names of the task's parameters.
        constants: what :func:`constants` returned.

    Raises:
        ConfigError: no description, of another format, or with an operator that fedax does not have; numbers missing.

    Example:
        >>> task = from_export("tests/tasks/pt2/digits.pt2")
        >>> again = from_description(describe(task), task.init(None), constants(task))
        >>> describe(again) == describe(task)
        True
    """
    if not isinstance(description, Mapping) or description.get("format") != graph.FORMAT:
        raise ConfigError("description", type(description).__name__, f"give one of format {graph.FORMAT}")
    try:
        texts = [description["name"], *description["inputs"], *description["state"]]
        tied = dict(description["tied"])
        texts += [*tied, *tied.values()]
        loss, given = description["loss"], description["graph"]
    except (TypeError, ValueError, LookupError) as error:
        raise ConfigError("description", type(description).__name__, f"no description of a task ({error})") from error
    if not all(isinstance(text, str) for text in texts) or not isinstance(loss, str | None):
        raise ConfigError("description", type(description).__name__, "no description of a task: names are texts")
    numbers = [{name: np.asarray(value) for name, value in found.items()} for found in (params, constants)]
    model = TorchModel(graph.from_description(given), numbers[0], numbers[1], tied, tuple(description["state"]))
    return make_task(model, _no_loss if loss is None else loss, tuple(description["inputs"]), description["name"])


def _no_loss(outputs: Any, batch: Any) -> Any:
    raise ConfigError("loss", None, "the model came without its loss, which was a function: make the task anew")


def make_task(model: TorchModel, loss: Loss, inputs: Sequence[str] | None, name: str) -> Task:
    """A task of a model; checks all that can be checked before anything is compiled."""
    if not callable(loss) and loss not in LOSSES:
        raise unknown("loss", loss, LOSSES)
    taken = model.graph.inputs
    if inputs is None:
        inputs = ("x",) if len(taken) == 1 else tuple(given.name for given in taken)
    if isinstance(inputs, str) or len(inputs) != len(taken) or not all(isinstance(one, str) for one in inputs):
        names = ", ".join(given.name for given in taken)
        raise ConfigError("inputs", inputs, f"give the columns for the module's {len(taken)} arguments: {names}")
    for given in taken:
        if not given.shape or given.shape[0] is not None:
            hint = (
                "the export is for this number of examples alone: export with "
                "dynamic_shapes=({0: torch.export.Dim('batch')},), an entry for each argument"
            )
            raise ConfigError(f"input {given.name!r}", given.shape, hint)
    if not model.parameters:
        raise ConfigError("module", name, "it has no parameters with requires_grad, so nothing can be learned")
    tensors = [shape for shape in model.graph.shapes if shape is not None]
    if isinstance(loss, str) and len(tensors) != 1:
        hint = "give a function, loss(outputs, batch) -> [b]; outputs is a tuple of all of them"
        raise ConfigError("loss", loss, f"it is for modules of one output, this has {len(tensors)}: {hint}")
    made = _Losses(model, loss, tuple(inputs), tensors[0] if len(tensors) == 1 else None)
    kinds = {"cross_entropy": "classification", "binary_cross_entropy": "classification", "mse": "regression"}
    kind: Any = kinds[loss] if isinstance(loss, str) else None
    metrics: dict[str, Any] = {"accuracy": made.accuracy} if kind == "classification" else {}
    one = kind is not None and tensors[0][1:] in ((), (1,))  # a number an example
    if (loss == "binary_cross_entropy" and one) or (loss == "cross_entropy" and tensors[0][1:] == (2,)):
        metrics |= OF_TWO_CLASSES
    elif loss == "mse" and one:
        metrics |= OF_NUMBERS
    task = Task(model.init, made.loss, metrics, made.check, name, made.outputs if made.one else None, kind)
    task.form()
    return task


class _Losses:
    """The functions of a task."""

    def __init__(self, model: TorchModel, kind: Loss, inputs: tuple[str, ...], shape: tuple[int | None, ...] | None):
        self.model, self.kind, self.inputs, self.shape = model, kind, inputs, shape
        self.one = shape is not None
        if isinstance(kind, str) and shape is not None:
            self._check_shape(kind, shape)

    def _check_shape(self, kind: str, shape: tuple[int | None, ...]) -> None:
        fits = {
            "cross_entropy": len(shape) >= 2 and shape[1] is not None and shape[1] >= 2,
            "binary_cross_entropy": len(shape) in (1, 2),
            "mse": len(shape) >= 1,
        }[kind]
        if not fits or shape[0] is not None:
            shown = ", ".join("b" if axis == 0 else str(n or "any") for axis, n in enumerate(shape))
            hint = "cross_entropy is for outputs [b, C] with C > 1, binary_cross_entropy for [b], [b, 1] or [b, k]"
            raise ConfigError("loss", kind, f"the module's output is [{shown}]; {hint}")

    @once
    def _answer(self, params: Any, batch: Any, key: Any) -> Any:
        """The module's output, as the loss takes it: classes last, [b] in place of [b, 1], float32 or wider."""
        outputs = self.model.apply(params, tuple(batch[name] for name in self.inputs), key)
        if not isinstance(self.kind, str):
            return outputs if len(outputs) > 1 else outputs[0]
        (answer,) = (value for value in outputs if hasattr(value, "shape"))
        answer = answer.astype(jnp.promote_types(answer.dtype, jnp.float32))
        if self.kind == "cross_entropy":
            return jnp.moveaxis(answer, 1, -1)
        return answer[:, 0] if answer.shape[1:] == (1,) else answer

    def outputs(self, params: Any, batch: Any) -> Any:
        answer = self._answer(params, batch, None)
        return next(value for value in answer if hasattr(value, "shape")) if isinstance(answer, tuple) else answer

    def loss(self, params: Any, batch: Any, key: Any) -> Any:
        answer = self._answer(params, batch, key)
        if not isinstance(self.kind, str):
            return self.kind(answer, batch)
        y = jnp.asarray(batch["y"])
        if self.kind == "cross_entropy":
            each = cross_entropy(answer, y)
        else:
            y = self._one_column(y, answer).astype(answer.dtype)
            each = (answer - y) ** 2 if self.kind == "mse" else jax.nn.softplus(answer) - y * answer
        return each.mean(axis=tuple(range(1, each.ndim)))

    def accuracy(self, params: Any, batch: Any) -> Any:
        answer, y = self._answer(params, batch, None), jnp.asarray(batch["y"])
        if self.kind == "cross_entropy":
            each = correct(answer, y)
        else:
            each = ((answer > 0) == (self._one_column(y, answer) > 0)).astype(answer.dtype)
        return each.mean(axis=tuple(range(1, each.ndim)))

    def _one_column(self, y: Any, answer: Any) -> Any:
        return y[:, 0] if y.ndim == answer.ndim + 1 and y.shape[1:] == (1,) else y

    def check(self, examples: Any) -> None:
        columns = (*self.inputs, "y") if isinstance(self.kind, str) else self.inputs
        arrays = dict(zip(columns, checks.columns(examples, *columns), strict=True))
        for name, given in zip(self.inputs, self.model.graph.inputs, strict=True):
            _check_input(name, arrays[name], given, self.model)
        if not isinstance(self.kind, str):
            return
        assert self.shape is not None
        y = arrays["y"]
        if self.kind == "cross_entropy":
            # Where the length of an axis is any, it is that of the labels.
            lengths = y.shape[1:] if y.ndim == len(self.shape) - 1 else (0,) * len(self.shape[2:])
            each = tuple(m if n is None else n for n, m in zip(self.shape[2:], lengths, strict=True))
            checks.labels(y, int(self.shape[1] or 0), each=each)
            return
        due = () if self.shape[1:] == (1,) else self.shape[1:]
        if None not in due and y.shape[1:] != due and y.shape[1:] != self.shape[1:]:
            raise DataError(f"examples['y']: each example has shape {y.shape[1:]}, but the module answers {due}")
        if self.kind == "binary_cross_entropy" and (wrong := np.argwhere((y != 0) & (y != 1))).size:
            at = tuple(wrong[0])
            raise ExampleError("examples['y']", int(at[0]), f"has label {y[at]}; binary_cross_entropy is for 0 and 1")


def _check_input(name: str, x: np.ndarray, given: graph.Input, model: TorchModel) -> None:
    column, due = f"examples['{name}']", given.shape[1:]
    if len(due) != x.ndim - 1 or any(n not in (None, m) for n, m in zip(due, x.shape[1:], strict=True)):
        shown = tuple("any" if n is None else n for n in due)
        hint = ""
        if len(due) == 3 and x.shape[1:] == due[1:] and due[0] == 1:
            hint = "; give x[:, None]"
        elif len(due) == 3 and x.ndim == 4 and (x.shape[3], *x.shape[1:3]) == due:
            hint = "; PyTorch has the channels first: give numpy.moveaxis(x, 3, 1)"
        elif math.prod(x.shape[1:]) == math.prod(n or 0 for n in due):
            hint = f"; give x.reshape(len(x), {', '.join(map(str, due))})"
        raise DataError(f"{column}: each example has shape {x.shape[1:]}, but the module takes {shown}{hint}")
    if given.dtype.startswith(("float", "bfloat")):
        if x.dtype not in (np.uint8, np.bool_) and not jnp.issubdtype(x.dtype, jnp.floating):
            raise DataError(f"{column}: {x.dtype}, but the module takes real numbers; use .astype(numpy.float32)")
        return
    if not np.issubdtype(x.dtype, np.integer) and x.dtype != np.bool_:
        raise DataError(f"{column}: {x.dtype}, but the module takes {given.dtype}; use .astype(numpy.int32)")
    most = _vocabulary(model, given.name)
    outside = (x < 0) | (x >= most) if most is not None else np.zeros(0, bool)
    if outside.any():
        where = tuple(np.argwhere(outside)[0])
        raise ExampleError(column, int(where[0]), f"has {x[where]}, but the module's embedding has {most} rows")


def _vocabulary(model: TorchModel, name: str) -> int | None:
    """The rows of the embedding that takes this input; ``None`` if there is none. JAX would not raise an error."""
    same = {name}
    sizes = []
    for node in model.graph.nodes:
        source = next(graph.refs(tuple(node.arguments.values())), None)
        if node.target.startswith(("aten.reshape", "aten.view", "aten.to.")) and source in same:
            same.update(graph.names(node.outputs))
        if node.target.startswith(("aten.embedding.", "aten.embedding_bag")):
            weight, indices = node.arguments["weight"], node.arguments["indices"]
            if isinstance(indices, graph.Ref) and indices.name in same and isinstance(weight, graph.Ref):
                tensor = model.graph.tensors.get(weight.name, "")
                array = model.parameters.get(model.tied.get(tensor, tensor), model.constants.get(tensor))
                sizes += [] if array is None else [len(array)]
    return min(sizes, default=None)
