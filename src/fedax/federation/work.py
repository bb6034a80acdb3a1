"""Work: how many local steps τ_i each client takes in a round."""

import math
import statistics
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.schedule import Schedule
from fedax.errors import ConfigError
from fedax.numbers import MOST, check_count, check_number


class Work(eqx.Module):
    """How much local work a client does in a round. τ_i is drawn by client id, after the cohort."""

    def draw(self, key: Any, ids: Any, sizes: Any, batch_size: int | None) -> jax.Array:
        """τ of clients ``ids`` [S] with ``sizes`` [S] examples; ``key`` is the round's. Integers ≥ 1."""
        raise NotImplementedError

    def largest(self, sizes: np.ndarray, batch_size: int | None) -> int:
        """The most steps that any client takes in any round."""
        raise NotImplementedError

    def usual(self, sizes: np.ndarray, batch_size: int | None) -> np.ndarray:
        """[N] about how many steps each client takes, in some order: the engine cuts chunks by it."""
        raise NotImplementedError

    def equal(self, sizes: np.ndarray, batch_size: int | None) -> int | None:
        """τ where all clients take the same number of steps in all rounds, else ``None``."""
        return None

    def epochs(self) -> bool:
        """Whether minibatches run through permutations of the data, instead of being drawn independently."""
        return False

    def validate(self, sizes: np.ndarray) -> None:
        """Raise :class:`fedax.errors.ConfigError` where this does not fit clients of these ``sizes``."""


class Steps(Work):
    """τ_i given: one number for all, or one a client. Minibatches are drawn independently, with replacement.

    Args:
        steps: whole number ≥ 1, or [N] of them.

    Example:
        >>> Steps(5).equal(np.array([10, 20]), batch_size=4), Steps([1, 7]).largest(np.array([10, 20]), 4)
        (5, 7)
    """

    fixed: int | None = eqx.field(static=True)
    each: Any

    def __init__(self, steps: Any):
        try:
            each = np.asarray(steps)
        except ValueError:  # lists of unlike lengths
            each = np.empty(0)
        if (
            each.ndim > 1
            or not np.issubdtype(each.dtype, np.integer)
            or not each.size
            or not (1 <= each.min() <= each.max() <= MOST)
        ):
            raise ConfigError(
                "steps", steps, f"give a whole number of at least 1 and at most {MOST}, or one for each client"
            )
        same = each.ndim == 0
        self.fixed = int(each) if same else None
        self.each = None if same else each.astype(np.int32)

    def draw(self, key: Any, ids: Any, sizes: Any, batch_size: int | None) -> jax.Array:
        if self.fixed is not None:
            return jnp.full(ids.shape, self.fixed, jnp.int32)
        return jnp.asarray(self.each)[ids]

    def largest(self, sizes: np.ndarray, batch_size: int | None) -> int:
        return self.fixed if self.fixed is not None else int(np.max(self.each))

    def usual(self, sizes: np.ndarray, batch_size: int | None) -> np.ndarray:
        return np.full(len(sizes), self.fixed) if self.fixed is not None else np.asarray(self.each)

    def equal(self, sizes: np.ndarray, batch_size: int | None) -> int | None:
        if self.fixed is not None:
            return self.fixed
        return int(self.each[0]) if np.all(self.each == self.each[0]) else None

    def validate(self, sizes: np.ndarray) -> None:
        if self.each is not None and len(self.each) != len(sizes):
            raise ConfigError("steps", f"{len(self.each)} numbers", f"give one for each of the {len(sizes)} clients")


