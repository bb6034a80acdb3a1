"""The devices that a run uses."""

import jax
import numpy as np
from jax.sharding import Mesh

from fedax.errors import ConfigError
from fedax.numbers import host_bytes

AXIS = "clients"
_WORTH = 2**17  # multiply-adds of a device's share of a round from which on spreading it pays


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
