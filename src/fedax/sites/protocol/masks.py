"""Secure aggregation, the protocol: masks on nodes' sums that cancel in the total (Bonawitz et al. 2017, Figure 4).

In an exchange each node i draws a seed b_i and a pair of keys (s_i, S_i). It sends S_i and, encrypted for each other
node, a share of b_i and one of s_i. Its sum x_i, whole numbers modulo 2^bits, then goes as

    y_i = x_i + PRG(b_i) + Σ_{j > i} PRG(k_ij) − Σ_{j < i} PRG(k_ij),   k_ij of s_i and S_j, or of s_j and S_i.

With y_i each node states to each other one what it has answered: which question about which model and job, over which
offers, with which weight. A node gives its shares when all whose y_i are to be summed have stated the same as it, and
where no weight outdoes the others: of b_i of those, and of s_i of the others whose masks are in the sum. It gives one
of the two of each node, once, and none where fewer than ``threshold`` are to be summed. So the server learns the sum
over those nodes, and no more. Before that it has only y_i, which are uniformly random without shares.

The server and the link are not trusted. Each node signs its key C_i, with that by which the nodes know one another
(:mod:`fedax.sites.protocol.roster`). What it says in an exchange has a tag for each other node instead of a signature,
HMAC-SHA256 by a key that C_i and C_j agree on: only the two can make it, and it counts for the one alone that checks
it. The tag of an offer is that of its encrypted share (AES-GCM).

**Whose sums are added.** Let c of n nodes work with the server, and 2 ``threshold`` > n + c, which a node checks. Then
of one exchange the server gets the sum over one set of nodes, and of no node both kinds of shares:

- Where all whose offers are in the sum have answered, their statements are enough (set U). They are about the same
  offers. Two sets of offers have at least ``threshold`` nodes each, and an honest node states one: they would need
  2 ``threshold`` − c > n nodes.
- Where some are gone, the others agree on the set V that is left, each on one, and ``threshold`` tags of the same set
  are needed (the round of consistency). Two sets would have an honest node in common.
- A node gives shares for U or for V, not for both, and keeps to a set that it has agreed to. To unmask needs shares of
  ``threshold`` nodes, so that not both can be had; nor both b_j and s_j of a node that is in U and not in V.

**Offers ahead.** An offer is not about a question, so that a node makes that of the next exchange with the shares of
this one. Its secrets are as fresh, are used for one message, and are gone with the process: the server then asks for
new ones. What is asked is bound by the statements, which no share precedes: a server that shows two nodes two models
gets two masked numbers, and no shares.

A server that makes the others add nothing would see one node's own sum. So each node also states whether it adds: if
any number of its x_i is not zero. No node gives shares unless each has as many others that add as its owner wants.
Nodes that add nothing keep to that too: with ``threshold`` of them the server could unmask the one that adds. Where all
nodes whose y_i are summed add nothing, the sum is zero, and shares are given. For the same reason each node offers its
owner's rules, and all nodes keep to all of them.

That does not hold off a server that knows an x_i although it is not zero: because each update reaches the clip, because
it is a count of examples, or from nodes that work with it. Nor one for whom others' x_i are zero but for a few numbers.
And the server sees of each node whether it adds.

Keys are X25519's, derived ones HKDF-SHA256's, PRG is AES-256-CTR, shares are encrypted by AES-256-GCM: of the package
``cryptography``, which comes with ``fedax[deploy]``. Shares are Shamir's, modulo a prime.
"""

import base64
import dataclasses
import functools
import hashlib
import hmac
import json
import math
import operator
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import jax
import numpy as np
import pydantic

from fedax.contract.types import Tree, Unknown
from fedax.errors import ConfigError, NodeError
from fedax.sites.protocol.roster import Roster
from fedax.wire.secure import most

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

