"""Secure aggregation, the protocol: masks on nodes' sums that cancel in the total (Bonawitz et al. 2017, Figure 4).

In an exchange each node i draws a seed b_i and a pair of keys (s_i, S_i). It sends S_i and, encrypted for each other
node, a share of b_i and one of s_i. Its sum x_i, whole numbers modulo 2^bits, then goes as

    y_i = x_i + PRG(b_i) + Σ_{j > i} PRG(k_ij) − Σ_{j < i} PRG(k_ij),   k_ij of s_i and S_j, or of s_j and S_i.

When it is known whose y_i came, the nodes give their shares of b_i of those, and of s_i of the others whose masks are
in the sum. A node gives one of the two of each node, once, and none where fewer than ``threshold`` are to be summed. So
the server learns the sum over those nodes, and no more.

The server and the link are not trusted. Each node signs its keys, with those by which the nodes know one another
(:mod:`fedax.sites.protocol.roster`), and with them what is asked of it: of which exchange, of which model and job, over
which nodes, with which weight. It masks a sum with those alone that have signed the same, and where its own weight does
not outdo theirs. Before shares are given, the nodes sign whose y_i are summed, and each looks at the others' signatures
(the round of consistency). With n nodes, of which c work with the server, 2 ``threshold`` > n + c: two different sets
of nodes cannot both have ``threshold`` signatures, nor both kinds of shares of one node.

A server that makes the others add nothing would see one node's own sum. So each node also signs whether it adds: if
any number of its x_i is not zero. No node gives shares unless so many have signed it that each has as many others as
its owner wants. Nodes that add nothing keep to that too: with ``threshold`` of them the server could unmask the one
that adds. Where all nodes whose y_i are summed have signed that they add nothing, the sum is zero, and shares are
given. For the same reason each node signs its owner's rules with its offer, and all nodes keep to all of them.

That does not hold off a server that knows an x_i although it is not zero: because each update reaches the clip, because
it is a count of examples, or from nodes that work with it. Nor one for whom others' x_i are zero but for a few numbers.
And the server sees of each node whether it adds.

Keys are X25519's, derived ones HKDF-SHA256's, PRG is AES-256-CTR, shares are encrypted by AES-256-GCM: of the package
``cryptography``. Shares are Shamir's, of the package ``pycryptodome``. Both come with ``fedax[deploy]``.
"""

import base64
import dataclasses
import functools
import hashlib
import json
import math
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, NamedTuple, TypeVar

import jax
import numpy as np
import pydantic

from fedax.contract.types import Tree, Unknown
from fedax.errors import ConfigError, NodeError
from fedax.sites.protocol.roster import Roster
from fedax.wire.secure import most

Form = TypeVar("Form", bound=NamedTuple)
_SEED = 16  # bytes of b_i; Shamir's shares are of so many
_KEY = 32  # bytes of s_i
_NONCE = 12
_TURNS = 256  # the most sums under way whose secrets a node keeps: runs side by side have two each
_FIGURE = 2.0**30  # whole numbers in a figure of 1


def require() -> None:
    """Check that the packages are there.

    Raises:
        ConfigError: one is not.
    """
    try:
        import Crypto.Protocol.SecretSharing  # noqa: F401
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
        raise ValueError(f"{len(found)} bytes in the place of {size}")
    return found


def _checked(text: str, size: int | None = None) -> str:
    _bytes(text, size)
    return text


_File = Annotated[str, pydantic.AfterValidator(_checked)]
_File32 = Annotated[str, pydantic.AfterValidator(functools.partial(_checked, size=32))]  # a public key, or a digest
_Weight = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]


@functools.cache
def _reader(form: type[Form]) -> pydantic.TypeAdapter[Form]:
    return pydantic.TypeAdapter(form, config={"strict": True})


