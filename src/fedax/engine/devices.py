"""Where the clients of a simulation run: the devices, and where what does not fit on them stays."""

import contextlib
import dataclasses
from typing import Literal, get_args

import jax
import numpy as np
from jax.sharding import Mesh

from fedax.contract.types import Unknown
from fedax.engine.declared import declared, option
from fedax.errors import ConfigError
from fedax.numbers import host_bytes

AXIS = "clients"
_WORTH = 2**17  # multiply-adds of a device's share of a round from which on spreading it pays


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the clients of a simulation run, and how it multiplies.

    The results are the same everywhere, up to the order of sums; another ``precision`` gives others.

    Args:
        chunk_size: clients that run side by side on a device, at least 1; default: chosen by the model's and the
            batch's size.
        mesh: a ``jax.sharding.Mesh`` of one axis, over whose devices each cohort is spread. Default: the machine's
            cores, where a round has enough work; elsewhere one device.
        client_memory: where the clients' memory is, of methods that have one: ``"device"``, ``"host"``, ``"file"`` (in
            the folder for temporary files) or a folder; ``"auto"``: the first of these three that has room for it. A
            file has no name and goes with the run.
        stream: whether the examples stay in host memory, or in the file that they are mapped from, and go to the device
            cohort by cohort; default: where they would take more than half of the device's memory.
        precision: to which factors are rounded in matrix products and convolutions of float32 numbers, in training
            and evaluation: ``"float32"``, ``"tensorfloat32"`` (11 significant bits), ``"bfloat16"`` (8). A device that
            lacks one takes the next better: GPUs ``"tensorfloat32"`` for ``"bfloat16"``, CPUs ``"float32"`` for all.
            Default: JAX's own, which is ``"bfloat16"`` unless ``JAX_DEFAULT_MATMUL_PRECISION`` says otherwise.

    Raises:
        ConfigError: another ``precision``; the other arguments are checked by the run.

    Example:
        >>> Place(chunk_size=8, client_memory="host")
        Place(chunk_size=8, mesh=None, client_memory='host', stream=None, precision=None)
    """

    chunk_size: int | None = option(None, setting="run.chunk_size")
    mesh: Mesh | None = None
    client_memory: str = "auto"
    stream: bool | None = None
    precision: Literal["float32", "tensorfloat32", "bfloat16"] | None = option(
        None, setting="run.precision", fingerprint="given", at_nodes=True
    )

    def __post_init__(self) -> None:
        known = get_args(declared(Place)["precision"].kinds[0])
        if self.precision is not None and self.precision not in known:
            raise ConfigError("precision", self.precision, f"give one of: {', '.join(known)}; or None: JAX's own")


def in_precision(precision: str | None) -> contextlib.AbstractContextManager[None]:
    """A context in which JAX traces products of a place's ``precision``.

    Example:
        >>> with in_precision("float32"):
        ...     jax.default_matmul_precision.value
        'float32'
    """
    if precision is None:
        return contextlib.nullcontext()
    return jax.default_matmul_precision(precision)


def cores(places: int, work: float) -> Mesh | None:
    """The mesh of a run that has chosen none: all cores, as far as there are clients and work for them.

    Args:
        places: the largest cohort.
        work: multiply-adds of a client in a round, roughly.
    """
    devices = jax.local_devices()
    if devices[0].platform != "cpu":
        return None
    number = int(min(len(devices), places, places * work // _WORTH))
    return None if number < 2 else Mesh(np.array(devices[:number]), (AXIS,))


def placed_like(values: Unknown, other: Unknown) -> Unknown:
    """Values where another array is: in host memory, or on its devices.

    Like that one they are committed to their devices or not, for otherwise its programs would be compiled again.
    """
    if not isinstance(other, jax.Array):
        return values
    return jax.device_put(values, other.sharding if other.committed else None)


def check_mesh(mesh: Mesh) -> Mesh | None:
    """This process's part of a mesh, in the engine's form; ``None`` where that is one device of the default kind."""
    if not isinstance(mesh, Mesh) or len(mesh.axis_names) != 1:
        raise ConfigError(
            "mesh", mesh, "give a jax.sharding.Mesh of one axis, such as Mesh(jax.devices(), ('clients',))"
        )
    here = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    if not here:
        raise ConfigError("mesh", mesh, f"no device of process {jax.process_index()} is in it")
    mesh = Mesh(np.array(here), (AXIS,))  # whatever its axis was called; other processes' devices are theirs
    if mesh.size == 1 and mesh.devices.flat[0] == jax.local_devices()[0]:
        return None
    return mesh


def device_bytes() -> int:
    """The memory of a device: on CPUs the machine's, which all of them share."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return host_bytes()
    return int((device.memory_stats() or {}).get("bytes_limit", 2**34))