class Epochs(Work):
    """τ_i = max(1, ⌊e·n_i/B⌋): e passes over the client's own data, each in a fresh random order.

    With ``batch_size=None`` an epoch is one step. Where n_i is no multiple of B, batches run on from one pass into
    the next.

    Args:
        epochs: e > 0.

    Example:
        >>> Epochs(2).draw(None, jnp.arange(2), jnp.array([15, 3]), batch_size=10).tolist()
        [3, 1]
    """

    number: Any

    def __init__(self, epochs: float):
        if isinstance(epochs, Schedule):
            raise ConfigError("epochs", epochs, "give a number; work does not follow a schedule")
        self.number = check_number("epochs", epochs, 0, open_low=True)

    def draw(self, key: Any, ids: Any, sizes: Any, batch_size: int | None) -> jax.Array:
        return _epochs_to_steps(self.number, sizes, batch_size)

    def largest(self, sizes: np.ndarray, batch_size: int | None) -> int:
        return int(np.max(self.usual(sizes, batch_size)))

    def usual(self, sizes: np.ndarray, batch_size: int | None) -> np.ndarray:
        return np.asarray(_epochs_to_steps(self.number, sizes, batch_size))

    def equal(self, sizes: np.ndarray, batch_size: int | None) -> int | None:
        steps = self.usual(sizes, batch_size)
        return int(steps[0]) if (steps == steps[0]).all() else None

    def epochs(self) -> bool:
        return True


class RandomEpochs(Work):
    """As :class:`Epochs`, with e drawn anew for each client and round, uniformly from the whole numbers low … high.

    Args:
        low: ≥ 1.
        high: ≥ low.

    Example:
        >>> RandomEpochs(2, 5).largest(np.array([20, 100]), batch_size=10)
        50
    """

    low: int = eqx.field(static=True)
    high: int = eqx.field(static=True)

    def __init__(self, low: int, high: int):
        self.low, self.high = check_count("low", low), check_count("high", high, high=MOST)
        if self.high < self.low:
            raise ConfigError("high", high, f"give at least low = {low}")

    def draw(self, key: Any, ids: Any, sizes: Any, batch_size: int | None) -> jax.Array:
        draw = lambda k: jax.random.randint(k, (), self.low, self.high + 1)  # noqa: E731
        return _epochs_to_steps(jax.vmap(draw)(_client_keys(key, ids)), sizes, batch_size)

    def largest(self, sizes: np.ndarray, batch_size: int | None) -> int:
        return int(np.max(_epochs_to_steps(self.high, sizes, batch_size)))

    def usual(self, sizes: np.ndarray, batch_size: int | None) -> np.ndarray:
        return np.asarray(_epochs_to_steps((self.low + self.high) / 2, sizes, batch_size))

    def epochs(self) -> bool:
        return True


class RandomSteps(Work):
    """τ_i ~ N(mean, std²), rounded and clipped to low … high, drawn anew for each client and round.

    Args:
        mean: in steps, > 0.
        std: in steps, ≥ 0.
        low: ≥ 1.
        high: ≥ low.

    Example:
        >>> tau = RandomSteps(30, 20, low=1, high=96).draw(jax.random.key(0), jnp.arange(1000), None, None)
        >>> int(tau.min()) >= 1, int(tau.max()) <= 96
        (True, True)
    """

    mean: Any
    std: Any
    low: int = eqx.field(static=True)
    high: int = eqx.field(static=True)

    def __init__(self, mean: float, std: float, low: int, high: int):
        self.mean = check_number("mean", mean, 0, open_low=True)
        self.std = check_number("std", std, 0)
        self.low, self.high = check_count("low", low), check_count("high", high, high=MOST)
        if self.high < self.low:
            raise ConfigError("high", high, f"give at least low = {low}")

    def draw(self, key: Any, ids: Any, sizes: Any, batch_size: int | None) -> jax.Array:
        normal = jax.vmap(lambda k: jax.random.normal(k, ()))(_client_keys(key, ids))
        steps = jnp.round(self.mean + self.std * normal)
        return jnp.clip(steps, self.low, self.high).astype(jnp.int32)

    def largest(self, sizes: np.ndarray, batch_size: int | None) -> int:
        return self.high

    def usual(self, sizes: np.ndarray, batch_size: int | None) -> np.ndarray:
        n = len(sizes)
        normal = np.asarray([statistics.NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)])
        return np.clip(self.mean + self.std * normal, self.low, self.high)


