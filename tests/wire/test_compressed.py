"""Uploads and downloads that are compressed, whatever the method: where they go, and what they cost."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.contract.compression import ArrayForm
from fedax.engine.options import Options
from fedax.experiments import build
from fedax.experiments.config import codec
from fedax.experiments.config.experiment import problem_of
from fedax.wire.compressed import Compression
from fedax.wire.privacy import DownloadAndClip
from fedax.wire.wire import Wire
from tests import in_full, long, mostly_long
from tests.engine import here
from tests.engine.problem import DATA, LR, TASK

from .. import LAST_BITS

DATA6, TASK6 = fedax.data.quadratics(clients=5, dimension=6, seed=1), fedax.tasks.quadratic(6)
EF = fedax.ErrorFeedback(fedax.TopK(0.4))
# A listening exchange; two, one of them with one client alone; a warm-up, and changes of what clients keep.
SOME = ["led", "ce-lsgd", "scaffold-m-vr"]


def run(name="fedavg", compress=None, data=DATA6, task=TASK6, **options):
    options = {"rounds": 4, "evaluate_every": 2, "work": fedax.Steps(2)} | options
    return fedax.simulate(fedax.create(name, lr=0.02), task, data, compress=compress, **options)


def bits_of(result):
    """The model, the server's state and the clients' memory of a run, to the last bit."""
    memory = result.memory[np.arange(5)] if hasattr(result.memory, "kept") else result.memory
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((result.params, result.state, memory))]


def near(one, other, most=1e-6):
    leaves = zip(jax.tree.leaves((one.params, one.state)), jax.tree.leaves((other.params, other.state)), strict=True)
    assert max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in leaves) <= most


ALL = [
    name
    for name in fedax.available()
    if not hasattr(fedax.create(name), "compress") and name != "compressed-scaffnew"  # these do it by themselves
]


@pytest.mark.parametrize("name", mostly_long(ALL, *SOME))
def test_fingerprint_changes_no_bit(name):
    """Neither up nor down; and its messages are as large as what they stand for."""
    plain, both = run(name), run(name, {"up": fedax.Identity(), "down": fedax.Identity()})
    assert bits_of(plain) == bits_of(both)
    for column in ("bytes_up", "bytes_down", "train_loss"):
        assert plain.history[column].tolist() == both.history[column].tolist()


@functools.cache
def gradients():
    """H_i and e_i of all clients."""
    return DATA6.examples["H"].astype(np.float64), DATA6.examples["e"].astype(np.float64), DATA6.weights


def test_error_feedback_against_a_loop():
    """FedAvg, one local step of full gradients: e ← dx + e − C(dx + e), and the server adds the mean of C(dx + e)."""
    h, e, p = gradients()
    x, kept = np.zeros(6), np.zeros((5, 6))
    result = run(compress=EF, work=fedax.Steps(1), rounds=6, params=jnp.zeros(6))
    for _ in range(6):
        given = -0.02 * (h @ x - e) + kept
        sent = np.where(np.argsort(np.argsort(-np.abs(given), axis=1), axis=1) < 3, given, 0)  # ⌈0.4 · 6⌉ = 3
        kept, x = given - sent, x + p @ sent
    np.testing.assert_allclose(result.params, x, atol=LAST_BITS)
    # Three numbers of 32 bits and their places of 3 bits are 14 bytes.
    assert result.history["bytes_up"][-1] == 6 * 5 * 14


def test_bytes_are_those_of_the_messages():
    """An array that an upload holds twice is encoded once; a listening exchange sends nothing."""
    for name, numbers, how in (("scaffold", 12, fedax.ErrorFeedback(fedax.Sign())), ("led", 6, EF)):
        each = -(-how.bits(ArrayForm.of(jnp.zeros(numbers))) // 8)
        assert run(name, how).history["bytes_up"][-1] == 4 * 5 * each
    down = run("scaffold", {"down": fedax.QSGD(7)}).history["bytes_down"][-1]
    assert down == 4 * 5 * 2 * (4 + 3)  # x and c: a norm, and 6 numbers of 4 bits, each


@in_full
def test_an_array_that_was_sent_in_the_round_is_not_sent_again(full):
    """Nor read otherwise: the second exchange's message of the same array is the first one's."""
    plain, cast = run("ce-lsgd"), run("ce-lsgd", {"down": fedax.Cast()})
    assert (2 * cast.history["bytes_down"] == plain.history["bytes_down"]).all()
    seen = []

    class Twice(fedax.Algorithm):
        def init(self, x):
            return x

        def client(self, download, memory, oracle):
            seen.append(1)
            return download, download

        def again(self, download, memory, oracle):
            return download - memory, ()

        def server(self, server, mean, round):
            return server

        def last(self, server, mean, round):
            return server + 100 * mean  # 0, if both exchanges read the same

        def exchanges(self):
            return fedax.Exchange(self.client, self.server), fedax.Exchange(self.again, self.last)

    for place in ({}, {"place": fedax.Place(client_memory="host")}) if full else ({},):
        start = jnp.linspace(-1.0, 1.0, 6)
        options = {"rounds": 2, "params": start, "compress": {"down": fedax.QSGD(1)}} | place
        result = fedax.simulate(Twice(), TASK6, DATA6, **options)
        assert seen and result.params.tolist() == start.tolist()


PLACES = {
    "host": {"place": fedax.Place(client_memory="host")},
    "chunks": {"place": fedax.Place(chunk_size=2)},
    "streamed": {"place": fedax.Place(stream=True)},
}


@pytest.mark.parametrize("name", mostly_long(["scaffold", "mime"], "scaffold"))
@pytest.mark.parametrize("place", mostly_long(PLACES, "host", "streamed"))
def test_places(name, place):
    """The same messages wherever clients' memory and examples are."""
    how = {"up": fedax.ErrorFeedback(fedax.Rotated(fedax.QSGD(3))), "down": fedax.Natural()}
    options = {"participation": fedax.Uniform(4)}
    one, other = run(name, how, **options), run(name, how, **options, **PLACES[place])
    near(one, other)
    assert one.history["bytes_up"].tolist() == other.history["bytes_up"].tolist()
    if name == "scaffold":
        rows = other.memory[np.arange(5)] if place != "chunks" else other.memory
        np.testing.assert_allclose(rows.tree, one.memory.tree, atol=LAST_BITS)


