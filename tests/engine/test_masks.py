"""The protocol of masked sums between nodes: masks that cancel, and what a node refuses to an active server."""

import json
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import scipy.stats

pytest.importorskip("cryptography", reason="needs pip install 'fedax[deploy]'")

import fedax
from fedax.sites.protocol import masks
from fedax.sites.protocol.masks import Agreed, Masks, Offer, Statement
from fedax.sites.protocol.roster import Roster

from . import here

PART = masks.MaskedPart(1, 0.5, 0.5)


class Parties:
    """Some nodes that have offered masks for the exchange "0"."""

    def __init__(
        self, number: int, threshold: int, bits: int = 32, size: int = 5, colluding: int = 0,
        others: dict[int, int] | None = None, share: dict[int, float] | None = None,
    ):  # fmt: skip
        self.threshold, self.bits = threshold, bits
        others, share = dict(enumerate([1] * number)) | (others or {}), dict(enumerate([0.9] * number)) | (share or {})
        self.nodes = [
            Masks(secrets.token_bytes(32), roster, colluding, share[k], others[k])
            for k, roster in enumerate(here.rosters(number))
        ]
        self.keys = [node.public for node in self.nodes]
        self.offers = {k: node.offer("0", k, self.keys, threshold) for k, node in enumerate(self.nodes)}
        word = np.uint64 if bits == 64 else np.uint32
        self.sums = np.random.default_rng(number).integers(0, np.iinfo(word).max, (number, size), word, endpoint=True)

    def masked(self, who: Any) -> dict[int, np.ndarray]:
        return {k: self.nodes[k].masked("0", self.sums[k], self.bits, self.told(k), "?", PART) for k in who}

    def told(self, k: int, **more: Offer) -> dict[int, Offer]:
        """The offers that node ``k`` gets; ``more``: forged ones that replace them."""
        return {j: offer.to(k) for j, offer in (self.offers | {int(j[1:]): each for j, each in more.items()}).items()}

    def said(self, k: int, who: Any) -> dict[int, Statement]:
        """What some nodes state to node ``k``; of one that has said nothing, made up."""
        made_up = Statement("?", PART, True, {})
        known = {j: node.stated("0") or made_up for j, node in enumerate(self.nodes)}
        return {j: known.get(j, made_up).to(k) for j in who}

    def agreed(self, survivors: Any, senders: Any) -> dict[int, dict[int, Agreed]]:
        """What some nodes agree to, for each of them."""
        tags = {j: self.nodes[j].agree("0", self.said(j, survivors)) for j in senders}
        return {k: {j: Agreed(each.get(str(k), "")) for j, each in tags.items()} for k in senders}

    def shares(self, survivors: Any, senders: Any) -> dict[int, dict[str, str]]:
        """Those that some nodes give; the nodes agree where others are gone whose masks are in the sum."""
        if {*survivors} == {*self.offers}:
            return {k: self.nodes[k].unmask("0", self.said(k, survivors), {}) for k in senders}
        agreed = self.agreed(survivors, senders)
        return {k: self.nodes[k].unmask("0", {}, agreed[k]) for k in senders}

    def total(self, masked: Any, senders: Any) -> np.ndarray:
        shares = self.shares(masked, senders)
        return masks.total("0", masked, self.offers, shares, self.threshold, self.bits)

    def expected(self, who: Any) -> np.ndarray:
        return (self.sums[[*who]].astype(object).sum(0) % 2**self.bits).astype(self.sums.dtype)


@pytest.mark.parametrize("bits", [8, 16, 24, 32, 64])
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
        assert scipy.stats.chisquare(np.bincount(each, minlength=256)).pvalue > here.SURE
    pooled = np.concatenate(results)
    assert scipy.stats.chisquare(np.bincount(pooled, minlength=256)).pvalue > here.SURE
    # And byte by byte of a number: none of the three is more regular than the others.
    for k in range(3):
        assert scipy.stats.chisquare(np.bincount(pooled[k::3], minlength=256)).pvalue > here.SURE
    assert scipy.stats.chisquare(np.bincount(np.zeros(size, np.uint8), minlength=256)).pvalue < here.SURE


