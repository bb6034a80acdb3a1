"""Masked sums of nodes: the simulation's bits, nothing else visible to the server, and nodes that are lost."""

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy

pytest.importorskip("cryptography", reason="needs pip install 'fedax[deploy]'")


import fedax
from fedax.sites.protocol import fleet as fleets
from fedax.sites.protocol import masks
from fedax.sites.protocol.agreement import EVALUATION, Agreement, digest_of_text
from fedax.sites.protocol.masks import Offer
from fedax.sites.protocol.messages import Failure, Message
from fedax.sites.protocol.policy import Policy
from fedax.sites.protocol.roster import Roster
from fedax.sites.protocol.site import Site

from .. import LAST_BITS
from ..wire.test_secure import DATA, OPTIONS, SECURE, TASK, Tells
from . import here
from .here import Here

NODES = [[3, 0, 9], [1, 5, 10, 7], [4, 2, 6, 8]]
FIRST, SECOND, THIRD = 7, 8, 9
FEDAVG = fedax.create("fedavg", lr=0.05)
TWO = dataclasses.replace(SECURE, threshold=2)  # of three nodes: the owners trust that no two work with the server


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(fleets, "_PAUSE", 0.01)


# ---- whole runs


def sites(where: Any = NODES) -> dict[int, Site]:
    return here.sites(DATA, where, known=here.rosters(len(where)), policy=Policy(colluding=0))


def restarted(old: Site) -> Site:
    return Site(old.data, old._make, old.folder, old.names, policy=old.policy, roster=old._roster)


def run(method: Any = FEDAVG, transport: Any = None, spy: Any = None, data: Any = DATA, **options: Any) -> fedax.Run:
    options = OPTIONS | {"secure": SECURE} | options
    at = transport or Here(sites(), spy)
    run = here.trained(method, TASK, data, at, **options)
    run.at = at
    return run


def simulated(method: Any = FEDAVG, **options: Any) -> fedax.Run:
    return fedax.simulate(method, TASK, DATA, **OPTIONS | {"secure": SECURE} | options)


def bits(result: fedax.Run) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((result.params, result.state))]


@functools.cache
def plain() -> fedax.Run:
    return simulated(Tells())


class Watch:
    """Records the messages between server and nodes."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Message, Message]] = []

    def __call__(self, number: int, message: Message, answer: Any) -> Any:
        self.sent.append((number, message, answer))
        return answer

    def of(self, kind: str) -> list[tuple[int, Message, Message]]:
        """Those of exchanges; evaluations have their own."""
        return [each for each in self.sent if each[1].head["kind"] == kind and each[1].head.get("stage") != EVALUATION]


@pytest.mark.parametrize("secure", [SECURE, dataclasses.replace(SECURE, bits=16, threshold=3)])
def test_the_bits_of_the_simulation(secure):
    """Estimates and changes; nodes with several clients each; nothing but masked numbers leaves.

    Two messages a round: what a node offers for the next one comes with its shares.
    """
    watch = Watch()
    result = run(Tells(), spy=watch, secure=secure)
    expected = plain() if secure is SECURE else simulated(Tells(), secure=secure)
    assert bits(result) == bits(expected)
    assert [len(watch.of(kind)) for kind in ("offer", "exchange", "agree", "unmask")] == [3, 6, 0, 6]
    for _, _, answer in watch.of("exchange"):
        arrays = safetensors.numpy.load(answer.tensors)
        assert [(name, leaf.dtype, leaf.size) for name, leaf in arrays.items()] == [
            ("['masked']", np.uint8, 2 * 12 * secure.bits // 8)
        ]


def test_a_method_with_two_exchanges_and_a_listening_one():
    """Mime collects gradients first; VRL-SGD's clients only receive in the last exchange: no sum to mask."""
    for name in ("mime", "vrl-sgd"):
        method, watch = fedax.create(name, lr=0.05), Watch()
        result, expected = run(method, spy=watch), simulated(method)
        np.testing.assert_allclose(result.params, expected.params, rtol=LAST_BITS, atol=LAST_BITS)
        left = [list(safetensors.numpy.load(answer.tensors)) for _, _, answer in watch.of("exchange") if answer.tensors]
        assert len(watch.of("unmask")) == len(left) > 0 and all(names == ["['masked']"] for names in left)
        assert (len(left) < len(watch.of("exchange"))) == (name == "vrl-sgd")