@pytest.mark.parametrize(
    ("name", "how", "more"),
    [
        ("scaffold", EF, {}),
        ("fedavg", {"up": fedax.QSGD(4), "down": fedax.QSGD(8)}, {"participation": fedax.Uniform(3)}),
    ]
    + [
        pytest.param(*each, marks=long)
        for each in (
            ("scaffold", {"down": fedax.Cast()}, {}),
            ("ce-lsgd", {"up": fedax.ErrorFeedback(fedax.Rotated(fedax.Sign())), "down": fedax.Natural()}, {}),
            ("fedavg", fedax.Natural(), {"guard": True, "faults": fedax.Faults([3], sends=np.nan)}),
            ("fedavg", fedax.RandomK(0.3), {"aggregate": fedax.CoordinateMedian()}),
        )
    ],
)
def test_real_clients(name, how, more):
    """Over nodes it is the simulation to the last bit where one has all clients, and up to order over three."""
    method = fedax.create(name, lr=LR)
    options = {"rounds": 3, "work": fedax.Steps(3), "batch_size": 2, "compress": how} | more
    here_ = fedax.simulate(method, TASK, DATA, **options)
    answers = []
    for where, most in (([[0, 1, 2, 3, 4]], 0.0), ([[3, 0], [4], [2, 1]], LAST_BITS)):
        answers.clear()
        there, at = here.run_at_sites(
            method, TASK, DATA, where, lambda *seen: answers.append(seen) or seen[2], **options
        )
        near(here_, there, most)
        memory = here.memory_of(there, at)
        own = memory.own if hasattr(memory, "residuals") else memory
        for a, b in zip(jax.tree.leaves(own), jax.tree.leaves(here_.memory), strict=True):
            np.testing.assert_allclose(a, b, atol=LAST_BITS)
        assert there.history["bytes_up"].tolist() == here_.history["bytes_up"].tolist()
    if Compression.of(how).up is not None and name == "fedavg":  # the messages, and what says what they are
        exchanges = [answer for _, message, answer in answers if message.head["kind"] == "exchange"]
        heads = 120  # of a safetensors file with one array
        each = here_.history["bytes_up"][-1]
        assert each <= sum(len(answer.tensors) for answer in exchanges) <= each + heads * len(exchanges)


