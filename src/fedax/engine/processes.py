"""Several processes that run one job together, as ``jax.distributed`` has connected them.

Every process has the same server and draws the same cohorts. A client belongs to one process, which alone touches its
examples and its memory; the sums over a cohort are the only thing that goes between processes.
"""

import contextlib
import functools
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedax._start import reach_directly
from fedax.contract.types import Tree, Unknown
from fedax.errors import ConfigError, ProcessError
from fedax.programs import compiled

_AXIS = "processes"
_HEARTBEAT = 10  # seconds without a sign of life after which a process counts as dead
_RANKS = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}  # one of them is in the environment of every MPI's processes


def connect(coordinator: str | None = None, number: int | None = None, index: int | None = None) -> None:
    """Join the other processes of a job, before JAX has done anything; then ``simulate`` runs in all of them together.

    As ``fedax run --distributed`` does. Beside ``jax.distributed.initialize`` it ends all within ten seconds if one is
    silent, leaves SIGTERM to checkpoints, and fails here if the others cannot be reached.

    Args:
        coordinator: ``"host:port"`` of process 0; default, of all three: as SLURM, MPI or Kubernetes tell JAX. Of MPIs
            it knows Open MPI 4; of others the package ``mpi4py`` tells it.
        number: how many processes there are, ≥ 1.
        index: the number of this process, 0 ≤ index < number.

    Raises:
        ConfigError: the other processes are not known or cannot be reached, or JAX has started already.

    Example:
        >>> connect("localhost:7000", 2, 2)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedax.errors.ConfigError: distributed = 'localhost:7000': the processes cannot be joined (...
    """
    try:
        jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM
        _initialize(coordinator, number, index)
        with _stdout_to_stderr():
            multihost_utils.sync_global_devices("fedax")  # a process that cannot reach the others fails here
    except (ValueError, TypeError, RuntimeError, ImportError) as error:
        if "Duplicate GPU" in str(error):  # NCCL's words
            hint = "give each a GPU of its own, as by srun --gpus-per-task=1, or all of them JAX_PLATFORMS=cpu"
            raise ConfigError("distributed", coordinator, f"two processes have the same GPU; {hint}") from error
        raise ConfigError(
            "distributed",
            coordinator,
            f"the processes cannot be joined ({_line(error)}); start all of them under SLURM, Open MPI 4, another "
            "MPI with the package mpi4py, or Kubernetes, or give each --coordinator HOST:PORT, --num-processes N and "
            "--process-id K",
        ) from error


def _initialize(coordinator: str | None, number: int | None, index: int | None) -> None:
    reach_directly()
    try:
        jax.distributed.initialize(coordinator, number, index, heartbeat_timeout_seconds=_HEARTBEAT)
    except ValueError:  # JAX asks mpi4py only if it is told to
        if coordinator is not None or not _RANKS & os.environ.keys() or importlib.util.find_spec("mpi4py") is None:
            raise
        jax.distributed.initialize(cluster_detection_method="mpi4py", heartbeat_timeout_seconds=_HEARTBEAT)


def part() -> None:
    """Disconnect from the other processes, which do so too: then none counts as lost, however long one still runs."""
    if count() > 1:
        jax.distributed.shutdown()


def count() -> int:
    """The number of processes."""
    return int(jax.process_count())


def share(sizes: np.ndarray, process: int, of: int) -> slice:
    """The clients of a process: neighbours, so that all processes have about as many examples, and each a client.

    Example:
        >>> [share(np.array([5, 1, 1, 1, 4]), k, 3) for k in range(3)]
        [slice(0, 1, None), slice(1, 4, None), slice(4, 5, None)]
    """
    if of > len(sizes):
        raise ConfigError("processes", of, f"there are {len(sizes)} clients: run at most as many processes")
    middles = np.cumsum(sizes) - sizes / 2
    cuts = np.searchsorted(middles, sizes.sum() * np.arange(of + 1) / of)
    cuts[0], cuts[-1] = 0, len(sizes)
    for k in range(1, of):  # none is empty
        cuts[k] = min(max(cuts[k], cuts[k - 1] + 1), len(sizes) - (of - k))
    return slice(int(cuts[process]), int(cuts[process + 1]))


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirect what libraries print on the standard output, below Python, to the error output."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def own(data: Unknown) -> slice:
    """The clients of this process."""
    return share(data.sizes, jax.process_index(), count())