Form = TypeVar("Form", bound=NamedTuple)
_SEED, _KEY = 16, 32  # bytes of b_i and s_i
_PRIMES = {_SEED: 2**130 - 5, _KEY: 2**256 + 297}  # by the size of what is shared; shares have a byte more
_NONCE = 12
_TURNS = 256  # the most sums under way whose secrets a node keeps: runs side by side have four each
_FIGURE = 2.0**30  # whole numbers in a figure of 1


def require() -> None:
    """Check that the packages are there.

    Raises:
        ConfigError: one is not.
    """
    try:
        import cryptography.hazmat.primitives.asymmetric.x25519  # noqa: F401
    except ImportError as error:
        raise ConfigError("secure", error.name, "masks need this package: pip install 'fedax[deploy]'") from None


def least(nodes: int, threshold: int | None) -> int:
    """How many of the nodes that are asked have to stay: ``threshold``, or else more than two thirds; at least two.

    Example:
        >>> least(2, None), least(3, None), least(5, None), least(20, None), least(5, 3)
        (2, 3, 4, 14, 3)
    """
    return max(2, nodes // 2 + 1, threshold or 2 * nodes // 3 + 1)


# ---- what is sent


def _text(file: bytes) -> str:
    return base64.b64encode(file).decode()


def _bytes(text: str, size: int | None = None) -> bytes:
    """Bytes from a received text.

    Raises:
        TypeError, ValueError: it is none, or of another size.
    """
    found = base64.b64decode(text, validate=True)
    if size is not None and len(found) != size:
        raise ValueError(f"{len(found)} bytes instead of {size}")
    return found


def _checked(text: str, size: int | None = None) -> str:
    _bytes(text, size)
    return text


_File = Annotated[str, pydantic.AfterValidator(_checked)]
_File32 = Annotated[str, pydantic.AfterValidator(functools.partial(_checked, size=32))]  # a public key, or a digest
_Weight = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]


class Key(NamedTuple):
    """The signed public key of a node in a run.

    Attributes:
        name: in the roster.
        public: C_i, by which others encrypt for it.
        signature: of the node, of this key.
    """

    name: str
    public: _File32
    signature: str

    @property
    def text(self) -> bytes:
        """The bytes that are signed."""
        return f"fedax secure aggregation: the key of {self.name} is {self.public}".encode()


def _for(position: int, entries: Mapping[str, str]) -> dict[str, str]:
    return {key: each for key, each in entries.items() if key == str(position)}


class MaskedPart(NamedTuple):
    """A node's part in a sum.

    Attributes:
        clients: the number of its clients in it.
        weight: their Σ ω.
        data_weight: their Σ p.
    """

    clients: Annotated[int, pydantic.Field(ge=1)]
    weight: _Weight
    data_weight: _Weight


class Rules(NamedTuple):
    """What a node's owner wants of each sum in which the node is; all nodes keep to it.

    Attributes:
        others: how many other nodes add something, ≥ 1.
        share: the node's largest share of the weight, in (0, 1].
    """

    others: Annotated[int, pydantic.Field(ge=1)]
    share: Annotated[float, pydantic.Field(gt=0, le=1)]


class Offer(NamedTuple):
    """What a node offers for an exchange.

    Attributes:
        public: S_i.
        seal: a digest of b_i, by which the server checks that it was put together correctly.
        rules: of the node's owner.
        shares: for each other node, by its position, its shares of b_i and s_i, encrypted.
    """

    public: _File32
    seal: _File32
    rules: Rules
    shares: dict[str, _File]

    def to(self, position: int) -> "Offer":
        """What one of the other nodes receives of it."""
        return self._replace(shares=_for(position, self.shares))

    def text(self, context: str, position: int) -> bytes:
        """The bytes by which a share is authentic, and with it the rest."""
        return f"fedax secure aggregation: offer {json.dumps([context, position, *self[:3]])}".encode()


class Statement(NamedTuple):
    """What a node states with its y_i.

    Attributes:
        question: a digest of what was asked.
        part: the node's part in the sum.
        adds: whether a number that it adds is not zero modulo 2^bits.
        tags: of all that and of the offers in the sum, for each other node, by its position.
    """

    question: str
    part: MaskedPart
    adds: bool
    tags: dict[str, _File32]

    def to(self, position: int) -> "Statement":
        """What one of the other nodes receives of it."""
        return self._replace(tags=_for(position, self.tags))