def test_rubbish_from_a_node_is_refused():
    method = fedax.create("fedavg", lr=LR)

    def spoilt(_, message, answer):
        if message.head["kind"] == "exchange":
            return answer._replace(tensors=answer.tensors[:-1] + b"\xff")
        return answer

    options = {"rounds": 1, "compress": fedax.Natural()}  # 15 numbers of 9 bits, and one bit that has to be 0
    with pytest.raises(fedax.NodeError, match="after the end"):
        here.run_at_sites(method, TASK, DATA, [[0, 1, 2, 3, 4]], spoilt, **options)


def test_a_run_goes_on_with_what_messages_lacked(tmp_path):
    options = {"participation": fedax.Uniform(3), "checkpoint": tmp_path}
    run("scaffold", EF, rounds=2, **options)
    assert bits_of(run("scaffold", EF, **options)) == bits_of(run("scaffold", EF, participation=fedax.Uniform(3)))
    with pytest.raises(fedax.CheckpointError, match=r"compress.up.of.share was 0.4, is 0.5"):
        run("scaffold", fedax.ErrorFeedback(fedax.TopK(0.5)), **options)


def test_levels_are_lanes_of_one_program():
    def make(share, levels):
        how = {"up": fedax.ErrorFeedback(fedax.TopK(share)), "down": fedax.QSGD(levels)}
        return {"algorithm": fedax.create("fedavg", lr=0.02), "compress": how}

    grid, options = {"share": [0.17, 0.34, 1.0], "levels": [1, 100]}, {"rounds": 4, "work": fedax.Steps(2)}
    swept = fedax.sweep(make, grid, TASK6, DATA6, **options)
    assert swept.programs == 1
    for point, (lane,) in zip(swept.points, swept.runs, strict=True):
        alone = run(compress=make(**point)["compress"], evaluate_every=None)
        np.testing.assert_allclose(lane.params, alone.params, atol=LAST_BITS)
        for column in ("bytes_up", "bytes_down"):
            assert lane.history[column].tolist() == alone.history[column].tolist()
    assert len({(lane.history["bytes_up"][-1], lane.history["bytes_down"][-1]) for (lane,) in swept.runs}) == 6


def test_what_a_server_lacks_is_in_the_errors():
    """SCAFFOLD's server adds changes up: its c is Σ p_i c_i less Σ p_i of what messages lacked."""
    from fedax.engine.make import make_job
    from fedax.engine.simulate import program

    job = make_job(fedax.create("scaffold", lr=0.02), TASK6, DATA6, rounds=5, work=fedax.Steps(2), compress=EF)
    going = program(job)
    state, _ = going.advance(going.prepare()[0], 0, 5)
    p = DATA6.weights
    kept = p @ np.asarray(state.memory.own.tree)
    residuals = p @ np.asarray(state.memory.residuals[0][1])
    assert np.abs(residuals).max() > 1e-3
    np.testing.assert_allclose(np.asarray(state.server.c.tree) + residuals, kept, atol=LAST_BITS)


def test_a_client_that_is_left_out_keeps_what_its_messages_lacked():
    """A guard that leaves it out leaves all that it keeps as it was."""
    faults = {"guard": True, "faults": fedax.Faults([2], sends=np.nan)}
    result = run("scaffold", EF, **faults)
    assert result.left_out == {2: 4} and not result.memory.tree[2].any() and np.isfinite(result.params).all()


class OwnMessages(fedax.Algorithm):
    """Sends a message by itself."""

    how: fedax.Compressor = fedax.Sign()

    def init(self, x):
        return x

    def client(self, download, memory, oracle):
        return self.how.encode(oracle.key, oracle.full_grad(download))[0], memory

    def server(self, server, mean, round):
        return server - 0.01 * mean


class Whole(OwnMessages):
    def client(self, download, memory, oracle):
        return jnp.ones(3, jnp.int32), memory

    def server(self, server, mean, round):
        return server


