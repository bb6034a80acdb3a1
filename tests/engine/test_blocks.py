"""Examples that come to the device cohort by cohort: the same runs, from host memory and from a memory map."""

import weakref

import jax
import numpy as np
import pytest

import fedax
from fedax.engine import load
from fedax.engine.places import blocks
from fedax.errors import ConfigError

from .problem import DATA, MEASURED, federation, flat

TEST = federation([11], [1.0], seed=5)


def run(name, data=DATA, **options):
    options = {"rounds": 4, "work": fedax.Steps(2), "batch_size": 2, "evaluate_every": 2} | options
    return fedax.simulate(fedax.create(name, lr=0.05), MEASURED, data, test=TEST.examples, **options)


def same(one, other):
    for column in set(one.history) - {"seconds"}:
        np.testing.assert_allclose(other.history[column], one.history[column], 1e-5, err_msg=column)
    np.testing.assert_allclose(flat(other.params), flat(one.params), 1e-5, 1e-6)


def test_from_a_memory_map(tmp_path):
    mapped = {}
    for name, leaf in DATA.examples.items():
        np.save(tmp_path / f"{name}.npy", leaf)
        mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    data = fedax.FederatedData(mapped, DATA.sizes, DATA.weights)
    assert all(np.shares_memory(leaf, mapped[name]) for name, leaf in data.examples.items())
    same(run("fedavg"), run("fedavg", data, place=fedax.Place(stream=True)))


def test_only_what_a_cohort_needs_is_read(monkeypatch):
    """Rounds read the rows of their clients, and no others."""
    read = []
    rows_of = blocks._rows
    monkeypatch.setattr(blocks, "_rows", lambda leaf, rows, room: read.append(rows) or rows_of(leaf, rows, room))
    run("fedavg", place=fedax.Place(stream=True), participation=fedax.Trace([[1], [3], [1]]), rounds=3)
    # Clients 1 and 3 have one and two examples, from the fourth and the ninth on; x and y are read one after the other.
    # The first round is compiled with its own examples, and reads ahead; so does the last one, where the trace repeats.
    one, three = [3], [8, 9]
    assert [rows.tolist() for rows in read] == [rows for rows in (one, three, one, one, one) for _ in ("x", "y")]


def test_blocks_are_let_go(monkeypatch):
    """However many there are in a round, three are in memory at most: done, at work, and the next."""
    monkeypatch.setattr(blocks, "MOST_BYTES", 1)
    kept, alive = [], []
    rows_of = blocks._rows

    def watched(leaf, rows, room):
        kept.append(weakref.ref(result := rows_of(leaf, rows, room)))
        alive.append(sum(each() is not None for each in kept))
        return result

    monkeypatch.setattr(blocks, "_rows", watched)
    run(
        "mime", place=fedax.Place(stream=True, chunk_size=1), participation=fedax.Full()
    )  # two exchanges of five blocks of x and y
    assert len(kept) > 4 * 2 * 5 and max(alive) <= 3 * 2


def test_examples_that_have_no_room_stream_by_themselves(monkeypatch):
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(DATA.examples))
    for room, streams in ((2 * size, False), (2 * size - 2, True)):
        monkeypatch.setattr(load, "device_bytes", lambda room=room: room)
        assert load.streamed(None, DATA, slice(0, 5), 1) is streams
        for kind, held in (("cpu", True), ("gpu", streams)):  # on a CPU, all copies of the examples are in one memory
            monkeypatch.setattr(jax, "default_backend", lambda kind=kind: kind)
            assert load.streamed(None, DATA, slice(0, 5), 2) is held
    assert load.streamed(False, DATA, slice(0, 5), 1) is False


def test_bad_settings():
    with pytest.raises(ConfigError, match="stream = 'yes'"):
        run("fedavg", place=fedax.Place(stream="yes"))
    with pytest.raises(ConfigError, match="client_memory = 'device'"):
        run("scaffold", place=fedax.Place(stream=True, client_memory="device"))


@pytest.mark.parametrize("where", ["host", "file"])
def test_examples_that_stream_leave_memory_where_it_is_asked_for(where):
    elsewhere = fedax.Place(stream=True, client_memory=where)
    same(run("scaffold", place=fedax.Place(stream=True)), run("scaffold", place=elsewhere))
