"""What is learned: tasks (a model's initial parameters, a loss per example, metrics) and a zoo of models."""

from typing import Any

from fedax.errors import CodeError, place_of
from fedax.registry import Registry
from fedax.tasks.classification import classification
from fedax.tasks.images import CropAndFlip
from fedax.tasks.linear import linear_regression, logistic_regression, quadratic, softmax_regression
from fedax.tasks.models import char_lstm, cnn, mlp, mlp_regression, resnet18, vgg11
from fedax.tasks.pytorch import from_export, from_torch, to_torch_state_dict
from fedax.tasks.task import Task
from fedax.tasks.trainable import LoRA, partial

__all__ = [
    "TASKS",
    "CropAndFlip",
    "LoRA",
    "Task",
    "available",
    "char_lstm",
    "classification",
    "cnn",
    "create",
    "from_export",
    "from_torch",
    "linear_regression",
    "logistic_regression",
    "mlp",
    "mlp_regression",
    "partial",
    "quadratic",
    "resnet18",
    "softmax_regression",
    "to_torch_state_dict",
    "vgg11",
]


def _check_task(field: str, made: Any) -> None:
    if isinstance(made, type) or not callable(made):
        kind = made.__name__ if isinstance(made, type) else type(made).__name__
        raise CodeError(field, f"is {kind}", "a task is named by a function that makes a fedax.Task", place_of(made))


TASKS = Registry("task", "fedax.tasks", _check_task)
for _factory in (
    quadratic,
    linear_regression,
    logistic_regression,
    softmax_regression,
    mlp,
    mlp_regression,
    cnn,
    vgg11,
    resnet18,
    char_lstm,
):
    TASKS.add(_factory.__name__, _factory)


def available() -> dict[str, str]:
    """The tasks that :func:`create` makes, each with one line about it.

    Example:
        >>> available()["mlp"]
        'Multilayer perceptron: dense layers with ReLU between them.'
    """
    return TASKS.available()


def create(name: str, **hyper: Any) -> Task:
    """The task of this name, for instance from a configuration file.

    Args:
        name: one of :func:`available`.
        hyper: the arguments of the function of that name in ``fedax.tasks``.

    Raises:
        ConfigError: unknown name or argument (with the nearest known one), missing argument, bad value.

    Example:
        >>> create("mlp", features=784, classes=10, hidden=[50]) is mlp(784, 10, hidden=(50,))
        True
        >>> create("mpl", features=784)
        Traceback (most recent call last):
        fedax.errors.ConfigError: task = 'mpl': did you mean 'mlp'? There are: ...
    """
    return TASKS.make(name, **hyper)
