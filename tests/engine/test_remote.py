"""Clients at nodes: every method, what leaves a node, and failures of nodes and of the network."""

import functools
import json
import math
import pathlib
import pickle
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import scipy.stats

import fedax
from fedax.columns import COSTS, TIME, TRAFFIC
from fedax.data.tables import by_value
from fedax.errors import DamagedWarning
from fedax.files import WRITING
from fedax.sites.protocol import answered
from fedax.sites.protocol import fleet as fleets
from fedax.sites.protocol import store as stores
from fedax.sites.protocol.agreement import Agreement, Made, digest_of_text, precise_versions
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import Failure, Message, heads_of, packed, unpacked
from fedax.sites.protocol.policy import Policy
from fedax.sites.protocol.refusals import Refusal, Rule
from fedax.sites.protocol.remote import Remote
from fedax.sites.protocol.site import Site

from .. import LAST_BITS, in_full, long, mostly_long
from . import here, places
from .here import Here
from .methods import Listening, Mime, OneWalks, Server, Warm, WithControl
from .places import NODES, TEST, TESTS
from .problem import DATA, LR, MEASURED, TASK, UNEQUAL, X0, P, federation, flat, gradient, losses, objective
from .test_places import METHODS, check, one_case

N, ROUNDS = DATA.num_clients, 3
OPTIONS: dict[str, Any] = {"rounds": ROUNDS, "work": UNEQUAL, "batch_size": 2, "evaluate_every": 1}
FIRST, SECOND, THIRD = 7, 8, 9  # the numbers of the nodes
FEDAVG = fedax.create("fedavg", lr=LR)
Spy = Callable[[int, Message, Any], Any]


@pytest.fixture
def apart(monkeypatch):
    """Every message on its own: an evaluation does not take the first messages of the next round with it."""
    monkeypatch.setattr(Remote, "_evaluate_and_prefetch", lambda self, evaluation, *_: self._run(evaluation))


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """Lost nodes are looked for without a pause, and a transport gets the head of the next message."""
    monkeypatch.setattr(fleets, "_PAUSE", 0.01)
    ask = Fleet.ask

    def noted(self: Fleet, messages: Mapping[int, Message], timeout: float | None = None) -> Any:
        for message in messages.values():
            self.transport.coming = heads_of(message)[-1]
        return ask(self, messages, timeout)

    monkeypatch.setattr(Fleet, "ask", noted)


def nodes(where: Any = NODES, data: Any = DATA, tests: Any = None):
    """Sites, made new."""
    return here.sites(data, where, tests=tests)


def made(method: Any = FEDAVG, task: Any = TASK) -> Made:
    """What a configuration describes."""
    return Made(method, task, {name: each for name, each in OPTIONS.items() if name in here.OPTIONS})


def run(method: Any, transport: Any = None, *, spy: Spy | None = None, data: Any = DATA, task: Any = TASK, **options):
    """A run at nodes; ``run.at`` is its transport."""
    options = OPTIONS | options
    transport = transport or Here(nodes(data=data), spy)
    run = here.trained(method, task, data, transport, **options)
    run.at = transport
    return run


def simulated(method: Any, data: Any = DATA, task: Any = TASK, **options: Any) -> fedax.Run:
    return fedax.simulate(method, task, data, **(OPTIONS | options))


def alike(one: fedax.Run, other: fedax.Run, columns: Any = ("train_loss",), rtol: float = 1e-5) -> None:
    """Model, state, memory and columns of a run at nodes and of a simulation."""
    atol = min(rtol, LAST_BITS)
    for column in columns:
        np.testing.assert_allclose(one.history[column], other.history[column], rtol, atol, err_msg=column)
    memory = here.memory_of(one, one.at), other.memory
    for a, b in ((one.params, other.params), (one.state, other.state), memory):
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol, atol)


def same(one: fedax.Run, other: fedax.Run) -> None:
    """Two runs at nodes, bit for bit."""
    for name in one.history.keys() - {"seconds", TIME, *TRAFFIC}:
        assert one.history[name].tolist() == other.history[name].tolist(), name
    memory = [here.memory_of(each, each.at) for each in (one, other)]
    for a, b in ((one.params, other.params), (one.state, other.state), memory):
        assert [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(a)] == [
            np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(b)
        ]


def files(at: Here) -> dict[str, bytes]:
    """What the sites keep, but for their logs."""
    folders = [site.folder for site in at.sites.values()]
    names = ("memory/*/*", "agreements/*", "rounds.json", answered.FILE)
    results = [path for folder in folders for name in names for path in folder.glob(name)]
    return {str(path): path.read_bytes() for path in results}


# ---- what leaves a node


class Watcher:
    """A spy that records messages and the clients' memory; ``leaks`` gives values that should not have left a node."""

    def __init__(self, monkeypatch: Any, data: fedax.FederatedData = DATA):
        self.sent: list[Message] = []
        self.secrets: dict[bytes, str] = {}
        for i in range(data.num_clients):
            for name, leaf in data.client(i).items():
                for row in [leaf] if leaf.ndim == 1 else [*leaf, leaf]:  # labels only as a whole array
                    for kind in (np.float32, np.float64):
                        self._keep(row.astype(kind), f"{name} of client {i}")
        write = stores.write_tensors

        def noted(path: Any, arrays: dict[str, Any], *more: Any) -> None:
            for name, leaf in arrays.items():
                self._keep(np.asarray(leaf), name)
            write(path, arrays, *more)

        monkeypatch.setattr(stores, "write_tensors", noted)

    def _keep(self, array: np.ndarray, what: str) -> None:
        """Whether an array can be traced to its origin: constants and less than eight bytes cannot."""
        if array.nbytes >= 8 and len(np.unique(array)) > 1:
            self.secrets.setdefault(np.ascontiguousarray(array).tobytes(), what)

    def __call__(self, number: int, message: Message, answer: Any) -> Any:
        self.sent += [message, answer]
        allowed = {
            "exchange": {"to", "tally"},
            "evaluate": {"to"},
            "agreement": {"to"},
            "forget": {"to"},
        }
        assert len(message.head) <= 6
        assert message.head["kind"] == "hello" or answer.head.keys() <= allowed[message.head["kind"]] | {"error"}
        return answer

    def leaks(self) -> set[str]:
        return {what for secret, what in self.secrets.items() if any(secret in each.tensors for each in self.sent)}


@pytest.mark.parametrize("method", mostly_long(METHODS, "ce-lsgd", "local-amsgrad", "mime", "scaffold-m-vr", "vrl-sgd"))
def test_every_method_at_nodes(method, monkeypatch):
    """The device's numbers come out, and no example, no labels and no memory leave a node."""
    watcher = Watcher(monkeypatch)
    name = one_case(method, "nodes")
    check(name, places.outcome(name, watcher))
    assert len(watcher.secrets) >= 2 * (2 * N + DATA.num_examples) - 6
    assert watcher.leaks() == set()


class Leaky(Site):
    """Its answers have more than they should."""

    def answer(self, message: Message) -> Message:
        result = super().answer(message)
        if message.head["kind"] != "exchange":
            return result
        arrays = safetensors.numpy.load(result.tensors)
        return result._replace(tensors=safetensors.numpy.save(arrays | {"more": self.secret()}))

    def secret(self) -> np.ndarray:
        raise NotImplementedError


class LeaksRow(Leaky):
    def secret(self) -> np.ndarray:
        return self.data.examples["x"][-1].copy()


class LeaksRowInOtherNumbers(Leaky):
    def secret(self) -> np.ndarray:
        return self.data.examples["x"].astype(np.float32)


class LeaksLabels(Leaky):
    def secret(self) -> np.ndarray:
        return self.data.client(0)["y"].astype(np.float32)


class LeaksMemory(Leaky):
    def secret(self) -> np.ndarray:
        (path, *_) = sorted(self.folder.glob("memory/*/*"))
        return next(leaf for leaf in safetensors.numpy.load_file(path).values() if leaf.size > 1)


@pytest.mark.parametrize(
    ("kind", "what"),
    [(LeaksRow, "x of"), (LeaksRowInOtherNumbers, "x of"), (LeaksLabels, "y of"), (LeaksMemory, "['memory']")],
)
def test_the_watcher_sees_what_leaves(kind, what, monkeypatch):
    monkeypatch.setattr(here, "Site", kind)
    watcher = Watcher(monkeypatch)
    with pytest.raises(fedax.NodeError, match="is there and should not be"):
        run(fedax.create("scaffold", lr=LR), spy=watcher)
    assert any(each.startswith(what) for each in watcher.leaks())


class Telling(fedax.Algorithm):
    """Clients upload their memory, without weights."""

    def init(self, x):
        return Server(x)

    def init_client(self, x):
        return fedax.zeros_like(x)

    def exchanges(self):
        return (fedax.Exchange(self.client, self.server, who="one"),)

    def client(self, server, memory, oracle):
        memory = memory + oracle.grad(server.x)
        return memory, memory

    def server(self, server, mean, round):
        return Server(server.x - 0.01 * mean)


def test_the_watcher_sees_a_method_that_tells(monkeypatch):
    watcher = Watcher(monkeypatch)
    run(Telling(), spy=watcher)
    assert any(each.startswith("['memory']") for each in watcher.leaks())


def test_what_a_client_alone_tells(monkeypatch):
    """Local AMSGrad averages the moments that clients keep; that of one client, with weight 1, is its own."""
    alone = {"['memory'].m.tree['w']", "['memory'].v.tree['w']"}
    for participation, expected in ((fedax.Trace([[4], [0], [2]]), alone), (fedax.Uniform(3), set())):
        watcher = Watcher(monkeypatch)
        method = fedax.create("local-amsgrad", lr=LR)
        run(method, spy=watcher, participation=participation, work=fedax.Steps(2))
        assert watcher.leaks() == expected


# ---- answers that are none


def spoiled(change: Callable[[Message], Any], number: int = FIRST, kind: str = "exchange") -> Spy:
    """A spy that changes the answer of a node."""
    return lambda n, message, answer: change(answer) if (n, message.head["kind"]) == (number, kind) else answer


def arrays_of(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Message], Message]:
    """Changes the arrays of an answer."""

    def changed(answer: Message) -> Message:
        return answer._replace(tensors=safetensors.numpy.save(change(safetensors.numpy.load(answer.tensors))))

    return changed


def each(change: Callable[[np.ndarray], Any]) -> Callable[[Message], Message]:
    return arrays_of(lambda arrays: {name: np.asarray(change(leaf)) for name, leaf in arrays.items()})


def heads(**more: Any) -> Callable[[Message], Message]:
    return lambda answer: Message(answer.head | more, answer.tensors)


