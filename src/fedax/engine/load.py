"""What a run begins with, put where it is needed: its key and first model, and the examples on the devices."""

import numbers
from collections.abc import Callable, Hashable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedax.contract.types import Array, Tree, Unknown
from fedax.contract.vector import Vector, spelled
from fedax.data.federated import FederatedData
from fedax.engine.devices import device_bytes
from fedax.engine.loop import Federation
from fedax.errors import ConfigError
from fedax.federation.census import Census
from fedax.numbers import check_count
from fedax.programs import compiled
from fedax.tasks.task import Task, check_params


class Shared:
    """What several jobs have in common, made once.

    Example:
        >>> shared, data = Shared(), [1, 2]
        >>> shared.once("sum", lambda: sum(data), data), shared.once("sum", lambda: 0, data)
        (3, 3)
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[tuple[Unknown, ...], Unknown]] = {}

    def once(self, name: str, make: Callable[[], Unknown], *objects: Unknown, of: Hashable = ()) -> Unknown:
        """What ``make`` returned for these objects, which are compared by identity, and for a value, by equality."""
        at = (name, *map(id, objects), of)
        if at not in self._made:
            self._made[at] = objects, make()  # the objects stay, so that no others get their identities
        return self._made[at][1]


def one_type(tree: Tree) -> Tree:
    """With one type for all numbers: whether 1, 1.0 or np.float64(1.0) is given, the program is the same."""
    return jax.tree.map(lambda leaf: float(leaf) if isinstance(leaf, numbers.Real) else leaf, tree)


def start(task: Task, params: Tree, seed: int, shared: Shared, field: str = "params") -> tuple[Array, Vector]:
    """The key of a run with this seed, and its initial model; ``field``: what errors call one that is given."""
    seed = check_count("seed", seed, 0)
    if seed >= 2**32:
        raise ConfigError("seed", seed, "give a whole number below 2**32")
    key = jax.random.key(seed)
    # The initial model has a key that no round has: rounds fold in their index, this one the largest but one.
    own = jax.random.fold_in(key, jnp.iinfo(jnp.int32).max - 1)
    return key, shared.once("model", lambda: _initial_model(task, params, own, field), task, params, of=seed)


def _initial_model(task: Task, params: Tree, key: Array, field: str) -> Vector:
    expected = _drawn.form(key, task=task)
    if params is None:
        x = _drawn(key, task)
        if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(x)):
            raise ConfigError("task.init", spelled(x), "the initial model holds values that are not finite")
        return Vector(x)
    check_params(params, expected, field)
    return Vector(jax.tree.map(lambda got, want: jax.device_put(np.array(got, want.dtype)), params, expected))


@compiled(static=["task"])
def _drawn(key: Array, task: Task) -> Tree:
    return task.init(key)


def _examples(data: FederatedData, own: slice) -> Tree:
    """The examples of some clients that are neighbours."""
    rows = slice(data.offsets[own.start], data.offsets[own.stop - 1] + data.sizes[own.stop - 1])
    return jax.tree.map(lambda leaf: leaf[rows], data.examples)


def streamed(asked: Unknown, data: FederatedData, own: slice, devices: int) -> bool:
    """Whether examples come to the device cohort by cohort: where asked, and where all of them have no room there."""
    if asked not in (None, True, False):
        raise ConfigError("stream", asked, "give True, False, or None for: where the examples do not fit the device")
    leaves = jax.tree.leaves(_examples(data, own))
    if asked is None:
        copies = devices if jax.default_backend() == "cpu" else 1  # of which each is in a memory of its own
        return bool(sum(leaf.nbytes for leaf in leaves) * copies > device_bytes() / 2)
    if not asked and len(leaves[0]) >= 2**31:
        raise ConfigError("stream", asked, f"{len(leaves[0])} examples are more than a device can number: give True")
    return bool(asked)


def federation_of(census: Census, data: FederatedData | None, own: slice) -> Federation:
    """What goes to the devices of a census, and of the examples of some clients where they are to be there."""
    dtype = jnp.zeros(()).dtype
    offsets = np.zeros(census.num_clients) if data is None else data.offsets - data.offsets[own.start]
    return Federation(
        None if data is None else _examples(data, own),
        offsets.astype(np.int32),  # of other processes: not used
        census.sizes.astype(np.int32),
        census.weights.astype(dtype),
    )


def on_devices(tree: Tree, mesh: Mesh | None) -> Tree:
    """Arrays on the default device, or on all of a mesh.

    A CPU's would share memory with the caller's if these were not copied; ``jnp.asarray`` compiles a program to copy.
    """
    own = np.array if jax.default_backend() == "cpu" else np.asarray
    there = jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else jax.device_put(own(leaf)), tree)
    return there if mesh is None else jax.device_put(there, NamedSharding(mesh, PartitionSpec()))