def test_cohorts():
    """A cohort of few clients at few nodes; the other nodes are not asked."""
    cohorts = fedax.Trace([[3, 1], [4, 2, 7, 5]])
    assert bits(run(Tells(), participation=cohorts)) == bits(simulated(Tells(), participation=cohorts))
    with pytest.raises(fedax.NodeError, match=r"round 1 .*at 1 nodes, and at 2"):
        run(participation=fedax.Trace([[3, 1], [4, 2]]))
    with pytest.raises(fedax.NodeError, match=r"round 0 .*at 2 nodes, and at 3"):
        run(participation=cohorts, secure=dataclasses.replace(SECURE, threshold=3))


def gone(kind: str, number: int, index: int = 1) -> Callable[[int, Message, Any], Any]:
    """A spy by which a node does not answer from a step of a round on, as long as that round lasts."""
    steps = ["offer", "exchange", "agree", "unmask"]

    def spy(n: int, message: Message, answer: Any) -> Any:
        head = message.head
        late = head["kind"] in steps and steps.index(head["kind"]) >= steps.index(kind)
        return Failure("no answer", True) if late and n == number and head["round"] == index else answer

    return spy


@pytest.mark.parametrize("kind", ["offer", "exchange", "agree", "unmask"])
def test_a_node_that_is_gone(kind):
    """A node is lost before its shares, after them, or after its masked sum: the sum has the simulation's bits."""
    result = run(Tells(), spy=gone(kind, SECOND), timeout=0.05, secure=TWO)
    late = kind in ("agree", "unmask")
    there = np.array([[not (r == 1 and not late and i in NODES[1]) for i in range(11)] for r in range(2)])
    expected = simulated(Tells(), participation=fedax.Dropout(fedax.Full(), available=there))
    if late:
        assert bits(result) == bits(plain())
        assert result.left_out == {}
    else:
        np.testing.assert_allclose(result.params, expected.params, rtol=LAST_BITS, atol=LAST_BITS)
        assert result.left_out == dict.fromkeys(NODES[1], 1)


def test_two_of_three_nodes_are_gone():
    def spy(n: int, message: Message, answer: Any) -> Any:
        return gone("exchange", SECOND)(n, message, gone("exchange", THIRD)(n, message, answer))

    with pytest.raises(fedax.NodeError, match="1 of 3 nodes are left in round 1, and 2"):
        run(spy=spy, timeout=0.05, secure=TWO)

    def late(n: int, message: Message, answer: Any) -> Any:
        return gone("unmask", SECOND)(n, message, gone("unmask", THIRD)(n, message, answer))

    with pytest.raises(fedax.NodeError, match="1 of 3 nodes are left in round 1"):
        run(spy=late, timeout=0.05, secure=TWO)


@pytest.mark.parametrize("kind", ["offer", "exchange"])
def test_a_node_that_is_started_again(kind):
    """Its secrets are gone, and it is left out of that exchange; it is there in the next round, and after a resume."""
    at = Here(sites())

    def spy(n: int, message: Message, answer: Any) -> Any:
        if (n, message.head["kind"], message.head.get("round")) == (SECOND, kind, 0):
            old = at.sites[SECOND]
            old.close()
            at.sites[SECOND] = restarted(old)
        return answer

    at.spy = spy
    result = run(Tells(), at, secure=TWO)
    if kind == "offer":
        assert result.left_out == dict.fromkeys(NODES[1], 1)
    else:
        assert bits(result) == bits(plain())


@pytest.mark.parametrize("first", [True, False])
def test_a_node_that_lost_what_it_had_offered_ahead(first):
    """Started again between two rounds: masks are offered anew, and nobody is left out."""
    at, watch = Here(sites()), Watch()

    def spy(n: int, message: Message, answer: Any) -> Any:
        watch(n, message, answer)
        last = (SECOND, "unmask") if first else (THIRD, "unmask")
        if (n, message.head["kind"]) == last and (message.head["stage"], message.head["round"]) == ("exchanges", 0):
            old = at.sites[SECOND]
            old.close()
            at.sites[SECOND] = restarted(old)
        return answer

    at.spy = spy
    result = run(Tells(), at)
    assert bits(result) == bits(plain()) and result.left_out == {}
    lost = [n for n, message, answer in watch.of("exchange") if answer.head.get("lost")]
    assert lost == [SECOND] and len(watch.of("offer")) == 6