def test_the_same_sum_is_masked_anew_in_each_exchange():
    nodes = [Masks(secrets.token_bytes(32), roster) for roster in here.rosters(2)]
    keys, zero = [node.public for node in nodes], np.zeros(64, np.uint32)
    seen, drawn = [], []
    for name in ("0", "1"):
        offers = {k: node.offer(name, k, keys, 2) for k, node in enumerate(nodes)}
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
        ([], "is asked for"),
        ([0, 1, 7], "is asked for"),
        ([0, 1, 3], "'n3' is said to have sent is not from it"),  # it has not answered
    ]:
        with pytest.raises(fedax.NodeError, match=text):
            node.agree("0", parties.said(0, survivors))
    for said in ({}, parties.said(0, [0, 1, 2])):  # node 3 is not among them, so that they have to agree
        with pytest.raises(fedax.NodeError, match="has not agreed whose sums are added"):
            node.unmask("0", said, {})
    agreed = parties.agreed([2, 1, 0], range(3))[0]
    first = node.unmask("0", {}, agreed)
    assert node.unmask("0", {}, parties.agreed([0, 1, 2], range(3))[0]) == first  # repeated
    assert {k: len(masks._bytes(share)) for k, share in first.items()} == {"0": 17, "1": 17, "2": 17, "3": 33}
    # Shares of the other secret of node 2 would show its sum.
    with pytest.raises(fedax.NodeError, match=r"agreed to .* another set of nodes"):
        node.agree("0", parties.said(0, [0, 1, 3]))
    parties.masked([3])
    with pytest.raises(fedax.NodeError, match=r"agreed to .* another set of nodes"):
        node.unmask("0", parties.said(0, range(4)), {})
    for less, text in (
        ({0: agreed[0], 1: agreed[1]}, "2 nodes have agreed .* 3 have to"),
        (agreed | {2: agreed[1]}, "'n2' is said to have sent is not from it"),
        (agreed | {2: Agreed("")}, "'n2' is said to have sent is not from it"),
        ({0: agreed[0], 1: agreed[1], 3: agreed[2]}, "3 nodes have agreed"),
    ):
        with pytest.raises(fedax.NodeError, match=text):
            node.unmask("0", {}, less)
    with pytest.raises(fedax.NodeError, match="has not answered this exchange"):
        Parties(3, 2).nodes[0].agree("0", parties.said(0, [0, 1]))


def test_a_node_keeps_to_one_set():
    """All have answered; the server tells three of four that the last is gone, and the last that nobody is.

    With shares of both kinds of the last one its own sum could be had. Three and the last are four of four, so that not
    both sets have three that give shares: the one that works with the server makes no more than one of them three.
    """
    for order in (["agree", "all"], ["all", "agree"]):
        parties = Parties(4, 3, colluding=1)
        parties.masked(range(4))
        ways = {
            "agree": lambda k, p=parties: p.nodes[k].agree("0", p.said(k, [0, 1, 2])),
            "all": lambda k, p=parties: p.nodes[k].unmask("0", p.said(k, range(4)), {}),
        }
        for k in range(3):
            ways[order[0]](k)
            with pytest.raises(fedax.NodeError, match="another set of nodes"):
                ways[order[1]](k)
    parties = Parties(4, 3, colluding=1)
    masked = parties.masked(range(4))
    agreed = parties.agreed([0, 1, 2], range(3))
    of_three = {k: parties.nodes[k].unmask("0", {}, agreed[k]) for k in (0, 1)}
    of_all = {3: parties.nodes[3].unmask("0", parties.said(3, range(4)), {})}
    both = {key: _text_of(parties.nodes[2]._turns["0"].held, key) for key in (0, 1)}  # of the node that helps
    assert [len(masks._bytes(each["3"])) for each in (*of_three.values(), *of_all.values())] == [33, 33, 17]
    total = masks.total(
        "0", {k: masked[k] for k in range(3)}, parties.offers, of_three | {2: both[0] | {"3": both[1]["3"]}}, 3, 32
    )
    assert total.tolist() == parties.expected(range(3)).tolist()  # the one sum that it may have
    with pytest.raises(fedax.NodeError, match="the shares of its seed do not fit together"):
        masks.total("0", masked, parties.offers, of_all | {2: both[0]}, 3, 32)


