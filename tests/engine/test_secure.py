"""Masked sums of nodes: the simulation's bits, nothing else visible to the server, and nodes that are lost."""

import dataclasses
import functools
import json
import math
import secrets
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
import scipy.stats

pytest.importorskip("Crypto", reason="needs pip install 'fedax[deploy]'")
pytest.importorskip("cryptography", reason="needs pip install 'fedax[deploy]'")

import fedax
from fedax.engine.places import fleet as fleets
from fedax.engine.places import masks
from fedax.engine.places.masks import Masks, Offer, Received
from fedax.engine.places.nodes import Failure, Message
from fedax.engine.places.policy import Policy
from fedax.engine.places.questions import Problem
from fedax.engine.places.roster import Roster
from fedax.engine.places.site import Site

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


# ---- the protocol itself

PART = masks.Part(1, 0.5, 0.5)


class Parties:
    """Some nodes that have offered masks for the exchange "0"."""

    def __init__(self, number: int, threshold: int, bits: int = 32, size: int = 5, colluding: int = 0):
        self.threshold, self.bits = threshold, bits
        self.nodes = [Masks(secrets.token_bytes(32), roster, colluding) for roster in here.rosters(number)]
        self.keys = [node.public for node in self.nodes]
        self.offers = {k: node.offer("0", k, self.keys, threshold, "?", PART) for k, node in enumerate(self.nodes)}
        self.sums = np.random.default_rng(number).integers(0, 2**32, (number, size), np.uint32)

    def masked(self, who: Any) -> dict[int, np.ndarray]:
        return {k: self.nodes[k].masked("0", self.sums[k], self.bits, self.told(k), "?", PART) for k in who}

    def told(self, k: int, **more: Offer) -> dict[int, Received]:
        """The offers that node ``k`` gets; ``more``: forged ones that replace them."""
        return {j: offer.to(k) for j, offer in (self.offers | {int(j[1:]): each for j, each in more.items()}).items()}

    def shares(self, survivors: Any, senders: Any) -> dict[int, dict[str, str]]:
        agreed = {k: self.nodes[k].agree("0", [*survivors]) for k in senders}
        return {k: self.nodes[k].unmask("0", agreed) for k in senders}

    def total(self, masked: Any, senders: Any) -> np.ndarray:
        shares = self.shares(masked, senders)
        return masks.total("0", masked, self.offers, shares, self.threshold, self.bits)

    def expected(self, who: Any) -> np.ndarray:
        return (self.sums[[*who]].astype(object).sum(0) % 2**self.bits).astype(np.uint32)


