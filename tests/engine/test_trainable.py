"""A part of a model is learned: the same numbers as gradients with the rest held fixed; only that part is sent."""

import dataclasses
import functools
import gc
import shutil
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.contract.vector import tensor_name
from fedax.errors import ConfigError
from fedax.sites.protocol.agreement import Made, digest_of
from fedax.sites.protocol.messages import packed
from fedax.tasks.trainable import LoRA, partial

from .. import LAST_BITS, long
from . import here

RNG = np.random.default_rng(0)
TASK = fedax.tasks.mlp(5, 3, hidden=(4,))
START = jax.tree.map(np.asarray, TASK.init(jax.random.key(7)))
DATA = fedax.FederatedData(
    {"x": RNG.normal(size=(20, 5)).astype(np.float32), "y": RNG.integers(0, 3, 20)}, sizes=[3, 9, 8]
)
TEST = {name: leaf[:6] for name, leaf in DATA.examples.items()}
WHOLE = {"rounds": 4, "work": fedax.Steps(2), "test": TEST}
OPTIONS = WHOLE | {"params": START}


def names(tree):
    return {tensor_name(at): np.asarray(leaf) for at, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def by_hand(learned, rounds=4, steps=2, lr=0.2):
    """FedAvg with full gradients, in which only some leaves move."""
    gradient_of = jax.jit(jax.grad(lambda p, batch: TASK.loss(p, batch, None).mean()))
    x = START
    for _ in range(rounds):
        total = jax.tree.map(np.zeros_like, x)
        for i in range(3):
            y = x
            for _ in range(steps):
                gradient = jax.tree.map(np.asarray, gradient_of(y, DATA.client(i)))
                y = jax.tree_util.tree_map_with_path(
                    lambda at, leaf, g: leaf - lr * g if tensor_name(at) in learned else leaf, y, gradient
                )
            total = jax.tree.map(lambda t, leaf, w=np.float32(DATA.weights[i]): t + w * leaf, total, y)
        x = total
    return jax.tree.map(jnp.asarray, x)


@pytest.mark.parametrize("more", [{}, {"place": fedax.Place(stream=True, chunk_size=1)}], ids=repr)
def test_the_rest_stays_and_is_sent_once(more):
    run = fedax.simulate(fedax.create("fedavg", lr=0.2), partial(TASK, "1.*", START), DATA, **WHOLE, **more)
    wanted = by_hand({"1.w", "1.b"})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=LAST_BITS), run.params, wanted)
    for name in ("0.w", "0.b"):
        assert np.array_equal(names(run.params)[name], names(START)[name])
    assert sorted(run.state.x.tree) == ["1.b", "1.w"]
    up, down = run.history["bytes_up"], run.history["bytes_down"]
    learned, rest = 4 * (4 * 3 + 3), 4 * (5 * 4 + 4)
    assert up.tolist() == [3 * learned * r for r in run.history["round"]]
    assert (down - up).tolist() == [3 * rest] * len(up)  # all that is frozen, to each client once
    accuracy = TASK.metrics["accuracy"](wanted, TEST).mean()
    np.testing.assert_allclose(run.history["test_accuracy"][-1], accuracy, atol=1e-6)


def test_functions_lists_and_the_whole_choose_alike():
    method = fedax.create("fedavg", lr=0.2)
    first = fedax.simulate(method, partial(TASK, ["*.b"], START), DATA, **WHOLE).params
    other = fedax.simulate(method, partial(TASK, lambda name, leaf: leaf.ndim == 1, START), DATA, **WHOLE).params
    jax.tree.map(np.testing.assert_array_equal, first, other)
    every = fedax.simulate(method, partial(TASK, "*", START), DATA, **WHOLE).params
    plain = fedax.simulate(method, TASK, DATA, **OPTIONS).params
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=LAST_BITS, atol=LAST_BITS), every, plain)