def _text_of(held: dict[int, tuple[bytes, bytes]], which: int) -> dict[str, str]:
    return {str(k): masks._text(share[which]) for k, share in held.items()}


def test_offers_that_a_node_refuses():
    parties = Parties(3, 2)
    node, keys = parties.nodes[0], parties.keys
    assert node.offer("0", 0, keys, 2) == parties.offers[0]  # a message that is repeated
    for position, given, threshold in [(0, keys, 3), (0, [keys[0], keys[2], keys[1]], 2), (1, keys, 2)]:
        with pytest.raises(fedax.NodeError, match="asked for before, in another way"):
            node.offer("0", position, given, threshold)
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
            node.offer("new", position, given, threshold)


def test_how_many_have_to_stay():
    """Twice their number is above all and those that work with the server: else both shares of a node can be had."""
    for number, colluding, least in [(2, 0, 2), (2, 1, 2), (3, 0, 2), (3, 1, 3), (4, 0, 3), (4, 1, 3), (6, 1, 4)]:
        parties = Parties(number, number, colluding=colluding)
        for threshold in range(1, number + 1):
            if threshold < least:
                with pytest.raises(fedax.NodeError, match=f"{threshold} of {number} nodes are to stay"):
                    parties.nodes[0].offer("new", 0, parties.keys, threshold)
            else:
                parties.nodes[0].offer(f"{threshold}", 0, parties.keys, threshold)
    assert [masks.least(n, None) for n in (2, 3, 4, 5, 20)] == [2, 3, 3, 4, 14]
    assert [masks.least(n, 2) for n in (2, 3, 4, 5)] == [2, 2, 3, 3]


def test_what_is_not_meant_for_a_node():
    """Shares of another exchange, those for another node, changed ones, another node's masks as its own; too few."""
    parties = Parties(3, 2)
    later = {k: node.offer("1", k, parties.keys, 2) for k, node in enumerate(parties.nodes)}
    fine = parties.told(0)
    changed = bytearray(masks._bytes(fine[1].shares["0"]))
    changed[-1] ^= 1
    for share in (masks._text(bytes(changed)), parties.offers[1].shares["2"], later[1].shares["0"], ""):
        with pytest.raises(fedax.NodeError, match="not meant for this node in this exchange"):
            wrong = fine | {1: fine[1]._replace(shares={"0": share})}
            parties.nodes[0].masked("0", parties.sums[0], 32, wrong, "?", PART)
    # What it has offered for another exchange, of other keys, with other rules.
    for other in (
        later[1].to(0),
        fine[1]._replace(public=fine[2].public),
        fine[1]._replace(seal=fine[2].seal),
        fine[1]._replace(rules=masks.Rules(1, 1.0)),
        fine[2],
    ):
        with pytest.raises(fedax.NodeError, match=r"'n1' is said to have offered is not from it"):
            parties.nodes[0].masked("0", parties.sums[0], 32, fine | {1: other}, "?", PART)
    of_1 = parties.nodes[1]._turns["0"]
    short = masks._text(masks._encrypted(of_1.key("shares", 1, 0), b"short", parties.offers[1].text(of_1.context, 1)))
    with pytest.raises(fedax.NodeError, match="not meant for this node in this exchange"):
        wrong = fine | {1: fine[1]._replace(shares={"0": short})}
        parties.nodes[0].masked("0", parties.sums[0], 32, wrong, "?", PART)
    with pytest.raises(fedax.NodeError, match="came back as others"):
        parties.nodes[0].masked("0", parties.sums[0], 32, parties.told(0, _0=later[0]), "?", PART)
    with pytest.raises(fedax.NodeError, match="1 nodes are left, and 2 have to stay"):
        parties.nodes[0].masked("0", parties.sums[0], 32, {0: parties.offers[0].to(0)}, "?", PART)


