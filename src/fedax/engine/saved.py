"""A model as a file: its parameters, and what is needed to predict with them anywhere."""

import json
import os
import pathlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
import safetensors
import safetensors.numpy

import fedax
from fedax.contract.types import Tree, Unknown
from fedax.contract.vector import tensor_name
from fedax.data.doubts import Doubts, in_words, refuse
from fedax.data.federated import FederatedData, check_is_array
from fedax.data.formats import parse_json
from fedax.data.tables import is_table, table_of
from fedax.engine.checkpoint import with_head
from fedax.engine.job import Origin
from fedax.errors import ConfigError, DataError, DoubtfulWarning, caller_level, one_line
from fedax.files import damage, regular, seal, with_digest, write_atomic
from fedax.numbers import narrowed
from fedax.programs import compiled
from fedax.tasks import TASKS, pytorch
from fedax.tasks.factory import made_as
from fedax.tasks.task import Task

Label = str | int
Path = str | os.PathLike[str]

_FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
_INTEGERS = {f"{sign}{8 * size}": np.dtype(f"{sign.lower()}{size}") for sign in "IU" for size in (1, 2, 4, 8)}
_KINDS = {**_FLOATS, **_INTEGERS, "BOOL": np.bool_}
_CONSTANT = "constant/"  # the prefix of tensors that are not parameters
_NUMBERS = 2**22  # numbers of input that are predicted at a time
_LONGEST = 1 << 26  # bytes of a file's description


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model, and what is needed to predict with it.

    Attributes:
        task: what was learned.
        params: the parameters, a pytree as the task's ``init`` gives it.
        labels: [C] the names of the classes, in the order of the outputs; ``None``: their numbers from 0 on, or there
            are no classes.
        transform: makes examples of tables, as at the training; ``None`` where the training had none.
        example: the columns that the outputs are made of: name -> shape and type of one example's; ``None`` where
            examples were no dictionary of arrays.
        versions: of fedax and JAX, with which it was trained.
        threshold: of two classes, the probability of the second one from which on to decide for it: with the largest F1
            on validation rows; ``None``: none was chosen.

    Example:
        >>> import tempfile
        >>> import fedax
        >>> digits = fedax.data.load("digits")
        >>> data = fedax.FederatedData(digits.train, sizes=[len(digits.train["y"])])
        >>> task = fedax.tasks.softmax_regression(features=64, classes=10)
        >>> run = fedax.simulate(fedax.create("fedavg", lr=0.1), task, data, rounds=5, batch_size=32)
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "digits.safetensors"
        >>> run.save(path)
        >>> model = fedax.load_model(path)
        >>> bool((model.predict(digits.test["x"]) == digits.test["y"]).mean() > 0.8)
        True
        >>> model.predict_proba(digits.test["x"][:3]).shape
        (3, 10)
    """

    task: Task
    params: Tree
    labels: tuple[Label, ...] | None = None
    transform: Unknown = None
    example: Mapping[str, tuple[tuple[int, ...], str]] | None = None
    versions: Mapping[str, str] | None = None
    threshold: float | None = None

    def outputs(self, x: Unknown, strict: bool = False) -> np.ndarray:
        """The outputs of the model: logits [n, C], log-odds of the second of two classes [n], or predictions.

        Args:
            x: [n, ...] examples; a dictionary of arrays where they have several columns; or a table, where the model
                was trained on tables: any that :func:`fedax.data.from_frames` reads. A :class:`fedax.DoubtfulWarning`
                reports cells unlike any in training: see :meth:`doubts`.
            strict: whether such a table is refused.

        Raises:
            ConfigError: the task has no outputs; ``strict`` of arrays, of which no ranges are known.
            DataError: ``x`` is not what the model was trained on.
        """
        if strict or is_table(x):
            doubts = self.doubts(x)
            if strict:
                refuse(doubts)
            elif doubts:
                warnings.warn(in_words(doubts), DoubtfulWarning, stacklevel=caller_level())
        batch = self._batch(x)
        n = len(jax.tree.leaves(batch)[0])
        numbers_per_example = max(1, max(int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(batch)))
        step = min(n, max(1, _NUMBERS // numbers_per_example))
        parts = []
        for start in range(0, n, step):
            rows = np.minimum(np.arange(start, start + step), n - 1)  # of one shape, so that it compiles once
            block = jax.tree.map(lambda leaf: leaf[rows], batch)  # noqa: B023  (called at once)
            parts.append(np.asarray(_outputs(self.params, block, task=self.task.trained))[: n - start])
        return np.concatenate(parts)

    def doubts(self, x: Unknown) -> Doubts:
        """Cells of a table that are unlike any in training, on which the model predicts with confidence all the same.

        These are cells that cannot be read as the number or date of their column; numbers and dates far outside of
        those in training; categories that it did not have; and missing values in columns where it had none.

        Args:
            x: a table, as of :meth:`outputs`.

        Raises:
            ConfigError: ``x`` is no table, or the model was not trained on tables.
            DataError: a column is missing.

        Example:
            >>> import fedax, pandas
            >>> old = pandas.DataFrame({"age": [20, 60, 70, 40], "ill": ["no", "yes", "yes", "no"]})
            >>> data = fedax.data.from_frames({"north": old}, label="ill")
            >>> task = fedax.tasks.softmax_regression(1, classes=2)
            >>> model = fedax.simulate(fedax.create("fedavg", lr=1.0), task, data, rounds=1).model
            >>> print(*model.doubts(pandas.DataFrame({"age": [50, 9999]})).lines())
            age: 1 is far outside of training, beyond -29.31 to 124.3 ('9999')
        """
        if not is_table(x) or self.transform is None:
            hint = "only a model that was trained on tables knows the ranges of training"
            raise ConfigError("x", type(x).__name__, hint)
        return self.transform.doubts(table_of(x, {}))

    def predict(self, x: Unknown, strict: bool = False) -> np.ndarray:
        """The class of each example, by its label; of regression the numbers, in the units of the label.

        Args:
            x, strict: as of :meth:`outputs`.
        """
        outputs = self.outputs(x, strict)
        if self.task.kind != "classification":
            label = None if self.transform is None else self.transform.label
            return np.exp(outputs) if label is not None and label.target == "log" else outputs
        chosen = (outputs > 0).astype(np.int64) if outputs.ndim == 1 else outputs.argmax(-1)
        return np.asarray(chosen if self.labels is None else np.asarray(self.labels)[chosen])

    def predict_proba(self, x: Unknown, strict: bool = False) -> np.ndarray:
        """The probability of each class, [n, C].

        Args:
            x, strict: as of :meth:`outputs`.

        Raises:
            ConfigError: the task is no classification.
        """
        if self.task.kind != "classification":
            raise ConfigError("task", self.task.name, "this is no classification; take predict")
        outputs = self.outputs(x, strict).astype(np.float64)
        if outputs.ndim == 1:
            outputs = np.stack([np.zeros_like(outputs), outputs], axis=-1)
        outputs = np.exp(outputs - outputs.max(-1, keepdims=True))
        return np.asarray(outputs / outputs.sum(-1, keepdims=True))

    def to_torch_state_dict(self, tensors: bool = False) -> dict[str, Unknown]:
        """The state dict for ``module.load_state_dict``, of a model that came from PyTorch.

        Args:
            tensors: PyTorch's tensors in place of NumPy arrays; needs PyTorch.

        Raises:
            ConfigError: the model did not come from PyTorch.
        """
        return pytorch.to_torch_state_dict(self.task, self.params, tensors=tensors)

    def save(self, path: Path) -> None:
        """Write it again, as :meth:`fedax.Run.save` does."""
        save_as(self, path)

    def _batch(self, x: Unknown) -> Tree:
        if self.task.outputs is None:
            hint = "this task does not say what its model answers; give Task(…, outputs=fn(params, batch))"
            raise ConfigError("outputs", None, hint)
        if is_table(x):
            if self.transform is None:
                raise DataError("x: a table, but the model was trained on arrays; give an array")
            x = self.transform.apply(table_of(x, {}))  # labels, if there are any, are not used
        elif isinstance(x, FederatedData) or (isinstance(x, list) and x and isinstance(x[0], Mapping)):
            raise DataError(f"x: a {type(x).__name__}; give an array, or a table, as pandas.DataFrame(rows) is")
        if self.example is None:
            if not all(np.ndim(leaf) for leaf in jax.tree.leaves(x)) or not jax.tree.leaves(x):
                raise DataError("x: give arrays [n, …], as the examples were at the training")
            return x
        batch = dict(x) if isinstance(x, Mapping) else {"x": x}
        wanted = self.example
        for name, (shape, kind) in wanted.items():
            if name not in batch:
                raise DataError(f"x: there is no column {name!r}; the model takes {', '.join(wanted)}")
            check_is_array(name, batch[name])
            array = np.asarray(batch[name])
            if array.ndim == 0 or array.shape[1:] != shape:
                raise DataError(f"{name}: examples of shape {array.shape[1:]}; the model takes {shape}")
            real = np.issubdtype(array.dtype, np.floating), jnp.issubdtype(np.dtype(kind), jnp.floating)
            if array.dtype.kind not in "biuf" or (real == (True, False)):
                hint = "" if self.transform is None else "; give the table itself"
                raise DataError(f"{name}: numbers of type {array.dtype}; the model was trained on {kind}{hint}")
            cast = array.dtype.kind == "f" or real[1]
            batch[name] = narrowed(
                array, kind if cast else jax.dtypes.canonicalize_dtype(array.dtype), f"{name}: example"
            )
        batch = {name: batch[name] for name in wanted}
        if len(lengths := {len(array) for array in batch.values()}) != 1 or lengths == {0}:
            raise DataError(f"x: {' and '.join(map(str, sorted(lengths)))} examples; give at least one, in all columns")
        return batch

    def _description(self) -> dict[str, Unknown]:
        return {
            "task": made_as(self.task),
            "pytorch": pytorch.describe(self.task) if pytorch.is_of(self.task) else None,
            "name": self.task.name,
            "kind": self.task.kind,
            "example": self.example
            and {name: {"shape": shape, "dtype": kind} for name, (shape, kind) in self.example.items()},
            "labels": self.labels,
            "transform": None if self.transform is None else self.transform.to_json(),
            "versions": self.versions,
            **({} if self.threshold is None else {"threshold": self.threshold}),
        }

    def __repr__(self) -> str:
        classes = "" if self.labels is None else f", {len(self.labels)} classes"
        number = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.params))
        return f"Model({self.task.name}, {number} parameters{classes})"


@compiled(static=["task"])
def _outputs(params: Tree, batch: Tree, *, task: Task) -> Tree:
    assert task.outputs is not None
    return task.outputs(params, batch)


def client_file(client: str) -> str:
    """The name of the file with a client's own model.

    Example:
        >>> client_file("St. Mary/2"), client_file("..")
        ('St. Mary%2F2.safetensors', '%2E..safetensors')
    """
    name = client.replace("%", "%25").replace("/", "%2F")
    return f"{'%2E' + name[1:] if name.startswith('.') else name}.safetensors"


def save_as(model: Model, path: Path, of: str = "") -> None:
    """Write a model to a file that says what it is: ``of``, which readers of its folder check; ``""``: nothing."""
    fixed = pytorch.constants(model.task) if pytorch.is_of(model.task) else {}
    write_model(path, model.params, json.dumps(model._description(), allow_nan=False), fixed, of)


def model_of(origin: Origin, params: Tree) -> Model:
    """The model of a run, as :func:`load_model` gives it."""
    versions = {"fedax": fedax.__version__, "jax": jax.__version__}
    return Model(origin.task, params, origin.labels, origin.transform, _input_columns(origin), versions)


def _input_columns(origin: Origin) -> dict[str, tuple[tuple[int, ...], str]] | None:
    """The columns of examples on which the outputs depend; labels are not among them."""
    example, outputs = origin.example, origin.task.outputs
    if (
        outputs is None
        or not isinstance(example, Mapping)
        or not all(hasattr(leaf, "shape") for leaf in example.values())
    ):
        return None
    kind = jax.dtypes.canonicalize_dtype  # as JAX would have it, without a warning
    batch = {name: jax.ShapeDtypeStruct((2, *leaf.shape), kind(leaf.dtype)) for name, leaf in example.items()}
    program = jax.make_jaxpr(lambda batch, params: outputs(params, batch))(batch, origin.task.form())
    used = {id(atom) for step in program.eqns for atom in step.invars} | {id(atom) for atom in program.outvars}
    reads = dict(zip(sorted(batch), program.invars, strict=False))  # JAX sorts dictionaries by their keys
    return {name: (tuple(example[name].shape), str(example[name].dtype)) for name in example if id(reads[name]) in used}


class _Column(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    shape: list[pydantic.NonNegativeInt]
    dtype: str = pydantic.Field(pattern=r"^((bfloat|float|int|uint)(8|16|32|64)|bool)$")


class _Description(pydantic.BaseModel):
    """The description in a model's file."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    task: dict[str, Unknown] | None
    pytorch: dict[str, Unknown] | None
    name: str
    kind: Literal["classification", "regression"] | None
    example: dict[str, _Column] | None
    labels: list[str | int] | None
    transform: dict[str, Unknown] | None
    versions: dict[str, str]
    threshold: float | None = pydantic.Field(None, ge=0, le=1)


