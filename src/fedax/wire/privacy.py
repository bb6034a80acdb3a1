"""Differential privacy of clients: the settings, clipping of uploads, and noise on their sums, for any method.

:mod:`fedax.privacy` accounts for what a run spends of its privacy budget; :mod:`fedax.engine.private` checks a run and
puts the layer :class:`Private` around its method; :mod:`fedax.engine.secret` keeps the key of the noise.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from fedax.contract.algorithm import Exchange, Layer, Round
from fedax.contract.settings import Settings, plain
from fedax.contract.types import Array, Number, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.errors import ConfigError
from fedax.numbers import check_count, check_number
from fedax.wire.sums import by_kind, clipped, without_marks

_NOISE = 0x6E6F6973  # folded into the server's key of a round: it has no other use for this number


class AdaptiveClip(Settings):
    """A clip that follows a quantile of the norms of uploads: C ← C·exp(−rate·(b − quantile)).

    b is the share of clients whose uploads are no longer than C. Each sends one bit for it; their count gets noise of
    its own, and the noise on the uploads grows so that both together cost what ``DP.noise`` says:
    z_Δ = (z⁻² − (2σ)⁻²)^(−1/2).

    Args:
        quantile: γ in (0, 1), of the norms.
        rate: η > 0, of the clip's logarithm.
        noise: σ > z/2, the standard deviation of the noise on the count; ``None``: a twentieth of the cohort that is
            expected.

    Raises:
        ConfigError: numbers out of range.

    Source: Andrew et al. 2021, "Differentially private learning with adaptive clipping", Algorithm 1, Theorem 1.

    Example:
        >>> round(float(AdaptiveClip(quantile=0.5).next(1.0, below=1.0)), 3)  # all are shorter: clip more
        0.905
    """

    quantile: Number = 0.5
    rate: Number = 0.2
    noise: Number | None = None

    def __check_init__(self) -> None:
        check_number("adaptive.quantile", self.quantile, 0, 1, open_low=True, open_high=True)
        check_number("adaptive.rate", self.rate, 0, open_low=True)
        if self.noise is not None:
            check_number("adaptive.noise", self.noise, 0, open_low=True)

    def next(self, clip: Number, below: Number) -> Array:
        """The clip after a round in which the share ``below`` of uploads was no longer than ``clip``."""
        return clip * jnp.exp(-self.rate * (jnp.clip(below, 0, 1) - self.quantile))


class DP(Settings):
    """Differential privacy of clients, by a server that is trusted: who sees the models learns little of any client.

    Each upload, all of its arrays together, is shortened to at most ``clip``; one that is not finite becomes zero.
    The sum over a cohort, with equal weights, gets Gaussian noise of standard deviation ``noise``·``clip`` for each of
    its numbers, once, and is divided by the number of clients that is *expected*. Each exchange of a round is released
    so, and the warm-up. :class:`fedax.privacy.Ledger` says what that costs, ε, and the history has it as a column.

    What is protected is whether a client takes part with its data: the model and its whole trajectory. Losses that are
    measured on clients' data are not. See docs/privacy.md.

    Args:
        clip: C > 0, the largest Euclidean norm of an upload.
        noise: z ≥ 0, the standard deviation of the noise on the sum in units of the clip; 0: no guarantee, ε = ∞.
        delta: δ in (0, 1), for which ε is reported; below one over the number of clients.
        epsilon: a budget: the run ends with the last round within it; ``None``: none.
        adaptive: how the clip follows the uploads, which begin with ``clip``; ``None``: it stays.
        by_leaf: clip each of the L arrays of an upload to C/√L, in place of all together.
        bands: over how many rounds the noise is correlated (DP-FTRL with banded matrices): what earlier rounds added is
            partly taken away again. Needs cohorts that are not drawn, and a client in at most one of so many
            rounds: :class:`fedax.Cyclic`, or 1.
        noise_seed: for tests that have to be repeated, a whole number ≥ 0 and below 2**128 from which the noise is
            made; whoever knows it can take the noise away, so such a run is not private. ``None``: the noise and the
            cohorts are drawn from a secret of the run (:mod:`fedax.engine.secret`), and only the rest from its seed.

    Raises:
        ConfigError: numbers out of range. The run refuses what has no guarantee: unequal weights, cohorts that are
            drawn in another way, robust averages, a guard, methods in which a client is heard alone, a run that ends by
            what is measured on clients.

    Source: McMahan et al. 2018, "Learning differentially private recurrent language models" (fixed denominator);
    Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization".

    Example:
        >>> DP(clip=2.5, noise=1.0, delta=1e-5).clipped(jnp.array([3.0, 4.0]), 2.5)[0].tolist()
        [1.5, 2.0]
    """

    clip: Number
    noise: Number
    delta: float = eqx.field(static=True, converter=plain)
    epsilon: float | None = eqx.field(static=True, converter=plain, default=None)
    adaptive: AdaptiveClip | None = None
    by_leaf: bool = eqx.field(static=True, default=False)
    bands: int = eqx.field(static=True, converter=plain, default=1)
    noise_seed: int | None = eqx.field(static=True, converter=plain, default=None)

    def __check_init__(self) -> None:
        check_number("privacy.clip", self.clip, 0, open_low=True)
        check_number("privacy.noise", self.noise, 0)
        check_number("privacy.delta", self.delta, 0, 1, open_low=True, open_high=True, fixed=True)
        if self.epsilon is not None:
            check_number("privacy.epsilon", self.epsilon, 0, open_low=True, fixed=True)
        if not isinstance(self.adaptive, AdaptiveClip | None):
            raise ConfigError("privacy.adaptive", self.adaptive, "give fedax.AdaptiveClip(...)")
        if not isinstance(self.by_leaf, bool):
            raise ConfigError("privacy.by_leaf", self.by_leaf, "give True or False")
        check_count("privacy.bands", self.bands)
        if self.bands > 1 and self.adaptive is not None:
            raise ConfigError("privacy.bands", self.bands, "correlated noise needs a clip that stays: no adaptive")
        if self.noise_seed is not None and check_count("privacy.noise_seed", self.noise_seed, 0) >= 2**128:
            raise ConfigError("privacy.noise_seed", self.noise_seed, "give a whole number below 2**128")

    def clipped(self, upload: Tree, clip: Number) -> tuple[Tree, Array]:
        """``upload`` shortened to at most ``clip``, zero where it is not finite; and whether it was that short."""
        return clipped(upload, clip, self.by_leaf)

    def entering(self, upload: Tree, download: Tree) -> Tree:
        """The clipped upload, as it enters the sum; ``download``: what the client received from :class:`Private`."""
        if self.adaptive is None:
            return self.clipped(upload, self.clip)[0]
        value, below = self.clipped(upload, download.clip)
        # ± ½, by which one client moves the count less than by 0 or 1.
        return UploadAndBit(value, jnp.where(below, 0.5, -0.5))

    def noise_of_sum(self, expected: Number) -> Array:
        """z of the uploads' sum, in units of the clip; ``expected``: clients of a cohort."""
        if self.adaptive is None:
            return jnp.asarray(self.noise, float)
        left = jnp.asarray(self.noise, float) ** -2 - (2 * self.noise_of_count(expected)) ** -2
        return jnp.where(jnp.asarray(self.noise) > 0, left**-0.5, 0)

    def noise_of_count(self, expected: Number) -> Number:
        """σ of the noise on the count of uploads that are no longer than the clip."""
        assert self.adaptive is not None
        given = self.adaptive.noise
        return jnp.where(jnp.asarray(self.noise) > 0, expected / 20 if given is None else given, 0)