@pytest.mark.parametrize(("question", "part"), [("!", PART), ("?", PART._replace(weight=1e-9, data_weight=1e-9))])
def test_nodes_that_are_asked_different_things(question, part):
    """Two models in one exchange, or little weight of the others: no share is given, whatever the server says."""
    parties = Parties(3, 2)
    asked = [("?", PART), (question, part), (question, part)]
    masked = [n.masked("0", parties.sums[k], 32, parties.told(k), *asked[k]) for k, n in enumerate(parties.nodes)]
    assert len(masked) == 3
    node, said = parties.nodes[0], parties.said(0, range(3))
    text = "another question is asked of node 'n1'" if question == "!" else r"'n0' would have more than 0\.9"
    with pytest.raises(fedax.NodeError, match=text):
        node.unmask("0", said, {})
    with pytest.raises(fedax.NodeError, match=text):
        node.agree("0", said)
    for change in ({"question": "?", "part": PART}, {"tags": said[2].tags}, {"adds": False}, {"tags": {}}):
        with pytest.raises(fedax.NodeError, match=r"'n1' is said to have sent is not from it"):
            node.unmask("0", said | {1: said[1]._replace(**change)}, {})


def test_shamirs_shares():
    """Any so many give the secret; of one less each has any value, so that they tell nothing."""
    rng = np.random.default_rng(0)
    for size, threshold, nodes in ((16, 2, 3), (16, 3, 3), (32, 4, 7), (32, 14, 20)):
        for secret in (bytes(size), bytes([255]) * size, rng.bytes(size)):
            shares = masks._split(threshold, nodes, secret)
            for _ in range(5):
                some = rng.permutation(nodes)[:threshold].tolist()
                assert masks._joined({k: shares[k] for k in some}) == secret
                assert masks._joined({k: shares[k] for k in some[1:]}) != secret
    first = np.frombuffer(b"".join(masks._split(3, 3, bytes(16))[0][1:] for _ in range(4000)), np.uint8)
    assert scipy.stats.chisquare(np.bincount(first, minlength=256)).pvalue > here.SURE
    prime, secret, factor = 2**130 - 5, 12345, 678  # by hand
    assert masks._joined({k: ((secret + factor * (k + 1)) % prime).to_bytes(17, "big") for k in (0, 4)}) == (
        secret.to_bytes(16, "big")
    )


def test_shares_that_are_changed_are_noticed():
    parties = Parties(3, 2)
    masked = parties.masked([0, 1])  # the third is gone after its shares
    shares = parties.shares([0, 1], [0, 1])
    for of, text in (("1", "node 1: the shares of its seed"), ("2", "node 2: the shares of its key")):
        wrong = shares | {0: shares[0] | {of: masks._text(bytes(17 if of == "1" else 33))}}
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
            turn, survivors = parties.nodes[2]._turns["0"], (victim, 2)
            parties.nodes[victim].agree("0", parties.said(victim, survivors))
            turn.survivors = survivors
            agreed = {victim: Agreed(""), 2: Agreed(turn.tags(turn.agreement(2))[str(victim)])}
            shares[victim] = parties.nodes[victim].unmask("0", {}, agreed)
        mine = parties.nodes[2]._turns["0"].held
        seed = masks._joined({1: masks._bytes(shares[1]["1"]), 2: mine[1][0]})
        secret = masks._private(masks._joined({0: masks._bytes(shares[0]["1"]), 2: mine[1][1]}))
        result = masks.unpacked(masked[1], 32) - masks._stream(masks._derived(seed, "own 0"), 5, 32)
        for other in (0, 2):
            result -= masks._pair(1, other, secret, parties.offers[other].public, "0", 5, 32)
        return result

    parties = Parties(3, 2)  # of owners who trust that nobody does
    assert attack(parties).tolist() == parties.sums[1].tolist()
    with pytest.raises(fedax.NodeError, match=r"2 of 3 .*, and of 1 that may work with"):
        Parties(3, 2, colluding=1)
    with pytest.raises(fedax.NodeError, match=r"nodes \[0, 2\] is asked for, .* 3"):
        attack(Parties(3, 3, colluding=1))


# ---- sums in which a node would be alone