@pytest.mark.parametrize(
    ("make", "field", "match"),
    [
        (lambda: run("scaffold", fedax.TopK(0.1)), "compress", r"ErrorFeedback\(TopK\(share=0.1\)\)"),
        (lambda: run("fedavg", 0.1), "compress", "TopK"),
        (lambda: run("fedavg", {"up": EF, "bits": 1}), "compress", "name"),
        (lambda: run("fedavg", {"down": fedax.TopK(0.1)}), "compress.down", "unbiased"),
        (lambda: run("fedavg", {"down": EF}), "compress.down", "unbiased"),
        (lambda: run("fedavg", EF, aggregate=fedax.CoordinateMedian()), "aggregate", "a mean"),
        (lambda: run("fedgate", EF), "compress", "its own field"),
        (lambda: fedax.simulate(OwnMessages(), TASK6, DATA6, rounds=1, compress=EF), "compress", "of its own"),
        (lambda: fedax.simulate(Whole(), TASK6, DATA6, rounds=1, compress=EF), "compress", "int32"),
    ],
)
def test_what_cannot_be_compressed_is_refused(make, field, match):
    with pytest.raises(fedax.ConfigError, match=match) as caught:
        make()
    assert caught.value.field == field


def test_messages_of_a_method_count_their_bits():
    run = fedax.simulate(OwnMessages(), TASK6, DATA6, rounds=2)
    assert run.history["bytes_up"][-1] == 2 * 5 * (4 + 1) and run.history["train_loss"][-1] < 0


def test_in_a_configuration(tmp_path):
    """As a name, a table, or tables up and down; nodes make the same of it; and it is told again."""
    for given, wanted in (
        ("natural", {"up": fedax.Natural()}),
        (
            {"name": "error-feedback", "of": {"name": "top-k", "share": 0.1}},
            {"up": fedax.ErrorFeedback(fedax.TopK(0.1))},
        ),
        ({"up": {"name": "sign"}, "down": {"name": "cast"}}, {"up": fedax.Sign(), "down": fedax.Cast()}),
    ):
        made = build(
            {
                "data": {"name": "digits", "clients": 4},
                "run": {"rounds": 1, "compress": given},
                "methods": [{"name": "fedavg", "lr": 0.1}],
            }
        )
        assert repr(made.options["compress"]) == repr(Compression(**wanted))
        at_node = problem_of(json.loads(json.dumps(made.problem("fedavg"))))
        assert repr(Compression.of(at_node.options["compress"])) == repr(Compression(**wanted))
        again = codec.written_options(Options(rounds=1, compress=made.options["compress"]))["run"]["compress"]
        assert repr(Compression.of(again)) == repr(Compression(**wanted))
    with pytest.raises(fedax.ConfigError, match=r"run.compress.share = 2"):
        build(
            {
                "data": {"name": "digits", "clients": 4},
                "run": {"rounds": 1, "compress": {"name": "top-k", "share": 2}},
                "methods": [{"name": "fedavg", "lr": 0.1}],
            }
        )


class Ones(fedax.Algorithm):
    """The server's state is the mean of what clients send, who all send the same."""

    def init(self, x):
        return x

    def client(self, download, memory, oracle):
        return fedax.Vector(jnp.ones(6)), memory

    def server(self, server, mean, round):
        return mean


def test_each_message_has_its_own_random_numbers():
    """Of one client and one round: those of five clients differ, and those of two rounds."""
    means = [fedax.simulate(Ones(), TASK6, DATA6, rounds=r, compress=fedax.RandomK(0.5)).params for r in (1, 2)]
    assert not {0.0, 2.0}.issuperset(np.asarray(means[0]).round(5).tolist())
    assert means[0].tolist() != means[1].tolist()


def test_a_clip_goes_down_as_it_is():
    """Of a private run whose clip is adaptive: the noise is for that clip, and for no other."""
    clip = jnp.float32(0.3)
    down = Wire(down=fedax.Natural()).download(DownloadAndClip({"x": jnp.ones(3)}, clip), jax.random.key(0))
    assert down.clip is clip and isinstance(down.value["x"], fedax.Message)