class UploadAndBit(NamedTuple):
    """A clipped upload, and its bit: ½ if it was no longer than the clip, else −½; or the means of both."""

    value: Tree
    below: Array


class DownloadAndClip(NamedTuple):
    """What a client receives under an adaptive clip: the method's download, and the clip."""

    value: Tree
    clip: Array


class PrivateState(NamedTuple):
    """The server's state.

    Attributes:
        inner: the state of the method itself.
        clips: stage -> the clip of each exchange, where it is adaptive; else ``()``.
        past: for each exchange the noise of the last rounds, leaves [bands − 1, ...], if correlated; else ``()``.
        secret: the numbers that the noise is drawn from.
    """

    inner: Tree
    clips: Tree
    past: Tree
    secret: Array


class PublicRound(Round):
    """What a server knows of a round of private uploads, whose weights add up to 1."""

    @property
    def shortfall(self) -> Number:
        return 0.0


class Private(Layer):
    """A method whose server receives sums with noise, and of a round only what is public.

    Attributes:
        inner: the method itself.
        privacy: the settings.
        clients: N.
        chance: π, that a client is in a cohort and answers.
        steps: the local steps of each client that the server's step is given.
        secret: numbers that the noise depends on besides the run's seed, [4] uint32.
        cohorts: the same for the draw of cohorts; [0] where they are those of the seed alone.
        coefficients: [bands] of the noise's matrix.
        forms: for each exchange the form of an upload, where the noise is correlated; static.
    """

    privacy: DP
    clients: Number
    chance: Number
    steps: Number
    secret: Array
    cohorts: Array
    coefficients: Array
    forms: tuple[Tree, ...] = eqx.field(static=True, default=())

    def init(self, x: Vector) -> PrivateState:
        clips: Tree = ()
        if self.privacy.adaptive is not None:
            first = jnp.asarray(self.privacy.clip, float)
            stages = {"warmup": self.inner.warmup(), "exchanges": self.inner.exchanges()}
            clips = {stage: tuple(first for _ in found) for stage, found in stages.items()}
        past: Tree = ()
        if self.privacy.bands > 1:
            zeros = lambda leaf: jnp.zeros((self.privacy.bands - 1, *leaf.shape), leaf.dtype)  # noqa: E731
            past = tuple(jax.tree.map(zeros, form.tree(jnp.zeros(form.size))) for form in self.forms)
        return PrivateState(self.inner.init(x), clips, past, self.secret)

    def own_state(self, server: PrivateState) -> Tree:
        return server.inner

    def _around(self, stage: str, number: int, exchange: Exchange) -> Exchange:
        inner_download = exchange.download or self.inner.download
        adaptive = self.privacy.adaptive is not None

        def download(server: PrivateState) -> Tree:
            value = inner_download(server.inner)
            return DownloadAndClip(value, server.clips[stage][number]) if adaptive else value

        def client(download: Tree, memory: Tree, oracle: Tree) -> tuple[Tree, Tree]:
            return exchange.client(download.value if adaptive else download, memory, oracle)

        def server(server: PrivateState, mean: Tree, round: Round) -> PrivateState:
            inner_server = exchange.server
            assert inner_server is not None
            key = salted(jax.random.fold_in(jax.random.fold_in(round.key, _NOISE), number), server.secret)
            chance = 1.0 if stage == "warmup" else self.chance
            after, noised = self._noised(server, mean, key, chance, stage, number)
            return after._replace(inner=inner_server(after.inner, without_marks(noised), self._public(round, chance)))

        return Exchange(client, None if exchange.server is None else server, download, exchange.who)

    def _noised(
        self, server: PrivateState, mean: Tree, key: Array, chance: Number, stage: str, number: int
    ) -> tuple[PrivateState, Unknown]:
        """The state and the mean with the noise of one exchange."""
        dp, expected = self.privacy, self.clients * chance
        clip: Number = dp.clip
        if dp.adaptive is not None:
            clip = server.clips[stage][number]
            count_key, key = jax.random.split(key)
            noise = dp.noise_of_count(expected) * standard_normal(count_key, (), mean.below.dtype)
            below = mean.below + 0.5 + noise / expected
            clips = list(server.clips[stage])
            clips[number] = dp.adaptive.next(clip, below)
            server = server._replace(clips=server.clips | {stage: tuple(clips)})
            mean = mean.value
        noise = gaussian(key, mean)
        if dp.bands > 1 and stage == "exchanges":
            c, past = self.coefficients, server.past[number]
            # C w = z, row by row: w_r = (z_r − Σ_j c_j w_{r−j}) / c_0.
            before = jax.tree.map(lambda old: jnp.tensordot(c[1:].astype(old.dtype), old, 1), past)
            noise = jax.tree.map(lambda leaf, sum_: (leaf - sum_) / c[0].astype(leaf.dtype), noise, before)
            shifted = jax.tree.map(lambda leaf, old: jnp.concatenate([leaf[None], old])[:-1], noise, past)
            server = server._replace(past=tuple(shifted if k == number else p for k, p in enumerate(server.past)))
        scale = dp.noise_of_sum(expected) * clip
        # In the sum an estimate counts 1/expected, a change 1/N.
        noise = by_kind(lambda leaf: leaf * (scale / expected).astype(leaf.dtype),
                        lambda leaf: leaf * (scale / self.clients).astype(leaf.dtype), noise)  # fmt: skip
        return server, jax.tree.map(jnp.add, mean, noise)

    def _public(self, round: Round, chance: Number) -> Round:
        """The public facts of a round: how many clients are expected, not who came and what data they have."""
        size, kind = round.weights.shape[0], round.weights.dtype

        def each(total: Number) -> Array:
            return jnp.full(size, jnp.asarray(total, kind) / size)

        return PublicRound(*round)._replace(
            weights=each(1.0),
            steps=jnp.full(size, jnp.asarray(self.steps, round.steps.dtype)),
            present=jnp.ones(size, bool),
            data_weights=each(chance),
            total=jnp.ones((), kind),
            ids=(),
        )