class Agreed(NamedTuple):
    """What shows to one node that another one agrees to a set of nodes."""

    tag: _File


_WRONG: dict[type, str] = {
    Key: "the key of a node is none",
    Offer: "what came as the offer of a node is no offer",
    Statement: "what a node is said to state is no statement",
    Agreed: "what a node is said to have agreed to is no agreement",
}


def read(form: type[Form], given: Unknown) -> Form:
    """What came as JSON, in one of the forms above.

    Raises:
        NodeError: it is not of this form.
    """
    try:
        return _reader(form).validate_python(given)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        wrong = [*map(str, first["loc"]), first["msg"].removeprefix("Value error, ")]
        raise NodeError(f"{_WRONG[form]} ({': '.join(wrong)})") from None


@functools.cache
def _reader(form: type[Form]) -> pydantic.TypeAdapter[Form]:
    return pydantic.TypeAdapter(form, config={"strict": True})


# ---- the node's side


@dataclasses.dataclass
class _ExchangeSecrets:
    """A node's secrets in one exchange, and what it has said.

    Attributes:
        name, position, keys, threshold: as of :meth:`Masks.offer`.
        between: what the node's C_i and that of each other node agree on, by position.
        seed, secret: b_i and s_i.
        offer: of this node.
        held: the shares of all nodes' secrets that this node holds, by position.
        asked, answer: the digest of the one message whose answer was masked, and the answer.
        offers: of the nodes whose masks are in the sum.
        sent: the digest of the one y_i.
        said: what the node states with it.
        survivors, parts: whose sums are added, the one set to which this node keeps; and their parts.
    """

    name: str
    position: int
    keys: Sequence[Key]
    threshold: int
    between: Mapping[int, bytes]
    seed: bytes
    secret: "X25519PrivateKey"
    offer: Offer
    held: dict[int, tuple[bytes, bytes]]
    asked: str | None = None
    answer: Unknown = None
    offers: Mapping[int, Offer] = dataclasses.field(default_factory=dict)
    sent: str | None = None
    said: Statement | None = None
    survivors: tuple[int, ...] = ()
    parts: Mapping[int, MaskedPart] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def context(self) -> str:
        """A digest of what all nodes of the exchange share."""
        return _digest([self.name, [[key.name, key.public] for key in self.keys], self.threshold])

    def key(self, purpose: str, sender: int, receiver: int) -> bytes:
        """The key for what one node sends to another, of which this is one."""
        other = receiver if sender == self.position else sender
        return _derived(self.between[other], f"{purpose} {self.name} {sender} {receiver}")

    def tag(self, text: bytes, sender: int, receiver: int) -> str:
        """What shows that one node has sent a text to another."""
        return _text(hmac.digest(self.key("tags", sender, receiver), text, "sha256"))

    def tags(self, text: bytes) -> dict[str, str]:
        """Those of this node for each other one whose offer is in the sum."""
        return {str(k): self.tag(text, self.position, k) for k in self.offers if k != self.position}

    @functools.cached_property
    def _offered(self) -> str:
        """A digest of the offers in the sum; when it is first needed, they are final."""
        return _digest([offer.text(self.context, k).decode() for k, offer in sorted(self.offers.items())])

    def stated(self, sender: int, said: Statement) -> bytes:
        """The bytes of a statement: offers are of this exchange alone."""
        return f"fedax secure aggregation: stated {json.dumps([self._offered, sender, *said[:3]])}".encode()

    def agreement(self, sender: int) -> bytes:
        """The bytes by which nodes agree whose sums are added."""
        return f"fedax secure aggregation: agreed {json.dumps([self._offered, sender, self.survivors])}".encode()


