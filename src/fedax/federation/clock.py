"""Clock: how long clients take, in simulated seconds; it is read on the host, before or after the work itself."""

import abc
import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from fedax.contract.settings import Settings
from fedax.errors import ConfigError, DataError
from fedax.federation.census import Census
from fedax.federation.recorded import COLUMNS, Recorded
from fedax.files import regular
from fedax.numbers import check_answers, check_number, has_truth_values
from fedax.registry import Component, Registry, within

_QUANTITIES = ("step", "up", "down", "latency")  # the place of each is part of its random numbers
_BITS = 2**64 - 1
_NAMED = 5  # names that an error lists at most


class Distribution(Settings):
    """A distribution of seconds, or of bytes a second: a number is drawn for each client.

    Attributes:
        anew: whether it is drawn each time that a client works, instead of once a client.

    Example:
        >>> class Pareto(Distribution):  # of shape 2, at least ``low``
        ...     low: float
        ...     anew: bool = False
        ...
        ...     def quantile(self, u):
        ...         return self.low / np.sqrt(1 - u)
        >>> Pareto(3.0).quantile(np.array([0.0, 0.75])).tolist()
        [3.0, 6.0]
    """

    anew = False

    @abc.abstractmethod
    def quantile(self, u: np.ndarray) -> np.ndarray:
        """The values below which the shares ``u`` of all draws are, 0 < u < 1; numbers ≥ 0 of the shape of ``u``."""


class HalfNormal(Distribution):
    """|z| with z ~ N(0, scale²): mean scale·√(2/π).

    Args:
        scale: > 0.
        anew: whether it is drawn each time that a client works, instead of once a client.

    Raises:
        ConfigError: something else.

    Source: the durations of Nguyen et al. 2022, "Federated learning with buffered asynchronous aggregation".

    Example:
        >>> HalfNormal(2.0).quantile(np.array([0.5])).round(3).tolist()
        [1.349]
    """

    scale: float
    anew: bool = False

    def __init__(self, scale: float, anew: bool = False):
        self.scale, self.anew = _positive("scale", scale), _flag(anew)

    def quantile(self, u: np.ndarray) -> np.ndarray:
        from scipy.special import ndtri

        return -self.scale * ndtri((1 - u) / 2)


class Lognormal(Distribution):
    """median·exp(sigma·z) with z ~ N(0, 1): a few are much slower, or much faster, than most.

    Args:
        median: > 0.
        sigma: ≥ 0; one in six is more than exp(sigma) times the median.
        anew: whether it is drawn each time that a client works, instead of once a client.

    Raises:
        ConfigError: something else.

    Example:
        >>> Lognormal(2.0, 0.5).quantile(np.array([0.5, 0.841345])).round(3).tolist()
        [2.0, 3.297]
    """

    median: float
    sigma: float
    anew: bool = False

    def __init__(self, median: float, sigma: float, anew: bool = False):
        self.median, self.anew = _positive("median", median), _flag(anew)
        self.sigma = float(check_number("sigma", sigma, 0, 100, fixed=True))

    def quantile(self, u: np.ndarray) -> np.ndarray:
        from scipy.special import ndtri

        return self.median * np.exp(self.sigma * ndtri(u))


class Exponential(Distribution):
    """The exponential distribution, which has no memory: arrivals are a Poisson process.

    Args:
        mean: > 0.
        anew: whether it is drawn each time that a client works, instead of once a client.

    Raises:
        ConfigError: something else.

    Example:
        >>> Exponential(2.0).quantile(np.array([0.5])).round(3).tolist()
        [1.386]
    """

    mean: float
    anew: bool = False

    def __init__(self, mean: float, anew: bool = False):
        self.mean, self.anew = _positive("mean", mean), _flag(anew)

    def quantile(self, u: np.ndarray) -> np.ndarray:
        return -self.mean * np.log1p(-u)


class UniformBetween(Distribution):
    """All values between two are as likely.

    Args:
        low: ≥ 0.
        high: > low.
        anew: whether it is drawn each time that a client works, instead of once a client.

    Raises:
        ConfigError: something else.

    Example:
        >>> UniformBetween(1.0, 3.0).quantile(np.array([0.25])).tolist()
        [1.5]
    """

    low: float
    high: float
    anew: bool = False

    def __init__(self, low: float, high: float, anew: bool = False):
        self.low, self.anew = float(check_number("low", low, 0, fixed=True)), _flag(anew)
        self.high = float(check_number("high", high, self.low, open_low=True, fixed=True))

    def quantile(self, u: np.ndarray) -> np.ndarray:
        return self.low + (self.high - self.low) * u