@pytest.mark.parametrize("bits", [16, 24, 32])
@pytest.mark.parametrize(
    ("number", "offered", "stays", "tells"),
    [
        (2, [0, 1], [0, 1], [0, 1]),
        (5, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [1, 2, 4]),  # two are gone before the end
        (5, [0, 1, 2, 3, 4], [1, 2, 4], [1, 2, 4]),  # two are gone after their shares
        (5, [0, 2, 3, 4], [0, 2, 4], [0, 2, 4]),  # one before its shares, one after
    ],
)
def test_masks_cancel(number, offered, stays, tells, bits):
    parties = Parties(number, number // 2 + 1, bits)
    parties.offers = {k: parties.offers[k] for k in offered}
    masked = parties.masked(stays)
    assert parties.total(masked, tells).tolist() == parties.expected(stays).tolist()


def test_too_few_shares_show_nothing():
    """With one share less than the threshold, Shamir's polynomial gives another secret, which is noticed."""
    parties = Parties(5, 3)
    masked = parties.masked([0, 1, 2])
    shares = parties.shares([0, 1, 2], [0, 1, 2])
    del shares[2]
    with pytest.raises(fedax.NodeError, match="the shares of its seed do not fit together"):
        masks.total("0", masked, parties.offers, shares, 3, 32)


def test_a_masked_sum_looks_uniform():
    """Chi-square of the bytes that the server gets from a node whose sum is zero."""
    size, results = 4096, []
    for seed in range(8):
        parties = Parties(3, 2, 24, size)
        parties.sums[:] = 0
        results.append(parties.masked([seed % 3])[seed % 3])
    for each in results:
        assert scipy.stats.chisquare(np.bincount(each, minlength=256)).pvalue > 1e-5
    pooled = np.concatenate(results)
    assert scipy.stats.chisquare(np.bincount(pooled, minlength=256)).pvalue > 1e-3
    # And byte by byte of a number: none of the three is more regular than the others.
    for k in range(3):
        assert scipy.stats.chisquare(np.bincount(pooled[k::3], minlength=256)).pvalue > 1e-4
    assert scipy.stats.chisquare(np.bincount(np.zeros(size, np.uint8), minlength=256)).pvalue < 1e-5


def test_the_same_sum_is_masked_anew_in_each_exchange():
    nodes = [Masks(secrets.token_bytes(32), roster) for roster in here.rosters(2)]
    keys, zero = [node.public for node in nodes], np.zeros(64, np.uint32)
    seen, drawn = [], []
    for name in ("0", "1"):
        offers = {k: node.offer(name, k, keys, 2, "?", PART) for k, node in enumerate(nodes)}
        drawn += [(offer.public, offer.seal) for offer in offers.values()]
        seen.append(nodes[0].masked(name, zero, 32, {k: offer.to(0) for k, offer in offers.items()}, "?", PART))
    assert (seen[0] == seen[1]).mean() < 0.1
    assert [len({*each}) for each in zip(*drawn, strict=True)] == [4, 4]  # of each node and exchange its own secrets


def test_masks_of_two_alone_do_not_show_a_sum():
    """The server knows the seed b of a node that stayed: its sum is still masked by the pairwise masks."""
    parties = Parties(3, 2)
    (y,) = parties.masked([0]).values()
    own = masks._stream(masks._derived(parties.nodes[0]._turns["0"].seed, "own 0"), 5, 32)
    assert not (masks.unpacked(y, 32) - own == parties.sums[0]).any()


def test_what_a_node_refuses():
    parties = Parties(4, 3)
    parties.masked([0, 1, 2])
    node = parties.nodes[0]
    for survivors, text in [
        ([0, 1], r"nodes \[0, 1\] is asked for, .* 3"),
        ([1, 2, 3], "with 0 among them"),
        ([0, 1, 1], "is asked for"),
        ([0, 1, 7], "is asked for"),
    ]:
        with pytest.raises(fedax.NodeError, match=text):
            node.agree("0", survivors)
    with pytest.raises(fedax.NodeError, match="has not agreed whose sums are added"):
        node.unmask("0", {})
    agreed = {k: parties.nodes[k].agree("0", [2, 1, 0]) for k in range(3)}
    first = node.unmask("0", agreed)
    assert node.unmask("0", {k: parties.nodes[k].agree("0", [0, 1, 2]) for k in range(3)}) == first  # repeated
    assert {k: len(masks._bytes(share)) for k, share in first.items()} == {"0": 16, "1": 16, "2": 16, "3": 32}
    # Shares of the other secret of node 2 would show its sum.
    with pytest.raises(fedax.NodeError, match=r"agreed to .* another set of nodes"):
        node.agree("0", [0, 1, 3])
    for less, text in (
        ({0: agreed[0], 1: agreed[1]}, "2 nodes have agreed .* 3 have to"),
        (agreed | {2: agreed[1]}, "'n2' .*is not signed by it"),
        ({0: agreed[0], 1: agreed[1], 3: agreed[2]}, "3 nodes have agreed"),
    ):
        with pytest.raises(fedax.NodeError, match=text):
            node.unmask("0", less)
    with pytest.raises(fedax.NodeError, match="has not answered this exchange"):
        other = Parties(3, 2)
        other.nodes[0]._turns["0"].held = {0: b"", 1: b""}
        other.nodes[0].agree("0", [0, 1])


def test_offers_that_a_node_refuses():
    parties = Parties(3, 2)
    node, keys = parties.nodes[0], parties.keys
    assert node.offer("0", 0, keys, 2, "?", PART) == parties.offers[0]  # a message that is repeated
    for position, given, threshold, question, part in [
        (0, keys, 3, "?", PART),
        (0, [keys[0], keys[2], keys[1]], 2, "?", PART),
        (1, keys, 2, "?", PART),
        (0, keys, 2, "!", PART),
        (0, keys, 2, "?", PART._replace(weight=0.1)),
    ]:
        with pytest.raises(fedax.NodeError, match="asked for before, in another way"):
            node.offer("0", position, given, threshold, question, part)
    stranger = Masks(secrets.token_bytes(32), Roster(here.rosters(4)[3].folder, here.rosters(4)[3].key)).public
    for position, given, threshold, text in [
        (0, keys, 1, "1 of 3 nodes are to stay"),
        (0, keys[:1], 1, "1 of 1 nodes are to stay"),
        (0, keys, 4, "4 of 3 nodes are to stay"),
        (1, keys, 2, "do not have this node's"),
        (0, [keys[0], keys[1], keys[1]], 2, "one of them twice"),
        (0, [keys[0], stranger, keys[1]], 2, "a node that is not in its roster"),
        (0, [keys[0], keys[2]._replace(public=stranger.public), keys[1]], 2, "what node 'n2' is said to have signed"),
        (0, [keys[0], keys[2]._replace(signature=""), keys[1]], 2, "what node 'n2' is said to have signed"),
        (0, [keys[0], keys[2]._replace(signature="é"), keys[1]], 2, "what node 'n2' is said to have signed"),
    ]:
        with pytest.raises(fedax.NodeError, match=text):
            node.offer("new", position, given, threshold, "?", PART)


def test_how_many_have_to_stay():
    """Twice their number is above all and those that work with the server: else both shares of a node can be had."""
    for number, colluding, least in [(2, 0, 2), (2, 1, 2), (3, 0, 2), (3, 1, 3), (4, 0, 3), (4, 1, 3), (6, 1, 4)]:
        parties = Parties(number, number, colluding=colluding)
        for threshold in range(1, number + 1):
            if threshold < least:
                with pytest.raises(fedax.NodeError, match=f"{threshold} of {number} nodes are to stay"):
                    parties.nodes[0].offer("new", 0, parties.keys, threshold, "?", PART)
            else:
                parties.nodes[0].offer(f"{threshold}", 0, parties.keys, threshold, "?", PART)
    assert [masks.least(n, None) for n in (2, 3, 4, 5, 20)] == [2, 3, 3, 4, 14]
    assert [masks.least(n, 2) for n in (2, 3, 4, 5)] == [2, 2, 3, 3]


def test_what_is_not_meant_for_a_node():
    """Shares of another exchange, those for another node, changed ones, another node's masks as its own; too few."""
    parties = Parties(3, 2)
    later = {k: node.offer("1", k, parties.keys, 2, "?", PART) for k, node in enumerate(parties.nodes)}
    fine = parties.told(0)
    changed = bytearray(masks._bytes(fine[1].share))
    changed[-1] ^= 1
    for share in (masks._text(bytes(changed)), parties.offers[1].to(2).share, later[1].to(0).share, ""):
        with pytest.raises(fedax.NodeError, match="not meant for this node in this exchange"):
            wrong = fine | {1: fine[1]._replace(share=share)}
            parties.nodes[0].masked("0", parties.sums[0], 32, wrong, "?", PART)
    # What it has signed for another exchange, of other keys, with another weight, of other shares.
    for other in (
        later[1].to(0),
        fine[1]._replace(public=fine[2].public),
        fine[1]._replace(seal=fine[2].seal),
        fine[1]._replace(part=PART._replace(weight=1e-9)),
        fine[1]._replace(shares=fine[2].shares),
        fine[2],
    ):
        with pytest.raises(fedax.NodeError, match=r"'n1' .*is not signed by it"):
            parties.nodes[0].masked("0", parties.sums[0], 32, fine | {1: other}, "?", PART)
    with pytest.raises(fedax.NodeError, match="came back as others"):
        parties.nodes[0].masked("0", parties.sums[0], 32, parties.told(0, _0=later[0]), "?", PART)
    with pytest.raises(fedax.NodeError, match="1 nodes are left, and 2 have to stay"):
        parties.nodes[0].masked("0", parties.sums[0], 32, {0: parties.offers[0].to(0)}, "?", PART)
    for question, part in (("!", PART), ("?", PART._replace(clients=2))):
        with pytest.raises(fedax.NodeError, match="another question is asked"):
            parties.nodes[0].masked("0", parties.sums[0], 32, fine, question, part)


def test_shares_that_are_changed_are_noticed():
    parties = Parties(3, 2)
    masked = parties.masked([0, 1])  # the third is gone after its shares
    shares = parties.shares([0, 1], [0, 1])
    for of, text in (("1", "node 1: the shares of its seed"), ("2", "node 2: the shares of its key")):
        wrong = shares | {0: shares[0] | {of: masks._text(bytes(16 if of == "1" else 32))}}
        with pytest.raises(fedax.NodeError, match=text):
            masks.total("0", masked, parties.offers, wrong, 2, 32)
    for wrong in ({}, None, [], shares[0] | {"1": "é"}, shares[0] | {"1": 7}, shares[0] | {"1": masks._text(b"short")}):
        with pytest.raises(fedax.NodeError, match="a share of its secrets is none"):
            masks.total("0", masked, parties.offers, shares | {0: wrong}, 2, 32)
    assert masks.total("0", masked, parties.offers, shares, 2, 32).tolist() == parties.expected([0, 1]).tolist()


def test_one_of_three_nodes_works_with_the_server():
    """It tells two nodes two sets of survivors; the third signs both, and gives all its shares (node 2).

    With two of three it has both shares of a node, and its own sum. Where one may work with the server, all three have
    to stay, and the attack ends at the first signature.
    """

    def attack(parties: Parties) -> np.ndarray:
        masked = parties.masked([0, 1, 2])
        shares = {}
        for victim in (0, 1):
            survivors = [victim, 2]
            agreed = {victim: parties.nodes[victim].agree("0", survivors)}
            turn = parties.nodes[2]._turns["0"]
            agreed[2] = parties.nodes[2]._roster.signed(masks._agreement(turn.context, tuple(survivors)))
            shares[victim] = parties.nodes[victim].unmask("0", agreed)
        mine = parties.nodes[2]._turns["0"].held
        seed = masks._joined({1: masks._bytes(shares[1]["1"]), 2: mine[1][:16]})
        secret = masks._joined({0: masks._bytes(shares[0]["1"]), 2: mine[1][16:]})
        result = masks.unpacked(masked[1], 32) - masks._stream(masks._derived(seed, "own 0"), 5, 32)
        for other in (0, 2):
            result -= masks._sign(1, other) * masks._pair(secret, parties.offers[other].public, "0", 5, 32)
        return result

    parties = Parties(3, 2)  # of owners who trust that nobody does
    assert attack(parties).tolist() == parties.sums[1].tolist()
    with pytest.raises(fedax.NodeError, match=r"2 of 3 .*, and of 1 that may work with"):
        Parties(3, 2, colluding=1)
    with pytest.raises(fedax.NodeError, match=r"nodes \[0, 2\] is asked for, .* 3"):
        attack(Parties(3, 3, colluding=1))


# ---- whole runs


def sites(method: Any = FEDAVG, secure: Any = SECURE, where: Any = NODES) -> dict[int, Site]:
    made = Problem(method, TASK, here.wire_of(secure=secure))
    return here.sites(DATA, where, made, known=here.rosters(len(where)), policy=Policy(colluding=0))


def restarted(old: Site) -> Site:
    return Site(old.data, old._make, old.folder, old.names, policy=old.policy, roster=old._roster)


def run(method: Any = FEDAVG, transport: Any = None, spy: Any = None, **options: Any) -> fedax.Run:
    options = OPTIONS | {"secure": SECURE} | options
    at = transport or Here(sites(method, options["secure"]), spy)
    run = here.trained(method, TASK, DATA, at, **options)
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
        return [each for each in self.sent if each[1].head["kind"] == kind]


@pytest.mark.parametrize("secure", [SECURE, dataclasses.replace(SECURE, bits=16, threshold=3)])
def test_the_bits_of_the_simulation(secure):
    """Estimates and changes; nodes with several clients each; nothing but masked numbers leaves."""
    watch = Watch()
    result = run(Tells(), spy=watch, secure=secure)
    expected = plain() if secure is SECURE else simulated(Tells(), secure=secure)
    assert bits(result) == bits(expected)
    assert [len(watch.of(kind)) for kind in ("offer", "exchange", "agree", "unmask")] == [6, 6, 6, 6]
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
        heard = [message.head["heard"] for _, message, _ in watch.of("exchange")]
        assert len(watch.of("unmask")) == sum(heard) > 0


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
        return Failure("no answer", True) if late and n == number and head["index"] == index else answer

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
    at = Here(sites(Tells(), TWO))

    def spy(n: int, message: Message, answer: Any) -> Any:
        if (n, message.head["kind"], message.head.get("index")) == (SECOND, kind, 0):
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


def test_one_node_is_refused():
    with pytest.raises(fedax.NodeError, match="at 1 nodes, and at 2 they have to be"):
        run(transport=Here(sites(where=[list(range(11))])))


def test_a_message_that_is_repeated():
    """The same answer, which is not computed anew; a changed one is refused, for two sums under one mask tell."""
    watch = Watch()
    at = Here(sites(Tells()), watch)
    run(Tells(), at)
    site = at.sites[FIRST]
    last = {kind: [each for each in watch.of(kind) if each[0] == FIRST][-1] for kind in ("offer", "agree", "unmask")}
    for kind, (_, message, answer) in last.items():
        assert json.loads(json.dumps(site.answer(message).head)) == answer.head, kind

    def twice(n: int, message: Message, answer: Any) -> Any:
        if n != FIRST or message.head["kind"] != "exchange":
            return answer
        assert at.sites[FIRST].answer(message) == answer
        other = Message(message.head | {"keep": 7}, message.tensors)
        assert "in another message" in at.sites[FIRST].answer(other).head["error"]
        return answer

    at = Here(sites(Tells()), twice)
    assert bits(run(Tells(), at)) == bits(plain())
    # The mask is gone with the shares: there is nothing to answer any more.
    changed = last["agree"][1].head | {"survivors": [0, 1]}
    assert "over another set of nodes" in site.answer(Message(changed)).head["error"]


def test_no_plain_sum_leaves_a_node():
    """Where the run is secure, an exchange without masks is an error at the node."""
    seen: list[Message] = []

    def spy(n: int, message: Message, answer: Any) -> Any:
        if message.head["kind"] == "exchange" and n == FIRST:
            bare = {name: value for name, value in message.head.items() if name != "secure"}
            seen.append(at.sites[THIRD].answer(Message(bare | {"mark": at.sites[THIRD].mark}, message.tensors)))
        return answer

    at = Here(sites(), spy)
    with pytest.raises(fedax.NodeError):
        run(transport=at)
    assert seen and all("error" in each.head and not each.tensors for each in seen)


class Active(Here):
    """A server or link that sends all nodes but the first another request, or changes the messages it passes on."""

    def __init__(self, sites: Any, change: Callable[[int, Message], Message]):
        super().__init__(sites)
        self.change, self.shares = change, 0

    def _answer(self, number: int, message: Message) -> Any:
        answer = super()._answer(number, self.change(number, message))
        self.shares += "told" in getattr(answer, "head", {})
        return answer


def others(arrays: dict[str, Callable[[np.ndarray], np.ndarray]], **head: Any) -> Callable[[int, Message], Message]:
    """Changes the requests to the other nodes, in the offer and in the exchange alike."""

    def change(number: int, message: Message) -> Message:
        if number == FIRST or message.head["kind"] not in ("offer", "exchange"):
            return message
        own = {name: how(message.head[name]) for name, how in head.items() if name in message.head}
        result = safetensors.numpy.load(message.tensors) if message.tensors else {}
        for part, how in arrays.items():
            result |= {name: np.asarray(how(each), order="C") for name, each in result.items() if part in name}
        return Message(message.head | own, safetensors.numpy.save(result) if result else b"")

    return change


def swapped(number: int, message: Message) -> Message:
    """A link in the middle: the others' ephemeral keys are its own."""
    if number != FIRST or message.head["kind"] != "exchange":
        return message
    offers = {k: list(each) for k, each in message.head["secure"]["offers"].items()}
    for each in offers.values():
        each[0] = masks._text(masks._public(bytes(32)))
    return Message(message.head | {"secure": message.head["secure"] | {"offers": offers}}, message.tensors)


def strangers(number: int, message: Message) -> Message:
    """A server that invents nodes."""
    if message.head["kind"] != "offer":
        return message
    keys = [key if k == message.head["position"] else key | {"name": "invented"} for k, key in
            enumerate(message.head["keys"])]  # fmt: skip
    return Message(message.head | {"keys": keys})


NOTHING = {"['weights']": np.zeros_like, "data_weights": np.zeros_like}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (swapped, "is not signed by it|came back as others"),
        (strangers, "nodes do not have|not in its roster"),
        (others(NOTHING), "another question is asked"),
        (others(NOTHING, part=lambda part: [part[0], 0.0, 0.0]), "more than 0.9 of the weight of a secure sum"),
        (others({"download": lambda leaf: leaf + 1}), "another question is asked"),
        (others({"fixed": lambda leaf: leaf * 1e6}), "another question is asked"),
        (others({}, question=lambda _: "another"), "another question is asked|said to have signed"),
        (others({"steps": np.zeros_like}), "without a local step, and would hide nobody"),
    ],
)
def test_a_server_that_is_active(change, text):
    """No node gives a share, by which the first one's sum could be had."""
    at = Active(sites(), change)
    with pytest.raises(fedax.NodeError, match=text):
        run(transport=at, rounds=1)
    assert at.shares == 0


