"""Work: how many local steps τ_i each client takes in a round."""

import abc
import math
import statistics
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.settings import Settings
from fedax.errors import ConfigError
from fedax.numbers import MOST, check_count, check_number, has_truth_values


class Work(Settings):
    """How much local work a client does in a round. τ_i is drawn by client id, after the cohort.

    Example:
        >>> class Alternating(Work):  # one step for clients with even numbers, two for the others
        ...     def draw(self, key, ids, sizes, batch_size):
        ...         return 1 + ids % 2
        ...
        ...     def largest(self, sizes, batch_size):
        ...         return 2
        ...
        ...     def usual(self, sizes, batch_size):
        ...         return 1 + np.arange(len(sizes)) % 2
        >>> Alternating().draw(None, jnp.arange(4), None, None).tolist()
        [1, 2, 1, 2]
    """

    @abc.abstractmethod
    def draw(self, key: Any, ids: Any, sizes: Any, batch_size: int | None) -> jax.Array:
        """τ of clients ``ids`` [S] with ``sizes`` [S] examples; ``key`` is the round's. Integers ≥ 1."""

    @abc.abstractmethod
    def largest(self, sizes: np.ndarray, batch_size: int | None) -> int:
        """The most steps that any client takes in any round."""

    @abc.abstractmethod
    def usual(self, sizes: np.ndarray, batch_size: int | None) -> np.ndarray:
        """[N] about how many steps each client takes, in some order: the engine chooses the size of chunks by it."""

    def equal(self, sizes: np.ndarray, batch_size: int | None) -> int | None:
        """τ where all clients take the same number of steps in all rounds, else ``None``."""
        steps = self.always(sizes, batch_size)
        return int(steps[0]) if steps is not None and np.all(steps == steps[0]) else None

    def always(self, sizes: np.ndarray, batch_size: int | None) -> np.ndarray | None:
        """[N] τ_i where each client takes the same number of steps whenever it works, else ``None``."""
        return None

    def without_replacement(self) -> bool:
        """Whether minibatches run through permutations of the data, instead of being drawn independently."""
        return False

    def at(self, index: Any) -> "Work":
        """The work of round ``index``, where that is known beforehand."""
        return self

    def validate(self, sizes: np.ndarray) -> None:
        """Raise :class:`fedax.errors.ConfigError` where this does not fit clients of these ``sizes``."""


class Steps(Work):
    """τ_i given: one number for all, or one a client. Minibatches are drawn independently, with replacement.

    Args:
        steps: whole number ≥ 1, or [N] of them.

    Raises:
        ConfigError: something else.

    Example:
        >>> Steps(5).equal(np.array([10, 20]), batch_size=4), Steps([1, 7]).largest(np.array([10, 20]), 4)
        (5, 7)
    """

    _same: int | None = eqx.field(static=True)  # one number is compiled in, an array is not
    _each: Any

    def __init__(self, steps: Any):
        given = _numbers(steps)
        if given is None or not np.issubdtype(given.dtype, np.integer) or not 1 <= given.min() <= given.max() <= MOST:
            hint = f"give a whole number of at least 1 and at most {MOST}, or one for each client"
            raise ConfigError("steps", steps, hint)
        self._same = None if given.ndim else int(given)
        self._each = given.astype(np.int32) if given.ndim else None

    @property
    def steps(self) -> Any:
        """τ of all clients, or [N] of each."""
        return self._each if self._same is None else self._same

    def draw(self, key: Any, ids: Any, sizes: Any, batch_size: int | None) -> jax.Array:
        if self._same is not None:
            return jnp.full(ids.shape, self._same, jnp.int32)
        return jnp.asarray(self._each)[ids]

    def largest(self, sizes: np.ndarray, batch_size: int | None) -> int:
        return int(np.max(self.steps))

    def usual(self, sizes: np.ndarray, batch_size: int | None) -> np.ndarray:
        return np.full(len(sizes), self._same) if self._same is not None else np.asarray(self._each)

    def always(self, sizes: np.ndarray, batch_size: int | None) -> np.ndarray | None:
        return self.usual(sizes, batch_size)

    def validate(self, sizes: np.ndarray) -> None:
        if self._same is None and len(self._each) != len(sizes):
            raise ConfigError("steps", f"{len(self._each)} numbers", f"give one for each of the {len(sizes)} clients")


