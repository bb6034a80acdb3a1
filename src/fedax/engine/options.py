"""The options of a run, by name."""

import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence

from fedax.contract.compression import Compressor
from fedax.contract.types import Tree, Unknown
from fedax.engine.devices import Place
from fedax.errors import ConfigError, F, caller_level
from fedax.federation.clock import Clock
from fedax.federation.pace import Async
from fedax.federation.participation import Full, Participation
from fedax.federation.work import Epochs, Work
from fedax.metrics.run import Density, GradNorm, PerClient, RunMetric
from fedax.progress import show_progress
from fedax.tasks.task import Task
from fedax.tasks.trainable import partial
from fedax.wire.averages import Aggregator
from fedax.wire.compressed import Compression
from fedax.wire.faults import Faults
from fedax.wire.guard import Guard
from fedax.wire.privacy import DP
from fedax.wire.secure import SecureSum
from fedax.wire.wire import Wire


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What :func:`fedax.simulate` takes beside method, task and data; there it says what each is."""

    rounds: int
    work: Work | None = None
    batch_size: int | None = None
    participation: Participation | None = None
    seed: int = 0
    val: Tree = None
    test: Tree = None
    evaluate_every: int | Sequence[int] | None = None
    params: Tree = None
    place: Place | None = None
    clock: Clock | None = None
    pace: Async | None = None
    until: Callable[[dict[str, Unknown]], bool] | None = None
    guard: Guard | bool | None = None
    aggregate: Aggregator | None = None
    faults: Faults | None = None
    privacy: DP | None = None
    compress: Compressor | Mapping[str, Unknown] | None = None
    secure: SecureSum | None = None

    def with_defaults(self) -> "Options":
        """The same with what stands for an option that was not given."""
        return dataclasses.replace(
            self,
            work=Epochs(1) if self.work is None else self.work,
            place=Place() if self.place is None else self.place,
            participation=Full() if self.participation is None else self.participation,
            guard=Guard() if self.guard is True else None if self.guard is False else self.guard,
        )

    @property
    def parts(self) -> dict[str, Tree]:
        """Part of the held-out data, "val" or "test" -> what was given for it."""
        return {name: part for name, part in (("val", self.val), ("test", self.test)) if part is not None}

    def wire(self, compression: Compression) -> Wire:
        """What becomes of uploads and downloads, of all options that belong to it."""
        assert not isinstance(self.guard, bool)  # see with_defaults
        return Wire(self.faults, self.guard, self.aggregate, self.privacy, compression.down, secure=self.secure)


_OF_PLACE = ("chunk_size", "mesh", "client_memory", "stream")
_OF_TASK = ("grad_norm", "density", "per_client", "trainable")


def up_to_date(options: Mapping[str, Unknown]) -> dict[str, Unknown]:
    """Options with former ones in what has them now, ``place`` and ``task``; warns of them.

    Args:
        options: arguments of :func:`fedax.simulate`, with the task where former ones belong to it.

    Raises:
        ConfigError: of a former option a value that it could not have.

    Example:
        >>> up_to_date({"rounds": 3, "place": Place(chunk_size=2)})
        {'rounds': 3, 'place': Place(chunk_size=2, mesh=None, client_memory='auto', stream=None, precision=None)}
    """
    found = dict(options)
    former = {name: found.pop(name) for name in _OF_PLACE if name in found}
    if former:
        names = ", ".join(f"{name}=…" for name in former)
        _warn(names, f"place=fedax.Place({names})")
        found["place"] = dataclasses.replace(found.get("place") or Place(), **former)
    of_task = {name: found.pop(name) for name in _OF_TASK if name in found}
    if of_task and isinstance(task := found.get("task"), Task):
        found |= _with_task(task, found.get("params"), **of_task)
    return found


def _with_task(
    task: Task,
    params: Tree,
    grad_norm: Unknown = False,
    density: Unknown = None,
    per_client: Unknown = False,
    trainable: Unknown = None,
) -> dict[str, Unknown]:
    """The task, and the initial model, with what the task has of former options."""
    for name, value in (("grad_norm", grad_norm), ("per_client", per_client)):
        if not isinstance(value, bool):
            raise ConfigError(name, value, "give True or False")
    metrics: list[RunMetric] = [GradNorm()] if grad_norm else []
    metrics += [] if density is None else [Density(density)]
    metrics += [PerClient()] if per_client else []
    for metric in metrics:
        _warn({"grad_norm": "grad_norm=True", "density": "density=…"}.get(metric.name, "per_client=True"),
              f"the task the metric, task.with_metrics({metric.name}=fedax.metrics.{metric!r})")  # fmt: skip
    if metrics:
        key = ("metrics", *metrics)  # the same object for the same options, so that nothing is compiled anew
        if key not in task.parts:
            task.parts[key] = None, task.with_metrics(**{metric.name: metric for metric in metrics})
        task = task.parts[key][1]
    if trainable is None:
        return {"task": task}
    _warn("trainable=…", "the task that learns a part, fedax.tasks.partial(task, trainable, params)")
    return {"task": partial(task, trainable, params), "params": None}


def _warn(former: str, now: str) -> None:
    warnings.warn(f"{former} is deprecated: give {now}", DeprecationWarning, stacklevel=caller_level())


def takes_former_options(function: F) -> F:
    """A function of options that also takes those that it had in earlier versions, and warns of them."""
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def called(*args: Unknown, **options: Unknown) -> Unknown:
        if not options.keys() & {*_OF_PLACE, *_OF_TASK, "progress"}:
            return function(*args, **options)
        given = dict(zip(names, args, strict=False)) | options
        if "progress" not in given:
            return function(**up_to_date(given))
        with show_progress(given.pop("progress")):
            _warn("progress=…", "it for all runs, fedax.show_progress(…)")
            return function(**up_to_date(given))

    return called  # type: ignore[return-value]