SPOILED = {
    "shape": (each(lambda leaf: leaf[None]), r"\['.*'\].* is float32\[1.*\], expected float32\["),
    "dtype": (each(lambda leaf: leaf.astype(np.float64)), r"is float64.*, expected float32"),
    "whole numbers": (each(lambda leaf: leaf.view(np.int32)), r"is int32.*, expected float32"),
    "missing": (arrays_of(lambda arrays: dict([*arrays.items()][1:])), "is missing"),
    "another": (arrays_of(lambda arrays: arrays | {"['total'].more": np.ones(3)}), "is there and should not be"),
    "named otherwise": (arrays_of(lambda arrays: {f"{name}x": leaf for name, leaf in arrays.items()}), "is missing"),
    "no file": (lambda answer: answer._replace(tensors=bytes(50)), "no arrays"),
    "cut": (lambda answer: answer._replace(tensors=answer.tensors[:-1]), "no arrays"),
    "code": (lambda answer: answer._replace(tensors=pickle.dumps(X0)), "no arrays"),
    "nothing": (lambda answer: answer._replace(tensors=b""), "is missing"),
    "no head": (lambda answer: Message({}, answer.tensors), "to another question"),
    "to none": (heads(to=3), "to another question"),
    "error": (lambda answer: Message({"error": "OSError: the disk is full"}), "OSError: the disk is full"),
    "failure": (lambda answer: Failure("it crashed", False), "it crashed"),
}


@pytest.mark.parametrize("kind", ["exchange", "evaluate"])
@pytest.mark.parametrize("how", SPOILED)
def test_an_answer_that_is_none(how, kind):
    change, text = SPOILED[how]
    with pytest.raises(fedax.NodeError, match=f"^clients '3', '0': .*{text}"):
        run(FEDAVG, spy=spoiled(change, kind=kind), rounds=1)


@pytest.mark.parametrize("tally", [[1], "ab", [1, -1], [1, 2**31], [True, 1], [1.0, 1], None, {"a": 1, "b": 2}])
def test_an_answer_that_counts_nonsense(tally):
    with pytest.raises(fedax.NodeError, match=r"^clients '3', '0': the answer counts"):
        run(FEDAVG, spy=spoiled(heads(tally=tally)), rounds=1)


@pytest.mark.parametrize("name", ["agreement", "stage", "round", "exchange", "told"])
def test_an_answer_to_another_question(name):
    def spy(number: int, message: Message, answer: Any) -> Any:
        if (number, message.head["kind"]) != (THIRD, "exchange"):
            return answer
        return heads(to=digest_of_text([message.head | {name: None}]))(answer)

    with pytest.raises(fedax.NodeError, match=r"^clients '2', '1': .*another question"):
        run(FEDAVG, spy=spy, rounds=1)


def test_the_answer_of_another_round():
    late: list[Message] = []

    def spy(number: int, message: Message, answer: Message) -> Message:
        if (number, message.head["kind"]) != (SECOND, "exchange"):
            return answer
        late.append(answer)
        return late[0]

    with pytest.raises(fedax.NodeError, match=r"^clients '4': .*another question"):
        run(FEDAVG, spy=spy)
    assert len(late) == 2


@pytest.mark.parametrize("about", ["accepted", "uploads"])
def test_answers_of_the_wrong_number_of_clients(about):
    def fewer(arrays: dict[str, Any]) -> dict[str, Any]:
        return {name: leaf[:1] if about in name else leaf for name, leaf in arrays.items()}

    aggregate = fedax.CoordinateMedian() if about == "uploads" else None
    with pytest.raises(fedax.NodeError, match=rf"^clients '3', '0': .*{about}'\].*expected .*\[2"):
        run(FEDAVG, spy=spoiled(arrays_of(fewer)), rounds=1, guard=True, aggregate=aggregate)


def test_without_a_guard_a_node_can_spoil_all():
    with pytest.warns(fedax.DivergedWarning):
        result = run(FEDAVG, spy=spoiled(each(lambda leaf: leaf * np.nan)))
    assert (result.status, result.history["round"].tolist()) == ("diverged", [0, 1])


def lying(value: float, number: int = FIRST) -> Spy:
    """A node that sends wrong sums and declares its clients' uploads as good."""
    return spoiled(each(lambda leaf: np.ones_like(leaf) if leaf.dtype == bool else np.full_like(leaf, value)), number)


@pytest.mark.parametrize("name", mostly_long(["scaffold-m", "mime"], "scaffold-m"))
def test_with_a_guard_the_server_looks_itself(name):
    work = {"work": fedax.Steps(2)}
    method = fedax.create(name, lr=LR)
    expected = simulated(method, guard=True, faults=fedax.Faults([0, 3], sends=np.nan), **work)
    for value in (np.nan, np.inf, -np.inf, 1e30):
        result = run(method, spy=lying(value), guard=True, **work)
        alike(result, expected, ["train_loss", "left_out", "skipped", "local_steps", "clients", "bytes_up"])
        assert result.left_out == expected.left_out
        assert result.left_out.keys() == {0, 3}
        assert result.history["bad_clients"].tolist() == expected.history["bad_clients"].tolist()


@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_with_a_guard_the_server_looks_at_each_upload(value):
    """One of the two clients of a node."""

    def lie(arrays: dict[str, Any]) -> dict[str, Any]:
        return {name: np.ones_like(leaf) if leaf.dtype == bool else np.where(
            np.arange(2).reshape(-1, *[1] * (leaf.ndim - 1)) == 0, np.asarray(value, leaf.dtype), leaf
        ) for name, leaf in arrays.items()}  # fmt: skip

    options = {"guard": True, "aggregate": fedax.TrimmedMean(0.2)}
    result = run(FEDAVG, spy=spoiled(arrays_of(lie)), **options)
    gone = {0, 3} & result.left_out.keys()
    assert len(gone) == 1
    expected = simulated(FEDAVG, faults=fedax.Faults(tuple(gone), sends=np.nan), **options)
    alike(result, expected, ["train_loss", "left_out"])


def test_a_guard_that_stops_the_run():
    with pytest.warns(fedax.BadClientWarning):
        result = run(FEDAVG, spy=lying(np.nan), guard=fedax.Guard(stop=True))
    assert (result.status, result.history["round"].tolist()) == ("failed", [0, 1])
    with pytest.warns(fedax.BadClientWarning):  # in a round after which it would not be evaluated
        result = run(FEDAVG, spy=lying(np.nan), guard=fedax.Guard(stop=True), evaluate_every=3)
    assert (result.status, result.history["round"].tolist()) == ("failed", [0, 1])


# ---- numbers of every kind


def test_the_bits_of_every_kind_of_number():
    rng = np.random.default_rng(0)
    kinds = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16",
             "float32", "float64", "float8_e4m3fn", "float8_e5m2"]  # fmt: skip
    trees = {}
    for kind in map(jnp.dtype, kinds):
        bits = rng.integers(0, 2 if kind.kind == "b" else 256, 24 * kind.itemsize, np.uint8)  # every pattern, NaN too
        trees[kind.name] = {"a": bits.view(kind).reshape(2, 3, 4), "b": (bits.view(kind)[:1].reshape(()),)}
    trees["none"] = {"a": np.zeros((0, 3), np.float32)}
    message = unpacked(packed(trees), trees, "it")
    assert jax.tree.structure(message) == jax.tree.structure(trees)
    for was, became in zip(jax.tree.leaves(trees), jax.tree.leaves(message), strict=True):
        assert (was.dtype, was.shape, was.tobytes()) == (became.dtype, became.shape, became.tobytes())
    turned = {"x": np.asfortranarray(rng.normal(size=(3, 4)))}
    np.testing.assert_array_equal(unpacked(packed(turned), turned, "it")["x"], turned["x"])
    with pytest.raises(fedax.NodeError, match=r"^it: .*uint16\[2\], expected float16\[2\]"):
        unpacked(packed({"x": np.ones(2, jnp.bfloat16)}), {"x": np.ones(2, np.float16)}, "it")


@pytest.mark.parametrize("kind", ["bool", "int32", "float32", "float64", "bfloat16", "uint8"])
def test_zeros_of_large_arrays_stay_where_they_are(kind):
    """And only they: −0.0 and NaN come as they are."""
    array = np.zeros((3, 10_000), jnp.dtype(kind))
    array[0, 0], array[1, 7], array[2, -1] = 1, -0.0 if "float" in kind else 1, np.nan if "float" in kind else 1
    trees = {"all": {"w": array, "none": np.zeros(10_000), "dense": np.arange(1.0, 2001.0)}}
    file = packed(trees)
    assert len(file) < 17_000
    for was, became in zip(jax.tree.leaves(trees), jax.tree.leaves(unpacked(file, trees, "it")), strict=True):
        assert (was.dtype, was.shape, was.tobytes()) == (became.dtype, became.shape, became.tobytes())


@pytest.mark.parametrize(
    ("where", "what"),
    [([5, 100_000], [1, 1]), ([5, 4], [1, 1]), ([5, 5], [1, 1]), ([5], [1, 1]), ([[5]], [[1]]), ([-5.0], [1])],
)
def test_places_that_cannot_be(where, what):
    at = np.array(where, None if where == [-5.0] else np.uint32)
    file = safetensors.numpy.save({"['x'] where": at, "['x'] what": np.array(what, np.float32)})
    with pytest.raises(fedax.NodeError, match=r"^it: \['x'\] has places that cannot be"):
        unpacked(file, {"x": np.zeros(100_000, np.float32)}, "it")


def test_half_of_an_array_without_its_zeros():
    file = safetensors.numpy.save({"['x'] where": np.zeros(1, np.uint32)})
    with pytest.raises(fedax.NodeError, match=r"^it: \['x'\]"):
        unpacked(file, {"x": np.zeros(100_000, np.float32)}, "it")
    both = {"['x'] where": np.zeros(1, np.uint32), "['x'] what": np.zeros(1), "['x']": np.zeros(100_000, np.float32)}
    with pytest.raises(fedax.NodeError, match=r"is there and should not be"):
        unpacked(safetensors.numpy.save(both), {"x": np.zeros(100_000, np.float32)}, "it")


class Narrow(fedax.Algorithm):
    """All arrays in messages and in the clients' memory are bfloat16."""

    def init(self, x):
        return Server(x)

    def init_client(self, x):
        return jax.tree.map(lambda leaf: jnp.zeros_like(leaf, jnp.bfloat16), x.tree)

    def download(self, server):
        return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), server.x.tree)

    def client(self, download, memory, oracle):
        x = fedax.Vector(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), download))
        g = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), oracle.grad(x).tree)
        return g, jax.tree.map(jnp.add, memory, g)

    def server(self, server, mean, round):
        return Server(server.x - LR * fedax.Vector(mean))