DISTRIBUTIONS = Registry("distribution")
DISTRIBUTIONS.add("half-normal", HalfNormal)
DISTRIBUTIONS.add("lognormal", Lognormal)
DISTRIBUTIONS.add("exponential", Exponential)
DISTRIBUTIONS.add("uniform-between", UniformBetween)


class Clock(Settings):
    """How long clients take, in simulated seconds; no client waits for it.

    A client's part in an exchange takes latency_i + bytes down/down_i + gradients·step_i + bytes up/up_i seconds. Each
    of the four is a number, the same for all; [N] of them, one a client; a dictionary by the clients' names (by their
    numbers, as texts, where they have no names); or a distribution: :class:`HalfNormal`, :class:`Lognormal`,
    :class:`Exponential`, :class:`UniformBetween`.

    Args:
        step: seconds of one minibatch gradient, which is a local step of SGD; ≥ 0.
        up, down: bytes a second from and to a client, > 0; ``None``: transfers take no time.
        latency: seconds of an exchange beside all else, ≥ 0.
        server: seconds of the server itself in a round, ≥ 0, a number.
        available: when clients are on, so that they can begin: a list of periods by client's number, or a dictionary
            by name, in which those that are always on may be missing. Periods are ``[[on, off], …]``, seconds from the
            start of the run, in order; or ``{"on": [[on, off], …], "repeat": seconds}``, which begin again after so
            many seconds; or ``True``: always on. Who has begun comes to the end. ``None``: all are always on.

    Raises:
        ConfigError: something else; by a run, names and numbers that are not those of its clients.

    Example:
        >>> clock = Clock(step=[0.1, 0.2], up=1e3, latency=0.5)
        >>> clock
        Clock(step=[0.1, 0.2], up=1000.0, latency=0.5)
        >>> import fedax
        >>> bound = clock.bind(Census.of(fedax.data.quadratics(clients=2, dimension=2)), seed=0)
        >>> bound.durations(0, np.array([0, 1]), gradients=10, down=0, up=100).tolist()
        [1.6, 2.6]
    """

    step: Any = eqx.field(default=0.0, converter=lambda given: _quantity("step", given))
    up: Any = eqx.field(default=None, converter=lambda given: _rate("up", given))
    down: Any = eqx.field(default=None, converter=lambda given: _rate("down", given))
    latency: Any = eqx.field(default=0.0, converter=lambda given: _quantity("latency", given))
    server: float = eqx.field(default=0.0, converter=lambda given: float(check_number("server", given, 0, fixed=True)))
    available: Any = eqx.field(default=None, converter=lambda given: _availability(given))

    def __check_init__(self) -> None:
        others = (self.step, self.up, self.down, self.server, self.available)
        if isinstance(self.latency, Recorded) and any(other is not None and np.any(other != 0) for other in others):
            hint = "recorded arrivals have all of the time in them: leave the other settings out"
            raise ConfigError("clock.latency", repr(self.latency), hint)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "Clock":
        """The clock of a table of its arguments, in which distributions are tables with their ``name``.

        Raises:
            ConfigError: an argument that there is not, or a value out of range.

        Example:
            >>> Clock.of({"step": {"name": "lognormal", "median": 0.1, "sigma": 1.0}, "server": 2})
            Clock(step=Lognormal(median=0.1, sigma=1.0), server=2.0)
        """
        given = {name: _read(name, value) for name, value in table.items()}
        return Component("clock", cls, "").bind(given, section="clock")[0]

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> "Clock":
        """The clock of a JSON file with a table as that of :meth:`of`.

        Raises:
            DataError: the file cannot be read.
            ConfigError: as of :meth:`of`.
        """
        regular(Path(path))
        try:
            table = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: no JSON ({error})") from error
        if not isinstance(table, dict):
            raise DataError(f'{path}: no table of a clock\'s arguments, such as {{"step": 0.1}}')
        return cls.of(table)

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str], server: float = 0.0) -> "Clock":
        """The clock of a CSV file, a trace: a row a client, or several where it is on in several periods.

        Its columns are ``client``, a name or a number, and of these some: ``step``, ``up``, ``down``, ``latency``;
        ``on``, ``off`` and ``repeat``. The speeds and ``repeat`` of a client are in its first row.

        Or the file of arrivals that a run at real nodes has written whose server did not wait, with a row for each
        answer: a simulation with the same pace has the same arrivals.

        Args:
            path: of the file, with a row of names first.
            server: as of the clock.

        Raises:
            DataError: the file cannot be read, a column that there is not, or a cell that is no number.
            ConfigError: values out of range.

        Example:
            >>> import tempfile
            >>> file = Path(tempfile.mkdtemp()) / "trace.csv"
            >>> _ = file.write_text("client,step,on,off\\na,0.1,0,60\\na,,90,120\\nb,0.2,,\\n")
            >>> Clock.from_csv(file)
            Clock(step={'a': 0.1, 'b': 0.2}, available={'a': [[0.0, 60.0], [90.0, 120.0]]})
        """
        return cls(**_trace(Path(path)), server=server)

    @classmethod
    def phones(cls) -> "Clock":
        """Phones of 2016 to 2019 that train a small convolutional network, over the networks of their users.

        A minibatch of FEMNIST takes about 1 s on most; docs/time.md says where each number comes from.

        Example:
            >>> Clock.phones().step
            Lognormal(median=1.0, sigma=0.5)
        """
        return cls(Lognormal(1.0, 0.5), up=Lognormal(3.2e6, 0.7), down=Lognormal(5.3e6, 0.5), latency=0.04)

    @classmethod
    def hospitals(cls) -> "Clock":
        """Servers with one GPU each, of 2015 to 2020, that train a ResNet-50 over fixed lines; see docs/time.md.

        Example:
            >>> Clock.hospitals().down
            10700000.0
        """
        return cls(UniformBetween(0.012, 0.29), up=5.7e6, down=10.7e6, latency=0.021)

    @classmethod
    def data_center(cls) -> "Clock":
        """GPUs of one kind that train a ResNet-50, on a network of 10 Gbit/s; see docs/time.md.

        Example:
            >>> Clock.data_center()
            Clock(step=0.012, up=1250000000.0, down=1250000000.0, latency=0.001)
        """
        return cls(0.012, up=1.25e9, down=1.25e9, latency=0.001)

    def bind(self, census: Census, seed: int) -> "BoundClock":
        """The clock of one run: of these clients, with the random numbers of this seed.

        Raises:
            ConfigError: names or numbers that are not those of the clients.
        """
        names = census.names or tuple(map(str, range(census.num_clients)))
        values = {
            name: _of_clients(f"clock.{name}", getattr(self, name), names)
            for name in _QUANTITIES
            if getattr(self, name) is not None
        }
        on = None if self.available is None else _Periods.of(_of_clients("clock.available", self.available, names))
        return BoundClock(values, self.server, on, seed)


