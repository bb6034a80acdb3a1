"""The gate of a node: the one way by which anything that was computed from its examples leaves it."""

import functools
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


class ClientTable(NamedTuple):
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

    def leave(self, question: Question, result: Sum | Evaluation | ClientTable) -> Message:
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

    def _left(self, question: Question, result: Sum | Evaluation | ClientTable) -> Message:
        policy, (name, content, model, to) = self.policy, question
        self.noised = []
        head, shares, loss, numbers = {}, [], 0.0, 0  # type: Mapping[str, Unknown], list[Share], float, int
        match result:
            case Sum():
                policy.check_upload(result.single, result.guarded, result.secret)
                policy.refuse(Rule.STEPS, result.steps < policy.steps)
                for which, weights in (("ω", result.weights), ("p", result.data_weights)):
                    each = np.ones(1) if result.single else weights
                    policy.check_sum(each, result.sizes[: len(each)])
                    of = digest_of_text(f"{result.kind} {which}\nuint8 ({len(model)},)\n{model}")
                    if result.single:  # each is a sum of its own
                        shares += [Share(f"{of} {one}", "train", {one: 1.0}, result.split) for one in result.names]
                    else:
                        shares.append(_share(of, "train", zip(result.names, each.tolist(), strict=True), result.split))
                if policy.update_noise is not None:
                    loss, numbers = policy.update_noise**-2, sum(map(np.size, jax.tree.leaves(result.arrays)))
                head, arrays = result.head, lambda: self._noised(result, content)
            case Evaluation():
                policy.check_sum(result.weights, result.sizes)
                few = any(sum(held.values()) < policy.examples for held in result.held.values())
                policy.refuse(Rule.HELD, few)
                if policy.noise is None:
                    parts = {"train": dict(zip(result.names, result.weights.tolist(), strict=True)), **result.held}
                    shares = [
                        _share(f"figures {model}", part, each.items(), result.split) for part, each in parts.items()
                    ]
                    arrays = result.exact
                else:
                    bounded = result.bounded(policy.bound or 0.0, policy.unit)
                    loss, numbers = len(bounded) * policy.noise**-2, len(bounded)
                    arrays = lambda: self._noisy(result, bounded, content)  # noqa: E731
            case ClientTable():
                policy.check_table(int(result.sizes.min()))
                allowed = {name: each for name, each in result.figures.items() if not policy.refused([f"test_{name}"])}
                head, arrays = {"columns": [*allowed]}, lambda: allowed
        if policy.clients == policy.examples == 1:
            shares = []  # no difference can be of fewer
        if not self.answered.known(name, content):
            self.check_shares(shares)
        self.answered.take(name, content, policy, loss, numbers, shares=shares)
        leaving = arrays()
        if isinstance(result, Evaluation) and result.sealed is not None:
            leaving = result.sealed(leaving)
        return Message({"to": to, **head}, packed(jax.tree.map(np.asarray, leaving)))

    def check_shares(self, shares: Sequence[Share]) -> None:
        """Refuse a sum whose difference to others for the same model could be of too few clients, rows or nodes."""
        policy = self.policy
        for of in {share.of for share in shares}:
            known = self.answered.shares(of)
            new = [share for share in shares if share.of == of and share not in known]
            if not new:
                continue  # the same weights again
            nodes = [share for share in known + new if share.part == "nodes"]
            rows = [share for share in known + new if share.part != "nodes"]
            train = [share for share in rows if share.part == "train"]
            few_nodes = policy.nodes is not None and nodes and _apart(nodes) <= policy.nodes
            policy.refuse(Rule.NODES_APART, bool(few_nodes))
            policy.refuse(Rule.CLIENTS_APART, bool(policy.clients > 1 and rows and _apart(train) < policy.clients))
            few_rows = policy.examples > 1 and rows and fewest(np.stack([*map(self._rows, rows)])) < policy.examples
            policy.refuse(Rule.EXAMPLES_APART, bool(few_rows))

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
        kinds = functools.partial(noised, weight=of_estimates), functools.partial(noised, weight=of_changes)
        return {**result.arrays, "total": by_kind(*kinds, result.arrays["total"])}

    def _noisy(self, result: Evaluation, bounded: Sequence[Bounded], content: str) -> Tree:
        """The arrays of an evaluation with noise on each figure."""
        self.noised, z = [each.column for each in bounded], self.policy.noise or 0.0
        drawn = [float(self._normals(column, content, ())) for column in self.noised]
        values = {each.column: each.value + z * each.reach * d for each, d in zip(bounded, drawn, strict=True)}
        return result.noisy(values)

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


def _share(of: str, part: str, weights: Iterable[tuple[str, float]], split: Unknown) -> Share:
    return Share(of, part, {name: w for name, w in weights if w > 0}, split)


def _apart(shares: Iterable[Share]) -> int:
    """The fewest clients, or nodes, in a difference of sums with these weights."""
    shares = list(shares)
    units = sorted({unit for share in shares for unit in share.weights})
    return fewest(np.array([[share.weights.get(unit, 0.0) for unit in units] for share in shares]))