def test_bfloat16_keeps_its_bits():
    data, alone = federation(sizes=np.full(N, 3)), [[i] for i in range(N)]
    result = run(Narrow(), Here(nodes(alone, data)), data=data)
    expected = simulated(Narrow(), data, place=fedax.Place(chunk_size=1))
    kept = here.memory_of(result, result.at)
    for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(expected.memory), strict=True):
        assert a.dtype == b.dtype == jnp.bfloat16
        assert a.tobytes() == np.asarray(b).tobytes()
    np.testing.assert_allclose(flat(result.params), flat(expected.params), LAST_BITS)


def test_a_task_of_bfloat16():
    task = fedax.Task(
        lambda key: {"w": jnp.ones(3, jnp.bfloat16), "b": jnp.zeros((), jnp.bfloat16)}, TASK.loss, TASK.metrics
    )
    result, expected = (each(FEDAVG, task=task) for each in (run, simulated))
    assert result.params["w"].dtype == jnp.bfloat16
    alike(result, expected)


# ---- before the first round


def refused(text: str, method: Any = FEDAVG, transport: Any = None, spy: Spy | None = None, **options: Any) -> None:
    """The run is refused before any client is asked to work."""
    requests = []

    def noting(number: int, message: Message, answer: Any) -> Any:
        requests.append(message.head["kind"])
        return answer if spy is None else spy(number, message, answer)

    transport = transport or Here(nodes())
    transport.spy = noting
    with pytest.raises(fedax.NodeError, match=text):
        run(method, transport, **options)
    assert {*requests} <= {"hello", "agreement"}


def hello(**more: Any) -> Spy:
    return spoiled(heads(**more), SECOND, "hello")


VERSIONS = precise_versions()


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"versions": VERSIONS | {"fedax": "9"}}, f"their node has fedax 9, and the server has {fedax.__version__}"),
        ({"versions": VERSIONS | {"jax": "0.1"}}, f"their node has jax 0.1, and the server has {jax.__version__}"),
        ({"versions": VERSIONS | {"float64": True}}, "their node has float64 True, and the server has False"),
        ({"versions": {}}, "their node has fedax None"),
        ({"example": {"x": ["float32", [2]], "y": ["float32", []]}}, r"an example is .*'x': \['float32', \[2\]\]"),
        ({"example": {"x": ["float32", [3]]}}, "bring all to one form"),
        ({"names": ["3"]}, "client '3' is at two nodes; give every client a name of its own"),
    ],
)  # fmt: skip
def test_nodes_that_do_not_fit(more, text):
    refused(text, spy=hello(**more))


@pytest.mark.parametrize(
    "more",
    [
        {"names": []}, {"names": [1]}, {"names": None}, {"names": ["a", "b"]}, {"sizes": [0]}, {"sizes": [-1]},
        {"sizes": [1.5]}, {"sizes": ["1"]}, {"sizes": [True]}, {"sizes": [2**31]}, {"digests": []}, {"digests": [3]},
        {"mark": 3}, {"held": {"val": 0, "test": -1}}, {"held": {"test": 1}}, {"classes": "two"}, {"example": {}},
        {"example": {"x": ["nothing", [3]]}}, {"example": {"x": 3}}, {"example": None}, {"versions": None},
        {"names": None, "sizes": None, "digests": None},
    ],
)  # fmt: skip
def test_nodes_that_do_not_say_who_they_are(more):
    refused("^node 8: it does not say who is there", spy=hello(**more))


def test_a_node_that_cannot_say_hello():
    refused("^node 8: it is Sunday", spy=spoiled(lambda answer: Message({"error": "it is Sunday"}), SECOND, "hello"))
    refused("^node 8: unpacked", spy=spoiled(lambda answer: Failure("unpacked", False), SECOND, "hello"))


def test_too_few_nodes():
    at = Here(nodes())
    with pytest.raises(fedax.NodeError, match=r"^3 nodes .* after 0.01 s, and 4"):
        Fleet(at, nodes=4, wait=0.01)
    with pytest.raises(fedax.NodeError, match=r"^0 nodes .* after 0.01 s, and 1"):
        Fleet(Here({}), wait=0.01)
    late = Here({FIRST: at.sites[FIRST]})
    late.nodes = lambda: (late.sites.update(at.sites), [FIRST])[1] if len(late.sites) < 3 else [*late.sites]
    assert len(Fleet(late, nodes=3, wait=5.0)) == 3


def test_clients_are_in_the_order_of_their_names():
    site = nodes([[3, 0], [1]])
    names = (["b10", "b9"], ["a²"])
    for each, own in zip(site.values(), names, strict=True):
        each.names = tuple(own)
    fleet = Fleet(Here(site))
    assert fleet.census.names == ("a²", "b9", "b10")
    assert fleet.census.sizes.tolist() == [1, 3, 2]
    assert sorted(fleet.clients(which).tolist() for which in range(2)) == [[0], [2, 1]]
    assert fleet.census.weights.tolist() == pytest.approx([1 / 6, 3 / 6, 2 / 6])
    assert by_value("²") > by_value("1")  # a digit to Python, and no number


@pytest.mark.parametrize("names", [["a", "a"], ["a"], ["a", ""], ["a", "b", "c"]])
def test_names_that_cannot_be(names, tmp_path):
    with pytest.raises(fedax.ConfigError, match=r"names = .*each of the 2 clients"):
        Site(here.part_of(DATA, [0, 1]), lambda _: made(), tmp_path, names)


def test_a_folder_is_one_nodes(tmp_path):
    data = here.part_of(DATA, [0])
    first = Site(data, lambda _: made(), tmp_path, ["0"])
    with pytest.raises(fedax.ConfigError, match="another process is this node"):
        Site(data, lambda _: made(), tmp_path, ["0"])
    first.close()
    hello = Message({"kind": "hello"})
    again = Site(data, lambda _: made(), tmp_path, ["0"])
    assert again.answer(hello).head["mark"] == first.answer(hello).head["mark"]
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    (tmp_path / "file").write_text("")
    with pytest.raises(fedax.ConfigError, match="cannot write there"):
        Site(data, lambda _: made(), tmp_path / "file", ["0"])


def test_digests_tell_nothing_but_change(tmp_path):
    one = Site(here.part_of(DATA, [3, 3]), lambda _: made(), tmp_path / "a", ["a", "b"])
    other = Site(here.part_of(DATA, [3]), lambda _: made(), tmp_path / "b", ["a"])
    digests = [site.answer(Message({"kind": "hello"})).head["digests"] for site in (one, other)]
    assert digests[0][0] == digests[0][1] != digests[1][0]


def test_examples_that_do_not_fit_the_task(capsys):
    """What does not fit may be a value of the data: only the owner's log has it."""

    def check(examples: Any) -> None:
        if len(examples["y"]) == 6:
            raise fedax.DataError("six examples are too many")

    strict = fedax.Task(TASK.init, TASK.loss, TASK.metrics, check)
    refused("^clients '4': its examples do not fit the run's task; its owner's log says more$", task=strict)
    assert "six examples are too many" in capsys.readouterr().err


def test_a_node_that_makes_another_program():
    at = Here(nodes())
    other = fedax.Task(TASK.init, lambda params, batch, key: 2 * TASK.loss(params, batch, key), TASK.metrics)
    at.sites[SECOND]._make = lambda _: made(FEDAVG, other)
    refused("^clients '4': its code differs from the server's for this configuration", FEDAVG, at)
    at.sites[SECOND]._make = lambda _: made(fedax.create("scaffold", lr=LR))
    refused("^clients '4': its code differs", FEDAVG, at, seed=2)


def test_another_program_in_the_middle_of_a_run():
    """A node that is stopped, and started again with other code."""
    at, other = Here(nodes()), fedax.Task(TASK.init, lambda *given: 2 * TASK.loss(*given), TASK.metrics)

    def spy(number: int, message: Message, answer: Any) -> Any:
        if message.head["kind"] == "evaluate" and message.head["round"] == 1:
            at.sites[SECOND] = restarted(at.sites[SECOND])
            at.sites[SECOND]._make = lambda _: made(FEDAVG, other)
        return answer

    at.spy = spy
    with pytest.raises(fedax.NodeError, match=r"^clients '4': its code differs"):
        run(FEDAVG, at)


def in_spite(number: int) -> Spy:
    """A server that takes the objection of a node to the agreement as its consent."""

    def spy(n: int, message: Message, answer: Any) -> Any:
        objects = (n, message.head["kind"]) == (number, "agreement")
        return Message({"to": digest_of_text([message.head])}) if objects else answer

    return spy


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        (["train_loss"], {"task": MEASURED}, "grad_norm_sq"),
        (["grad_norm_sq"], {}, "train_loss"),
        (["train_loss", "test_loss"], {}, "test_error"),
    ],
)
@pytest.mark.usefixtures("apart")
def test_what_an_owner_does_not_let_leave(columns, options, text):
    at = Here(nodes(tests=TESTS))
    at.sites[THIRD].policy = Policy(columns=columns)
    options |= {"test": TEST} if "test" not in text else {}  # at the server
    refused(rf"^clients '2', '1': .*figures.columns = .*these measures leaving.*{text}", FEDAVG, at, **options)
    # A server that goes on all the same.
    left, spy = [], in_spite(THIRD)

    def noting(number: int, message: Message, answer: Any) -> Any:
        left.extend([answer] if number == THIRD else [])
        return spy(number, message, answer)

    at.spy = noting
    with pytest.raises(fedax.NodeError, match=r"^clients '2', '1': it knows no such agreement"):
        run(FEDAVG, at, **options)
    assert len(left) > 2 and not any(each.tensors for each in left)


def test_limits():
    assert Policy().refused(["a"]) == []
    assert Policy(columns=[]).refused(["a", "b"]) == ["a", "b"]
    for rounds in (0, -1, 1.5):
        with pytest.raises(fedax.ConfigError, match="rounds = "):
            Policy(rounds=rounds)


def restarted(site: Site, policy: Policy | None = None) -> Site:
    """The same node in another process."""
    site.close()
    return Site(site.data, site._make, site.folder, site.names, site.held["test"], policy or site.policy)


def rounds_of(site):
    """The rounds that a node has counted, by run."""
    return json.loads((site.folder / "rounds.json").read_text())


