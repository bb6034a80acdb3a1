"""A plan: what is fixed before a run is compiled. It is made from a census, so no examples are needed."""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedax.contract.compression import Compressor, is_message
from fedax.contract.oracle import OracleCalls
from fedax.contract.types import Tree, Unknown
from fedax.contract.vector import Vector
from fedax.engine import processes
from fedax.engine.devices import Place, check_mesh, cores, device_bytes, in_precision
from fedax.engine.memory import gradient_bytes
from fedax.federation.census import Census
from fedax.federation.participation import Dropout, Full, Participation, WithoutLate
from fedax.federation.work import Work
from fedax.numbers import check_count
from fedax.tasks.task import Task
from fedax.wire.wire import Wire

_LARGE = 2**16  # parameters of a model that keeps a core busy by itself
_CACHED = 50_000  # parameters of the models that run side by side on a CPU's core, and stay in its cache
_START = 3  # clients' worth of work that starting the operations of a local step costs on a CPU, if models are tiny
# Of the products of a step of a chunk. Up to so many, a GPU spends its time on starting operations: as CUDA graphs,
# loops took .53 to .65 of the time with 40,000 and 600,000 products, and 1.02 to 1.05 of it with 100 million.
_STARTED = 2**23
_GRAPHS = "xla_gpu_enable_command_buffer"
_IN_GRAPHS = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,WHILE"  # the defaults, and loops
_AT_ONCE = 2**28  # parameters of the models that run side by side on an accelerator
_SHARE = 0.5  # of an accelerator's memory, for gradients side by side; examples and client memory have the rest
_TINY = 2**13  # parameters × examples of a step, whose arithmetic takes as long as all else that a step does


@dataclass(frozen=True)
class RunPlan:
    """What is fixed before a run is compiled.

    Attributes:
        task: what is learned.
        num_clients: N.
        max_size: the largest n_i.
        batch_size: B, or ``None`` for all local data.
        epochs: whether minibatches run through permutations.
        steps: τ where it is the same for all clients in all rounds, else ``None``.
        max_steps: the most steps that a client takes.
        chunk_size: clients that run side by side, on each device.
        full: whether all clients take part in every round.
        mesh: the devices over which cohorts are spread, along its only axis; ``None``: there is one.
        missing: why a round may lack some of the clients, or ``None``.
        by_number: whether the weights of the clients that are left grow by their number, or by their weight.
        watched: whether clients may be left out, or rounds be skipped.
        stops: whether the run ends where an upload is left out.
        graphs: whether loops run as CUDA graphs, as steps take less time on a GPU than their start.
        precision: of products, as of :class:`Place`.
    """

    task: Task
    num_clients: int
    max_size: int
    batch_size: int | None
    epochs: bool
    steps: int | None
    max_steps: int
    chunk_size: int
    full: bool
    mesh: Mesh | None
    missing: str | None
    by_number: bool
    watched: bool
    stops: bool
    graphs: bool = False
    precision: str | None = None

    @property
    def devices(self) -> int:
        """How many there are."""
        return 1 if self.mesh is None else self.mesh.size

    @property
    def of_clients(self) -> "RunPlan":
        """What of it counts for a client's work: runs that differ only in who takes part share programs of that."""
        return dataclasses.replace(self, full=True, missing=None, by_number=False, watched=False, stops=False)


class ExchangeForm(NamedTuple):
    """Shapes and types of what one exchange sends and leaves, trees of ``jax.ShapeDtypeStruct``.

    Attributes:
        one: whether a single client of the cohort answers.
        download: what a client receives.
        fresh: of each array or message of the download, whether it has to be sent: it was not sent before in the same
            round.
        upload: what a client sends; an array or a message that it holds twice counts once.
        first: of each array or message of the upload, the place of the first that is the same.
        memory: what a client keeps after the exchange.
        asked: the gradients that a client asks for; ``None`` where a traced condition decides.
    """

    one: bool
    download: Tree
    fresh: tuple[bool, ...]
    upload: Tree
    first: tuple[int, ...]
    memory: Tree
    asked: OracleCalls | None = OracleCalls()

    def by(self, down: Compressor | None, up: Compressor | None) -> "ExchangeForm":
        """The plan with these compressors, whose numbers are known, in its messages."""

        def made(tree: Tree, how: Compressor | None) -> Tree:
            known = lambda part: dataclasses.replace(part, how=how) if is_message(part) else part  # noqa: E731
            return tree if how is None else jax.tree.map(known, tree, is_leaf=is_message)

        return self._replace(download=made(self.download, down), upload=made(self.upload, up))

    @property
    def distinct(self) -> tuple[bool, ...]:
        """For each array or message of the upload, whether it appears for the first time."""
        return tuple(place == first for place, first in enumerate(self.first))

    @property
    def down(self) -> int:
        """Bytes that go to each client that answers."""
        return _bytes(self.download, self.fresh)

    @property
    def up(self) -> int:
        """Bytes that come from each client that answers."""
        return _bytes(self.upload, self.distinct)


def sent(tree: Tree) -> list[Tree]:
    """What is sent of a pytree: its arrays, and its messages."""
    return jax.tree.leaves(tree, is_leaf=is_message)