def _read(form: type[Form], given: Unknown, what: str) -> Form:
    """JSON that came, in one of the forms below.

    Raises:
        NodeError: it is not of this form; ``what``: begins the message.
    """
    try:
        return _reader(form).validate_python(given)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        wrong = [*map(str, first["loc"]), first["msg"].removeprefix("Value error, ")]
        raise NodeError(f"{what} ({': '.join(wrong)})") from None


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

    @classmethod
    def of(cls, given: Unknown) -> "Key":
        """A key that came as JSON.

        Raises:
            NodeError: it is none.
        """
        return _read(cls, given, "the key of a node is none")

    @property
    def text(self) -> bytes:
        """The bytes that are signed."""
        return f"fedax secure aggregation: the key of {self.name} is {self.public}".encode()


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
    """What a node sends before an exchange.

    Attributes:
        public: S_i.
        seal: a digest of b_i, by which the server checks that it was put together correctly.
        part: the node's part in the sum.
        rules: of the node's owner.
        signature: the node's signature of all that, and of the question.
        shares: for each other node, by its position, its shares of b_i and s_i, encrypted.
    """

    public: _File32
    seal: _File32
    part: MaskedPart
    rules: Rules
    signature: _File
    shares: dict[str, _File]

    def to(self, position: int) -> "ReceivedShares":
        """The form in which another node receives it."""
        return ReceivedShares(*self[:5], _digest(self.shares), self.shares.get(str(position), ""))

    @classmethod
    def of(cls, given: Unknown, position: int, nodes: int) -> "Offer":
        """An offer that came as JSON.

        Raises:
            NodeError: it is none of node ``position`` of so many.
        """
        what = "what came as the offer of a node is no offer"
        offer = _read(cls, given, what)
        if offer.shares.keys() != {str(k) for k in range(nodes) if k != position}:
            raise NodeError(f"{what} (it has not the shares for the other nodes)")
        return offer


class ReceivedShares(NamedTuple):
    """The offer of another node, or of its own, as a node receives it.

    Attributes:
        public: S_j.
        seal: of b_j.
        part: node j's part in the sum.
        rules: of node j's owner.
        signature: of node j.
        shares: the digest of all its shares.
        share: encrypted, for this node.
    """

    public: _File32
    seal: _File32
    part: MaskedPart
    rules: Rules
    signature: str
    shares: str
    share: _File

    @classmethod
    def of(cls, given: Unknown) -> "ReceivedShares":
        """A received offer that came as JSON.

        Raises:
            NodeError: it is not of this form.
        """
        return _read(cls, given, "what came as the offer of a node is no offer")

    def text(self, context: str, position: int) -> bytes:
        """The bytes that are signed."""
        signed = [context, position, self.public, self.seal, self.part, self.rules, self.shares]
        return f"fedax secure aggregation: offer {json.dumps(signed)}".encode()


class Agreed(NamedTuple):
    """What a node says of the sum in which it is.

    Attributes:
        signature: of the exchange, of the offers and nodes of the sum, and of ``adds``.
        adds: whether a number that it adds is not zero modulo 2^bits.
    """

    signature: str
    adds: bool

    @classmethod
    def of(cls, given: Unknown) -> "Agreed":
        """What came as JSON.

        Raises:
            NodeError: it is none.
        """
        return _read(cls, given, "what a node is said to have agreed to is no agreement")


# ---- the node's side