class GeometricSteps(Work):
    """P(τ = k) = p (1−p)^{k−1}, p = 1/mean: the tosses of a coin until it says "communicate"; one coin for all clients.

    Args:
        mean: in steps, ≥ 1.
        high: whole number ≥ 1 at which τ is cut; the default, 12 · mean, cuts fewer than 1 in 100,000 rounds.

    Example:
        >>> tau = GeometricSteps(10.0).draw(jax.random.key(0), jnp.arange(4), None, None)
        >>> len(set(tau.tolist()))
        1

    Source: the coin of Scaffnew (Mishchenko et al. 2022).
    """

    mean: Any
    high: int = eqx.field(static=True)

    def __init__(self, mean: float, high: int | None = None):
        if isinstance(mean, Schedule):
            raise ConfigError("mean", mean, "give a number; work does not follow a schedule")
        self.mean = check_number("mean", mean, 1)
        self.high = check_count("high", math.ceil(12 * float(mean)) if high is None else high, high=MOST)

    def draw(self, key: Any, ids: Any, sizes: Any, batch_size: int | None) -> jax.Array:
        tosses = jax.random.geometric(key, 1 / jnp.asarray(self.mean, float))
        return jnp.full(ids.shape, jnp.minimum(tosses, self.high), jnp.int32)

    def largest(self, sizes: np.ndarray, batch_size: int | None) -> int:
        return self.high

    def usual(self, sizes: np.ndarray, batch_size: int | None) -> np.ndarray:
        return np.full(len(sizes), self.mean)


class Deadline(Work):
    """τ_i = ⌊time · speed_i⌋: every client works until the round's time is up.

    Args:
        time: length of a round in seconds, > 0.
        speed: local steps a second, > 0: one number, or [N], one a client. Each client must manage one step.

    Example:
        >>> Deadline(10.0, [0.5, 2.0]).draw(None, jnp.arange(2), None, None).tolist()
        [5, 20]
    """

    steps: Steps

    def __init__(self, time: float, speed: Any):
        time = check_number("time", time, 0, open_low=True)
        speeds = np.asarray(speed)
        if speeds.ndim > 1 or speeds.size == 0 or not np.issubdtype(speeds.dtype, np.number):
            raise ConfigError("speed", speed, "give a number greater than 0, or one for each client")
        check_number("speed", speeds.min(), 0, open_low=True)
        check_number("speed", speeds.max())
        done = np.floor(time * speeds * (1 + 1e-12))
        if done.min() < 1:
            slow = int(np.argmin(np.atleast_1d(done)))
            raise ConfigError("time", time, f"client {slow} would finish no step; give more time, or leave it out")
        self.steps = Steps(done.astype(np.int64))

    def draw(self, key: Any, ids: Any, sizes: Any, batch_size: int | None) -> jax.Array:
        return self.steps.draw(key, ids, sizes, batch_size)

    def largest(self, sizes: np.ndarray, batch_size: int | None) -> int:
        return self.steps.largest(sizes, batch_size)

    def usual(self, sizes: np.ndarray, batch_size: int | None) -> np.ndarray:
        return self.steps.usual(sizes, batch_size)

    def equal(self, sizes: np.ndarray, batch_size: int | None) -> int | None:
        return self.steps.equal(sizes, batch_size)

    def validate(self, sizes: np.ndarray) -> None:
        self.steps.validate(sizes)


def _epochs_to_steps(epochs: Any, sizes: Any, batch_size: int | None) -> Any:
    numpy = jnp if isinstance(sizes, jax.Array) else np
    if batch_size is None:
        examples, batch_size = numpy.ones_like(sizes), 1
    else:
        examples = sizes
    # The small excess keeps ⌊e·n/B⌋ whole where e·n/B is, in spite of rounding.
    steps = numpy.floor(epochs * examples / batch_size * (1 + 1e-6))
    if numpy is np and not (steps <= MOST).all():
        raise ConfigError("epochs", epochs, f"a client would take {steps.max():.3g} steps, and takes at most {MOST}")
    return numpy.maximum(1, steps).astype(numpy.int32)


def _client_keys(key: Any, ids: Any) -> Any:
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(ids)