PRESETS = Registry("clock")
PRESETS.add("phones", Clock.phones)
PRESETS.add("hospitals", Clock.hospitals)
PRESETS.add("data-center", Clock.data_center)


class BoundClock(NamedTuple):
    """The clock of one run.

    Attributes:
        values: quantity -> a number, [N] of them, or a distribution; of ``up`` and ``down`` those that take time.
        server: seconds of the server itself in a round.
        periods: when clients are on; ``None``: always.
        seed: of the run.
    """

    values: dict[str, Any]
    server: float
    periods: "_Periods | None"
    seed: int

    @property
    def anew(self) -> bool:
        """Whether something is drawn each time that a client works."""
        return any(getattr(value, "anew", False) for value in self.values.values())

    @property
    def ends(self) -> bool:
        """Whether there may be no time for a piece of work: none was recorded, or its client is off for good."""
        return self.periods is not None or any(isinstance(value, Recorded) for value in self.values.values())

    def durations(self, numbers: Any, ids: Any, gradients: Any, down: Any, up: Any) -> np.ndarray:
        """How long pieces of work take.

        Args:
            numbers: which piece of work of the run it is, whole numbers; with it what is drawn anew changes. Of rounds
                their index, of the warm-up −1.
            ids: whose work it is, client numbers.
            gradients: minibatch gradients.
            down, up: bytes to the client and from it.

        Returns:
            Seconds, of the shape to which the arguments broadcast.
        """
        numbers, ids = np.asarray(numbers), np.asarray(ids)
        total = self.of("latency", numbers, ids) + np.asarray(gradients) * self.of("step", numbers, ids)
        for name, amount in (("down", down), ("up", up)):
            if name in self.values:
                total = total + np.asarray(amount) / self.of(name, numbers, ids)
        return np.broadcast_to(total, np.broadcast_shapes(*map(np.shape, (numbers, ids, gradients, down, up)))) + 0.0

    def duration(self, number: int, client: int, gradients: float, down: int, up: int) -> float:
        """:meth:`durations` of one piece of work."""
        total = self.of("latency", number, client) + float(gradients) * self.of("step", number, client)
        for name, amount in (("down", down), ("up", up)):
            if name in self.values:
                total = total + amount / self.of(name, number, client)
        return float(total)

    def on(self, ids: Any, time: Any) -> np.ndarray:
        """When clients that are asked at a ``time`` can begin: then, or when they are on again; ∞: never any more."""
        ids, time = np.broadcast_arrays(ids, np.asarray(time, float))
        return time + 0.0 if self.periods is None else self.periods.on(ids, time)

    def of(self, name: str, numbers: Any, ids: Any) -> Any:
        """``step``, ``latency``, or of those that take time ``up`` or ``down``, for pieces of work and clients."""
        value = self.values[name]
        if isinstance(value, Recorded):
            return value.of(numbers, ids)
        if isinstance(value, Distribution):
            which = (numbers, ids) if value.anew else (ids,)
            # A method that is read from an object of Equinox is slow.
            return type(value).quantile(value, uniform(self.seed, _QUANTITIES.index(name), value.anew, *which))
        return value[ids] if isinstance(value, np.ndarray) else value


