"""The gate of a node: the one way by which anything that was computed from its examples leaves it."""

import hmac
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedax.contract.types import Array, Tree, Unknown
from fedax.sites.protocol.agreement import digest_of_text
from fedax.sites.protocol.answered import Answered, Share
from fedax.sites.protocol.messages import Message, packed
from fedax.sites.protocol.policy import Policy
from fedax.sites.protocol.refusals import Refusal, Rule
from fedax.sites.protocol.span import fewest
from fedax.wire.sums import by_kind


class Question(NamedTuple):
    """What an answer is to.

    Attributes:
        name: of what is answered once, such as an exchange of a run.
        content: a digest of all that the answer depends on, the data among it.
        model: a digest of the model that came with it.
        to: a digest of the message, which the answer repeats.
    """

    name: str
    content: str
    model: str
    to: str


class Sum(NamedTuple):
    """The weighted sum of the uploads of some clients; or these uploads one by one.

    Attributes:
        arrays: ``"total"``, or the uploads in another form.
        head: entries of the answer's head: the numbers of steps and of gradients.
        names, weights, data_weights, sizes: [k] the clients, ω, p and how many examples each has; weights are 0 of
            those whose upload is not in the sum, because a guard left it out or because it was not finite.
        steps: the fewest local steps that a client has taken.
        kind: which upload it is, of which sums for one model can be subtracted.
        split: how the rows are split.
        single: whether uploads leave one by one.
        guarded: whether a guard tells which count.
        whole: whether all uploads are in the sum.
        secret: whether it is masked.
    """

    arrays: Mapping[str, Tree]
    head: Mapping[str, Unknown]
    names: Sequence[str]
    weights: np.ndarray
    data_weights: np.ndarray
    sizes: np.ndarray
    steps: int
    kind: str
    split: Unknown
    single: bool
    guarded: bool
    whole: bool
    secret: bool


class Bounded(NamedTuple):
    """A figure that is clipped: its column, its value, and how far one client, or one row, can move it."""

    column: str
    value: float
    reach: float


class Evaluation(NamedTuple):
    """The figures of a model.

    Attributes:
        names, weights, sizes: [k] the clients, p, and how many training examples each has.
        held: held-out part -> client -> how many examples of it; all of them count the same.
        exact: gives the answer's arrays.
        bounded: gives the figures clipped to [0, bound].
        noisy: gives the answer's arrays from figures with noise, by their columns.
        split: how the rows are split.
        sealed: masks the answer's arrays in a secure sum; ``None``: they leave as they are.
    """

    names: Sequence[str]
    weights: np.ndarray
    sizes: np.ndarray
    held: Mapping[str, Mapping[str, int]]
    exact: Callable[[], Tree]
    bounded: Callable[[float, str], list[Bounded]]
    noisy: Callable[[Mapping[str, float]], Tree]
    split: Unknown
    sealed: Callable[[Tree], Tree] | None = None


class Table(NamedTuple):
    """Figures of single clients, column -> [k]; ``sizes``: how many test examples each of them has."""

    figures: Mapping[str, np.ndarray]
    sizes: np.ndarray