def load_model(path: Path, task: Task | None = None) -> Model:
    """The model that :meth:`fedax.Run.save` or a run folder keeps.

    Args:
        path: a file ``*.safetensors``.
        task: what was learned; default: as the file says, which it does of fedax's own tasks. It runs no code of the
            file's.

    Raises:
        ConfigError: there is no such file; or it is of a task of your own, and ``task`` is missing.
        DataError: it is damaged, or no model of this task.

    Example:
        >>> import tempfile
        >>> import fedax
        >>> data, task = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.safetensors"
        >>> fedax.simulate(fedax.create("fedavg", lr=0.1), task, data, rounds=1).save(path)
        >>> load_model(path).task is task
        True
    """
    path = pathlib.Path(path)
    tensors, text = _read(path)
    transform = None
    try:
        about = _Description.model_validate(parse_json(text)) if text else None
        form = {} if about is None else about.example or {}
        example = {name: (tuple(column.shape), np.dtype(column.dtype).name) for name, column in form.items()}
        if about is not None and about.transform is not None:
            from fedax.data.transform import Transform

            transform = Transform.from_json(about.transform)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        what = f"{ascii('.'.join(map(str, first['loc'])))[:100]}: {first['msg']}"
        raise DataError(f"{path}: its description cannot be used ({what})") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: its description cannot be used ({str(error)[:300]})") from error
    constants = {name.removeprefix(_CONSTANT): tensors.pop(name) for name in [*tensors] if name.startswith(_CONSTANT)}
    if task is not None:
        form = task.form()
    elif about is not None and (about.task is not None or about.pytorch is not None):
        task, form = _task(path, about, tensors, constants)
    else:
        name = "" if about is None else f" {about.name!r}"
        hint = f"the file is of a task{name} that fedax does not have; give load_model(path, task=…)"
        raise ConfigError("task", None, hint)
    labels = None if about is None or about.labels is None else tuple(about.labels)
    params = _checked_params(path, tensors, form)
    if example and task.outputs is not None:
        kind = jax.dtypes.canonicalize_dtype  # JAX 0.11 warns of a type that it would narrow
        batch = {name: jax.ShapeDtypeStruct((1, *shape), kind(dtype)) for name, (shape, dtype) in example.items()}
        try:
            trained = task.trained
            assert trained.outputs is not None
            shape = jax.eval_shape(trained.outputs, trained.form(), batch).shape
            if labels is not None and len(labels) != (shape[-1] if len(shape) > 1 else 2):
                raise ValueError(f"{len(labels)} labels for outputs of shape {shape}")
        except Exception as error:  # whatever the model's own operations raise
            what = f"{type(error).__name__}: {ascii(str(error))[:200]}"
            raise DataError(f"{path}: its model does not take the examples that it describes ({what})") from error
    versions, threshold = ({}, None) if about is None else (about.versions, about.threshold)
    return Model(task, params, labels, transform, example or None, versions, threshold)