class Masks:
    """The node's side: the secrets of the current exchanges, in memory only.

    Args:
        key: the node's private key, 32 random bytes, which outlives its process.
        roster: the nodes that may take part; it signs for this one.
        colluding: how many other nodes may collude with the server, ≥ 0.
        share: the largest share of this node in the weight of a sum, in (0, 1].
        others: to how many other nodes' numbers this node's are added, ≥ 1: numbers that are not all zero.
    """

    def __init__(self, key: bytes, roster: Roster, colluding: int = 1, share: float = 0.9, others: int = 1):
        self._key, self._roster, self._colluding, self._rules = key, roster, colluding, Rules(others, share)
        self._turns: dict[str, _ExchangeSecrets] = {}
        self._checked: dict[str, tuple[Key, bytes]] = {}  # name -> key, and what it and this node's own agree on

    @property
    def public(self) -> Key:
        """The public key of this node, signed."""
        bare = Key(self._roster.name, _public(_private(self._key)), "")
        return bare._replace(signature=self._roster.signed(bare.text))

    def knows(self, name: str) -> bool:
        """Whether the secrets of an exchange are here; they are lost when the node is started again."""
        return name in self._turns

    def parts(self, name: str) -> dict[str, float]:
        """The nodes whose sum is unmasked, or agreed on -> their weights."""
        turn = self._turns[name]
        return {turn.keys[k].name: part.weight + part.data_weight for k, part in turn.parts.items()}

    def offer(self, name: str, position: int, keys: Sequence[Key], threshold: int) -> Offer:
        """Draw the secrets of an exchange; a repeated call gives the same.

        Args:
            name: the unique name of the exchange.
            position: the position of this node among those that take part.
            keys: the keys of all of them.
            threshold: how many have to stay.

        Raises:
            NodeError: a node that is not in the roster; too few nodes, too low a threshold, or others than the first
                time.
        """
        if (known := self._turns.get(name)) is not None:
            if (known.position, [*known.keys], known.threshold) != (position, [*keys], threshold):
                raise NodeError("the masks of this exchange were asked for before, in another way")
            return known.offer
        if not 2 <= threshold <= len(keys) or 2 * threshold <= len(keys) + self._colluding:
            raise NodeError(
                f"{threshold} of {len(keys)} nodes are to stay, and of {self._colluding} that may work with the server "
                f"(secure.colluding) more would have to: set run.secure.threshold"
            )
        own = _private(self._key)
        mine = self._roster.name, _public(own)
        if not 0 <= position < len(keys) or keys[position][:2] != mine or len({key.name for key in keys}) < len(keys):
            raise NodeError("the keys of the nodes do not have this node's, once, or one of them twice")
        for key in keys:
            if self._checked.get(key.name, (None,))[0] != key:
                self._roster.check(key.name, key.text, key.signature)
                self._checked[key.name] = key, _agreed(own, key.public)
        between = {k: self._checked[key.name][1] for k, key in enumerate(keys)}
        secret, seed = secrets.token_bytes(_KEY), secrets.token_bytes(_SEED)
        shares = [*zip(_split(threshold, len(keys), seed), _split(threshold, len(keys), secret), strict=True)]
        private = _private(secret)
        bare, held = Offer(_public(private), _seal(seed), self._rules, {}), {position: shares[position]}
        state = _ExchangeSecrets(name, position, keys, threshold, between, seed, private, bare, held)
        text = bare.to(position).text(state.context, position)
        for k, share in enumerate(shares):
            if k != position:
                bare.shares[str(k)] = _text(_encrypted(state.key("shares", position, k), b"".join(share), text))
        self._turns = dict(list(self._turns.items())[1 - _TURNS :]) | {name: state}
        return bare

    def following(self, name: str, ahead: str) -> Offer:
        """The offer for another exchange over the nodes of this one."""
        state = self._turns[name]
        return self.offer(ahead, state.position, state.keys, state.threshold)

    def once(self, name: str, message: bytes) -> Unknown:
        """The answer that :meth:`keep` kept for the same message; ``None``: the message is new.

        Two sums under one mask would reveal their difference.

        Raises:
            NodeError: another message was answered in this exchange.
        """
        state, digest = self._turns[name], hashlib.sha256(message).hexdigest()
        if state.asked not in (None, digest):
            raise NodeError("this exchange was asked for before, in another message")
        state.asked = digest
        return state.answer

    def keep(self, name: str, answer: Unknown) -> None:
        """Keep the answer of an exchange, as it may be requested again."""
        self._turns[name].answer = answer

    def masked(
        self,
        name: str,
        sums: np.ndarray,
        bits: int,
        offers: Mapping[int, Offer],
        question: str,
        part: MaskedPart,
    ) -> np.ndarray:
        """y_i as bytes, uint8 [d · bits/8], of sums uint32 [d], or uint64 [d] if ``bits`` are 64.

        Args:
            name: of the exchange.
            sums: x_i.
            bits: of the group.
            offers: of the nodes that are still there, this one among them, by position.
            question: a digest of the question that x_i answers, which all nodes have in common.
            part: the part of this node that x_i is.

        Raises:
            NodeError: they are too few; something was not meant for this node in this exchange, or is not from the
                node that it is said to be from; something else was masked in this exchange.
        """
        state = self._turns[name]
        me = state.position
        if len(offers) < state.threshold or me not in offers or not {*offers} <= {*range(len(state.keys))}:
            raise NodeError(f"{len(offers)} nodes are left, and {state.threshold} have to stay")
        if offers[me][:3] != state.offer[:3]:
            raise NodeError("the masks that this node offered came back as others")
        held, sums = {me: state.held[me]}, sums.astype(_word(bits))
        result = sums + _stream(_derived(state.seed, f"own {name}"), sums.size, bits)
        for k in {*offers} - {me}:
            sealed, text = _bytes(offers[k].shares.get(str(me), "")), offers[k].text(state.context, k)
            share = _decrypted(state.key("shares", k, me), sealed, text)
            if share is None or len(share) != _SEED + _KEY + 2:
                raise NodeError(
                    f"what node {self._file(state, k)!r} is said to have offered is not from it, not meant for this "
                    "node in this exchange, or was changed on its way"
                )
            held[k] = share[: _SEED + 1], share[_SEED + 1 :]
            result += _pair(me, k, state.secret, offers[k].public, name, sums.size, bits)
        file = packed(result, bits)
        # Two sums under one mask would reveal their difference.
        digest = _digest([hashlib.sha256(file.tobytes()).hexdigest(), question, part])
        if state.sent not in (None, digest):
            raise NodeError("other numbers were masked in this exchange before")
        if state.said is None:
            state.sent, state.offers, state.held = digest, offers, held
            bare = Statement(question, part, bool(packed(sums, bits).any()), {})
            state.said = bare._replace(tags=state.tags(state.stated(me, bare)))
        return file

    def stated(self, name: str) -> Statement | None:
        """What this node states with its y_i; ``None``: it has masked nothing in this exchange."""
        return self._turns[name].said

    def agree(self, name: str, said: Mapping[int, Statement]) -> dict[str, str]:
        """Agree to a set of nodes whose sums are added, where others are gone; once. Gives the tags for the others.

        Args:
            name: of the exchange.
            said: what these nodes state.

        Raises:
            NodeError: they are too few, or have not stated what this node has; a rule of an owner is against it; or
                this node keeps to another set.
        """
        state = self._turns[name]
        self._keep_to(state, said)
        return state.tags(state.agreement(state.position))

    def unmask(self, name: str, said: Mapping[int, Statement], agreed: Mapping[int, Agreed]) -> dict[str, str]:
        """For each node, by position, this node's share of b_k if that node's sum is added, else of s_k.

        Args:
            name: of the exchange.
            said: as of :meth:`agree`, where all nodes answered whose masks are in the sum; else nothing.
            agreed: nothing, or what :meth:`agree` gave for this node.

        Raises:
            NodeError: as there; or fewer than the threshold have agreed to the same set as this node.
        """
        state = self._turns[name]
        if said.keys() == state.offers.keys() and said:
            self._keep_to(state, said)
        elif not state.survivors:
            raise NodeError("this node has not agreed whose sums are added in this exchange")
        elif len(agreed) < state.threshold or not {*agreed} <= {*state.survivors}:
            raise NodeError(f"{len(agreed)} nodes have agreed whose sums are added, and {state.threshold} have to")
        for k, each in agreed.items():
            self._check(state, k, state.agreement(k), each.tag)
        state.answer = None
        return {str(k): _text(share[k not in state.survivors]) for k, share in sorted(state.held.items())}

    def _keep_to(self, state: _ExchangeSecrets, said: Mapping[int, Statement]) -> None:
        """Check what some nodes state, and keep to the sum over them; all nodes keep to the rules of all."""
        nodes, own = tuple(sorted(said)), state.said
        if state.survivors not in ((), nodes):
            raise NodeError("this node has agreed to the sum over another set of nodes in this exchange")
        if own is None:
            raise NodeError("this node has not answered this exchange, and is to be among those that have")
        if len(nodes) < state.threshold or not {state.position} <= {*nodes} <= state.held.keys():
            raise NodeError(
                f"the sum over nodes {[*nodes]} is asked for, and at least {state.threshold} of {sorted(state.held)}, "
                f"with {state.position} among them, may be summed"
            )
        said = {**said, state.position: own}
        for k, each in said.items():
            self._check(state, k, state.stated(k, each), each.tags.get(str(state.position), ""))
            if each.question != own.question:
                raise NodeError(f"another question is asked of node {self._file(state, k)!r} than of this one")
        totals = [sum(each) for each in zip(*(each.part for each in said.values()), strict=True)]
        for k, each in said.items():
            rules, file = state.offers[k].rules, self._file(state, k)
            if len(nodes) <= rules.others:
                raise NodeError(
                    f"a secure sum over {len(nodes)} nodes is asked for, and the owner of {file!r} wants "
                    f"{rules.others} others in it (secure.nodes)"
                )
            if any(own > rules.share * whole for own, whole in zip(each.part[1:], totals[1:], strict=True)):
                raise NodeError(
                    f"{file!r} would have more than {rules.share:g} of the weight of a secure sum (secure.share)"
                )
        adding, least = sum(each.adds for each in said.values()), 1 + max(state.offers[k].rules.others for k in nodes)
        if 0 < adding < least:
            raise NodeError(
                f"{adding} of {len(nodes)} nodes state that what they add is not zero, and {least} have to, for a sum "
                "that hides each node (secure.nodes)"
            )
        state.survivors, state.parts = nodes, {k: each.part for k, each in said.items()}

    def _check(self, state: _ExchangeSecrets, sender: int, text: bytes, tag: str) -> None:
        """Check that a node has sent a text to this one; its own needs no tag."""
        me = state.position
        if sender != me and not hmac.compare_digest(state.tag(text, sender, me).encode(), tag.encode()):
            raise NodeError(f"what node {self._file(state, sender)!r} is said to have sent is not from it")

    def _file(self, state: _ExchangeSecrets, position: int) -> str:
        """The name of a node's file, for people."""
        return self._roster.names[state.keys[position].name]