def said_by(parties: Parties, k: int) -> dict[int, Statement]:
    """What the nodes state to node ``k`` of a sum that all of them have masked."""
    parties.masked(parties.offers)
    return parties.said(k, parties.offers)


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize(
    ("nodes", "threshold", "silent", "others"),
    [(3, 3, [1, 2], 1), (3, 2, [1, 2], 1), (4, 3, [0, 1, 2], 1), (2, 2, [0], 1), (3, 3, [1], 2), (3, 2, [0], 2)],
)
def test_others_that_are_silent(nodes, threshold, silent, others, bits):
    """An attack that worked: others that are made to add nothing (no step, a huge clip) leave one node's own sum."""
    parties = Parties(nodes, threshold, bits, others={0: others})
    parties.sums[silent] = 2**bits if bits < 32 else 0  # both are zero in a sum of so many bits
    assert [k for k, each in said_by(parties, 0).items() if not each.adds] == silent
    for k, node in enumerate(
        parties.nodes
    ):  # also those with nothing: as many as have to stay would reveal the other's
        with pytest.raises(fedax.NodeError, match=rf"{nodes - len(silent)} of .* not zero, and {others + 1} .*secure"):
            node.unmask("0", said_by(parties, k), {})


def test_a_node_that_is_silent():
    """Enough others add: the sum is had, and the one that adds nothing helps. So it is where nobody adds."""
    for silent in ([1], [0, 1, 2]):
        parties = Parties(3, 2)
        parties.sums[silent] = 0
        assert parties.total(parties.masked(range(3)), range(3)).tolist() == parties.expected(range(3)).tolist()


def test_nobody_adds_only_if_all_say_so():
    parties = Parties(3, 2)
    parties.sums[[1, 2]] = 0
    for k in (1, 2):  # the first one's statement, by which they would know, is kept from them
        said = {j: each for j, each in said_by(parties, k).items() if j}
        with pytest.raises(fedax.NodeError, match="has not agreed whose sums are added"):
            parties.nodes[k].unmask("0", said, {})
        parties.nodes[k].agree("0", said)  # of the two alone it is zero


def test_statements_that_are_forged():
    parties = Parties(3, 3)
    parties.sums[[1, 2]] = 0
    node, said = parties.nodes[0], said_by(parties, 0)
    # Another value; the tag of another node; one for another node; of another exchange of the same nodes, in which node
    # 1 did add.
    older = Parties(3, 3)
    replayed, for_another = said_by(older, 0)[1], parties.said(2, [1])[1]
    for wrong in (said[1]._replace(adds=True), said[1]._replace(tags=said[2].tags), for_another, replayed):
        with pytest.raises(fedax.NodeError, match=r"'n1' is said to have sent is not from it"):
            node.unmask("0", said | {1: wrong}, {})
    fine = json.loads(json.dumps(said[1]))
    assert masks.read(Statement, fine) == said[1]
    wrong_tags = ({"0": "é"}, {"0": "AAAA"}, None)
    wrong_parts = (None, [1, float("nan"), 0.5], [0, 0.5, 0.5])
    for wrong in (None, "ab", fine[:3], [*fine, True], [*fine[:2], 1, fine[3]], [None, *fine[1:]],
                  *([*fine[:3], each] for each in wrong_tags),
                  *([fine[0], each, *fine[2:]] for each in wrong_parts)):  # fmt: skip
        with pytest.raises(fedax.NodeError, match="is no statement"):
            masks.read(Statement, wrong)
    for wrong in (None, "ab", [], [7], ["é"], ["", ""]):
        with pytest.raises(fedax.NodeError, match="is no agreement"):
            masks.read(Agreed, wrong)
    for less in ({}, {0: said[0], 1: said[1]}):
        with pytest.raises(fedax.NodeError, match="has not agreed whose sums are added"):
            node.unmask("0", less, {})


def test_an_agreement_of_an_exchange_that_was_begun_anew():
    """Its name and its question are the same, and node 1 was started again: what it said before is of other masks."""
    parties = Parties(3, 3)
    before = said_by(parties, 0)[1]
    parties.nodes = [Masks(node._key, node._roster, 0) for node in parties.nodes]
    assert [node.public[:2] for node in parties.nodes] == [key[:2] for key in parties.keys]
    parties.offers = {k: node.offer("0", k, parties.keys, 3) for k, node in enumerate(parties.nodes)}
    parties.sums[1] = 0
    said = said_by(parties, 0)
    assert (before.adds, said[1].adds) == (True, False)
    with pytest.raises(fedax.NodeError, match=r"'n1' is said to have sent is not from it"):
        parties.nodes[0].unmask("0", said | {1: before}, {})