def test_an_owner_allows_so_many_rounds():
    """Of all runs together, and over a restart."""
    at = Here(nodes())
    at.sites[SECOND].policy = Policy(rounds=5)
    run(FEDAVG, at, rounds=3)
    text = r"^clients '4': .*runs.rounds = 5\) is against more rounds.*\(other runs had 3\)"
    refused(text, FEDAVG, at, rounds=3)
    at.sites[SECOND] = restarted(at.sites[SECOND])
    refused(text, FEDAVG, at, rounds=3)
    run(FEDAVG, Here(at.sites), rounds=2)
    at.spy = in_spite(SECOND)
    with pytest.raises(fedax.NodeError, match=r"^clients '4': it knows no such agreement"):
        run(FEDAVG, at, rounds=1)
    assert sorted(rounds_of(at.sites[SECOND]).values()) == [2, 3]


def test_runs_that_were_agreed_on_together_share_the_rounds(tmp_path):
    """When each was agreed on, the owner allowed it."""
    there = nodes()
    there[SECOND].policy = Policy(rounds=5)
    with pytest.raises(Broken):
        run(FEDAVG, Killed(there, 1), checkpoint=tmp_path)
    run(FEDAVG, Here(there), seed=1)
    with pytest.raises(fedax.NodeError, match=r"^clients '4': .*runs.rounds = 5\) is against more rounds"):
        run(FEDAVG, Here(there), checkpoint=tmp_path)
    assert sorted(rounds_of(there[SECOND]).values()) == [2, 3]


@pytest.mark.usefixtures("apart")
def test_a_round_counts_once():
    """Also if a client is asked twice, and others before it were not asked at all."""
    at = Twice(nodes())
    run(FEDAVG, at, participation=fedax.Uniform(1), rounds=5)
    counted = [sum(rounds_of(site).values()) for site in at.sites.values()]
    assert max(counted) == 5


@pytest.mark.parametrize("head", [{}, {"to": None}, {"to": 3}, {"to": "0" * 32}, {"key": {}}])
def test_an_answer_to_the_agreement_that_says_nothing(head):
    spy = spoiled(lambda answer: Message(head), kind="agreement")
    with pytest.raises(fedax.NodeError, match=r"^clients '3', '0': .*another question"):
        run(FEDAVG, spy=spy)


@pytest.mark.parametrize("count", ['"5"', "-1", "2.5", "true", "Infinity", "[1]", "null"])
def test_a_count_of_rounds_that_is_none(count, tmp_path):
    (tmp_path / "rounds.json").write_text(f'{{"5": {count}}}')
    with pytest.raises(fedax.ConfigError, match="this should count rounds, and cannot be read"):
        Site(here.part_of(DATA, [0]), lambda _: made(), tmp_path, ["0"])


def test_a_damaged_count_of_rounds(tmp_path):
    (tmp_path / "rounds.json").write_text('{"5": "a')
    with pytest.raises(fedax.ConfigError, match="this should count rounds, and cannot be read"):
        Site(here.part_of(DATA, [0]), lambda _: made(), tmp_path, ["0"])


def test_other_clients_than_when_the_run_began():
    at = Here(nodes())

    def spy(number: int, message: Message, answer: Any) -> Any:
        if message.head["kind"] == "evaluate" and message.head["round"] == 1 and number == THIRD:
            site = at.sites[SECOND]
            site.close()
            at.sites[SECOND] = Site(here.part_of(DATA, [2]), site._make, site.folder, site.names)
        return answer

    at.spy = spy
    with pytest.raises(fedax.NodeError, match=r"^clients '4': its clients, their examples, .*are others"):
        run(FEDAVG, at)


def test_a_message_that_no_version_knows():
    site = nodes()[FIRST]
    for head in ({}, {"kind": "run code"}, {"kind": ["hello"]}, {"kind": "check"}, {"kind": "figures"}):
        assert site.answer(Message(head)).head == {"error": str(Refusal(Rule.FORM))}


@functools.cache
def asked_of(number: int, name: str) -> tuple[Site, Message]:
    """A site, and its request in round 0."""
    seen: list[Message] = []

    def spy(n: int, message: Message, answer: Any) -> Any:
        seen.extend([message] if (n, message.head["kind"]) == (number, "exchange") else [])
        return answer

    at = run(KEEPING[name], spy=spy, rounds=1).at
    return at.sites[number], seen[0]


def told(**more: Any) -> Callable[[Message], Message]:
    return lambda message: heads(told=message.head["told"] | more)(message)


FORM, COHORT = str(Refusal(Rule.FORM)), str(Refusal(Rule.COHORT))
NONSENSE = {
    "nobody": (told(rows=[]), FORM),
    "fewer than are drawn": (told(rows=[1], base=[0], keep=[[]]), COHORT),
    "more than there are": (told(rows=[0, 1, 2]), FORM),
    "beyond the last": (told(rows=[0, 2]), FORM),
    "before the first": (told(rows=[-1, 0]), FORM),
    "the same twice": (told(rows=[1, 1]), FORM),
    "no number": (told(rows=["0", 1]), FORM),
    "a truth": (told(rows=[True, 0]), FORM),
    "no rows": (told(rows=None), FORM),
    "rows of another kind": (told(rows={"0": 1}), FORM),
    "nothing told": (heads(told={}), FORM),
    "told in text": (heads(told="rows"), FORM),
    "no agreement": (heads(agreement=None), FORM),
    "several agreements": (heads(agreement=["0" * 32]), FORM),
    "a path": (heads(agreement="../../x"), FORM),
    "another agreement": (heads(agreement="0" * 32), "it knows no such agreement"),
    "no such stage": (heads(stage="init"), FORM),
    "a warm-up that is none": (heads(stage="warmup"), "no such exchange"),
    "no such exchange": (heads(exchange=1), "no such exchange"),
    "before the first exchange": (heads(exchange=-1), FORM),
    "half an exchange": (heads(exchange=0.0), FORM),
    "a round that never is": (heads(round=2**40), FORM),
    "after the last round": (heads(round=1), "no such round"),
    "before the first round": (heads(round=-1), FORM),
    "one memory": (told(base=[0]), FORM),
    "memory of later": (told(base=[65, 65]), FORM),
    "memory of before": (told(base=[-1, 0]), FORM),
    "memory that never was": (told(base=[5, 5]), "its memory is lost"),
    "one version": (told(keep=1), FORM),
    "versions of one": (told(keep=[[0]]), FORM),
    "a version with two numbers": (told(keep=[[0], [[3, 1]]]), FORM),
    "left out without a guard": (told(out=[0]), COHORT),
    "another model": (
        arrays_of(lambda arrays: {k: leaf[:2] if "'w'" in k else leaf for k, leaf in arrays.items()}),
        r"\['w'\].*is float32\[2\], expected float32\[3\]",
    ),
    "no file": (lambda message: message._replace(tensors=b"abc"), "no arrays"),
    "nothing": (lambda message: message._replace(tensors=b""), "is missing"),
}


@pytest.mark.parametrize("how", NONSENSE)
def test_nonsense_is_asked(how):
    """A site says so, and nothing that it keeps changes."""
    site, message = asked_of(FIRST, "one exchange")
    kept, (change, text) = files(Here({FIRST: site})), NONSENSE[how]
    answer = site.answer(change(message))
    assert answer.head.keys() == {"error"} and answer.tensors == b""
    assert text == answer.head["error"] or re.search(text, answer.head["error"])
    assert files(Here({FIRST: site})) == kept
    assert len(kept) == 2 + 1 + 1 + 1  # memory, the agreement, the rounds, the record


@pytest.mark.parametrize("exchange", [0, 1])
def test_whom_a_guard_leaves_out(exchange):
    """Who has not answered yet cannot have been left out; nor could who was not asked before come in."""
    at, seen = Here(nodes()), {}

    def spy(number: int, message: Message, answer: Any) -> Any:
        if (number, message.head["kind"]) == (FIRST, "exchange"):
            seen[message.head["exchange"]] = message
        return answer

    at.spy = spy
    run(Mime(LR), at, rounds=1, guard=True)
    answer = at.sites[FIRST].answer(told(out=[0])(seen[exchange]))
    assert not answer.tensors and answer.head.keys() == ({"error"} if exchange == 0 else {"to", "repeated"})
    assert exchange == 1 or answer.head["error"] == COHORT


AGREED = {
    "no number": {"run": "7"},
    "a number below 0": {"run": -1},
    "a number that is too large": {"run": 2**62},
    "a truth": {"seed": True},
    "no configuration": {"config": [1]},
    "nobody": {"names": [], "sizes": [], "weights": []},
    "a client twice": {"names": ["3"] * N},
    "a name that is none": {"names": [3, 0, 4, 2, 1]},
    "too few sizes": {"sizes": [3]},
    "a size of 0": {"sizes": [0] * N},
    "a weight that is none": {"weights": "larger"},
    "parts that are none": {"parts": ["train"]},
    "a split that is none": {"split": 0.5},
    "no program": {"program": None},
    "no digest": {"frozen": "../../x"},
    "no versions": {"versions": None},
    "an entry more": {"more": 1},
}


@functools.cache
def agreed_once() -> tuple[Site, Message]:
    """A site, and the agreement of a run of it."""
    seen: list[Message] = []
    at = Here(nodes(), lambda n, message, answer: seen.append(message) or answer)
    run(FEDAVG, at, rounds=1)
    return at.sites[FIRST], next(each for each in seen if each.head["kind"] == "agreement")


def agreement_with(message: Message, **changes: Any) -> Message:
    """The message of an agreement of which some entries are others."""
    text = json.dumps(json.loads(message.head["text"]) | changes, sort_keys=True)
    return Message(message.head | {"text": text}, message.tensors)


@pytest.mark.parametrize("how", [*AGREED, "no text", "no JSON", "a list", "deep"])
def test_an_agreement_that_is_none(how):
    site, message = agreed_once()
    kept = files(Here({FIRST: site}))
    texts = {"no text": 3, "no JSON": "{", "a list": "[]", "deep": "[" * 100_000}
    asked = heads(text=texts[how])(message) if how in texts else agreement_with(message, **AGREED[how])
    assert site.answer(asked).head["error"] in (
        "what came as the agreement of a run is none",
        "an entry of the run's agreement is not of its form",
    )
    assert files(Here({FIRST: site})) == kept


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"program": "0" * 16}, "its code differs from the server's"),
        ({"versions": VERSIONS | {"jax": "0.1"}}, "its versions are others"),
        ({"names": ["5", "6", "7", "8", "9"]}, "has not each of its clients once, with its size"),
        ({"sizes": [4, 1, 4, 2, 6]}, "has not each of its clients once, with its size"),
        ({"frozen": "0" * 32}, "the frozen part of the model is not there"),
        ({"split": {"train": 0.5, "val": 0.1, "test": 0.1, "stratify": None, "seed": 0}}, "do not sum to 1"),
    ],
)
def test_an_agreement_that_does_not_fit(change, text):
    site, message = agreed_once()
    kept = files(Here({FIRST: site}))
    assert text in site.answer(agreement_with(message, **change)).head["error"]
    assert files(Here({FIRST: site})) == kept