# ---- the server's side


def total(
    name: str,
    masked: Mapping[int, np.ndarray],
    offers: Mapping[int, Offer],
    revealed: Mapping[int, Unknown],
    threshold: int,
    bits: int,
) -> np.ndarray:
    """The server's side: the sum of x_i over the nodes whose y_i came, modulo 2^bits, [d] as in :meth:`Masks.masked`.

    Args:
        name: of the exchange.
        masked: of :meth:`Masks.masked`, by position.
        offers: those that the nodes received.
        revealed: the shares of :meth:`Masks.unmask`, from at least ``threshold`` nodes.
        threshold, bits: as there.

    Raises:
        NodeError: a share is not of its form, or the shares do not make up what they are shares of.
    """
    result = functools.reduce(np.add, [unpacked(each, bits) for each in masked.values()])
    for k, offer in offers.items():
        try:
            size = (_SEED if k in masked else _KEY) + 1
            shares = {at: _bytes(each[str(k)], size) for at, each in revealed.items()}
        except (LookupError, TypeError, ValueError) as error:
            raise NodeError(f"node {k}: a share of its secrets is none ({type(error).__name__}: {error})") from None
        secret = _joined(dict(list(shares.items())[:threshold]))
        made = _seal(secret) if k in masked else _public(_private(secret))
        if made != (offer.seal if k in masked else offer.public):
            raise NodeError(f"node {k}: the shares of its {'seed' if k in masked else 'key'} do not fit together")
        if k in masked:
            result -= _stream(_derived(secret, f"own {name}"), result.size, bits)
        else:
            for other in masked:
                result += _pair(k, other, _private(secret), offers[other].public, name, result.size, bits)
    result &= _word(bits)(2**bits - 1)
    return result