def salted(key: Array, secret: Array) -> Array:
    """A random key derived from another one, which may be public, and from the numbers of a secret."""
    for k in range(secret.shape[0]):
        key = jax.random.fold_in(key, secret[k])
    return key


def gaussian(key: Array, like: Tree) -> Tree:
    """Independent standard normal numbers in the form of a pytree of arrays."""
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(key, max(1, len(leaves)))
    drawn = [standard_normal(keys[k], leaf.shape, leaf.dtype) for k, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, drawn)


def standard_normal(key: Array, shape: tuple[int, ...], dtype: Unknown) -> Array:
    """Independent standard normal numbers, with a tail on which privacy accounting can rely.

    ``jax.random.normal`` makes a float32 number of 23 bits: none is beyond 5.42, where one of 8 million should be, and
    an upload whose noised sum lies further out was certainly there. (In float64 none is beyond 8.2.) Here two numbers
    have a radius of 96 bits and an angle of 32, in float64 of 128 and 64. A radius is larger than r with probability
    exp(−r²/2). Up to 9.99, beyond which lie 2⁻⁷² of all, radii are as dense as float32 can hold them.
    :meth:`fedax.privacy.Ledger.tail` says how much of δ the rest costs. Source: Box and Muller 1958, "A note on the
    generation of random normal deviates".

    Example:
        >>> drawn = standard_normal(jax.random.key(0), (3, 1000), jnp.float32)
        >>> drawn.shape, bool(abs(drawn.std() - 1) < 0.05)
        ((3, 1000), True)
    """
    kind = jnp.float64 if jnp.dtype(dtype) == jnp.float64 else jnp.float32
    words = 4 if kind == jnp.float64 else 3  # of 32 bits, of a radius
    half = -(-math.prod(shape) // 2)
    bits = jax.random.bits(key, (2 * words - 2, half), jnp.uint32).astype(kind)
    radius = jnp.sqrt(-2 * jnp.log(_fraction(bits[:words], 0.5)))
    angle = 2 * math.pi * _fraction(bits[words:], 0.0)
    both = jnp.concatenate([radius * jnp.cos(angle), radius * jnp.sin(angle)])
    return both[: math.prod(shape)].reshape(shape).astype(dtype)


def _fraction(words: Array, rest: float) -> Array:
    """The number from 0 to 1 whose digits, of 32 bits, are given; ``rest`` in units of the last one."""
    last = len(words)
    small_first = [(words[k] + rest * (k == last - 1)) * 2.0 ** (-32 * (k + 1)) for k in reversed(range(last))]
    return sum(small_first[1:], small_first[0])