def test_masks_of_other_nodes_are_not_used():
    """Cohorts at other nodes in each round: what was offered ahead is of other nodes."""
    cohorts, watch = fedax.Trace([[3, 1], [4, 2, 7, 5]]), Watch()
    assert bits(run(Tells(), spy=watch, participation=cohorts)) == bits(simulated(Tells(), participation=cohorts))
    asked = [{n for n, message, _ in watch.of("offer") if message.head["round"] == k} for k in range(2)]
    assert asked == [{FIRST, SECOND}, {SECOND, THIRD}]


def test_one_node_is_refused():
    with pytest.raises(fedax.NodeError, match="at 1 nodes, and at 2 they have to be"):
        run(transport=Here(sites(where=[list(range(11))])))


def test_a_message_that_is_repeated():
    """The same answer, which is not computed anew; a changed one is refused, for two sums under one mask tell."""
    watch = Watch()
    at = Here(sites(), watch)
    run(Tells(), at)
    site = at.sites[FIRST]
    last = {kind: [each for each in watch.of(kind) if each[0] == FIRST][-1] for kind in ("offer", "unmask")}
    for kind, (_, message, answer) in last.items():
        assert json.loads(json.dumps(site.answer(message).head)) == answer.head, kind

    def twice(n: int, message: Message, answer: Any) -> Any:
        if n != FIRST or message.head["kind"] != "exchange":
            return answer
        again = at.sites[FIRST].answer(message)
        assert (json.loads(json.dumps(again.head)), again.tensors) == (answer.head, answer.tensors)
        other = with_told(message, keep=[[7]] * len(message.head["told"]["rows"]))
        assert "in another message" in at.sites[FIRST].answer(other).head["error"]
        return answer

    at = Here(sites(), twice)
    assert bits(run(Tells(), at)) == bits(plain())
    # The mask is gone with the shares: there is nothing to answer any more.
    message = last["unmask"][1]
    less = with_told(message, said={k: each for k, each in message.head["told"]["said"].items() if k in "01"})
    changed = less._replace(head=less.head | {"kind": "agree"})
    assert "over another set of nodes" in site.answer(changed).head["error"]


def test_no_plain_sum_leaves_a_node():
    """Where the run is secure, an exchange without masks is an error at the node."""
    seen: list[Message] = []

    def spy(n: int, message: Message, answer: Any) -> Any:
        if message.head["kind"] == "exchange" and n == FIRST:
            for names in (("offers", "session"), ("offers",)):
                bare = {name: value for name, value in message.head["told"].items() if name not in names}
                seen.append(at.sites[FIRST].answer(Message(message.head | {"told": bare}, message.tensors)))
        return answer

    at = Here(sites(), spy)
    assert bits(run(Tells(), at)) == bits(plain())
    assert len(seen) == 4 and all("error" in each.head and not each.tensors for each in seen)


class Active(Here):
    """A server or link that sends all nodes but the first another request, or changes the messages it passes on."""

    def __init__(self, sites: Any, change: Callable[[int, Message], Message]):
        super().__init__(sites)
        self.change, self.shares = change, 0

    def _answer(self, number: int, message: Message) -> Any:
        answer = super()._answer(number, self.change(number, message))
        self.shares += "told" in getattr(answer, "head", {}) and message.head["stage"] != EVALUATION
        return answer


def with_told(message: Message, **told: Any) -> Message:
    """A message that says something else of what a node cannot derive."""
    return message._replace(head=message.head | {"told": message.head["told"] | told})


def others(arrays: dict[str, Callable[[np.ndarray], np.ndarray]], **told: Any) -> Callable[[int, Message], Message]:
    """Changes the requests to the other nodes."""

    def change(number: int, message: Message) -> Message:
        asked = message.head["kind"] in ("offer", "exchange") and message.head["stage"] != EVALUATION
        if number == FIRST or not asked:
            return message
        before = message.head["told"]
        message = with_told(message, **{name: how(before.get(name)) for name, how in told.items()})
        result = safetensors.numpy.load(message.tensors) if message.tensors else {}
        for part, how in arrays.items():
            result |= {name: np.asarray(how(each), order="C") for name, each in result.items() if part in name}
        return message._replace(tensors=safetensors.numpy.save(result) if result else b"")

    return change