def total(tree: Tree) -> Tree:
    """The sum of each leaf over all processes, the same bits everywhere; leaves that need no device stay NumPy's."""
    if count() == 1:
        return tree
    try:
        packed = _pack(tree)
        spread = [
            jax.make_array_from_single_device_arrays(
                (count(), *part.shape),
                NamedSharding(_mesh(), P(_AXIS)),
                [jax.device_put(part, jax.local_devices()[0])[None]],
            )
            for part in packed
        ]
        summed = [np.asarray(part.addressable_data(0)) for part in _summed()(spread)]
    except Exception as error:  # the backends have errors of their own
        raise _lost_processes(error) from error
    return _unpack(tree, summed)


def from_first(tree: Tree) -> Tree:
    """The first process's numbers, so that all processes decide alike."""
    if count() == 1:
        return tree
    try:
        return jax.tree.map(np.asarray, multihost_utils.broadcast_one_to_all(tree))
    except Exception as error:
        raise _lost_processes(error) from error


def text_from_first(text: str) -> str:
    """The first process's text, of at most 4,096 bytes."""
    if count() == 1:
        return text
    padded = np.frombuffer(text.encode().ljust(4096, b"\0"), np.uint8)
    return bytes(from_first(padded).astype(np.uint8)).rstrip(b"\0").decode()


def same(what: str, description: str) -> None:
    """Raise a ConfigError in all processes if one was given something else than the first."""
    if count() == 1:
        return
    digest = np.frombuffer(hashlib.sha256(description.encode()).digest()[:4], np.uint32)
    try:
        digests = np.asarray(multihost_utils.process_allgather(digest)).reshape(count())
    except Exception as error:
        raise _lost_processes(error) from error
    if others := np.flatnonzero(digests != digests[0]).tolist():
        raise ConfigError(what, f"processes {others}", "they were given another job than process 0: give all the same")


def _lost_processes(error: Exception) -> ProcessError:
    return ProcessError(
        f"process {jax.process_index()} of {count()} lost the others ({_line(error)}): one of them has died, or the "
        "network; start the run again"
    )


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@functools.cache
def _mesh() -> Mesh:
    first: dict[int, Unknown] = {}
    for device in jax.devices():
        first.setdefault(device.process_index, device)
    return Mesh(np.array([first[k] for k in range(count())]), (_AXIS,))


@functools.cache
def _summed() -> Unknown:
    return jax.jit(
        lambda parts: [jnp.sum(part, axis=0, dtype=part.dtype) for part in parts],
        out_shardings=NamedSharding(_mesh(), P()),
    )


@compiled()
def _pack(tree: Tree) -> list[Tree]:
    """One array of each type: a message for each leaf would cost a network's latency each."""
    leaves = jax.tree.leaves(tree)
    kinds = list(dict.fromkeys(leaf.dtype for leaf in leaves))
    return [jnp.concatenate([leaf.ravel() for leaf in leaves if leaf.dtype == kind]) for kind in kinds]


def _unpack(tree: Tree, parts: list[np.ndarray]) -> Tree:
    leaves, structure = jax.tree.flatten(tree)
    rest = {part.dtype: part for part in parts}
    out = []
    for leaf in leaves:
        part = rest[np.dtype(leaf.dtype)]
        out.append(part[: leaf.size].reshape(leaf.shape))
        rest[np.dtype(leaf.dtype)] = part[leaf.size :]
    return jax.tree.unflatten(structure, out)