@dataclasses.dataclass
class _ExchangeSecrets:
    """A node's secrets in one exchange, and what it has said.

    Attributes:
        name, position, keys, threshold: as of :meth:`Masks.offer`.
        context: a digest of what all nodes of the exchange share.
        seed, secret: b_i and s_i.
        offer: of this node.
        held: the shares of all nodes' secrets that this node holds, by position.
        asked, answer: the digest of the one message whose answer was masked, and the answer.
        offers: of the nodes whose masks are in the sum.
        sent: the digest of the one y_i.
        adds: as of :class:`Agreed`.
        survivors, agreed: the one agreement of this node.
    """

    name: str
    position: int
    keys: Sequence[Key]
    threshold: int
    context: str
    seed: bytes
    secret: bytes
    offer: Offer
    held: dict[int, bytes]
    asked: str | None = None
    answer: Unknown = None
    offers: Mapping[int, ReceivedShares] = dataclasses.field(default_factory=dict)
    sent: str | None = None
    adds: bool = False
    survivors: tuple[int, ...] = ()
    agreed: Agreed | None = None

    def agreement(self, survivors: Sequence[int], adds: bool) -> bytes:
        """The bytes that nodes sign when they agree whose sums are added; offers are of this exchange alone."""
        offers = _digest([offer.text(self.context, k).decode() for k, offer in sorted(self.offers.items())])
        return f"fedax secure aggregation: agreed {json.dumps([offers, list(survivors), adds])}".encode()


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
        self._checked: set[Key] = set()  # keys are the same in all exchanges of a run

    @property
    def public(self) -> Key:
        """The public key of this node, signed."""
        bare = Key(self._roster.name, _text(_public(self._key)), "")
        return bare._replace(signature=self._roster.signed(bare.text))

    def knows(self, name: str) -> bool:
        """Whether the secrets of an exchange are here; they are lost when the node is started again."""
        return name in self._turns

    def parts(self, name: str, positions: Collection[int]) -> dict[str, float]:
        """Some nodes of an exchange whose sum is masked -> their weights."""
        turn = self._turns[name]
        return {turn.keys[k].name: turn.offers[k].part.weight + turn.offers[k].part.data_weight for k in positions}

    def offer(
        self, name: str, position: int, keys: Sequence[Key], threshold: int, question: str, part: MaskedPart
    ) -> Offer:
        """Draw the secrets of an exchange; a repeated call gives the same.

        Args:
            name: the unique name of the exchange.
            position: the position of this node among those that take part.
            keys: the keys of all of them.
            threshold: how many have to stay.
            question: a digest of the question that all of them have in common.
            part: this node's part in the sum.

        Raises:
            NodeError: a node that is not in the roster; too few nodes, too low a threshold, or another question than
                the first time.
        """
        context = _context(name, keys, threshold, question)
        if (known := self._turns.get(name)) is not None:
            if (known.position, known.context, known.offer.part) != (position, context, part):
                raise NodeError("the masks of this exchange were asked for before, in another way")
            return known.offer
        if not 2 <= threshold <= len(keys) or 2 * threshold <= len(keys) + self._colluding:
            raise NodeError(
                f"{threshold} of {len(keys)} nodes are to stay, and of {self._colluding} that may work with the server "
                f"(secure.colluding) more would have to: set run.secure.threshold"
            )
        mine = self._roster.name, _text(_public(self._key))
        if not 0 <= position < len(keys) or keys[position][:2] != mine or len({key.name for key in keys}) < len(keys):
            raise NodeError("the keys of the nodes do not have this node's, once, or one of them twice")
        for key in {*keys} - self._checked:
            self._roster.check(key.name, key.text, key.signature)
        self._checked = {*keys}
        seed, secret = secrets.token_bytes(_SEED), secrets.token_bytes(_KEY)
        shares = _split(threshold, len(keys), seed + secret)
        sealed = {
            str(k): _text(_encrypted(self._between(key.public, name, position, k), share, name))
            for k, (key, share) in enumerate(zip(keys, shares, strict=True))
            if k != position
        }
        bare = Offer(_text(_public(secret)), _seal(seed), part, self._rules, "", sealed)
        offer = bare._replace(signature=self._roster.signed(bare.to(position).text(context, position)))
        held = {position: shares[position]}
        state = _ExchangeSecrets(name, position, keys, threshold, context, seed, secret, offer, held)
        self._turns = dict(list(self._turns.items())[1 - _TURNS :]) | {name: state}
        return offer

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
        offers: Mapping[int, ReceivedShares],
        question: str,
        part: MaskedPart,
    ) -> np.ndarray:
        """y_i as bytes, uint8 [d · bits/8], of sums uint32 [d], or uint64 [d] if ``bits`` are 64.

        Args:
            name: of the exchange.
            sums: x_i.
            bits: of the group.
            offers: of the nodes that are still there, this one among them, by position.
            question: the question that x_i answers, as in :meth:`offer`.
            part: the part of this node that x_i is.

        Raises:
            NodeError: they are too few, or one has not signed what this one has, or one's weight is all there is;
                something was not meant for this node in this exchange; x_i answers another question; something else
                was masked in this exchange.
        """
        state = self._turns[name]
        me = state.position
        if len(offers) < state.threshold or me not in offers or not {*offers} <= {*range(len(state.keys))}:
            raise NodeError(f"{len(offers)} nodes are left, and {state.threshold} have to stay")
        if offers[me][:5] != state.offer.to(me)[:5]:
            raise NodeError("the masks that this node offered came back as others")
        if (state.context, state.offer.part) != (_context(name, state.keys, state.threshold, question), part):
            raise NodeError("another question is asked than the one for which the nodes have offered masks")
        for k, offer in offers.items():
            self._roster.check(state.keys[k].name, offer.text(state.context, k), offer.signature)
        self._check_rules(state, offers, offers)
        held, sums = {me: state.held[me]}, sums.astype(_word(bits))
        result = sums + _stream(_derived(state.seed, f"own {name}"), sums.size, bits)
        for k in {*offers} - {me}:
            key = self._between(state.keys[k].public, name, k, me)
            held[k] = _decrypted(key, _bytes(offers[k].share), name)
            if len(held[k]) != _SEED + _KEY:
                raise NodeError("shares of another size than they have")
            result += _pair(me, k, state.secret, offers[k].public, name, sums.size, bits)
        file = packed(result, bits)
        # Two sums under one mask would reveal their difference.
        if state.sent not in (None, digest := hashlib.sha256(file.tobytes()).hexdigest()):
            raise NodeError("other numbers were masked in this exchange before")
        state.sent, state.offers, state.held, state.adds = digest, offers, held, bool(packed(sums, bits).any())
        return file

    def agree(self, name: str, survivors: Collection[int]) -> Agreed:
        """Sign the set of nodes whose sums are added, and whether this node adds anything; once.

        Raises:
            NodeError: too few survived, or a node's share is too large; or it has signed another set before.
        """
        state, nodes = self._turns[name], tuple(sorted({*survivors}))
        if state.agreed is not None and state.survivors != nodes:
            raise NodeError("this node has agreed to the sum over another set of nodes in this exchange")
        enough = max(len(survivors), state.threshold)
        if len(nodes) < enough or not {state.position} <= {*nodes} <= state.held.keys():
            raise NodeError(
                f"the sum over nodes {[*nodes]} is asked for, and at least {state.threshold} of {sorted(state.held)}, "
                f"with {state.position} among them, may be summed"
            )
        if state.sent is None:
            raise NodeError("this node has not answered this exchange, and is to be among those that have")
        self._check_rules(state, state.offers, nodes)
        if state.agreed is None:
            signature = self._roster.signed(state.agreement(nodes, state.adds))
            state.survivors, state.agreed = nodes, Agreed(signature, state.adds)
        return state.agreed

    def unmask(self, name: str, agreed: Mapping[int, Unknown]) -> dict[str, str]:
        """For each node, by position, this node's share of b_k if that node survived, else of s_k.

        Args:
            name: of the exchange.
            agreed: what :meth:`agree` gave, or [signature, adds] of JSON, by position.

        Raises:
            NodeError: fewer than the threshold have agreed to the same set as this node, or too few of them add.
        """
        state = self._turns[name]
        if state.agreed is None:
            raise NodeError("this node has not agreed whose sums are added in this exchange")
        if len(agreed) < state.threshold or not {*agreed} <= {*state.survivors}:
            raise NodeError(f"{len(agreed)} nodes have agreed whose sums are added, and {state.threshold} have to")
        said = {k: Agreed.of(each) for k, each in agreed.items()}
        for k, each in said.items():
            self._roster.check(state.keys[k].name, state.agreement(state.survivors, each.adds), each.signature)
        said[state.position] = state.agreed
        adding = sum(each.adds for each in said.values())
        least = 1 + max(state.offers[k].rules.others for k in state.survivors)
        if adding < least and (adding or len(said) < len(state.survivors)):
            raise NodeError(
                f"{adding} of {len(state.survivors)} nodes have signed that what they add is not zero, and {least} "
                "have to, for a sum that hides each node (secure.nodes)"
            )
        state.answer = None
        of_seed, of_secret = slice(_SEED), slice(_SEED, None)
        which = {k: of_seed if k in state.survivors else of_secret for k in sorted(state.held)}
        return {str(k): _text(state.held[k][part]) for k, part in which.items()}

    def _check_rules(
        self, state: _ExchangeSecrets, offers: Mapping[int, ReceivedShares], positions: Collection[int]
    ) -> None:
        """Refuse a sum over some nodes that is against the rules of one: all refuse it, as any of them could unmask."""
        totals = [sum(each) for each in zip(*(offers[k].part for k in positions), strict=True)]
        for k in positions:
            rules, file = offers[k].rules, self._roster.names[state.keys[k].name]
            if len(positions) <= rules.others:
                raise NodeError(
                    f"a secure sum over {len(positions)} nodes is asked for, and the owner of {file!r} wants "
                    f"{rules.others} others in it (secure.nodes)"
                )
            if any(own > rules.share * whole for own, whole in zip(offers[k].part[1:], totals[1:], strict=True)):
                raise NodeError(
                    f"{file!r} would have more than {rules.share:g} of the weight of a secure sum (secure.share)"
                )

    def _between(self, public: str, name: str, sender: int, receiver: int) -> bytes:
        """The key for what one node sends to another; this node is one of the two, and ``public`` of the other."""
        return _derived(_agreed(self._key, public), f"shares {name} {sender} {receiver}")


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
            shares = {at: _bytes(each[str(k)], _SEED if k in masked else _KEY) for at, each in revealed.items()}
        except (LookupError, TypeError, ValueError) as error:
            raise NodeError(f"node {k}: a share of its secrets is none ({type(error).__name__}: {error})") from None
        secret = _joined(dict(list(shares.items())[:threshold]))
        made = _seal(secret) if k in masked else _text(_public(secret))
        if made != (offer.seal if k in masked else offer.public):
            raise NodeError(f"node {k}: the shares of its {'seed' if k in masked else 'key'} do not fit together")
        if k in masked:
            result -= _stream(_derived(secret, f"own {name}"), result.size, bits)
        else:
            for other in masked:
                result += _pair(k, other, secret, offers[other].public, name, result.size, bits)
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