class _Periods(NamedTuple):
    """When clients are on: starts and ends of all their periods, one client after the other.

    Attributes:
        first: [N + 1] where the periods of each client begin.
        starts, ends: of each period, seconds.
        repeat: [N] seconds after which a client's begin again; ∞: never.
    """

    first: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    repeat: np.ndarray

    @classmethod
    def of(cls, each: Sequence[Any]) -> "_Periods":
        """The periods of clients, from the argument of :class:`Clock`."""
        parts = [_spans(one) for one in each]
        spans = np.concatenate([spans for spans, _ in parts])
        first = np.cumsum([0, *(len(spans) for spans, _ in parts)])
        return cls(first, spans[:, 0], spans[:, 1], np.array([repeat for _, repeat in parts]))

    def on(self, ids: np.ndarray, time: np.ndarray) -> np.ndarray:
        """As :meth:`BoundClock.on`, by arrays of one shape."""
        repeat = self.repeat[ids]
        turns = np.floor(time / repeat)  # 0 where they never begin again
        begun = np.where(turns > 0, turns, 0) * np.where(turns > 0, repeat, 0)
        low, high, last = self.first[ids], self.first[ids + 1], self.first[ids + 1]
        while np.any(low < high):  # by halves, the first period that is not over yet
            middle = (low + high) // 2
            over = self.ends[np.minimum(middle, len(self.ends) - 1)] <= time - begun
            low, high = np.where((low < high) & over, middle + 1, low), np.where((low < high) & ~over, middle, high)
        start = self.starts[np.minimum(low, len(self.starts) - 1)]
        soon = np.where(start <= time - begun, time, begun + start)
        return np.where(low < last, soon, begun + repeat + self.starts[self.first[ids]])


def uniform(seed: int, quantity: int, *which: Any) -> np.ndarray:
    """Numbers in (0, 1) that are a function of a seed, a quantity and whole numbers that broadcast; nothing else.

    Each is one of 2⁵² values, all as likely.

    Example:
        >>> uniform(0, 1, np.arange(3)).round(3).tolist() == uniform(0, 1, np.arange(5)).round(3).tolist()[:3]
        True
        >>> bool(abs(uniform(0, 1, 7, np.arange(10**5)).mean() - 0.5) < 0.01)
        True
    """
    if all(isinstance(number, int) for number in which):
        return _one_uniform(seed, quantity, *which)
    bits = np.asarray(seed & _BITS, np.uint64)
    for number in (quantity, *which):
        bits = _mixed(bits ^ _mixed(np.asarray(number, np.int64).astype(np.uint64)))
    return ((bits >> np.uint64(12)).astype(float) + 0.5) * 2.0**-52