def _task(
    path: pathlib.Path,
    about: _Description,
    tensors: Mapping[str, np.ndarray],
    constants: Mapping[str, np.ndarray],
) -> tuple[Task, Tree]:
    """The task that a file describes, and its parameters' form: no larger than the tensors that it has."""
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in (about.task or {}).items()}
    numbers = sum(tensor.size for tensor in tensors.values())
    for name, value in given.items():
        many = name == "layers" or (name == "hidden" and isinstance(value, tuple))  # of an LSTM hidden is a width
        most = len(tensors) if many else numbers
        if (len(value) if isinstance(value, tuple) else value if isinstance(value, int) else 0) > most:
            raise DataError(f"{path}: its task has {name} = {str(value)[:80]}, too much for its {len(tensors)} tensors")
    try:
        if about.pytorch is not None:
            task: Task = pytorch.from_description(about.pytorch, tensors, constants)
        else:
            task = TASKS.make(str(given.pop("name", "")), **given)
        return task, task.form()
    except ConfigError as error:
        what = "task" if about.pytorch is None else "model"
        raise DataError(f"{path}: its {what} cannot be made ({error})") from error


def write_model(
    path: Path, params: Tree, about: str = "", constants: Mapping[str, np.ndarray] | None = None, of: str = ""
) -> None:
    """A pytree of arrays as safetensors; a tensor's name is its path in the tree, such as ``layers.0.weight``.

    Args:
        path: the file; one that is there is replaced.
        params: the parameters.
        about: the description that :func:`load_model` needs.
        constants: arrays of the model that are no parameters, by name.
        of: what the file is, for :func:`read_model`; it may then not be moved.

    Example:
        >>> import tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.safetensors"
        >>> write_model(path, {"layers": [{"b": np.zeros(2)}], "scale": np.ones(())})
        >>> {name: tensor.shape for name, tensor in sorted(safetensors.numpy.load_file(path).items())}
        {'layers.0.b': (2,), 'scale': ()}
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    # Contiguous copies: safetensors would write a transposed array's memory as it lies.
    tensors = {tensor_name(at): np.array(leaf, order="C") for at, leaf in leaves}
    tensors |= {f"{_CONSTANT}{name}": np.array(leaf, order="C") for name, leaf in (constants or {}).items()}
    content = safetensors.numpy.save(tensors)
    start = 8 + int.from_bytes(content[:8], "little")
    # The library writes metadata in any order, and the same model has to be the same file.
    head = {"__metadata__": seal(of) | ({"fedax": about} if about else {})} | json.loads(content[8:start])
    write_atomic(pathlib.Path(path), with_digest(with_head(head, content[start:])))


def renamed(content: bytes, of: str) -> bytes:
    """A safetensors file of fedax that says from now on that it is something else, see :func:`fedax.files.seal`."""
    start = 8 + int.from_bytes(content[:8], "little")
    head = json.loads(content[8:start])
    about = {name: text for name, text in head["__metadata__"].items() if name == "fedax"}
    return with_digest(with_head(head | {"__metadata__": seal(of) | about}, content[start:]))


def read_model(path: pathlib.Path, like: Tree, of: str | None = None) -> Tree:
    """The parameters that :func:`write_model` wrote.

    Args:
        path: the file.
        like: a pytree of arrays, or of their shapes, of the model's structure.
        of: what the file should be; ``None``: any model of this structure.

    Raises:
        ConfigError: there is no such file.
        DataError: it cannot be read, is damaged, was moved or renamed, or holds another model.

    Example:
        >>> import tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.safetensors"
        >>> write_model(path, [np.zeros(2), {"b": np.ones(())}])
        >>> read_model(path, [np.zeros(2), {"b": np.zeros(())}])
        [array([0., 0.]), {'b': array(1.)}]
    """
    tensors = {name: leaf for name, leaf in _read(path, of)[0].items() if not name.startswith(_CONSTANT)}
    return _checked_params(path, tensors, like)


def _read(path: pathlib.Path, of: str | None = None) -> tuple[dict[str, np.ndarray], bytes]:
    """The tensors of a file by name, and its description."""
    try:
        if path.exists():
            regular(path)
        content = path.read_bytes()
        # The library's own reader knows no bfloat16.
        tensors = {
            name: np.frombuffer(found["data"], kinds[found["dtype"]]).reshape(found["shape"])
            for name, found in safetensors.deserialize(content)
            for kinds in (_KINDS if name.startswith(_CONSTANT) else _FLOATS,)
        }
    except OSError as error:
        raise ConfigError("model", str(path), f"cannot be read ({error.strerror})") from error
    except safetensors.SafetensorError as error:
        raise DataError(f"{path}: no safetensors file ({ascii(str(error))[:200]})") from error  # it may have their text
    except KeyError as error:
        raise DataError(f"{path}: it holds numbers of type {error}; a model's are {', '.join(_FLOATS)}") from error
    if (wrong := damage(path, of)) is not None:
        raise DataError(f"{path}: {wrong}; train the model again")
    head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return tensors, str(head.get("__metadata__", {}).get("fedax", "")).encode()[:_LONGEST]


def _checked_params(path: pathlib.Path, tensors: Mapping[str, np.ndarray], like: Tree) -> Tree:
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    wanted = {tensor_name(at): leaf.shape for at, leaf in leaves}
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if wanted != shapes:
        name = min(name for name in {*wanted, *shapes} if wanted.get(name) != shapes.get(name))
        text, found = one_line(name, 100), one_line(str(shapes.get(name)), 100)
        raise DataError(f"{path}: another model: {text} is {found} in it, and {wanted.get(name)} in the task's")
    return jax.tree.unflatten(structure, [tensors[name] for name in wanted])