def _context(name: str, keys: Sequence[Key], threshold: int, question: str) -> str:
    """A digest of what all nodes of an exchange share."""
    return _digest([name, [[key.name, key.public] for key in keys], threshold, question])


def _pair(of: int, other: int, secret: bytes, public: str, name: str, size: int, bits: int) -> np.ndarray:
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


def _public(private: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _agreed(private: bytes, public: str) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    try:
        other = X25519PublicKey.from_public_bytes(_bytes(public))
        return X25519PrivateKey.from_private_bytes(private).exchange(other)
    except ValueError as error:
        raise NodeError(f"the public key of a node is none ({error})") from None


def _encrypted(key: bytes, share: bytes, name: str) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = secrets.token_bytes(_NONCE)
    return nonce + AESGCM(key).encrypt(nonce, share, name.encode())


def _decrypted(key: bytes, file: bytes, name: str) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(file[:_NONCE], file[_NONCE:], name.encode())
    except (InvalidTag, ValueError):
        raise NodeError("a share is not meant for this node in this exchange, or was changed on its way") from None


def _split(threshold: int, nodes: int, secret: bytes) -> list[bytes]:
    """Shamir's shares of a multiple of 16 bytes, one for each node."""
    from Crypto.Protocol.SecretSharing import Shamir

    parts = [Shamir.split(threshold, nodes, secret[at : at + 16], ssss=False) for at in range(0, len(secret), 16)]
    return [b"".join(share for _, share in each) for each in zip(*parts, strict=True)]


def _joined(shares: Mapping[int, bytes]) -> bytes:
    """The secret of shares, by the positions of the nodes that held them."""
    from Crypto.Protocol.SecretSharing import Shamir

    size = len(next(iter(shares.values())))
    parts = [[(k + 1, share[at : at + 16]) for k, share in shares.items()] for at in range(0, size, 16)]
    return b"".join(Shamir.combine(part, ssss=False) for part in parts)


def _seal(seed: bytes) -> str:
    return _text(hashlib.sha256(b"fedax secure aggregation: seed " + seed).digest())
