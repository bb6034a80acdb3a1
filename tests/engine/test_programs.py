"""Programs that were not used for long are let go."""

import functools
import gc
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import programs

from .. import mostly_long
from .problem import DATA, TASK

MAPS = pathlib.Path("/proc/self/maps")


@pytest.fixture
def room(monkeypatch):
    """``room(n)``: from here on n programs are kept, beside those of other tests."""

    def make(number):
        kept = functools.lru_cache(maxsize=number)(programs._program.__wrapped__)
        monkeypatch.setattr(programs, "_program", kept)

    return make


def test_those_used_last_are_kept(room, compilations):
    @programs.compiled(static=["by"])
    def scaled(x, by):
        return x * by

    room(2)
    x = jnp.ones(3)
    for by, compiled in ((2.0, 1), (3.0, 1), (2.0, 0), (4.0, 1), (2.0, 0), (3.0, 1)):
        assert scaled(x, by).tolist() == [by] * 3
        assert compilations("scaled") == compiled, by


def test_a_shape_is_a_program(room, compilations):
    double = programs.compiled()(lambda x: x + x)
    room(1)
    for x, compiled in ((np.ones(3), 1), (np.zeros(3), 0), (np.ones(4), 1), (np.ones(3), 1)):
        assert double(x).tolist() == (x + x).tolist()
        assert compilations("<lambda>") == compiled


@pytest.mark.skipif(not MAPS.exists(), reason="counts the memory maps of this process, as Linux tells them")
@pytest.mark.parametrize("memory", mostly_long(["host", "device"], "host"))
def test_many_tasks_leave_no_programs_behind(room, memory):
    """Each compiled program has memory maps, and Linux allows a process 65,530."""

    def maps_after_another_task():
        task = fedax.Task(TASK.init, lambda *given: TASK.loss(*given))
        fedax.simulate(
            fedax.create("scaffold", lr=0.05),
            task,
            DATA,
            rounds=1,
            work=fedax.Steps(1),
            place=fedax.Place(client_memory=memory),
        )
        gc.collect()
        return MAPS.read_bytes().count(b"\n")

    room(4)  # less than a run's
    counts = [maps_after_another_task() for _ in range(4)]
    few = 10 if jax.default_backend() == "cpu" else 25  # a run's programs have more than fifty; on a GPU 14 were added
    assert counts[3] - counts[1] < few, counts


def test_the_compiler_gets_the_options_of_the_static_arguments():
    @programs.compiled(static=["by"], options=lambda static: {"xla_no_such_option": True} if static["by"] > 2 else {})
    def scaled(x, by):
        return x * by

    assert scaled(jnp.ones(2), 2).tolist() == [2.0, 2.0]
    with pytest.raises(Exception, match="xla_no_such_option"):
        scaled(jnp.ones(2), 3)