class Another:
    """The others are sent another agreement, and in all messages its digest."""

    def __init__(self, **changes: Any):
        self.changes, self.digests = changes, {}

    def __call__(self, number: int, message: Message) -> Message:
        head = message.head
        if number == FIRST:
            return message
        if head["kind"] == "agreement":
            agreement = Agreement.of(head["text"])
            other = dataclasses.replace(agreement, **self.changes)
            self.digests[agreement.digest] = other.digest
            return message._replace(head=head | {"text": other.text})
        return message._replace(
            head=head | ({"agreement": self.digests[head["agreement"]]} if "agreement" in head else {})
        )


class Unanswered(Active):
    """A server that takes any answer to its changed messages as that to its own."""

    def _answer(self, number: int, message: Message) -> Any:
        answer = super()._answer(number, message)
        to = {"to": digest_of_text([message.head])} if "to" in answer.head else {}
        return answer._replace(head=answer.head | to)


def swapped(number: int, message: Message) -> Message:
    """A link in the middle: the others' ephemeral keys are its own."""
    if number != FIRST or message.head["kind"] != "exchange":
        return message
    offers = {k: list(each) for k, each in message.head["told"]["offers"].items()}
    for each in offers.values():
        each[0] = masks._public(masks._private(bytes(32)))
    return with_told(message, offers=offers)


def strangers(number: int, message: Message) -> Message:
    """A server that invents nodes."""
    if message.head["kind"] != "offer":
        return message
    told = message.head["told"]
    return with_told(message, keys=[key if k == told["position"] else key | {"name": "invented"} for k, key in
                                    enumerate(told["keys"])])  # fmt: skip


def restated(**change: Any) -> Callable[[int, Message], Message]:
    """A server that says something else of what the third node has answered."""

    def changed(number: int, message: Message) -> Message:
        if number == THIRD or message.head["kind"] != "unmask":
            return message
        said = {k: masks.Statement(*each) for k, each in message.head["told"]["said"].items()}
        return with_told(message, said=said | {"2": said["2"]._replace(**change)})

    return changed


ALMOST_NOTHING = tuple(0.99 if i == 3 else 0.001 for i in range(11))  # of all clients but one of the first node


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (swapped, "is said to have offered is not from it|came back as others"),
        (strangers, "nodes do not have|not in its roster"),
        (others({"download": lambda leaf: leaf + 1}), "another question is asked"),
        (restated(question="another"), "'n2' is said to have sent is not from it"),
        (restated(part=[1, 1e-9, 1e-9]), "'n2' is said to have sent is not from it"),
        (restated(adds=False), "'n2' is said to have sent is not from it"),
        (others({}, rows=lambda rows: rows[:1], base=lambda base: base[:1]), "other clients are asked"),
        (others({}, out=lambda _: [0]), "other clients are asked"),
        (Another(weights=ALMOST_NOTHING), "is said to have offered is not from it"),
        (Another(seed=1), "is said to have offered is not from it"),
        (Another(run=7), "is said to have offered is not from it"),
    ],
)
def test_a_server_that_is_active(change, text):
    """No node gives a share, by which the first one's sum could be had."""
    at = Unanswered(sites(), change)
    with pytest.raises(fedax.NodeError, match=text):
        run(transport=at, rounds=1)
    assert at.shares == 0


def test_a_node_that_is_almost_alone_in_a_sum():
    at = Unanswered(sites(), lambda number, message: message)
    with pytest.raises(fedax.NodeError, match=r"more than 0\.9 of the weight of a secure sum"):
        run(transport=at, rounds=1, data=fedax.FederatedData(DATA.examples, DATA.sizes, np.array(ALMOST_NOTHING)))
    assert at.shares == 0


def test_a_node_without_a_roster():
    with pytest.raises(fedax.NodeError, match=r"secure .*keys of the other .*roster"):
        run(transport=Here(here.sites(DATA, NODES)))


def test_rosters(tmp_path):
    known = here.rosters(3)
    assert len({each.digest for each in known}) == 1 and sorted(known[0].names.values()) == ["n0", "n1", "n2"]
    assert here.rosters(2)[0].digest != known[0].digest
    for name in ("n0", "n1"):
        (tmp_path / f"{name}.pub").write_bytes((known[0].folder / f"{name}.pub").read_bytes())
    with pytest.raises(fedax.ConfigError, match=r"roster = .*this node, .*n2.pub, is not in it"):
        Roster(tmp_path, known[2].key).check("", b"", "")
    (tmp_path / "n2.pub").write_text("ssh-ed25519 AAAA")
    with pytest.raises(fedax.ConfigError, match=r"roster = .*n2.pub.*OpenSSH's form"):
        Roster(tmp_path, known[0].key).digest  # noqa: B018


