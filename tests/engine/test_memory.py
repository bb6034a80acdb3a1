"""Client memory on the device, in host memory and in a file: where it is stored, and which rows a client gets."""

import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.engine import memory
from fedax.errors import ConfigError

from .. import LAST_BITS
from .methods import Scaffold
from .problem import DATA, TASK, flat

OPTIONS = {"rounds": 2, "work": fedax.Steps(2), "batch_size": 2, "participation": fedax.Uniform(3)}


def scaffold(**options):
    return fedax.simulate(fedax.create("scaffold", lr=0.05), TASK, DATA, **OPTIONS, **options)


class Noisy(Scaffold):
    """Its server draws random numbers."""

    def server(self, server, mean, round):
        new = super().server(server, mean, round)
        return new._replace(x=new.x + jax.random.normal(round.key, ()))


def test_the_server_has_the_same_random_numbers():
    one, other = (
        fedax.simulate(Noisy(0.05), TASK, DATA, place=fedax.Place(client_memory=place), **OPTIONS)
        for place in ("device", "host")
    )
    np.testing.assert_allclose(flat(one.params), flat(other.params), 1e-5)


def test_a_sweep_runs_them_one_after_another():
    make = lambda lr: fedax.create("scaffold", lr=lr)  # noqa: E731
    one, other = (
        fedax.sweep(make, {"lr": [0.01, 0.05]}, TASK, DATA, place=fedax.Place(client_memory=place), **OPTIONS)
        for place in ("auto", "host")
    )
    np.testing.assert_allclose(one.scores(), other.scores(), LAST_BITS)


def test_a_file_has_no_name(tmp_path):
    kept = scaffold(place=fedax.Place(client_memory=str(tmp_path))).memory
    assert kept.kept()[0].size and not list(tmp_path.iterdir())


def test_rows_of_strangers_are_the_first_and_take_no_space(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_RESIDENT", 100)  # let go of what was written at once
    row = {"c": jnp.full(250, 2.0), "n": jnp.int32(7)}
    kept = memory.ClientMemory(10**6, row, str(tmp_path))  # 1 GB, of which nothing is written
    ids = np.array([999_999, 3])
    kept.put(ids, {"c": np.arange(500.0, dtype=np.float32).reshape(2, 250), "n": np.array([1, 2], np.int32)})
    result = kept[np.array([3, 5, 999_999])]
    assert result["n"].tolist() == [2, 7, 1] and len(kept) == 10**6
    assert result["c"][:, 0].tolist() == [250.0, 2.0, 0.0] and result["c"].dtype == np.float32
    assert kept.blank()[ids]["n"].tolist() == [7, 7]
    assert kept.fits(result) and not kept.fits(result["c"]) and not kept.fits({"c": result["c"], "n": result["c"]})


@pytest.mark.parametrize("most", [2**20, 1000])
def test_a_file_has_what_was_put_last(tmp_path, monkeypatch, most):
    rng, write = np.random.default_rng(0), os.pwrite
    monkeypatch.setattr(memory.os, "pwrite", lambda file, content, at: write(file, content[:most], at))  # as it may
    row = {"c": np.zeros((7, 60), np.float32), "none": np.zeros(0), "n": np.int32(0)}
    kept = {place: memory.ClientMemory(50, row, place) for place in (None, str(tmp_path))}
    for size in (8, 1, 0, 20, 50):  # neighbours, and rows that lie apart
        ids = rng.choice(50, size, replace=False)
        rows = jax.tree.map(lambda leaf: rng.integers(1, 99, (len(ids), *leaf.shape)).astype(leaf.dtype), row)  # noqa: B023
        for each in kept.values():
            each.put(ids, rows)
    jax.tree.map(np.testing.assert_array_equal, *(each[np.arange(50)] for each in kept.values()))


def test_a_disk_that_is_full_is_an_error(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    kept = memory.ClientMemory(10, np.zeros(4), str(tmp_path))
    monkeypatch.setattr(memory.os, "pwrite", full)
    with pytest.raises(OSError, match="No space left on device.*" + re.escape(str(tmp_path))):
        kept.put(np.arange(2), np.ones((2, 4)))


def test_the_first_place_with_room_is_taken(monkeypatch):
    row = jax.ShapeDtypeStruct((1024,), jnp.float32)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**20}.get)  # 4 GiB
    monkeypatch.setattr(memory, "device_bytes", memory.host_bytes)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")

    def place(number, devices=1, full=False):
        return memory.where("auto", number, row, devices, full)

    assert place(2**18) == "device" and place(2**18 + 1) == "host"
    assert place(2**18, devices=2) == "host" and place(2**18, devices=2, full=True) == "device"
    assert place(2**19) == "host" and os.path.isdir(place(2**19 + 1))
    assert memory.where("auto", 10**9, (), 1, False) == "device"  # methods without memory


@pytest.mark.parametrize("place", ["disk", 3, "/nowhere/at/all", None])
def test_other_places_are_refused(place):
    with pytest.raises(ConfigError, match="client_memory"):
        scaffold(place=fedax.Place(client_memory=place))


def test_more_host_memory_than_the_system_promises():
    with pytest.raises(ConfigError, match=r"client_memory = 'host': .*'file', or a folder"):
        memory.ClientMemory(10**9, np.zeros(10**6, np.float32))  # 4 PB


def test_a_folder_in_which_no_file_can_be(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(memory.tempfile, "TemporaryFile", full)
    with pytest.raises(ConfigError, match="No space left"):
        scaffold(place=fedax.Place(client_memory=str(tmp_path)))