# ---- memory


class Each(Here):
    """Delivers every message in a way of its own."""

    def ask(self, messages: Mapping[int, Message], timeout: float) -> Iterator[tuple[int, Message | Failure]]:
        for number, message in messages.items():
            yield from self.deliver(number, message, timeout)

    def deliver(self, number: int, message: Message, timeout: float) -> Iterator[tuple[int, Message | Failure]]:
        return super().ask({number: message}, timeout)


class WarmFromTheStart(Warm):
    """Its server's state has the same form before the warm-up, as it has to where that may be without effect."""

    def init(self, x):
        return WithControl(x, fedax.zeros_like(x))


KEEPING = {
    "one exchange": fedax.create("scaffold", lr=LR),
    "two, and no memory": Mime(LR),
    "listening": Listening(LR),
    "warm-up": WarmFromTheStart(LR),
    "one walks": OneWalks(LR),
}


def _contents(answer: Message) -> Any:
    """What an answer says: the order of the arrays in its file is no part of it."""
    arrays = safetensors.numpy.load(answer.tensors) if answer.tensors else {}
    return answer.head, {name: (array.dtype, array.shape, array.tobytes()) for name, array in arrays.items()}


class Twice(Each):
    """Every message comes twice; the second time nothing changes."""

    def deliver(self, number: int, message: Message, timeout: float) -> Iterator[tuple[int, Message | Failure]]:
        first, kept = [*super().deliver(number, message, timeout)], files(self)
        second = [*super().deliver(number, message, timeout)]
        assert [_contents(each) for _, each in first] == [_contents(each) for _, each in second]
        assert kept == files(self)
        return iter(first)


class Echoing(Each):
    """After every exchange the request of the one before is sent once more, and its answer is ignored."""

    def __init__(self, *given: Any):
        super().__init__(*given)
        self.late: dict[int, Message] = {}

    def deliver(self, number: int, message: Message, timeout: float) -> Iterator[tuple[int, Message | Failure]]:
        yield from super().deliver(number, message, timeout)
        if message.head["kind"] == "exchange":
            if number in self.late:
                list(super().deliver(number, self.late[number], timeout))
            self.late[number] = message


@functools.cache
def plain(name: str) -> fedax.Run:
    return run(KEEPING[name])


@pytest.mark.parametrize("kind", [Twice, Echoing])
@pytest.mark.parametrize("name", mostly_long(KEEPING, "one exchange", "listening", "one walks"))
def test_messages_that_come_more_than_once(name, kind):
    result = run(KEEPING[name], kind(nodes()))
    same(result, plain(name))
    kept = [pathlib.Path(path).name.split("-")[0] + path.rpartition("/memory/")[0] for path in files(result.at)
            if "/memory/" in path]  # fmt: skip
    assert max((kept.count(each) for each in kept), default=0) <= 4


@long
def test_sites_of_one_client_compute_as_those_of_many():
    """Up to the order of sums."""
    for name, where in (("listening", [[3], [4], [0], [2, 1]]), ("one walks", [list(range(N))])):
        result = run(KEEPING[name], Here(nodes(where)))
        np.testing.assert_allclose(flat(result.params), flat(plain(name).params), 1e-5, LAST_BITS)
        kept = [jax.tree.leaves(here.memory_of(each, each.at)) for each in (result, plain(name))]
        for a, b in zip(*kept, strict=True):
            np.testing.assert_allclose(a, b, 1e-5, LAST_BITS)


class Broken(Exception):
    pass


class Killed(Each):
    """The server is killed when a node has answered its message number ``last``."""

    def __init__(self, sites: Any, last: float):
        super().__init__(sites)
        self.count, self.last = 0, last

    def deliver(self, number: int, message: Message, timeout: float) -> Iterator[tuple[int, Message | Failure]]:
        results = [*super().deliver(number, message, timeout)]
        self.count += message.head["kind"] in ("exchange", "evaluate", "several")
        if self.count >= self.last:
            raise Broken
        return iter(results)


TWO = [[3, 0, 1], [4, 2]]


@pytest.mark.parametrize("name", mostly_long(KEEPING, "listening", "one walks"))
def test_a_run_that_was_killed_goes_on(name, tmp_path):
    """A run is killed at any message; the nodes are restarted, too."""
    method, options = KEEPING[name], {"rounds": 2, "participation": fedax.Uniform(3), "evaluate_every": 2}
    whole = run(method, at := Killed(nodes(TWO), math.inf), checkpoint=tmp_path / "whole", **options)
    assert at.count >= 2 + 2 + 2
    for last in range(1, at.count + 1):
        there = nodes(TWO)
        with pytest.raises(Broken):
            run(method, Killed(there, last), checkpoint=tmp_path / str(last), **options)
        again = {100 + number: restarted(site) for number, site in there.items()}
        same(run(method, Here(again), checkpoint=tmp_path / str(last), **options), whole)


@pytest.mark.usefixtures("apart")
def test_a_run_whose_newest_checkpoint_is_damaged(tmp_path):
    """The nodes have the memory of the one before, too."""
    method = KEEPING["listening"]
    whole = run(method, checkpoint=tmp_path / "whole", rounds=4)
    there, folder = nodes(), tmp_path / "killed"
    with pytest.raises(Broken):
        run(method, Killed(there, 3 * 8), checkpoint=folder, rounds=4)
    newest = max(folder.glob("round-*"))
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(DamagedWarning):
        same(run(method, Here(there), checkpoint=folder, rounds=4), whole)


@pytest.mark.usefixtures("apart")
def test_traffic_and_costs_go_on(tmp_path):
    there = nodes()
    with pytest.raises(Broken):
        run(FEDAVG, Killed(there, 15), checkpoint=tmp_path)
    result = run(FEDAVG, Here(there), checkpoint=tmp_path)
    for name in (*TRAFFIC, TIME):
        assert (np.diff(result.history[name].astype(float)) > 0).all(), name
    for name in COSTS:
        if name != "seconds":
            assert result.history[name].tolist() == simulated(FEDAVG).history[name].tolist()


@pytest.mark.parametrize("alone", [True, False])
def test_time_is_that_of_rounds(alone, monkeypatch):
    """Each node takes its time for a round, and for an evaluation, which counts only where it travels with a round."""
    if alone:
        monkeypatch.setattr(Remote, "_evaluate_and_prefetch", lambda self, evaluation, *_: self._run(evaluation))
    spent = {"evaluate": 0.0, "exchange": 0.0}

    def slow(number, message, answer):
        if message.head["kind"] in spent:
            spent[message.head["kind"]] += 0.03
            time.sleep(0.03)
        return answer

    began = time.perf_counter()
    result = run(FEDAVG, spy=slow, evaluate_every=1)
    whole, found = time.perf_counter() - began, result.history["time"]
    assert found[0] == 0.0 and (np.diff(found) > 0.05).all() and spent["evaluate"] > 0
    assert 0 < spent["exchange"] <= found[-1] <= whole - (spent["evaluate"] if alone else 0.0)


def test_traffic_is_that_of_the_transport():
    result = run(FEDAVG)
    assert result.history["wire_down"][-1] == result.at.sent > 0
    assert result.history["wire_up"][-1] == result.at.received > 0
    grown = np.diff(result.history["wire_up"])  # where an exchange goes with an evaluation, it counts in its own round
    assert grown[0] == pytest.approx(grown[-1], rel=0.1)


def test_no_row_counts_less_traffic_than_none():
    """A node of many clients is asked in arrays that are equal, and go once: an exchange alone would be larger."""
    data, task = fedax.data.quadratics(clients=400, dimension=2), fedax.tasks.quadratic(2)
    result, at = here.run_at_sites(FEDAVG, task, data, [[*range(400)]], **OPTIONS | {"work": fedax.Steps(1)})
    found = result.history["wire_down"]
    assert found[0] >= 0 and (np.diff(found) > 0).all() and found[-1] == at.sent


@pytest.mark.usefixtures("apart")
def test_a_run_goes_on_where_an_owner_allows_no_more_rounds(tmp_path):
    """Those that were before it was killed are not counted twice."""
    there = nodes()
    for site in there.values():
        site.policy = Policy(rounds=ROUNDS)
    with pytest.raises(Broken):
        run(FEDAVG, Killed(there, 15), checkpoint=tmp_path)
    same(run(FEDAVG, Here(there), checkpoint=tmp_path), run(FEDAVG))
    assert [[*rounds_of(site).values()] for site in there.values()] == [[ROUNDS]] * 3
    with pytest.raises(fedax.NodeError, match=r"runs.rounds = 3\) is against more rounds"):
        run(FEDAVG, Here(there), checkpoint=tmp_path, rounds=ROUNDS + 1)


def memory_files(site: Site, client: int = 0) -> list[pathlib.Path]:
    version = lambda path: int(path.stem.partition("-")[2])  # noqa: E731
    return sorted(site.folder.glob(f"memory/*/{client}-*"), key=version)


def at_round(index: int, do: Callable[[Here], None]) -> Here:
    """A transport; ``do`` is called between two rounds."""
    at = Here(nodes())

    def spy(number: int, message: Message, answer: Any) -> Any:
        if (number, message.head["kind"], message.head.get("round")) == (THIRD, "evaluate", index):
            do(at)
        return answer

    at.spy = spy
    return at


def test_memory_that_is_lost():
    """The error names the client; its row is never replaced by zeros."""
    at = at_round(2, lambda at: [path.unlink() for path in memory_files(at.sites[THIRD])])
    with pytest.raises(fedax.NodeError, match=r"^clients '2', '1': .*'2': .*lost: 0-.*begin a new"):
        run(KEEPING["one exchange"], at)


@pytest.mark.parametrize(
    "spoil", [lambda old: old[:-1], lambda old: b"", lambda old: old[:-4] + bytes([old[-4] ^ 1]) + old[-3:]]
)
def test_memory_that_is_damaged(spoil):
    def do(at: Here) -> None:
        for path in memory_files(at.sites[THIRD], 1):
            path.write_bytes(spoil(path.read_bytes()))

    with pytest.raises(fedax.NodeError, match=r"^clients '2', '1': .*'1': its memory, .*restore it"):
        run(KEEPING["one exchange"], at_round(2, do))


def test_memory_that_was_renamed():
    """Another version of the same client, and that of another run."""

    def do(at: Here) -> None:
        old, new = memory_files(at.sites[THIRD], 1)[-2:]
        old.replace(new)

    with pytest.raises(fedax.NodeError, match=r"'1': its memory, .*renamed \(it is [0-9a-f]{32}/1-"):
        run(KEEPING["one exchange"], at_round(2, do))