def test_a_node_says_one_thing():
    """It masks one sum in an exchange, and states one thing."""
    parties = Parties(3, 2)
    parties.sums[1] = 0
    parties.masked(range(3))
    node, said = parties.nodes[1], parties.nodes[1].stated("0")
    for sums in (parties.sums[0], parties.sums[0] + np.uint32(1)):
        with pytest.raises(fedax.NodeError, match="other numbers were masked"):
            node.masked("0", sums, 32, parties.told(1), "?", PART)
    with pytest.raises(fedax.NodeError, match="other numbers were masked"):
        node.masked("0", parties.sums[1], 32, {k: each for k, each in parties.told(1).items() if k}, "?", PART)
    for question, part in (("!", PART), ("?", PART._replace(weight=0.1))):
        with pytest.raises(fedax.NodeError, match="other numbers were masked"):
            node.masked("0", parties.sums[1], 32, parties.told(1), question, part)
    node.masked("0", parties.sums[1], 32, parties.told(1), "?", PART)  # the same again
    assert node.stated("0") == said and said is not None and not said.adds


def test_nodes_that_saw_different_offers_do_not_agree():
    parties = Parties(4, 3)
    for k in range(4):
        told = {j: each for j, each in parties.told(k).items() if k == 3 or j != 3}
        parties.nodes[k].masked("0", parties.sums[k], 32, told, "?", PART)
    agreed = parties.agreed([0, 1, 2], range(3))
    parties.nodes[0].unmask("0", {}, agreed[0])
    parties = Parties(4, 3)
    for k in range(3):
        told = {j: each for j, each in parties.told(k).items() if k == 2 or j != 3}
        parties.nodes[k].masked("0", parties.sums[k], 32, told, "?", PART)
    for give in (parties.nodes[0].agree, lambda name, said: parties.nodes[0].unmask(name, said, {})):
        with pytest.raises(fedax.NodeError, match=r"'n2' is said to have sent is not from it"):
            give("0", parties.said(0, range(3)))


@pytest.mark.parametrize(
    ("rules", "text"), [({"others": {0: 4}}, "secure.nodes"), ({"share": {0: 0.22}}, "secure.share")]
)
def test_the_others_keep_to_the_rules_of_a_node(rules, text):
    """The first one's owner does not want it in a sum over four of five; without it, three would have unmasked that."""
    parties = Parties(5, 3, **rules)
    parties.masked(range(5))
    for k, node in enumerate(parties.nodes[:4]):
        with pytest.raises(fedax.NodeError, match=f"'n0' .*{text}"):
            node.agree("0", parties.said(k, range(4)))
    fine = Parties(5, 3, **rules)
    assert fine.total(fine.masked(range(5)), range(5)).tolist() == fine.expected(range(5)).tolist()


@pytest.mark.parametrize("share", [None, 7, "é", "A", "not in base64"])
def test_a_share_that_is_none(share):
    with pytest.raises(fedax.NodeError, match=r"no offer .*3: 0: "):
        masks.read(Offer, [*Parties(3, 2).told(0)[1][:3], {"0": share}])


@pytest.mark.parametrize("key", [None, "abc", {}, {"public": "AAAA"}, {"public": 7}, {"name": None}, {"more": ""}])
def test_a_key_that_is_none(key):
    fine = Parties(3, 2).keys[0]
    assert masks.read(masks.Key, fine._asdict()) == fine
    with pytest.raises(fedax.NodeError, match="the key of a node is none"):
        masks.read(masks.Key, fine._asdict() | key if isinstance(key, dict) and key else key)


def test_rules_that_a_node_refuses():
    fine = Parties(3, 2).told(0)
    for rules in (None, [], [0, 0.9], [1.0, 0.9], [True, 0.9], [1, 0], [1, 1.1], [1, float("nan")], [1, 0.5, 1]):
        with pytest.raises(fedax.NodeError, match="no offer"):
            masks.read(Offer, [*fine[1][:2], rules, fine[1].shares])
    assert masks.read(Offer, [*fine[1][:2], [2, 1], fine[1].shares]).rules == masks.Rules(2, 1.0)