def test_lora_learns_low_rank_changes():
    lora = LoRA(rank=2, targets="0.w", alpha=4, also="1.b")
    part = partial(TASK, lora, START)
    start = part.init(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, part.whole_of(start), START)  # B is zero
    run = fedax.simulate(fedax.create("fedavg", lr=0.2), part, DATA, **WHOLE)
    change = names(run.params)["0.w"] - names(START)["0.w"]
    assert np.linalg.matrix_rank(change, tol=1e-5) == 2
    a, b = (run.state.x.tree[f"0.w.{side}"] for side in "ab")
    np.testing.assert_allclose(change, 2 * a @ b, rtol=1e-4, atol=1e-6)  # alpha / rank
    assert np.array_equal(names(run.params)["1.w"], names(START)["1.w"])
    assert run.history["bytes_up"][1] == 3 * 4 * (5 * 2 + 2 * 4 + 3)
    deviation = np.std([np.asarray(partial(TASK, lora, START).init(jax.random.key(k))["0.w.a"]) for k in range(200)])
    assert abs(deviation * np.sqrt(5) - 1) < 0.05


def test_what_is_frozen_is_the_same_for_all_seeds():
    sweep = fedax.sweep(
        lambda lr: fedax.create("fedavg", lr=lr), {"lr": [0.1, 0.2]}, partial(TASK, "1.*"), DATA, seeds=2, rounds=2
    )
    first = [names(run.params)["0.w"] for row in sweep.runs for run in row]
    assert all(np.array_equal(leaf, first[0]) for leaf in first)
    last = {names(run.params)["1.w"].tobytes() for row in sweep.runs for run in row}
    assert len(last) == 4
    alone = fedax.simulate(fedax.create("fedavg", lr=0.1), partial(TASK, "1.*"), DATA, seed=1, rounds=2)
    np.testing.assert_allclose(
        names(alone.params)["1.w"], names(sweep.runs[0][1].params)["1.w"], rtol=1e-5, atol=LAST_BITS
    )


def test_the_frozen_part_is_no_constant_of_the_program():
    """Or a large model would be compiled into each of its programs."""
    part = partial(TASK, "1.*", START).trained
    frozen = part.frozen
    program = jax.make_jaxpr(lambda p, f, b: part.bound(f).loss(p, b, None))(part.init(None), frozen, TEST)
    assert not program.consts
    assert jax.make_jaxpr(lambda p, b: part.loss(p, b, None))(part.init(None), TEST).consts


def test_a_run_goes_on_with_the_same_part_only(tmp_path):
    method = fedax.create("scaffold", lr=0.2)
    part = partial(TASK, "1.*", START)
    whole = fedax.simulate(method, part, DATA, **WHOLE)
    place = fedax.Checkpoints(tmp_path, rounds=1, best="train_loss")
    fedax.simulate(method, part, DATA, checkpoint=place, **WHOLE | {"rounds": 2})
    with pytest.raises(fedax.CheckpointError, match="frozen was"):
        moved = jax.tree.map(lambda leaf: leaf + 1, START)
        fedax.simulate(method, partial(TASK, "1.*", moved), DATA, checkpoint=place, **WHOLE)
    with pytest.raises(fedax.CheckpointError, match="another run"):
        fedax.simulate(method, partial(TASK, "*.w", START), DATA, checkpoint=place, **WHOLE)
    again = fedax.simulate(method, part, DATA, checkpoint=place, **WHOLE)
    jax.tree.map(np.testing.assert_array_equal, again.params, whole.params)
    assert again.history["bytes_down"].tolist() == whole.history["bytes_down"].tolist()
    jax.tree.map(np.testing.assert_array_equal, again.best.params, whole.params)
    whole.save(tmp_path / "m.safetensors")
    assert fedax.load_model(tmp_path / "m.safetensors").task is TASK


def test_narrow_leaves_are_learned_and_frozen_as_they_are():
    narrow = dataclasses.replace(
        TASK, init=lambda key: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), TASK.init(key))
    )
    run = fedax.simulate(fedax.create("fedavg", lr=0.2), partial(narrow, "1.*"), DATA, rounds=2)
    assert {leaf.dtype for leaf in jax.tree.leaves(run.params)} == {jnp.dtype("bfloat16")}
    assert {leaf.dtype for leaf in jax.tree.leaves(run.state.x.tree)} == {jnp.dtype("float32")}