def test_a_node_without_a_roster():
    bare = here.sites(DATA, NODES, Problem(FEDAVG, TASK, here.wire_of(secure=SECURE)))
    with pytest.raises(fedax.NodeError, match=r"secure .*keys of the other .*--roster"):
        run(transport=Here(bare))


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
    offer |= {"part": [1, 0.5, 0.5], "signature": ""}
    for kind, change, text in [
        ("exchange", short, r"\['masked'\] is uint8\[\d+\], expected uint8"),
        ("exchange", head(index=7), "is to another question"),
        ("exchange", head(tally=[-1, 0]), "counts"),
        ("offer", head(offer=None), "its masks are none"),
        ("offer", head(offer=offer | {"public": "AAAA"}), "its masks are none"),
        ("offer", head(offer=offer | {"shares": {"1": ""}}), "its masks are none"),
        ("offer", head(offer=offer | {"part": [1, -0.5, 0.5]}), "its masks are none"),
        ("offer", head(offer=offer), "'n0' .*is not signed by it"),
        ("agree", head(agreed=None), "is said to have signed is not signed by it"),
        ("unmask", head(told=None), "a share of its secrets is none"),
        ("unmask", head(told={"0": "", "1": "", "2": ""}), "a share of its secrets is none"),
    ]:
        with pytest.raises(fedax.NodeError, match=text):
            run(transport=Here(_usual(), spoiled(kind, change)), rounds=1)


@functools.cache
def _usual() -> dict[int, Site]:
    return sites()


def test_a_run_goes_on(tmp_path):
    """A run is resumed from a checkpoint, after all nodes were restarted."""
    at = Here(sites(Tells()))
    stopped = run(Tells(), at, rounds=1, checkpoint=tmp_path)
    assert len(stopped.history["round"]) == 2
    for number, old in list(at.sites.items()):
        old.close()
        at.sites[number] = restarted(old)
    assert bits(run(Tells(), at, rounds=2, checkpoint=tmp_path)) == bits(plain())


def test_without_the_packages(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "Crypto.Protocol.SecretSharing", None)
    with pytest.raises(fedax.ConfigError, match=r"masks .*pip install 'fedax\[deploy\]'"):
        masks.require()
    assert math.isfinite(len(json.dumps(Offer("", "", PART, "", {})._asdict())))
