"""The devices that a run uses."""

import jax
import numpy as np
from jax.sharding import Mesh

from fedax.errors import ConfigError

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
    """A mesh in the form that the engine uses; ``None`` where it has one device of the default kind."""
    if not isinstance(mesh, Mesh) or len(mesh.axis_names) != 1:
        raise ConfigError(
            "mesh", mesh, "give a jax.sharding.Mesh of one axis, such as Mesh(jax.devices(), ('clients',))"
        )
    if mesh.size == 1 and mesh.devices.flat[0] == jax.local_devices()[0]:
        return None
    return Mesh(mesh.devices, (AXIS,))  # whatever its axis was called, and how typed
