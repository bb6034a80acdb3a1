"""Plans are made from a census, without examples; forms give the shapes of messages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.engine import plan as plans
from fedax.engine.make import make_job
from fedax.engine.plan import ExchangeForm, loops, make_plan
from fedax.federation.census import Census
from fedax.wire.wire import Wire

from .problem import DATA, TASK, UNEQUAL


@pytest.mark.parametrize("work", [UNEQUAL, fedax.Epochs(2), fedax.Steps(3)], ids=["unequal", "epochs", "steps"])
def test_a_server_without_data_makes_the_same_plan(work):
    job = make_job(fedax.create("fedavg"), TASK, DATA, rounds=2, work=work, batch_size=2)
    form = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], jnp.float32), DATA.examples)
    census = Census(np.array(DATA.sizes), np.array(DATA.weights), form)
    assert census.num_clients == 5 and census.max_size == 6
    assert make_plan(census, job.plan.task, job.x, work, 2, fedax.Full(), Wire()) == job.plan
    assert jax.tree.map(lambda leaf: leaf.shape, census.examples(7)) == {"x": (7, 3), "y": (7,)}


def test_who_takes_part_is_no_part_of_the_work_of_clients():
    def plan(**options):
        return make_job(fedax.create("fedavg"), TASK, DATA, rounds=2, place=fedax.Place(chunk_size=2), **options).plan

    full, some = plan(), plan(participation=fedax.Dropout(fedax.Uniform(3), 0.2), guard=True)
    assert full != some and full.of_clients == some.of_clients
    two, three = (plan(work=fedax.Steps(steps)).of_clients for steps in (2, 3))
    assert two != three


def test_loops_are_graphs_where_a_gpu_would_wait_for_their_start(monkeypatch):
    def plan(chunk_size=None, **options):
        place = fedax.Place(chunk_size=chunk_size)
        return make_job(fedax.create("fedavg"), TASK, DATA, rounds=2, place=place, **options).plan

    monkeypatch.setattr(plans.jax, "default_backend", lambda: "cpu")
    assert not plan().graphs and loops({"plan": plan()}) == {}
    monkeypatch.setattr(plans.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(plans, "_STARTED", 3 * 2 * 4)  # clients side by side × batch × parameters
    assert plan(3, batch_size=2).graphs and not plan(3, batch_size=3).graphs
    assert "WHILE" in loops({"plan": plan(3, batch_size=2)})["xla_gpu_enable_command_buffer"].split(",")
    assert loops({"plan": plan(4, batch_size=2)}) == {}
    # A compiler that does not know the option is not given it.
    monkeypatch.setattr(plans, "_GRAPHS", "xla_gpu_no_such_option")
    plans._knows_graphs.cache_clear()
    try:
        assert loops({"plan": plan(3, batch_size=2)}) == {}
    finally:
        plans._knows_graphs.cache_clear()


def test_a_form_counts_each_array_once_and_what_was_sent_before_not_at_all():
    array = jax.ShapeDtypeStruct((3,), jnp.float32)
    half = jax.ShapeDtypeStruct((5,), jnp.bfloat16)
    form = ExchangeForm(False, {"x": array, "c": half}, (True, False), (array, array, half), (0, 0, 2), ())
    assert form.down == 10 and form.up == 12 + 10  # dictionaries are sorted by name: c comes first


def test_the_dry_run_gives_the_forms_of_all_that_is_sent_and_kept():
    job = make_job(fedax.create("mime", lr=0.1), TASK, DATA, rounds=2, work=fedax.Steps(2), batch_size=2)
    warmup, (gather, steps) = job.forms
    model = {"b": (), "w": (3,)}
    shapes = lambda tree: jax.tree.map(lambda leaf: leaf.shape, tree)  # noqa: E731
    assert warmup == [] and not gather.one
    assert shapes(gather.upload.tree) == model and gather.down == 4 * 4
    # The model of the second exchange was sent in the first.
    assert steps.down < sum(leaf.size * 4 for leaf in jax.tree.leaves(steps.download))
    kept = make_job(fedax.create("scaffold", lr=0.1), TASK, DATA, rounds=2).forms[1][0].memory
    assert shapes(kept.tree) == model