@pytest.mark.parametrize(
    ("trainable", "message"),
    [
        ("2.*", r"trainable = .*names no leaf.*: 0.b, 0.w, 1.b, 1.w"),
        (["1.*", "2.*"], r"trainable = '2\.\*'.*names no leaf"),
        (7, "trainable = 7: give patterns of names"),
        (LoRA(rank=3, targets="1.w"), "rank = 3: 1.w is .* 4 × 3"),
        (LoRA(rank=1, targets="*.b"), "names nothing"),
    ],
)
def test_what_cannot_be_learned(trainable, message):
    with pytest.raises(ConfigError, match=message):
        partial(TASK, trainable)
    with pytest.raises(ConfigError, match="rank = 0"):
        LoRA(rank=0)


@functools.cache
def of_model(rule, more=0):
    """A part of a model; the same object each time, for which all is compiled once."""
    return partial(TASK, rule, jax.tree.map(lambda leaf: leaf + more, START))


def at_nodes(part, spy=None):
    """Nodes that make the part by themselves, of another model."""
    made = Made(fedax.create("scaffold", lr=0.2), of_model(part.rule, 1), AT_NODES)
    return here.Here(here.sites(DATA, [[0, 2], [1]], made, [TEST, None]), spy)


AT_NODES = {"rounds": 3, "work": fedax.Steps(2)}


@pytest.mark.parametrize("rule", [pytest.param("1.*", marks=long), LoRA(rank=2, targets="0.w")], ids=["leaves", "lora"])
def test_nodes_are_sent_what_is_frozen_once(rule):
    part, method = partial(TASK, rule, START), fedax.create("scaffold", lr=0.2)
    came = []

    def spy(number, message, answer):
        came.append((message.head["kind"], b"['frozen']" in message.tensors))
        return answer

    run = here.trained(method, part, DATA, at_nodes(part, spy), **AT_NODES)
    alone = fedax.simulate(method, part, DATA, test=TEST, **AT_NODES)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=LAST_BITS), run.params, alone.params)
    for column in ("train_loss", "test_loss", "test_accuracy", "bytes_down", "bytes_up"):
        np.testing.assert_allclose(run.history[column], alone.history[column], rtol=1e-5)
    assert {kind for kind, frozen in came if frozen} == {"agreement"}
    assert [frozen for kind, frozen in came if kind == "agreement"] == [True, True]  # each node once


def test_a_node_that_lost_what_is_frozen_says_so():
    part, method = of_model("1.*"), fedax.create("scaffold", lr=0.2)

    def spy(number, message, answer):
        if message.head["kind"] == "agreement":
            for site in transport.sites.values():
                shutil.rmtree(site.folder / "frozen", ignore_errors=True)
                site._runs.clear()
        return answer

    transport = at_nodes(part, spy)
    with pytest.raises(fedax.NodeError, match=r"frozen part .* is not there: --resume sends"):
        here.trained(method, part, DATA, transport, **AT_NODES)


@pytest.fixture(scope="module")
def agreed():
    """The agreement that a node of a run got, with what is frozen."""
    part, seen = of_model("1.*"), []
    at = at_nodes(part, lambda number, message, answer: seen.append(message) or answer)
    here.trained(fedax.create("scaffold", lr=0.2), part, DATA, at, **AT_NODES)
    return next(each for each in seen if each.head["kind"] == "agreement")


@pytest.mark.parametrize("what", ["another", "other arrays", "none"])
def test_a_frozen_part_that_is_not_that_of_the_agreement(what, agreed):
    part = of_model("1.*")
    frozen = {
        "another": packed({"frozen": jax.tree.map(lambda leaf: leaf + 1, part.frozen)}),
        "other arrays": packed({"frozen": {"w": np.ones(3)}}),
        "none": b"",
    }[what]
    (site, *_) = at_nodes(part).sites.values()
    answer = site.answer(agreed._replace(tensors=frozen))
    assert answer.head.keys() == {"error"} and ("frozen" in answer.head["error"])
    assert not [*site.folder.glob("frozen/*")] and not [*site.folder.glob("agreements/*")]
    assert "error" not in site.answer(agreed).head
    assert [path.stem for path in site.folder.glob("frozen/*")] == [digest_of(part.frozen)]


def test_a_task_that_nobody_has_any_more_is_not_kept():
    task = dataclasses.replace(TASK)
    part = partial(task, "1.*", START)
    assert part is partial(task, "1.*", START) and part is not partial(task, "1.b", START)
    gone = weakref.ref(task)
    del task, part
    gc.collect()
    assert gone() is None