def _bytes(form: Tree, which: tuple[bool, ...]) -> int:
    parts = [part for part, counts in zip(sent(form), which, strict=True) if counts]
    return sum(-(-part.bits // 8) if is_message(part) else part.size * part.dtype.itemsize for part in parts)


def make_plan(
    census: Census,
    task: Task,
    x: Vector,
    work: Work,
    batch_size: int | None,
    participation: Participation,
    wire: Wire,
    place: Place = Place(),
) -> RunPlan:
    """The plan of a run.

    Args:
        census: of the clients.
        task, work, batch_size, participation, wire: as of :func:`fedax.simulate`.
        x: the initial model.
        place: its ``chunk_size`` and ``mesh`` are chosen here where they are ``None``.

    Raises:
        ConfigError: ``chunk_size`` or ``mesh`` cannot be used.
    """
    places = participation.places(census.num_clients)
    usual = work.usual(census.sizes, batch_size)
    batch = float(np.mean(census.sizes)) if batch_size is None else batch_size
    chunk_size = place.chunk_size
    if place.mesh is None:
        mesh = cores(-(-places // processes.count()), float(np.mean(usual)) * batch * x.size)
    else:
        mesh = check_mesh(place.mesh)
    places = -(-places // (processes.count() * (1 if mesh is None else mesh.size)))
    if chunk_size is None and jax.default_backend() != "cpu":
        with in_precision(place.precision):
            fit = fitting(task, x, census, batch_size)
        chunk_size = max(1, min(places, _AT_ONCE // max(1, x.size), fit))
    elif chunk_size is None:
        chunk_size = _chunk_size(x, places, usual, batch)
    else:
        check_count("chunk_size", chunk_size)
    return RunPlan(
        task=task,
        num_clients=census.num_clients,
        max_size=census.max_size,
        batch_size=batch_size,
        epochs=work.without_replacement(),
        steps=work.equal(census.sizes, batch_size),
        max_steps=work.largest(census.sizes, batch_size),
        chunk_size=min(chunk_size, places),
        full=isinstance(participation, Full),
        mesh=mesh,
        missing=_missing(participation, census.num_clients, wire),
        by_number=participation.counts,
        watched=(participation.may_fail and wire.privacy is None) or wire.excludes,  # that a cohort is empty is private
        stops=wire.guard is not None and wire.guard.stop,
        graphs=jax.default_backend() == "gpu" and mesh is None and chunk_size * batch * x.size <= _STARTED,
        precision=place.precision,
    )


def loops(static: dict[str, Unknown]) -> dict[str, Unknown]:
    """The compiler's options of rounds with a plan."""
    return {_GRAPHS: _IN_GRAPHS} if static["plan"].graphs and _knows_graphs() else {}


@functools.cache
def _knows_graphs() -> bool:
    """Whether this version of the compiler has the option, which it does not promise."""
    try:
        jax.jit(lambda x: x + 1, compiler_options={_GRAPHS: _IN_GRAPHS})(0)
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _missing(participation: Participation, num_clients: int, wire: Wire) -> str | None:
    """Why a round may lack some of the clients."""
    if wire.guard is not None:
        return "a guard may leave clients out"
    if wire.lossy:
        return "clients may not answer"
    if isinstance(participation, Dropout):
        return "clients may drop out"
    if isinstance(participation, WithoutLate):
        return "clients miss the deadline"
    if participation.everyone(num_clients):
        return None
    return f"{participation.places(num_clients)} of {num_clients} clients"


def _chunk_size(x: Vector, places: int, usual_steps: np.ndarray, batch: float) -> int:
    """How many clients run side by side on a CPU.

    Small models are bound by the cost of starting an operation, and gain from wide ones; a large or a convolutional
    model keeps a core busy by itself and gains from staying in the cache. A chunk takes as many steps as its slowest
    client, so where clients take unequal steps a narrower chunk wastes less: of those that stay in the cache, the width
    is the one that would take a cohort of usual clients the least time, if starting the operations of a step costs as
    much as ``_START`` clients' share of them, and less where that share is more than that of a ``_TINY`` step.
    """
    if not is_small(x):
        return 1
    slowest_first = np.sort(usual_steps)[::-1]
    cohort = slowest_first[np.linspace(0, len(slowest_first) - 1, places).round().astype(int)]
    most = max(1, min(places, _CACHED // x.size))
    widths = [min(most, 2**k) for k in range(math.ceil(math.log2(most)) + 1)]
    start = _START / (1 + x.size * batch / _TINY)
    return int(min(widths, key=lambda width: cohort[::width].sum() * (start + width)))


def fitting(task: Task, x: Vector, census: Census, batch_size: int | None) -> int:
    """How many gradients an accelerator has room for side by side, where wide chunks win until memory is full.

    On an H200 a round of 10 clients of a small convolutional network took 8.9 ms one at a time, 6.9 with 2 side by
    side, 5.1 with 5 and 4.5 with 10.
    """
    return int(device_bytes() * _SHARE) // max(1, gradient_bytes(task, x.tree, census, batch_size))


def is_small(x: Tree) -> bool:
    """Whether a model, or its shapes, gains on a CPU from others that run beside it."""
    leaves = jax.tree.leaves(x)
    kernels = any(leaf.ndim >= 4 for leaf in leaves)
    return sum(leaf.size for leaf in leaves) < _LARGE and not kernels