def _one_uniform(seed: int, *which: int) -> np.ndarray:
    """:func:`uniform` of whole numbers of Python, for which NumPy is slow."""
    bits = seed & _BITS
    for number in which:
        bits ^= _mixed_number(number & _BITS)
        bits = _mixed_number(bits)
    return np.asarray(((bits >> 12) + 0.5) * 2.0**-52)[()]


def _mixed_number(bits: int) -> int:
    """As :func:`_mixed`."""
    bits = (bits + 0x9E3779B97F4A7C15) & _BITS
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _BITS
    return bits ^ (bits >> 31)


def _mixed(bits: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 after one step (Steele, Lea, Flood 2014), a bijection of 64 bits."""
    with np.errstate(over="ignore"):
        bits = bits + np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


# ---- what a user gives


def _positive(field: str, value: Any) -> float:
    return float(check_number(field, value, 0, open_low=True, fixed=True))


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError("anew", value, "give True or False")
    return value


def _quantity(field: str, value: Any, open_low: bool = False) -> Any:
    """A number, an array [N], a dictionary of numbers by name, a distribution, or what was recorded."""
    if isinstance(value, Distribution):
        check_answers(field, value, value.quantile, np.linspace(0.001, 0.999, 999), finite=False)
    if isinstance(value, Distribution | Recorded):
        return value
    if isinstance(value, Mapping) and value:
        return {
            str(name): float(check_number(f"{field}.{name}", each, 0, open_low=open_low, fixed=True))
            for name, each in value.items()
        }
    if np.ndim(value) == 0 and not isinstance(value, Mapping | str):
        return float(check_number(field, value, 0, open_low=open_low, fixed=True))
    try:
        array = np.asarray(value, float)
    except (TypeError, ValueError):
        array = np.zeros(0)
    good = array.ndim == 1 and array.size and np.isfinite(array).all() and not has_truth_values(value)
    if not good or array.min() < 0 or (open_low and array.min() == 0):
        least = "greater than 0" if open_low else "of at least 0"
        raise ConfigError(field, value, f"give a number {least}, one for each client, or a distribution")
    return array


def _rate(field: str, value: Any) -> Any:
    return None if value is None else _quantity(field, value, open_low=True)


def _availability(given: Any) -> Any:
    """Periods by name or number, with lists of numbers in place of whatever was given; ``None``: always."""
    if given is None:
        return None
    if isinstance(given, Mapping) and given:
        return {str(name): _plain_periods(f"available.{name}", each) for name, each in given.items()}
    if isinstance(given, Sequence) and not isinstance(given, str) and len(given):
        return [_plain_periods(f"available[{i}]", each) for i, each in enumerate(given)]
    raise ConfigError("available", given, "give periods [[on, off], …] by client, as a dictionary or a list")


def _plain_periods(field: str, given: Any) -> Any:
    if given is True or given is None:
        return True
    repeat = None
    periods = given
    if isinstance(given, Mapping):
        if not {"on"} <= given.keys() <= {"on", "repeat"}:
            raise ConfigError(field, dict(given), 'give {"on": [[on, off], …], "repeat": seconds}')
        periods, repeat = given["on"], given.get("repeat")
    try:
        spans = np.asarray(periods)
        spans = spans.astype(float) if spans.dtype.kind in "iuf" else np.zeros(0)  # no texts, no truth values
    except (TypeError, ValueError):
        spans = np.zeros(0)
    edges = spans.ravel()
    good = spans.ndim == 2 and spans.shape[1] == 2 and spans.size and np.isfinite(edges).all() and edges[0] >= 0
    if not good or not (spans[:, 0] < spans[:, 1]).all() or (np.diff(edges) < 0).any():
        raise ConfigError(field, periods, "give periods [[on, off], …] in order, 0 ≤ on < off, that do not overlap")
    if repeat is None:
        return spans.tolist()
    least = float(edges[-1])
    return {"on": spans.tolist(), "repeat": float(check_number(f"{field}.repeat", repeat, least, fixed=True))}


def _spans(one: Any) -> tuple[np.ndarray, float]:
    if one is True:
        return np.array([[0.0, np.inf]]), np.inf
    if isinstance(one, Mapping):
        return np.asarray(one["on"]), one["repeat"]
    return np.asarray(one), np.inf


def _of_clients(field: str, value: Any, names: Sequence[str]) -> Any:
    """A value by client as an array, or a list of periods; what is the same for all stays."""
    if isinstance(value, Recorded):
        if strange := sorted({*value.clients.values()} - {*names}):
            raise ConfigError(field, _listed(strange), f"there are no such clients; there are {_listed(names)}")
        return value.bind(names)
    if isinstance(value, Mapping):
        if strange := sorted(value.keys() - set(names)):
            raise ConfigError(field, _listed(strange), f"there are no such clients; there are {_listed(names)}")
        if field.endswith("available"):
            return [value.get(name, True) for name in names]
        if missing := [name for name in names if name not in value]:
            raise ConfigError(field, _listed(missing), "these clients are missing; give each its number")
        return np.array([value[name] for name in names])
    if isinstance(value, list | np.ndarray) and len(value) != len(names):
        raise ConfigError(field, f"{len(value)} clients", f"give one for each of the {len(names)} clients")
    return value


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _read(field: str, value: Any) -> Any:
    """A distribution of a table with a name; else the value as it is."""
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        arguments = {name: each for name, each in value.items() if name != "name"}
        return within("clock", lambda: DISTRIBUTIONS.bind(value["name"], arguments, section=field, key="name")[0])
    return value


# ---- traces


def _trace(path: Path) -> dict[str, Any]:
    """The arguments of a clock from a CSV file."""
    regular(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, restkey="")
            names = rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
            columns = (*_QUANTITIES, "on", "off", "repeat")
            if tuple(names) == COLUMNS:
                return {"latency": Recorded.read(path, rows)}
            if twice := [name for name in names if names.count(name) > 1]:
                raise DataError(f"{path}: there are two columns {twice[0]!r}")
            if "client" not in names or (strange := [name for name in names if name not in ("client", *columns)]):
                known = f"client, {', '.join(columns)}"
                what = "there is no column client" if "client" not in names else f"there is no column {strange[0]!r}"
                raise DataError(f"{path}: {what} in a trace; its columns are {known}")
            if not (found := _of_rows(path, rows, names)):
                raise DataError(f"{path}: no value in it; a trace has a row for each client")
            return found
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: no CSV file ({error})") from error


def _of_rows(path: Path, rows: Any, names: list[str]) -> dict[str, Any]:
    quantities: dict[str, dict[str, float]] = {name: {} for name in _QUANTITIES if name in names}
    periods: dict[str, list[list[float]]] = {}
    repeat: dict[str, float] = {}
    single = quantities | {"repeat": repeat}  # what a client has once
    for row in rows:
        client, cells = (row["client"] or "").strip(), {}
        for name in names[:]:
            if name != "client" and (row[name] or "").strip():
                try:
                    cells[name] = float(row[name])
                    if not math.isfinite(cells[name]):
                        raise ValueError("it is not finite")
                except ValueError as error:
                    raise DataError(f"{path}, line {rows.line_num}: {name} is {row[name]!r}, no number") from error
        twice = [name for name in single if name in cells and single[name].get(client, cells[name]) != cells[name]]
        what = (
            "more cells than columns" if any(cell.strip() for cell in row.get("", ()))
            else "there is no client" if not client
            else "a period has on and off" if ("on" in cells) != ("off" in cells)
            else f"client {client} has another {twice[0]} above" if twice
            else ""
        )  # fmt: skip
        if what:
            raise DataError(f"{path}, line {rows.line_num}: {what}")
        for name, table in single.items():
            if name in cells:
                table[client] = cells[name]
        if "on" in cells:
            periods.setdefault(client, []).append([cells["on"], cells["off"]])
    if alone := repeat.keys() - periods.keys():
        raise DataError(f"{path}: client {min(alone)} has repeat, and no period with on and off")
    available = {
        client: {"on": spans, "repeat": repeat[client]} if client in repeat else spans
        for client, spans in periods.items()
    }
    found: dict[str, Any] = {name: table for name, table in quantities.items() if table}
    return found | ({"available": available} if available else {})