# ---- numbers and bytes


def encode_figures(values: np.ndarray, nodes: int) -> np.ndarray:
    """A node's figures as whole numbers, for a sum modulo 2^64: uint64 [d + 1].

    They count 2^-30 each; the nearest ones are taken. No sum over ``nodes`` nodes overflows: each has figures within
    ±2^33 / nodes. Where one is outside, or not finite, the last whole number is 1 and the others are random. Their sum
    is then random too: it would be another node's own where all that this one has are no numbers.

    Args:
        values: float64 [d].
        nodes: the most nodes of the sum, ≥ 1.

    Example:
        >>> total = encode_figures(np.array([0.25, 7]), 2) + encode_figures(np.array([-0.75, 8]), 2)
        >>> decode_figures(total).tolist()
        [-0.5, 15.0]
    """
    largest = most(nodes, 64) / _FIGURE
    if not np.all(np.abs(values) <= largest):
        return np.append(np.frombuffer(secrets.token_bytes(8 * values.size), np.uint64), np.uint64(1))
    return np.append(np.rint(values * _FIGURE).astype(np.int64).view(np.uint64), np.uint64(0))


def decode_figures(total: np.ndarray) -> np.ndarray:
    """The figures of a sum of :func:`encode_figures`, float64 [d]; all are NaN where a node had one that is no number.

    Args:
        total: uint64 [d + 1]; its last number counts the nodes that had one.
    """
    figures: np.ndarray = total[:-1].view(np.int64) / _FIGURE
    return figures if total[-1] == 0 else figures * np.nan