@in_full
def test_old_versions_are_removed(full):
    """That of the round under way, those of three states before, and that from which the last exchange began."""
    for name, most in (*([("one exchange", 4)] if full else []), ("listening", 5), ("two, and no memory", 0)):
        number = []

        def spy(n: int, message: Message, answer: Any, number: list[int] = number) -> Any:
            number.append(max(len(memory_files(each)) for each in at.sites.values()))  # noqa: B023
            return answer

        at = Here(nodes(), spy)
        run(KEEPING[name], at, rounds=6)
        assert max(number) == most, name
        assert {path.suffix for site in at.sites.values() for path in site.folder.glob("memory/*/*")} <= {
            ".safetensors"
        }


def test_what_a_kill_left_half_written_is_removed():
    def do(at: Here) -> None:
        (*folders,) = at.sites[FIRST].folder.glob("memory/*")
        (folders[0] / f"{WRITING}abc").write_bytes(b"half")

    at = at_round(1, do)
    run(KEEPING["one exchange"], at)
    assert not [*at.sites[FIRST].folder.glob(f"memory/*/{WRITING}*")]


def test_a_run_that_is_over_is_forgotten():
    at = Here(nodes(), forgets=True)
    run(KEEPING["listening"], at)
    for site in at.sites.values():
        assert not [*site.folder.glob("memory/*")]
    for name in ("0" * 32, "../agreements", None):
        site.answer(Message({"kind": "forget", "agreement": name}))
    assert [*site.folder.glob("agreements/*")] and (site.folder / "memory").is_dir()


def test_a_run_that_is_over_is_no_beginning(tmp_path):
    """The memory of the clients is gone; for the same number of rounds the run is still finished."""
    method = KEEPING["one exchange"]
    there = nodes()
    whole = run(method, Here(there, forgets=True), checkpoint=tmp_path)
    again = run(method, Here(there, forgets=True), checkpoint=tmp_path)
    assert flat(again.params).tolist() == flat(whole.params).tolist()
    with pytest.raises(fedax.NodeError, match=r"its memory is lost: .* begin a new run"):
        run(method, Here(there), checkpoint=tmp_path, rounds=ROUNDS + 1)


@pytest.mark.usefixtures("apart")
def test_two_runs_at_the_same_nodes(tmp_path):
    """One run is killed; another one begins, ends, and is forgotten; then the first one is resumed."""
    method = KEEPING["one exchange"]
    there = nodes()
    with pytest.raises(Broken):
        run(method, Killed(there, 15), checkpoint=tmp_path)
    other = run(method, Here(there, forgets=True), seed=1)
    assert other.history["train_loss"].tolist() != plain("one exchange").history["train_loss"].tolist()
    same(run(method, Here(there), checkpoint=tmp_path), plain("one exchange"))


# ---- nodes that are gone


class Away(Here):
    """Nodes that do not answer.

    Args:
        away: whether a node is, by its number and the message's head.
        hangs: whether such nodes still seem to be there.
    """

    coming: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, sites: Any, away: Callable[[int, dict[str, Any]], bool], hangs: bool):
        super().__init__(sites)
        self.away, self.hangs, self.asked = away, hangs, 0

    def nodes(self) -> list[int]:
        return [number for number in self.sites if self.hangs or not self.away(number, self.coming)]

    def ask(self, messages: Mapping[int, Message], timeout: float) -> Iterator[tuple[int, Message | Failure]]:
        self.asked += len(messages)
        for number, message in messages.items():
            if self.away(number, message.head):
                yield number, Failure("no answer", True)
            else:
                yield from super().ask({number: message}, timeout)


def absent(rounds: Mapping[int, int], kinds: Any = ("exchange",)) -> Callable[[int, dict[str, Any]], bool]:
    """Round -> the node that is away then."""

    def away(number: int, head: dict[str, Any]) -> bool:
        return head.get("kind") in kinds and head.get("stage") != "warmup" and rounds.get(head["round"]) == number

    return away


def without(rounds: Mapping[int, int], number: int = ROUNDS) -> np.ndarray:
    """[R, N] whether a client is there."""
    return np.array(
        [[i not in NODES[rounds[r] - FIRST] if r in rounds else True for i in range(N)] for r in range(number)]
    )