class Epochs(Work):
    """τ_i = max(1, ⌊e·n_i/B⌋): e passes over the client's own data, each in a fresh random order.

    With ``batch_size=None`` an epoch is one step. Where n_i is no multiple of B, batches run on from one pass into
    the next.

    Args:
        epochs: e > 0.

    Raises:
        ConfigError: something else; by a run, where a client would take too many steps.

    Example:
        >>> Epochs(2).draw(None, jnp.arange(2), jnp.array([15, 3]), batch_size=10).tolist()
        [3, 1]
    """

    epochs: Any

    def __check_init__(self) -> None:
        check_number("epochs", self.epochs, 0, open_low=True, fixed=True)

    def draw(self, key: Any, ids: Any, sizes: Any, batch_size: int | None) -> jax.Array:
        return _epochs_to_steps(self.epochs, sizes, batch_size)

    def largest(self, sizes: np.ndarray, batch_size: int | None) -> int:
        return int(np.max(self.usual(sizes, batch_size)))

    def usual(self, sizes: np.ndarray, batch_size: int | None) -> np.ndarray:
        return np.asarray(_epochs_to_steps(self.epochs, sizes, batch_size))

    def always(self, sizes: np.ndarray, batch_size: int | None) -> np.ndarray | None:
        return self.usual(sizes, batch_size)

    def without_replacement(self) -> bool:
        return True