def test_answers_that_are_none():
    """Short, of another question, or no shares: an error that names the node."""

    def spoiled(kind: str, change: Callable[[Message], Message]) -> Any:
        return lambda n, message, answer: change(answer) if (n, message.head["kind"]) == (FIRST, kind) else answer

    def head(**more: Any) -> Callable[[Message], Message]:
        return lambda answer: answer._replace(head=answer.head | more)

    def short(answer: Message) -> Message:
        arrays = safetensors.numpy.load(answer.tensors)
        return answer._replace(tensors=safetensors.numpy.save({name: leaf[:-1] for name, leaf in arrays.items()}))

    offer = {"public": masks._text(bytes(range(32))), "seal": masks._text(bytes(32)), "shares": {"0": "", "2": ""}}
    offer |= {"rules": [1, 0.9]}
    said = {"question": "", "part": [1, 0.5, 0.5], "adds": True, "tags": {}}
    for kind, change, text in [
        ("exchange", short, r"\['masked'\] is uint8\[\d+\], expected uint8"),
        ("exchange", head(to="7"), "is to another question"),
        ("exchange", head(tally=[-1, 0]), "counts"),
        ("offer", head(offer=None), "its masks are none"),
        ("offer", head(offer=offer | {"public": "AAAA"}), "its masks are none"),
        ("offer", head(offer=offer | {"shares": {"1": ""}}), "its masks are none"),
        ("offer", head(offer=offer | {"rules": [0, 0.9]}), "its masks are none"),
        ("offer", head(offer=offer), "'n0' .*is not from it"),
        ("exchange", head(said=None), "its masks are none"),
        ("exchange", head(said=said | {"part": [1, -0.5, 0.5]}), "its masks are none"),
        ("exchange", head(said=said | {"tags": {"1": "AAAA"}}), "its masks are none"),
        ("exchange", head(said=said), "'n0' is said to have sent is not from it"),
        ("unmask", head(offer=None), "its masks are none"),
        ("unmask", head(told=None), "a share of its secrets is none"),
        ("unmask", head(told={"0": "", "1": "", "2": ""}), "a share of its secrets is none"),
    ]:
        with pytest.raises(fedax.NodeError, match=text):
            run(transport=Here(_usual(), spoiled(kind, change)), rounds=1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"agreed": None}, "is said to have agreed to is no agreement"),
        ({"agreed": {"0": 7}}, "is said to have agreed to is no agreement"),
        ({"agreed": {"0": "AAAA", "2": "AAAA"}}, "'n0' is said to have sent is not from it"),
    ],
)
def test_agreements_that_are_none(change, text):
    """The third node is gone after its offer, so that the others agree."""

    def spy(n: int, message: Message, answer: Any) -> Any:
        if (n, message.head["kind"]) == (FIRST, "agree") and isinstance(answer, Message):
            return answer._replace(head=answer.head | change)
        return gone("exchange", THIRD, 0)(n, message, answer)

    with pytest.raises(fedax.NodeError, match=text):
        run(transport=Here(_usual(), spy), rounds=1, secure=TWO, timeout=0.05)


@functools.cache
def _usual() -> dict[int, Site]:
    return sites()


@pytest.mark.parametrize("kind", ["exchange", "unmask"])
def test_a_run_goes_on(tmp_path, kind):
    """A run is resumed from a checkpoint, after all nodes were restarted."""

    def stops(n: int, message: Message, answer: Any) -> Any:
        if message.head["kind"] == kind and message.head["round"] == 1:
            raise KeyboardInterrupt
        return answer

    at = Here(sites(), stops)
    with pytest.raises(KeyboardInterrupt):
        run(Tells(), at, checkpoint=tmp_path)
    at.spy = None
    for number, old in list(at.sites.items()):
        old.close()
        at.sites[number] = restarted(old)
    assert bits(run(Tells(), at, checkpoint=tmp_path)) == bits(plain())


def test_without_the_packages(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.x25519", None)
    with pytest.raises(fedax.ConfigError, match=r"masks .*pip install 'fedax\[deploy\]'"):
        masks.require()
    assert json.dumps(Offer("", "", masks.Rules(1, 0.9), {})._asdict())