class Gate:
    """Checks, records and noises what leaves.

    Args:
        policy: the owner's.
        answered: the record.
        secret: of the node, from which its noise is drawn.
        rows: gives of a share the weight of each of the node's rows, [n].

    Attributes:
        noised: the columns that left with noise in the last answer, for the log.
    """

    def __init__(self, policy: Policy, answered: Answered, secret: bytes, rows: Callable[[Share], np.ndarray]):
        self.policy, self.answered, self._secret, self._rows = policy, answered, secret, rows
        self.noised: list[str] = []

    def leave(self, question: Question, result: Sum | Evaluation | Table) -> Message:
        """The answer with a result; it is in the record when it is returned.

        Raises:
            Refusal: a rule of the owner is against it, or it cannot be recorded.
            Repeated: another question of this name was answered.
        """
        try:
            return self._left(question, result)
        except Refusal:
            if isinstance(result, Sum) and not result.whole:  # it tells of the data, and counts as an answer
                self.answered.take(f"refusal of {question.name}", question.content, self.policy)
            raise

    def _left(self, question: Question, result: Sum | Evaluation | Table) -> Message:
        policy, (name, content, model, to) = self.policy, question
        self.noised = []
        loss, numbers = 0.0, 0
        shares: list[Share] = []
        match result:
            case Sum():
                policy.check_upload(result.single, result.guarded, result.secret)
                policy.check_work(result.steps)
                for which, weights in (("ω", result.weights), ("p", result.data_weights)):
                    one = slice(0, 1) if result.single else slice(None)
                    policy.check_sum(np.ones(1) if result.single else weights, result.sizes[one])
                    of = digest_of_text(f"{result.kind} {which}\nuint8 ({len(model)},)\n{model}")
                    apart = [[name] for name in result.names] if result.single else [result.names]
                    for names in apart:  # of uploads one by one each is a sum of its own
                        there = np.ones(1) if result.single else weights
                        each = f"{of} {names[0]}" if result.single else of
                        shares += [self._share(each, "train", names, there, result.split)]
                if policy.update_noise is not None:
                    loss, numbers = policy.update_noise**-2, sum(map(np.size, jax.tree.leaves(result.arrays)))
            case Evaluation():
                policy.check_sum(result.weights, result.sizes)
                for held in result.held.values():
                    policy.check_held(sum(held.values()))
                shares = [self._share(f"figures {model}", "train", result.names, result.weights, result.split)]
                shares += [
                    Share(f"figures {model}", part, {client: n for client, n in held.items() if n}, result.split)
                    for part, held in result.held.items()
                ]
                if policy.noise is not None:
                    bounded = result.bounded(policy.bound or 0.0, policy.unit)
                    loss, numbers, shares = len(bounded) * policy.noise**-2, len(bounded), []
            case Table():
                policy.check_table(int(result.sizes.min()))
        if policy.clients == policy.examples == 1:
            shares = []  # no difference can be of fewer
        if not self.answered.known(name, content):
            self.check_shares(shares)
        self.answered.take(name, content, policy, loss, numbers, shares=shares)
        match result:
            case Sum():
                arrays = self._noised(result, content)
                return Message({"to": to, **result.head}, packed(jax.tree.map(np.asarray, arrays)))
            case Evaluation():
                if policy.noise is None:
                    arrays = result.exact()
                else:
                    with_noise = {
                        each.column: each.value
                        + policy.noise * each.reach * float(self._normals(each.column, content, ()))
                        for each in bounded
                    }
                    self.noised, arrays = [*with_noise], result.noisy(with_noise)
                arrays = arrays if result.sealed is None else result.sealed(arrays)
                return Message({"to": to}, packed(jax.tree.map(np.asarray, arrays)))
            case Table():
                allowed = {
                    name: values for name, values in result.figures.items() if not policy.refused([f"test_{name}"])
                }
                return Message({"to": to, "columns": [*allowed]}, packed(allowed))

    def check_shares(self, shares: Sequence[Share]) -> None:
        """Refuse a sum whose difference to others for the same model could be of too few clients, rows or nodes."""
        policy = self.policy
        for of in {share.of for share in shares}:
            new = [share for share in shares if share.of == of]
            together = [*self.answered.shares(of), *(share for share in new if share not in self.answered.shares(of))]
            if len(together) == len(self.answered.shares(of)):
                continue  # the same weights again
            nodes = [share for share in together if share.part == "nodes"]
            if policy.nodes is not None and nodes and _apart(nodes) < policy.nodes + 1:
                raise Refusal(Rule.NODES_APART, policy.nodes)
            rows = [share for share in together if share.part != "nodes"]
            if policy.clients > 1 and rows and _apart([each for each in rows if each.part == "train"]) < policy.clients:
                raise Refusal(Rule.CLIENTS_APART, policy.clients)
            if policy.examples > 1 and rows and fewest(np.stack([self._rows(each) for each in rows])) < policy.examples:
                raise Refusal(Rule.EXAMPLES_APART, policy.examples)

    @staticmethod
    def _share(of: str, part: str, names: Sequence[str], weights: np.ndarray, split: Unknown) -> Share:
        counted = {name: float(w) for name, w in zip(names, np.asarray(weights), strict=True) if w > 0}
        return Share(of, part, counted, split)

    def _noised(self, result: Sum, content: str) -> Tree:
        """A sum of updates with the node's own noise, of a secret of the node."""
        clip, noise, places = self.policy.clip, self.policy.update_noise, itertools.count()
        if clip is None or noise is None:
            return result.arrays

        def noised(leaf: Array, weight: float) -> Array:
            value = np.asarray(leaf)
            drawn = self._normals(f"update {next(places)}", content, value.shape)
            return np.asarray(value + noise * clip * weight * drawn, value.dtype)

        of_estimates, of_changes = float(result.weights.max()), float(result.data_weights.max())
        total = by_kind(
            lambda leaf: noised(leaf, of_estimates), lambda leaf: noised(leaf, of_changes), result.arrays["total"]
        )
        return {**result.arrays, "total": total}

    def _normals(self, name: str, content: str, shape: tuple[int, ...]) -> np.ndarray:
        """Standard normal numbers from the node's secret: the same for the same question.

        Made like those of :func:`fedax.wire.privacy.standard_normal`, in float64. The scale of the noise is part of the
        question: the same numbers at two scales would show what they hide.
        """
        seed = hmac.digest(self._secret, f"noise {name} {content}".encode(), "sha256")
        drawn, number = np.random.default_rng(int.from_bytes(seed, "big")), math.prod(shape)
        high, low, turn = drawn.integers(2**64, size=(3, -(-number // 2)), dtype=np.uint64).astype(float)
        radius = np.sqrt(-2 * np.log(high * 2.0**-64 + (low + 0.5) * 2.0**-128))
        angle = 2 * math.pi * 2.0**-64 * turn
        both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        return np.asarray(both[:number].reshape(shape))


def _apart(shares: Iterable[Share]) -> int:
    """The fewest clients, or nodes, in a difference of sums with these weights."""
    shares = list(shares)
    units = sorted({unit for share in shares for unit in share.weights})
    return fewest(np.array([[share.weights.get(unit, 0.0) for unit in units] for share in shares]))