# ---- figures


def summed(figures: Sequence[Any]) -> np.ndarray:
    """The figures of some nodes, added by the protocol."""
    encoded = [masks.encode_figures(np.asarray(each, float), len(figures)) for each in figures]
    parties = Parties(len(figures), len(figures), 64, len(encoded[0]))
    parties.sums = np.stack(encoded)
    return masks.decode_figures(parties.total(parties.masked(range(len(figures))), range(len(figures))))


def test_figures():
    rng = np.random.default_rng(0)
    for nodes in (2, 3, 8):
        counts = rng.integers(0, 2**30, (nodes, 50)).astype(float)
        losses = rng.uniform(-10, 10, (nodes, 50)) * 10.0 ** rng.integers(-6, 3, (nodes, 50))
        found = summed(np.hstack([counts, losses]))
        assert found[:50].tolist() == counts.sum(0).tolist()
        np.testing.assert_allclose(found[50:], losses.sum(0), rtol=0, atol=nodes * 2.0**-31 + 1e-12)
        np.testing.assert_allclose(found[50:] / nodes, losses.mean(0), rtol=0, atol=1e-9)


@pytest.mark.parametrize("nodes", [2, 3, 7, 20])
def test_figures_do_not_overflow(nodes):
    """As large as they may be, of all nodes and of either sign; a little more is not a wrong figure but none."""
    largest = masks.most(nodes, 64) / 2**30
    assert 2**33 / nodes * (1 - 1e-6) < largest <= 2**33 / nodes
    for sign in (1, -1):
        whole = np.add.reduce([masks.encode_figures(np.array([sign * largest, 1.0]), nodes) for _ in range(nodes)])
        assert masks.decode_figures(whole).tolist() == [sign * largest * nodes, nodes]
    for wrong in (np.nextafter(largest, np.inf), -2.0 * largest, 1e308, np.inf, -np.inf, np.nan):
        one = masks.encode_figures(np.array([wrong, 1.0]), nodes)
        assert one[-1] == 1
        assert np.isnan(masks.decode_figures(one + masks.encode_figures(np.ones(2), nodes))).all()


def test_figures_that_are_none_hide_those_of_others():
    """A model that diverges at all nodes but one: the sum of the numbers says nothing of the one."""
    size = 4096
    bad = [masks.encode_figures(np.full(size, np.nan), 3) for _ in range(2)]
    total = bad[0] + bad[1] + masks.encode_figures(np.ones(size), 3)
    assert total[-1] == 2
    assert scipy.stats.chisquare(np.bincount(total[:-1].view(np.uint8), minlength=256)).pvalue > here.SURE
    assert len({*bad[0].tolist()} & {*bad[1].tolist()}) == 1  # they have the 1 in common


def test_the_bytes_of_fewer_bits_are_as_before():
    """Masked numbers of a node of the last version and of one of this would add up: a stream and its bytes."""
    values = np.array([0, 1, 2**8 - 1, 2**16 + 2, 2**24 + 3, 2**32 - 1], np.uint32)
    for bits in (8, 16, 24, 32):
        each = [int(v) % 2**bits for v in values]
        assert masks.packed(values, bits).tobytes() == b"".join(v.to_bytes(bits // 8, "little") for v in each)
        back = masks.unpacked(masks.packed(values, bits), bits)
        assert (back.tolist(), back.dtype) == (each, np.uint32)
    wide = np.array([0, 2**40 + 1, 2**64 - 1], np.uint64)
    assert masks.packed(wide, 64).tobytes() == wide.tobytes()
    assert (masks.unpacked(masks.packed(wide, 64), 64) == wide).all()
    assert masks.flat({"a": wide}, 64).dtype == np.uint64 and masks.flat({"a": wide[:1]}).dtype == np.uint32
    streams = [masks._stream(bytes(32), 3, bits).tolist() for bits in (8, 16, 24, 32, 64)]
    assert streams == STREAMS


# AES-256 in counter mode, of zeros.
STREAMS = [
    [220, 149, 192],
    [38364, 30912, 16546],
    [12621276, 4235896, 11372937],
    [2025887196, 2307473570, 346179757],
    [9910523521560253916, 9736928157321283757, 13345931270979981139],
]