@pytest.mark.parametrize(
    ("name", "participation", "hangs"),
    [
        ("scaffold", fedax.Full(), True),
        ("fedavg", fedax.Uniform(4), False),
        pytest.param("mime", fedax.Full(), False, marks=long),
        ("ce-lsgd", fedax.Full(), True),
    ],
)
@pytest.mark.usefixtures("apart")
def test_a_node_that_does_not_answer(name, participation, hangs):
    """The round goes on as if its clients did not take part, and they keep their old memory."""
    method, gone = fedax.create(name, lr=LR), {0: FIRST, 1: THIRD}
    options = {"participation": participation} | ({} if name == "scaffold" else {"work": fedax.Steps(2)})
    at = Away(nodes(), absent(gone), hangs)
    result = run(method, at, timeout=0.04, **options)
    expected = simulated(method, **options | {"participation": fedax.Dropout(participation, available=without(gone))})
    alike(result, expected, ["train_loss", "local_steps", "gradients", "clients", "skipped"])
    if participation == fedax.Full():
        assert result.history["left_out"].tolist() == [0, 2, 4, 4]
        assert result.history["bad_clients"].tolist() == [[], [0, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
        assert result.left_out == dict.fromkeys([0, 1, 2, 3], 1)
    assert result.history["heard"].tolist() == [1.0] * (ROUNDS + 1)


@pytest.mark.usefixtures("apart")
def test_a_node_that_does_not_answer_in_the_second_exchange():
    """Mime in NumPy, all steps the same: the mean gradient is that of all, and the model moves by the others'."""
    gone = lambda number, head: head["kind"] == "exchange" and head["exchange"] == 1 and number == FIRST  # noqa: E731
    result = run(Mime(LR), Away(nodes(), gone, True), timeout=0.04, rounds=1, work=fedax.Steps(2), batch_size=None)
    c = P @ np.array([gradient(i, X0) for i in range(N)])
    left = [1, 2, 4]
    updates = []
    for i in left:
        y = X0
        for _ in range(2):
            y = y - LR * (gradient(i, y) - gradient(i, X0) + c)
        updates.append(y - X0)
    np.testing.assert_allclose(flat(result.params), X0 + P[left] / P[left].sum() @ np.array(updates), 1e-5)
    assert result.left_out == {0: 1, 3: 1}
    assert result.history["clients"].tolist() == [0, 3]


@pytest.mark.usefixtures("apart")
def test_a_node_that_was_away_for_a_moment():
    """Its clients are not left out, and all numbers are the same."""
    method, looks = KEEPING["one exchange"], dict[str, int]()

    def away(number: int, head: dict[str, Any]) -> bool:
        if head.get("kind") not in ("exchange", "evaluate") or number != SECOND:
            return False
        what = f"{head['kind']} {head['round']}"
        looks[what] = looks.get(what, 0) + 1
        return looks[what] <= 2

    for hangs in (True, False):
        looks.clear()
        same(run(method, Away(nodes(), away, hangs), timeout=30.0), plain("one exchange"))
        assert len(looks) == 2 * ROUNDS + 1


@pytest.mark.usefixtures("apart")
def test_a_node_that_comes_back_under_another_number():
    method = KEEPING["one exchange"]
    at = Here(nodes())
    foreign = nodes([[0]])[FIRST]
    foreign.answer = lambda message: Message({"error": "not one of yours"})

    def spy(number: int, message: Message, answer: Any) -> Any:
        if message.head["kind"] == "evaluate" and message.head["round"] == 1 and number == SECOND:
            at.sites = {7: at.sites[FIRST], 20: foreign, 21: restarted(at.sites[SECOND]), 9: at.sites[THIRD]}
        return answer

    at.spy = spy
    result = run(method, at)
    at.sites.pop(20)
    same(result, plain("one exchange"))


@pytest.mark.usefixtures("apart")
def test_a_node_that_comes_back_with_other_examples_is_not_it():
    method = KEEPING["one exchange"]
    at = Here(nodes())

    def spy(number: int, message: Message, answer: Any) -> Any:
        if message.head["kind"] == "evaluate" and message.head["round"] == 1 and number == SECOND:
            other = nodes([[2]])[FIRST]
            at.sites = {7: at.sites[FIRST], 21: other, 9: at.sites[THIRD]}
        return answer

    at.spy = spy
    here_ = run(method, at, timeout=0.05)
    assert here_.left_out == {4: 2}


@pytest.mark.usefixtures("apart")
def test_a_node_that_is_away_is_waited_for_once():
    looks = []

    def away(number: int, head: dict[str, Any]) -> bool:
        if number != SECOND or head.get("round", 0) < 1:
            return False
        looks.append((head["kind"], head["round"]))
        return True

    result = run(FEDAVG, Away(nodes(), away, False), rounds=4, timeout=1.0)
    assert looks.count(("evaluate", 1)) > 10
    assert all(looks.count((kind, index)) <= 2 for kind, index in looks if (kind, index) != ("evaluate", 1))
    assert result.left_out == {4: 3}
    assert result.history["heard"].tolist() == [1.0, *[pytest.approx(1 - P[4])] * 4]


def heard_of(kept: Mapping[int, float], **options: Any) -> fedax.Run:
    """Four rounds in which a node is away at the evaluations of some."""
    away = lambda number, head: (head.get("kind"), number) == ("evaluate", SECOND) and head["round"] in kept  # noqa: E731
    return run(FEDAVG, Away(nodes(), away, True), test=TEST, rounds=4, timeout=0.05, **options)


@pytest.mark.usefixtures("apart")
def test_an_evaluation_without_a_node_counts_for_no_best_model_and_no_patience(tmp_path):
    assert heard_of([], checkpoint=tmp_path / "all", best="test_loss").best.round == 4
    partly = heard_of([3, 4], checkpoint=tmp_path / "partly", best="test_loss")
    assert partly.history["heard"].tolist() == [1.0, 1.0, 1.0, *[pytest.approx(1 - P[4])] * 2]
    assert partly.best.round == 2 and partly.best.value == partly.history["test_loss"][2]
    enough = heard_of([3, 4], checkpoint=tmp_path / "enough", best="test_loss", min_heard=float(1 - P[4]))
    assert enough.best.round == 4
    patience = fedax.Patience("test_loss", 1, least=10.0)
    assert heard_of([], until=patience).history["round"].tolist() == [0, 1]
    assert heard_of([1, 2], until=patience).history["round"].tolist() == [0, 1, 2, 3]


@pytest.mark.usefixtures("apart")
def test_a_run_without_an_evaluation_that_counts_keeps_its_last_model(tmp_path):
    with pytest.warns(UserWarning, match="min_heard.*no best model"):
        result = heard_of([1, 2, 3, 4], checkpoint=tmp_path, best="test_loss")
    assert result.best is None and result.status == "finished"
    assert np.array_equal(flat(result.params), flat(run(FEDAVG, test=TEST, rounds=4).params))


@pytest.mark.parametrize("share", [0, -0.1, 1.1, float("nan"), "all", True])
def test_the_share_that_has_to_be_heard_is_checked(share):
    for start in (simulated, run):
        with pytest.raises(fedax.ConfigError, match="min_heard"):
            start(FEDAVG, min_heard=share)


def test_a_simulation_hears_all():
    one, other = (simulated(FEDAVG, min_heard=share) for share in (None, 0.5))
    assert one.history.keys() == other.history.keys() and "heard" not in one.history
    assert np.array_equal(flat(one.params), flat(other.params))


def test_a_node_that_fails_at_once_is_not_asked_without_pause():
    at = Away(nodes(), absent({1: SECOND}), True)
    run(FEDAVG, at, timeout=0.1)
    assert at.asked < 6 * ROUNDS + 12 + 3 + 15


@pytest.mark.parametrize("hangs", [True, False])
@pytest.mark.usefixtures("apart")
def test_a_method_for_all_clients_ends_with_its_name(hangs, tmp_path):
    method = fedax.create("vrl-sgd", lr=LR)
    there = nodes()
    text = r"^clients '2', '1': .*in 0.05 s, in round 1, and VRL-SGD"
    with pytest.raises(fedax.NodeError, match=text):
        run(method, Away(there, absent({1: THIRD}), hangs), timeout=0.05, checkpoint=tmp_path)
    same(run(method, Here(there), checkpoint=tmp_path), run(method, Here(nodes())))


@pytest.mark.parametrize("hangs", [True, False])
@pytest.mark.usefixtures("apart")
def test_when_all_nodes_are_gone(hangs):
    gone = lambda number, head: head.get("round", 0) == 1 and head.get("kind") == "exchange"  # noqa: E731
    with pytest.raises(fedax.NodeError, match=r"in 0.05 s, in round 1, .*--resume goes on"):
        run(FEDAVG, Away(nodes(), gone, hangs), timeout=0.05)
    gone = lambda number, head: head.get("round", 0) == 1 and head.get("kind") == "evaluate"  # noqa: E731
    with pytest.raises(fedax.NodeError, match=r"in 0.05 s, to evaluate .* round 1"):
        run(FEDAVG, Away(nodes(), gone, hangs), timeout=0.05)
    with pytest.raises(fedax.NodeError, match=r"^clients .*: no answer in 0.05 s$"):
        run(FEDAVG, Away(nodes(), lambda number, head: head.get("kind") == "agreement", hangs), timeout=0.05)


@pytest.mark.usefixtures("apart")
def test_a_round_whose_clients_are_all_at_a_node_that_is_gone_is_skipped():
    method, cohorts = fedax.create("scaffold", lr=LR), [[4, 1], [0, 3], [2, 0]]
    gone = {1: FIRST}
    result = run(method, Away(nodes(), absent(gone), False), timeout=0.05, participation=fedax.Trace(cohorts))
    expected = simulated(method, participation=fedax.Dropout(fedax.Trace(cohorts), available=without(gone)))
    alike(result, expected, ["train_loss", "skipped", "clients"])
    assert result.history["skipped"].tolist() == [0, 0, 1, 1]


@pytest.mark.usefixtures("apart")
def test_the_one_that_works_alone_is_gone():
    """The round is skipped, and no memory changes."""

    def gone(number: int, head: dict[str, Any]) -> bool:
        return head.get("exchange") == 1 and head["round"] == 1 and head["kind"] == "exchange"

    method = KEEPING["one walks"]
    result = run(method, Away(nodes(), gone, False), timeout=0.05)
    assert result.history["skipped"].tolist() == [0, 0, 1, 1]
    assert result.history["train_loss"][1] == result.history["train_loss"][2] != result.history["train_loss"][3]
    (kept,) = jax.tree.leaves(here.memory_of(result, result.at))
    assert kept[:, 0].tolist() == [2.0] * N
    assert kept[:, 1].sum() == 2


@pytest.mark.usefixtures("apart")
def test_nobody_is_left_to_work_alone():
    """The client that is there has no weight, and the one that would be drawn is gone: the round is skipped."""
    method, data = KEEPING["one walks"], federation(weights=np.array([0.5, 0, 0.2, 0, 0.3]))
    at = Away(nodes(data=data), absent({1: THIRD}), False)
    options = {"participation": fedax.Trace([[2, 3]] * ROUNDS), "work": fedax.Steps(2)}
    result = run(method, at, data=data, timeout=0.05, **options)
    assert result.history["skipped"].tolist() == [0, 0, 1, 1]
    assert result.history["train_loss"][1] == result.history["train_loss"][2] != result.history["train_loss"][3]


def test_those_that_are_heard_are_evaluated():
    """F is the mean over them; held-out examples are those at their nodes."""
    gone = absent({1: FIRST}, ("evaluate",))
    at = Away(nodes(tests=TESTS), gone, False)
    models: list[Any] = []
    result = run(FEDAVG, at, timeout=0.05, task=MEASURED, until=lambda row: models.append(0), rounds=1)
    v, there = flat(result.params), [1, 2, 4]
    p = P[there] / P[there].sum()
    assert result.history["heard"].tolist() == [1.0, pytest.approx(P[there].sum())]
    assert result.history["train_loss"][1] == pytest.approx(p @ [losses(v, i=i).mean() for i in there], rel=1e-5)
    g = p @ np.array([gradient(i, v) for i in there])
    assert result.history["grad_norm_sq"][1] == pytest.approx(g @ g, rel=1e-5)
    some = fedax.FederatedData(TESTS[2], [7])
    assert result.history["test_loss"][1] == pytest.approx(losses(v, some).mean(), rel=1e-5)
    assert result.history["test_loss"][0] == pytest.approx(losses(X0, fedax.FederatedData(TEST, [11])).mean(), rel=1e-5)
    assert result.history["train_loss"][0] == pytest.approx(objective(X0), rel=1e-5)


@pytest.mark.parametrize("who", [{FIRST}, {FIRST, SECOND, THIRD}])
@pytest.mark.usefixtures("apart")
def test_another_model_of_a_round_is_not_evaluated(who):
    """As where a run that was stopped goes on otherwise: nodes that were asked before are as those that are gone."""

    class Asked(Each):
        def deliver(self, number: int, message: Message, timeout: float) -> Iterator[tuple[int, Message | Failure]]:
            if number in who and message.head["kind"] == "evaluate" and message.head["round"] == 1:
                list(super().deliver(number, each(lambda leaf: leaf + leaf.dtype.type(1))(message), timeout))
            return super().deliver(number, message, timeout)

    if len(who) == len(NODES):
        with pytest.raises(fedax.NodeError, match=r"^clients .*: evaluation after round 1 of .*; begin a new run$"):
            run(FEDAVG, Asked(nodes()), rounds=1)
        return
    result, there = run(FEDAVG, Asked(nodes()), rounds=2), [1, 2, 4]
    share = P[there].sum()
    assert result.history["heard"].tolist() == [1.0, pytest.approx(share), 1.0]
    v = flat(run(FEDAVG, rounds=1).params)
    mean = P[there] / share @ [losses(v, i=i).mean() for i in there]
    assert result.history["train_loss"][1] == pytest.approx(mean, rel=1e-5)
    assert flat(result.params).tolist() == flat(run(FEDAVG, rounds=2).params).tolist()


# ---- the same as elsewhere


def test_float64():
    with jax.enable_x64(True):
        result, expected = run(fedax.create("scaffold", lr=LR)), simulated(fedax.create("scaffold", lr=LR))
        assert result.params["w"].dtype == np.float64
        alike(result, expected, rtol=1e-12)


def test_no_round_at_all(tmp_path):
    result = run(FEDAVG, rounds=0, checkpoint=tmp_path)
    assert result.history["round"].tolist() == [0]
    assert run(FEDAVG, result.at, rounds=0, checkpoint=tmp_path).history["round"].tolist() == [0]


def test_the_best_model(tmp_path):
    result = run(FEDAVG, test=TEST, checkpoint=tmp_path, best="test_loss")
    assert result.best.value == result.history["test_loss"].min()


def test_held_out_examples_at_the_server_and_at_the_nodes():
    at_nodes = run(FEDAVG, Here(nodes(tests=TESTS)))
    at_server = run(FEDAVG, test=TEST)
    both = run(FEDAVG, Here(nodes(tests=[{"x": TEST["x"][:2] + 9, "y": TEST["y"][:2]}] * 3)), test=TEST)
    for name in ("test_loss", "test_error"):
        np.testing.assert_allclose(at_nodes.history[name], at_server.history[name], 1e-5)
        assert both.history[name].tolist() == at_server.history[name].tolist()
    assert not [name for name in run(FEDAVG).history if name.startswith("test")]


def test_examples_to_choose_by_at_the_nodes():
    """Beside those of the test, and at some of the nodes only; a node that has them may be gone."""
    sites = nodes(tests=TESTS)
    for site, val in zip(sites.values(), [TEST, None, None], strict=True):
        site.held["val"] = val
    result, expected = run(FEDAVG, Here(sites)), run(FEDAVG, val=TEST, test=TEST)
    assert list(result.history) == list(expected.history)
    for name in ("val_loss", "val_error", "test_loss", "test_error"):
        np.testing.assert_allclose(result.history[name], expected.history[name], 1e-5)
    sites = nodes()
    next(iter(sites.values())).held["val"] = TEST
    lost = run(FEDAVG, Away(sites, absent({1: FIRST}, ("evaluate",)), False), timeout=0.05, rounds=1)
    assert np.isfinite(lost.history["val_loss"][0]) and np.isnan(lost.history["val_loss"][1])


def test_cohorts_of_few_and_none():
    """Several clients of a node, or none; rounds without any are skipped, and no node hears of them."""
    method, requests = fedax.create("scaffold", lr=LR), []
    participation = fedax.Dropout(fedax.Uniform(2), 0.7)

    def spy(number: int, message: Message, answer: Any) -> Any:
        if message.head["kind"] == "exchange":
            requests.append((message.head["round"], number, len(message.head["told"]["rows"])))
        return answer

    options = {"rounds": 12, "participation": participation, "evaluate_every": 1}
    result, expected = run(method, spy=spy, **options), simulated(method, **options)
    alike(result, expected, ["train_loss", "skipped", "clients", "local_steps", "bytes_up", "bytes_down"])
    drawn = np.diff(result.history["clients"])
    assert {0, 1, 2} == {*drawn.tolist()}
    assert [sum(size for index, _, size in requests if index == r) for r in range(12)] == drawn.tolist()
    assert result.history["skipped"][-1] == (drawn == 0).sum()
    assert result.left_out == {}


def test_weights_other_than_sizes():
    """Clients count by their examples, unless the census says otherwise; 0 counts nothing."""
    weights = np.array([0.5, 0, 0.2, 0.3, 0])
    for data in (federation(weights=weights), federation(weights=DATA.sizes / DATA.sizes.sum())):
        result = run(FEDAVG, data=data)
        alike(result, simulated(FEDAVG, data=data), ["train_loss", "local_steps"])
    fleet = Fleet(Here(nodes()))
    np.testing.assert_allclose(fleet.census.weights, DATA.sizes / DATA.sizes.sum())
    assert fleet.census.names == tuple("01234")


# ---- privacy


def test_a_private_run_at_nodes():
    """It is that of the simulation, but for the secret of each run that its noise depends on besides the seed."""
    pytest.importorskip("dp_accounting", reason="needs pip install 'fedax[privacy]'")
    data = federation(weights=np.full(N, 1 / N))
    given = {"clip": 0.3, "noise": 1.0, "delta": 1e-3, "adaptive": fedax.AdaptiveClip(noise=1.5)}
    private = {"privacy": fedax.DP(**given, noise_seed=5), "rounds": 2}
    expected = simulated(FEDAVG, data=data, **private)
    other = run(FEDAVG, data=data, **private | {"privacy": fedax.DP(**given)})
    assert np.abs(flat(other.params) - flat(expected.params)).max() > 1e-4
    alike(run(FEDAVG, data=data, **private), expected, ["train_loss", "epsilon", "local_steps"])
    assert expected.history["epsilon"][-1] > expected.history["epsilon"][1] > 0


def test_a_private_round_of_nobody_is_a_round():
    """An unchanged model would reveal that no client took part. So every round has noise, as in simulation."""
    pytest.importorskip("dp_accounting", reason="needs pip install 'fedax[privacy]'")
    data = federation(weights=np.full(N, 1 / N))
    private = {"privacy": fedax.DP(0.3, 1.0, 1e-3, noise_seed=0), "participation": fedax.Poisson(0.1), "seed": 3}
    result = run(FEDAVG, data=data, rounds=8, **private)
    assert 0 in np.diff(result.history["clients"]) and result.history["skipped"].tolist() == [0] * 9
    alike(result, simulated(FEDAVG, data=data, rounds=8, **private), ["train_loss", "epsilon", "clients"])
    assert np.diff(result.history["train_loss"]).all()


def asked_figures(at: Here, message: Message | None = None) -> dict[str, Any]:
    """The figures, by name, that a node answers when the evaluation is requested once more."""
    answer = at.sites[FIRST].answer(message or at.asked)
    assert "error" not in answer.head, answer.head
    return {name: leaf.item() for name, leaf in safetensors.numpy.load(answer.tensors).items()}


def evaluated(limits: Policy) -> Here:
    """A run of no round; ``agreed`` and ``asked`` are its agreement and its evaluation at the first node."""
    at = Here(nodes(tests=TESTS))

    def spy(number: int, message: Message, answer: Any) -> Any:
        if number == FIRST and message.head["kind"] == "agreement":
            at.agreed = message
        if number == FIRST and message.head["kind"] == "evaluate":
            at.asked = message
        return answer

    at.spy, at.sites[FIRST].policy = spy, limits
    run(FEDAVG, at, rounds=0)
    return at


def test_figures_leave_with_noise():
    """Losses are clipped to the bound, and the noise is as large as the clients' weights make it."""
    at = evaluated(Policy(noise=0.5, bound=0.8, epsilon=100.0))
    clients, weights = NODES[0], P[NODES[0]]
    clipped = sum(p * min(0.8, losses(X0, i=i).mean()) for p, i in zip(weights, clients, strict=True))
    assert any(losses(X0, i=i).mean() > 0.8 for i in clients)
    drawn: dict[str, list[float]] = {}
    for k in range(1000):
        (at.sites[FIRST].folder / "secret").write_bytes(bytes([k % 256, k // 256] * 16))
        for figure, value in asked_figures(at).items():
            drawn.setdefault(figure, []).append(value)
    (train,) = (np.array(values) for figure, values in drawn.items() if "train" in figure)
    z = (train - clipped) / (0.5 * 0.8 * weights.max())
    assert scipy.stats.kstest(z, "norm").pvalue > here.SURE
    assert scipy.stats.kstest(2 * z, "norm").pvalue < here.SURE and scipy.stats.kstest(z / 2, "norm").pvalue < here.SURE
    (held,) = (np.array(values) for figure, values in drawn.items() if "loss" in figure)
    mean = min(0.8, losses(X0, fedax.FederatedData(TESTS[0], [4])).mean())
    assert scipy.stats.kstest((held - mean) / (0.5 * 0.8), "norm").pvalue > here.SURE
    assert abs(np.corrcoef(train, held)[0, 1]) < 7 / 1000**0.5


def test_the_same_question_has_the_same_noise():
    at = evaluated(Policy(noise=0.5, bound=0.8, epsilon=100.0))
    first = asked_figures(at)
    assert asked_figures(at) == first
    at.sites[FIRST] = restarted(at.sites[FIRST])
    assert asked_figures(at) == first
    lines = [json.loads(line) for line in (at.sites[FIRST].folder / "log.jsonl").read_text().splitlines()]
    expected = {"on": ["test_error", "test_loss", "train_loss"], "noise": 0.5, "bound": 0.8}
    assert lines[-1]["noise"] == expected and "noise" not in lines[0]
    # Of another question the noise is another: else the difference of two would have none.
    number = 0
    moved = each(lambda leaf: leaf + leaf.dtype.type(1e-6))
    asked_again = at.sites[FIRST].answer(moved(at.asked))
    assert asked_again.head.keys() == {"to", "repeated"} and not asked_again.tensors
    for change in (lambda message: message, moved):
        others = []
        for _ in range(2):  # which are both as near by chance in one of 10¹⁰
            number += 1
            agreed = agreement_with(at.agreed, run=number)
            assert "error" not in at.sites[FIRST].answer(agreed).head
            digest = Agreement.of(agreed.head["text"]).digest
            others.append(asked_figures(at, change(heads(agreement=digest)(at.asked))))
        assert all(max(abs(other[figure] - value) for other in others) > 1e-6 for figure, value in first.items())


@pytest.mark.parametrize(
    "weights",
    [[np.inf, 0.0, 0.0, 0.0, 0.0], [np.nan, 0.0, 0.0, 0.5, 0.5], [-1.0, 1.0, 1.0, 0.0, 0.0], [0.0] * N, [1.0] * N,
     [1e308] * N, [0.5, 0.5], [True, 0.0, 0.0, 0.0, 0.0], ["1.0", 0.0, 0.0, 0.0, 0.0], None, 3],
)  # fmt: skip
def test_weights_that_could_undo_the_noise(weights):
    at = evaluated(Policy(noise=0.5, bound=0.8, epsilon=100.0))
    agreed = agreement_with(at.agreed, weights=weights)
    answer = at.sites[FIRST].answer(agreed)
    assert "agreement" in answer.head["error"] and not answer.tensors
    asked = heads(agreement=digest_of_text(agreed.head["text"]))(at.asked)
    answer = at.sites[FIRST].answer(asked)
    assert "it knows no such agreement" in answer.head["error"] and not answer.tensors


def test_figures_without_a_bound_do_not_leave():
    for given in ({"noise": 1.0}, {"bound": 1.0}, {"noise": 0.0, "bound": 1.0}, {"noise": 1.0, "bound": -1.0}):
        with pytest.raises(fedax.ConfigError, match=r"noise|bound"):
            Policy(**given)
    signs = lambda examples: examples and examples | {"y": np.sign(examples["y"]).astype(np.int32)}  # noqa: E731
    labeled, tests = fedax.FederatedData(signs(DATA.examples), DATA.sizes, P), [signs(each) for each in TESTS]
    auc = fedax.tasks.logistic_regression(3)
    for task, names, given in ((MEASURED, "grad_norm_sq", (DATA, TESTS)), (auc, "test_auc", (labeled, tests))):
        at = Here(nodes(NODES, *given))
        run(FEDAVG, at, task=task, data=given[0])
        at.sites[FIRST].policy = Policy(noise=10.0, bound=2.0)
        text = rf"^clients '3', '0': .*figures.noise = 10.0\) is against these measures, .*without a bound.*\(.*{names}"
        refused(text, FEDAVG, at, task=task, data=given[0], seed=1)


def test_the_log_says_what_left():
    at = Here(nodes())
    run(FEDAVG, at, rounds=1)
    lines = [json.loads(line) for line in (at.sites[FIRST].folder / "log.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["hello", "agreement", "evaluate", "exchange", "evaluate"]
    assert {*lines[3]["clients"]} == {"0", "3"}
    assert not any("clients" in line for line in lines if line["kind"] != "exchange")
    assert lines[3]["left"] > 4 * 4
    assert "@" in lines[3]["server"]


def test_many_rounds_of_many_steps():
    """Whole numbers in messages are taken up to 2³¹."""
    options = {"rounds": 70, "work": fedax.Steps(40), "evaluate_every": 70}
    result = run(FEDAVG, **options)
    assert result.history["local_steps"].tolist() == [0, 70 * 40 * N]
    alike(result, simulated(FEDAVG, **options))


def test_what_comes_late_removes_nothing_newer():
    store = nodes()[FIRST].store
    for version in (2, 7, 3):
        store.remember("0" * 32, 0, version, [], {"c": np.zeros(2)})
    assert sorted(path.name for path in (store.folder / "memory" / ("0" * 32)).iterdir()) == [
        "0-3.safetensors", "0-7.safetensors"
    ]  # fmt: skip


def test_traffic_of_a_round_is_counted_in_that_round():
    """An evaluation is sent together with the next round's first messages, whose bytes count for that round.

    The last one is sent alone, with a model that otherwise goes once for both.
    """
    last = [0, 0]

    def spy(number: int, message: Message, answer: Any) -> Any:
        if message.head["kind"] == "evaluate" and message.head["round"] == 6:
            last[0] += len(message.tensors)
            last[1] += len(answer.tensors)
        return answer

    result = run(FEDAVG, spy=spy, rounds=6)
    for name, alone in zip(TRAFFIC[:2], last, strict=True):
        *rows, end = np.diff(result.history[name])
        assert min(rows) > 0.8 * max(rows) > 0, name
        assert 0.5 * rows[0] < end - alone <= rows[0], name