class RandomEpochs(Work):
    """As :class:`Epochs`, with e drawn anew for each client and round, uniformly from the whole numbers low … high.

    Args:
        low: ≥ 1.
        high: ≥ low.

    Raises:
        ConfigError: something else.

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

    def without_replacement(self) -> bool:
        return True


class RandomSteps(Work):
    """τ_i ~ N(mean, std²), rounded and clipped to low … high, drawn anew for each client and round.

    Args:
        mean: in steps, > 0.
        std: in steps, ≥ 0.
        low: ≥ 1.
        high: ≥ low.

    Raises:
        ConfigError: something else.

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
        self.mean = check_number("mean", mean, 0, open_low=True, fixed=True)
        self.std = check_number("std", std, 0, fixed=True)
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

    Raises:
        ConfigError: something else.

    Example:
        >>> tau = GeometricSteps(10.0).draw(jax.random.key(0), jnp.arange(4), None, None)
        >>> len(set(tau.tolist()))
        1

    Source: the coin of Scaffnew (Mishchenko et al. 2022).
    """

    mean: Any
    high: int = eqx.field(static=True)

    def __init__(self, mean: float, high: int | None = None):
        self.mean = check_number("mean", mean, 1, fixed=True)
        self.high = check_count("high", math.ceil(12 * float(mean)) if high is None else high, high=MOST)

    def draw(self, key: Any, ids: Any, sizes: Any, batch_size: int | None) -> jax.Array:
        tosses = jax.random.geometric(key, 1 / jnp.asarray(self.mean, float))
        return jnp.full(ids.shape, jnp.minimum(tosses, self.high), jnp.int32)

    def largest(self, sizes: np.ndarray, batch_size: int | None) -> int:
        return self.high

    def usual(self, sizes: np.ndarray, batch_size: int | None) -> np.ndarray:
        return np.full(len(sizes), self.mean)


class StepsByRound(Work):
    """τ_i of each round; where the round is not known, of any one of them.

    Args:
        table: [R, N] whole numbers ≥ 1.
        index: of the round, 0 … R − 1; ``None``: not known.
    """

    table: Any
    index: Any = None

    def at(self, index: Any) -> "StepsByRound":
        return StepsByRound(self.table, index)

    def draw(self, key: Any, ids: Any, sizes: Any, batch_size: int | None) -> jax.Array:
        row = jax.random.randint(key, (), 0, len(self.table)) if self.index is None else self.index
        return jnp.asarray(self.table)[row, ids]

    def largest(self, sizes: np.ndarray, batch_size: int | None) -> int:
        return int(np.max(self.table))

    def usual(self, sizes: np.ndarray, batch_size: int | None) -> np.ndarray:
        return np.mean(self.table, axis=0)


class Deadline(Work):
    """τ_i = ⌊time · speed_i⌋: every client works until the round's time is up.

    Without ``speed`` the run's :class:`fedax.Clock` tells how many steps each client manages beside its latency and its
    transfers: in all rounds, or of a clock that draws anew in each. Clients that manage none are late where they are
    drawn: they are left out, and the weights of the others grow as for clients that a :class:`fedax.Guard` leaves out.

    Args:
        time: length of a round in seconds, > 0.
        speed: local steps a second, > 0: one number, or [N], one a client. Each client must manage one step. ``None``:
            as the clock of the run tells.

    Raises:
        ConfigError: something else; by a run, that there are neither speeds nor a clock, or a clock that does not tell.

    Example:
        >>> Deadline(10.0, [0.5, 2.0]).draw(None, jnp.arange(2), None, None).tolist()
        [5, 20]
    """

    time: Any
    speed: Any
    _known: Steps | None

    def __init__(self, time: float, speed: Any = None):
        self.time = check_number("time", time, 0, open_low=True, fixed=True)
        if speed is None:
            self.speed = self._known = None
            return
        speeds = _numbers(speed)
        if speeds is None or np.iscomplexobj(speeds) or not 0 < speeds.min() <= speeds.max() < math.inf:
            raise ConfigError("speed", speed, "give a number greater than 0, or one for each client")
        self.speed = speeds if speeds.ndim else speed
        with np.errstate(over="ignore"):
            done = np.floor(time * speeds.astype(float) * (1 + 1e-12))
        if done.min() < 1:
            slow = int(np.argmin(np.atleast_1d(done)))
            raise ConfigError("time", time, f"client {slow} would finish no step; give more time, or leave it out")
        if done.max() > MOST:
            raise ConfigError("time", time, f"a client would take {done.max():.3g} steps, and takes at most {MOST}")
        self._known = Steps(done.astype(np.int64))

    @property
    def _steps(self) -> Steps:
        if self._known is None:
            raise ConfigError("speed", None, "give local steps a second, or the run a clock, fedax.Clock(...)")
        return self._known

    def draw(self, key: Any, ids: Any, sizes: Any, batch_size: int | None) -> jax.Array:
        return self._steps.draw(key, ids, sizes, batch_size)

    def largest(self, sizes: np.ndarray, batch_size: int | None) -> int:
        return self._steps.largest(sizes, batch_size)

    def usual(self, sizes: np.ndarray, batch_size: int | None) -> np.ndarray:
        return self._steps.usual(sizes, batch_size)

    def always(self, sizes: np.ndarray, batch_size: int | None) -> np.ndarray | None:
        return self._steps.usual(sizes, batch_size)

    def validate(self, sizes: np.ndarray) -> None:
        if self.speed is not None and np.ndim(self.speed) and len(self.speed) != len(sizes):
            raise ConfigError("speed", f"{len(self.speed)} numbers", f"give one for each of the {len(sizes)} clients")


def _numbers(given: Any) -> np.ndarray | None:
    """A number, or a list of them, as an array; ``None`` for something else."""
    if has_truth_values(given):
        return None
    try:
        array = np.asarray(given)
    except ValueError:  # lists of unlike lengths
        return None
    return array if array.ndim < 2 and array.size and np.issubdtype(array.dtype, np.number) else None


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