def flat(sums: Tree, bits: int = 32) -> np.ndarray:
    """All whole numbers of a pytree, uint32 [d], or uint64 [d] if ``bits`` are 64."""
    return np.concatenate([np.asarray(leaf, _word(bits)).reshape(-1) for leaf in jax.tree.leaves(sums)])


def tree_of(sums: np.ndarray, form: Tree) -> Tree:
    """The pytree of this form, from whole numbers [d]."""
    leaves, structure = jax.tree.flatten(form)
    ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])[:-1]
    parts = zip(np.split(sums, ends), leaves, strict=True)
    return jax.tree.unflatten(structure, [part.reshape(leaf.shape) for part, leaf in parts])


def packed(values: np.ndarray, bits: int) -> np.ndarray:
    """uint32 [d], or uint64 [d], modulo 2^bits as bytes, uint8 [d · bits/8].

    Example:
        >>> packed(np.array([1, 2**16 + 2], np.uint32), 16).tolist()
        [1, 0, 2, 0]
    """
    word = np.dtype(_word(bits)).newbyteorder("<")
    return np.ascontiguousarray(values.astype(word).view(np.uint8).reshape(-1, word.itemsize)[:, : bits // 8]).ravel()


def unpacked(file: np.ndarray, bits: int) -> np.ndarray:
    """uint32 [d], or uint64 [d] if ``bits`` are 64, from the bytes of :func:`packed`.

    Example:
        >>> unpacked(np.array([1, 0, 2, 0], np.uint8), 16).tolist()
        [1, 2]
    """
    word = np.dtype(_word(bits)).newbyteorder("<")
    whole = np.zeros((file.size // (bits // 8), word.itemsize), np.uint8)
    whole[:, : bits // 8] = file.reshape(len(whole), -1)
    return whole.reshape(-1).view(word).astype(_word(bits))


def _word(bits: int) -> type[np.uint32] | type[np.uint64]:
    """The type of whole numbers modulo 2^bits."""
    return np.uint64 if bits > 32 else np.uint32


# ---- cryptography


def _digest(content: Unknown) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _pair(of: int, other: int, secret: "X25519PrivateKey", public: str, name: str, size: int, bits: int) -> np.ndarray:
    """± PRG(k_ij): how the mask that two nodes have in common counts in the sum of the first."""
    drawn = _stream(_derived(_agreed(secret, public), f"pair {name}"), size, bits)
    return drawn if of < other else np.negative(drawn)


def _stream(key: bytes, size: int, bits: int) -> np.ndarray:
    """PRG: [size], uniform below 2^bits. A key is used once, so that the counter may begin at 0."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    drawn = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(size * bits // 8))
    return unpacked(np.frombuffer(drawn, np.uint8), bits)


def _derived(secret: bytes, purpose: str) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, None, f"fedax secure aggregation: {purpose}".encode()).derive(secret)


def _private(secret: bytes) -> "X25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(secret)


def _public(private: "X25519PrivateKey") -> str:
    return _text(private.public_key().public_bytes_raw())


def _agreed(private: "X25519PrivateKey", public: str) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        return private.exchange(X25519PublicKey.from_public_bytes(_bytes(public)))
    except ValueError as error:
        raise NodeError(f"the public key of a node is none ({error})") from None


def _encrypted(key: bytes, share: bytes, text: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = secrets.token_bytes(_NONCE)
    return nonce + AESGCM(key).encrypt(nonce, share, text)


def _decrypted(key: bytes, file: bytes, text: bytes) -> bytes | None:
    """A share; ``None``: neither it nor the text is from who has the key."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(file[:_NONCE], file[_NONCE:], text)
    except (InvalidTag, ValueError):
        return None


def _split(threshold: int, nodes: int, secret: bytes) -> list[bytes]:
    """Shamir's shares of a secret, one for each node: a random polynomial modulo a prime at 1, 2, …

    Example:
        >>> shares = _split(3, 5, bytes(range(16)))
        >>> _joined({k: shares[k] for k in (4, 0, 2)}) == bytes(range(16)), _joined({0: shares[0], 1: shares[1]})[:1]
        (True, ...)
    """
    prime = _PRIMES[len(secret)]
    factors = [*(secrets.randbelow(prime) for _ in range(threshold - 1)), int.from_bytes(secret, "big")]
    values = (functools.reduce(lambda value, each: (value * at + each) % prime, factors) for at in range(1, nodes + 1))
    return [value.to_bytes(len(secret) + 1, "big") for value in values]


def _joined(shares: Mapping[int, bytes]) -> bytes:
    """The secret of shares, by the positions of the nodes that held them: the polynomial at 0."""
    size = len(next(iter(shares.values()))) - 1
    factors = _at_zero(tuple(shares), _PRIMES[size])
    value = sum(map(operator.mul, factors, (int.from_bytes(share, "big") for share in shares.values())))
    return (value % _PRIMES[size] % 2 ** (8 * size)).to_bytes(size, "big")


@functools.lru_cache(maxsize=8)
def _at_zero(positions: tuple[int, ...], prime: int) -> list[int]:
    """Lagrange's factors: what the shares of these nodes count."""
    places = [k + 1 for k in positions]
    ratios = ([(other, other - at) for other in places if other != at] for at in places)
    return [
        math.prod(up for up, _ in each) * pow(math.prod(down for _, down in each), -1, prime) % prime for each in ratios
    ]


def _seal(seed: bytes) -> str:
    return _text(hashlib.sha256(b"fedax secure aggregation: seed " + seed).digest())
