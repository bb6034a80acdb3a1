"""Partitions: which client holds which examples. Each gives N sorted int64 index arrays, none of them empty.

Every index occurs exactly once, and the same arguments give the same partition. For
:meth:`fedax.FederatedData.from_partition`.
"""

from collections.abc import Callable, Sequence

import numpy as np

from fedax.data.portable import exp, log, normal
from fedax.errors import ConfigError, DataError, unknown
from fedax.numbers import check_count, check_number, check_room

_DRAWS = 1000
_TINY = np.finfo(np.float64).tiny


def iid(n: int, clients: int, seed: int = 0) -> list[np.ndarray]:
    """Examples dealt at random, in sizes that differ by at most one.

    Args:
        n: number of examples.
        clients: N, 1 ≤ N ≤ n.
        seed: ≥ 0, of NumPy's generator.

    Raises:
        ConfigError: more clients than examples, or more of either than the memory holds.

    Example:
        >>> [len(part) for part in iid(5, clients=2)]
        [3, 2]
    """
    check_room(24 * check_count("n", n), n=n)
    _check_clients(clients, n)
    return _sorted(np.array_split(_generator(seed).permutation(n), clients))


def dirichlet(labels: np.ndarray, clients: int, alpha: float, min_size: int = 10, seed: int = 0) -> list[np.ndarray]:
    """Each class cut up over the clients in proportions q ~ Dir(α): unequal labels and unequal sizes.

    Class by class; a client that already holds n/N examples gets none of the class (q_i = 0, q is renormalised).
    All is drawn anew until every client has ``min_size`` examples.

    Args:
        labels: [n] class of each example.
        clients: N.
        alpha: α > 0; the smaller, the more clients differ. The paper's: 0.1 for 16 clients.
        min_size: least n_i, from 1 to n/N. The paper's code: 10.
        seed: ≥ 0, of NumPy's generator.

    Raises:
        ConfigError: ``min_size`` is above n/N, or 1000 draws did not reach it.
        DataError: ``labels`` are not one number an example.

    Source:
        Wang et al. 2020 (FedNova), section 6, and its code.

    Example:
        >>> parts = dirichlet(np.arange(1000) % 10, clients=4, alpha=0.1)
        >>> sum(len(part) for part in parts), min(len(part) for part in parts) >= 10
        (1000, True)
    """
    rows = _rows_by_class(labels)
    sizes = np.array([len(of_class) for of_class in rows])
    n = int(sizes.sum())
    _check_clients(clients, n, len(rows))
    _check_min_size(min_size, clients, n)
    check_number("alpha", alpha, 0, open_low=True)
    generator, reached = _generator(seed), 0
    for _ in range(_DRAWS):
        counts = _dirichlet_counts(sizes, clients, alpha, generator)
        reached = max(reached, int(counts.sum(axis=0).min()))
        if reached >= min_size:
            return _deal(rows, counts, generator)
    hint = f"in {_DRAWS} draws the smallest client got {reached} examples at best; lower it, raise alpha ({alpha:g})"
    raise ConfigError("min_size", min_size, f"{hint} or take fewer clients ({clients})")


def dirichlet_labels(labels: np.ndarray, clients: int, alpha: float, seed: int = 0) -> list[np.ndarray]:
    """Each client draws its own label ratios q_i ~ Dir(α): unequal labels, sizes that differ by at most one.

    No example is used twice, so a class can run out: clients that still want it then draw from the classes that are
    left, by their own ratios among these. The paper does not say how it did this, nor its sizes.

    Args:
        labels: [n] class of each example.
        clients: N, 1 ≤ N ≤ n.
        alpha: α > 0; the smaller, the more clients differ. The paper's: 0.5, 0.2 and 0.1.
        seed: ≥ 0, of NumPy's generator.

    Raises:
        ConfigError: more clients than examples.
        DataError: ``labels`` are not one number an example.

    Source:
        Cheng et al. 2024 (FedAvg-M, SCAFFOLD-M), appendix D, after Hsu et al. 2019.

    Example:
        >>> parts = dirichlet_labels(np.arange(1000) % 10, clients=4, alpha=0.1)
        >>> [len(part) for part in parts]
        [250, 250, 250, 250]
    """
    n = len(np.asarray(labels)) if np.ndim(labels) else 1
    _check_clients(clients, max(n, 1))
    return inner_dirichlet(labels, n // clients + (np.arange(clients) < n % clients), alpha, seed)


def inner_dirichlet(
    labels: np.ndarray, sizes: Sequence[int] | np.ndarray, alpha: float, seed: int = 0
) -> list[np.ndarray]:
    """Each client draws its own label ratios q_i ~ Dir(α) and fills its given size by them: unequal both.

    As :func:`dirichlet_labels`, with other sizes. A class that runs out gets ratio 0, and q_i is renormalised.

    Args:
        labels: [n] class of each example.
        sizes: [N] n_i ≥ 1, which sum to n.
        alpha: α > 0; the smaller, the more clients differ.
        seed: ≥ 0, of NumPy's generator.

    Raises:
        ConfigError: sizes that do not sum to n.
        DataError: ``labels`` are not one number an example.

    Source:
        Acar et al. 2021 (FedDyn), appendix A.1, and its code, which deals one example at a time.

    Example:
        >>> parts = inner_dirichlet(np.arange(100) % 10, sizes=[10, 20, 70], alpha=0.1)
        >>> [len(part) for part in parts]
        [10, 20, 70]
    """
    rows = _rows_by_class(labels)
    left = np.array([len(of_class) for of_class in rows])
    missing = _sizes(sizes, int(left.sum()))
    clients = len(missing)
    _check_clients(clients, int(left.sum()), len(rows))
    check_number("alpha", alpha, 0, open_low=True)
    generator = _generator(seed)
    # A small α can make a ratio underflow to 0; with _TINY a client can take from any class once its own are gone.
    ratios = generator.dirichlet(np.full(len(rows), alpha), size=clients) + _TINY
    counts = np.zeros((len(rows), clients), np.int64)
    while missing.any():  # each pass but the last empties a class
        open_ratios = np.where(left > 0, ratios, 0)
        wanted = generator.multinomial(missing, open_ratios / open_ratios.sum(axis=1, keepdims=True)).T
        for c in np.flatnonzero(wanted.sum(axis=1) > left):
            wanted[c] = generator.multivariate_hypergeometric(wanted[c], left[c])
        counts += wanted
        left = left - wanted.sum(axis=1)
        missing = missing - wanted.sum(axis=0)
    return _deal(rows, counts, generator)


def shards(labels: np.ndarray, clients: int, per_client: int = 2, seed: int = 0) -> list[np.ndarray]:
    """Examples sorted by label and cut into shards of equal size, of which each client gets ``per_client`` at random.

    With two shards a client, most clients have two classes only.

    Args:
        labels: [n] class of each example.
        clients: N; the paper's: 100.
        per_client: shards a client, with N·``per_client`` ≤ n. The paper's: 2.
        seed: ≥ 0, of NumPy's generator.

    Raises:
        ConfigError: more shards than examples.
        DataError: ``labels`` are not one number an example.

    Source:
        McMahan et al. 2017 (FedAvg), section 3.

    Example:
        >>> labels = np.repeat(np.arange(10), 100)
        >>> max(len(np.unique(labels[part])) for part in shards(labels, clients=10))
        2
    """
    rows = _rows_by_class(labels)
    n = sum(map(len, rows))
    _check_clients(clients, n)
    if check_count("per_client", per_client) * clients > n:
        raise ConfigError("per_client", per_client, f"{clients} clients, {n} examples: give at most {n // clients}")
    generator = _generator(seed)
    by_label = np.concatenate([generator.permutation(of_class) for of_class in rows])
    pieces = np.array_split(by_label, clients * per_client)
    hands = generator.permutation(len(pieces)).reshape(clients, per_client)
    return _sorted([np.concatenate([pieces[piece] for piece in hand]) for hand in hands])


def dominant(labels: np.ndarray, clients: int, share: float, seed: int = 0) -> list[np.ndarray]:
    """Client i holds the share ρ of class i mod C; the rest of a class is spread evenly over the other clients.

    With N = C = 10 this is the paper's: client i has ρ of class i and (1−ρ)/9 of every other class. With more clients
    than classes, those of one class share its ρ evenly.

    Args:
        labels: [n] class of each example, of C ≥ 2 classes.
        clients: N ≥ C.
        share: ρ in (0, 1]. The paper's: 0.8.
        seed: ≥ 0, of NumPy's generator.

    Raises:
        ConfigError: fewer clients than classes, or a client that would be left without examples.
        DataError: ``labels`` are not one number an example, or of one class only.

    Source:
        FedDA, section 8.3.

    Example:
        >>> labels = np.repeat(np.arange(10), 100)
        >>> np.bincount(labels[dominant(labels, clients=10, share=0.82)[3]]).tolist()
        [2, 2, 2, 82, 2, 2, 2, 2, 2, 2]
    """
    rows = _rows_by_class(labels)
    classes = len(rows)
    if classes < 2:
        raise DataError("labels: there is one class only; a dominant class needs at least two")
    _check_clients(clients, sum(map(len, rows)), classes)
    if clients < classes:
        raise ConfigError("clients", clients, f"there are {classes} classes; give at least one client a class")
    check_number("share", share, 0, 1, open_low=True)
    generator = _generator(seed)
    held: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for c, of_class in enumerate(rows):
        drawn = generator.permutation(of_class)
        cut = round(share * len(drawn))
        dominates = np.arange(clients) % classes == c
        for holders, examples in ((dominates, drawn[:cut]), (~dominates, drawn[cut:])):
            # In random order, since the first parts may be one example larger.
            who = generator.permutation(np.flatnonzero(holders))
            for client, part in zip(who, np.array_split(examples, len(who)), strict=True):
                held[client].append(part)
    parts = [np.concatenate(pieces) for pieces in held]
    if empty := sum(not len(part) for part in parts):
        raise ConfigError("share", share, f"{empty} of {clients} clients would have no examples; take fewer clients")
    return _sorted(parts)


def pathological(
    labels: np.ndarray, clients: int, classes: int = 2, seed: int = 0, balanced: bool = True
) -> list[np.ndarray]:
    """Each client holds exactly k classes; a class is cut evenly among the clients that hold it.

    Args:
        labels: [n] class of each example, of C classes.
        clients: N, with N·k ≥ C, so that each class is held; N ≥ C if not balanced.
        classes: k, from 1 to C.
        seed: ≥ 0, of NumPy's generator.
        balanced: the numbers of clients that hold two classes differ by at most one. If ``False``, as in NIID-Bench:
            client i holds class i mod C and k − 1 others, drawn uniformly, so that sizes differ.

    Raises:
        ConfigError: more than C classes a client; too few clients for all classes; a class with fewer examples than
            clients that are to hold it.
        DataError: ``labels`` are not one number an example.

    Source:
        Li et al. 2022 (NIID-Bench), label quantity; McMahan et al. 2017 with shards, of which a client may get two of
        one class.

    Example:
        >>> labels = np.repeat(np.arange(10), 100)
        >>> {len(np.unique(labels[part])) for part in pathological(labels, clients=25, classes=3)}
        {3}
    """
    rows = _rows_by_class(labels)
    n = sum(map(len, rows))
    _check_clients(clients, n, len(rows))
    if check_count("classes", classes) > len(rows):
        raise ConfigError("classes", classes, f"there are {len(rows)}; give at most so many a client")
    if clients * classes < len(rows):
        hint = f"{clients} clients of {classes} classes cannot hold {len(rows)}; raise clients or classes"
        raise ConfigError("classes", classes, hint)
    if not balanced and clients < len(rows):
        hint = f"nobody might hold one of {len(rows)} classes; take {len(rows)} clients or more, or balance them"
        raise ConfigError("clients", clients, hint)
    generator = _generator(seed)
    held: list[list[int]] = [[] for _ in rows]  # by class, the clients
    for client in generator.permutation(clients) if balanced else range(clients):
        ties = generator.random(len(rows))
        first = np.array([len(each) for each in held]) if balanced else np.arange(len(rows)) != client % len(rows)
        for c in np.lexsort((ties, first))[:classes]:
            held[c].append(int(client))
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for of_class, holders in zip(rows, held, strict=True):
        if len(of_class) < len(holders):
            hint = f"a class has {len(of_class)} examples for {len(holders)} clients; take fewer clients"
            raise ConfigError("clients", clients, hint)
        for client, part in zip(holders, np.array_split(generator.permutation(of_class), len(holders)), strict=True):
            parts[client].append(part)
    return _sorted([np.concatenate(pieces) for pieces in parts])


def by_size(n: int, sizes: Sequence[int] | np.ndarray, seed: int = 0) -> list[np.ndarray]:
    """Examples dealt at random, in given sizes.

    Args:
        n: number of examples.
        sizes: [N] n_i ≥ 1, which sum to n.
        seed: ≥ 0, of NumPy's generator.

    Raises:
        ConfigError: sizes that do not sum to n.

    Example:
        >>> [len(part) for part in by_size(100, sizes=[70, 20, 10])]
        [70, 20, 10]
    """
    check_room(24 * check_count("n", n), n=n)
    ends = np.cumsum(_sizes(sizes, n))
    return _sorted(np.split(_generator(seed).permutation(n), ends[:-1]))


_LAWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": lambda i: i,
    "square": np.square,
    "exponential": lambda i: exp(i - i[-1]),
}


def growing(n: int, clients: int, law: str = "linear", min_size: int = 1, seed: int = 0) -> list[np.ndarray]:
    """Examples dealt at random in sizes n_i = m + (n − N·m)·f(i)/Σ_j f(j), i = 1 … N, where f(i) is i, i² or exp(i).

    Args:
        n: number of examples.
        clients: N. The last client is the largest.
        law: f: ``"linear"``, ``"square"`` or ``"exponential"``.
        min_size: m, from 1 to n/N.
        seed: ≥ 0, of NumPy's generator.

    Raises:
        ConfigError: no such law; ``min_size`` is above n/N.

    Source:
        Flower Datasets: LinearPartitioner, SquarePartitioner and ExponentialPartitioner, which have m = 0.

    Example:
        >>> [len(part) for part in growing(104, clients=4, law="square")]
        [4, 15, 31, 54]
    """
    if law not in _LAWS:
        raise unknown("law", law, _LAWS)
    return _by_shares(n, clients, _LAWS[law], min_size, seed)


def by_value(values: np.ndarray, clients: int, strictness: float = 1.0, seed: int = 0) -> list[np.ndarray]:
    """Examples sorted by a number, more or less strictly, and cut into blocks of sizes that differ by at most one.

    They are sorted by b = s·z + (1 − s)·ε, with z the values at mean 0 and variance 1, and ε normal with variance 1.

    Args:
        values: [n] a finite number an example.
        clients: N, 1 ≤ N ≤ n. The first holds the lowest.
        strictness: s from 0, a random split, to 1, where each client has a range of values of its own.
        seed: ≥ 0, of NumPy's generator.

    Raises:
        ConfigError: more clients than examples; ``strictness`` outside of 0 to 1.
        DataError: ``values`` are not one finite number an example.

    Source:
        Flower Datasets, ContinuousPartitioner.

    Example:
        >>> [part.tolist() for part in by_value(np.array([0.3, 9.0, -2.0, 4.0]), clients=2)]
        [[0, 2], [1, 3]]
    """
    given = np.asarray(values)
    if given.ndim != 1 or given.size == 0 or given.dtype.kind not in "biuf" or not np.isfinite(given).all():
        raise DataError(f"values: need one finite number an example, got an array of {given.dtype} {given.shape}")
    _check_clients(clients, len(given))
    check_number("strictness", strictness, 0, 1)
    numbers = given.astype(np.float64)
    z = (numbers - numbers.mean()) / (numbers.std() or 1.0)
    mixed = strictness * z + (1 - strictness) * normal(_generator(seed), len(z))
    return _sorted(np.array_split(np.argsort(mixed, kind="stable"), clients))


def by_column(column: np.ndarray, group_size: int = 1) -> list[np.ndarray]:
    """One client for each value that occurs in ``column``, or for so many neighbouring values, in their order.

    Args:
        column: [n] numbers or strings: whose each example is, e.g. ``load("mnist").groups["writer"]``.
        group_size: how many values make a client; the last client may have fewer.

    Raises:
        DataError: ``column`` is not one value an example.

    Example:
        >>> [part.tolist() for part in by_column(np.array([7, 3, 7]))]
        [[1], [0, 2]]
    """
    rows = _rows_by_class(column, "column")
    starts = range(0, len(rows), check_count("group_size", group_size))
    return _sorted([np.concatenate(rows[start : start + group_size]) for start in starts])


def power_law(n: int, clients: int, exponent: float = 1.0, min_size: int = 10, seed: int = 0) -> list[np.ndarray]:
    """Examples dealt at random in sizes n_i = m + (n − N·m)·i^{−a}/Σ_j j^{−a}, i = 1 … N: alike, but unequal in size.

    Args:
        n: number of examples.
        clients: N.
        exponent: a ≥ 0; 0 gives equal sizes. The first client is the largest.
        min_size: m, from 1 to n/N.
        seed: ≥ 0, of NumPy's generator.

    Raises:
        ConfigError: ``min_size`` is above n/N.

    Example:
        >>> [len(part) for part in power_law(1000, clients=4, exponent=2.0)]
        [684, 179, 85, 52]
    """
    check_number("exponent", exponent, 0)
    return _by_shares(n, clients, lambda i: exp(-exponent * log(i)), min_size, seed)


def _by_shares(
    n: int, clients: int, law: Callable[[np.ndarray], np.ndarray], min_size: int, seed: int
) -> list[np.ndarray]:
    """Dealt at random: ``min_size`` to each, and the rest in proportion to ``law(i)`` of the clients i = 1 … N."""
    check_room(24 * check_count("n", n), n=n)
    _check_clients(clients, n)
    _check_min_size(min_size, clients, n)
    shares = law(np.arange(1.0, clients + 1))
    # Rounding the ends of the parts, not their sizes, keeps the sum.
    ends = np.rint((n - clients * min_size) * np.cumsum(shares) / shares.sum()).astype(np.int64)
    ends += min_size * np.arange(1, clients + 1)
    return _sorted(np.split(_generator(seed).permutation(n), ends[:-1]))


def _sizes(sizes: Sequence[int] | np.ndarray, n: int) -> np.ndarray:
    given = np.asarray(sizes)
    if given.ndim != 1 or given.size == 0 or given.dtype.kind not in "iu" or given.min() < 1 or given.sum() != n:
        what = f"there are {n} examples; give one whole number of at least 1 a client, which sum to that"
        raise ConfigError("sizes", sizes, what)
    return given.astype(np.int64)


def _dirichlet_counts(sizes: np.ndarray, clients: int, alpha: float, generator: np.random.Generator) -> np.ndarray:
    """[C, N] how many examples of each class each client gets, in one draw."""
    counts = np.zeros((len(sizes), clients), np.int64)
    for c, size in enumerate(sizes):
        full = counts.sum(axis=0) * clients >= sizes.sum()
        # _TINY: with a small α the proportions of all clients that are not full may have underflowed to 0.
        q = np.where(full, 0, generator.dirichlet(np.full(clients, alpha)) + _TINY)
        ends = np.floor(np.cumsum(q) / q.sum() * size + 1e-9).astype(np.int64)
        ends[-1] = size
        counts[c] = np.diff(ends, prepend=0)
    return counts


def _deal(rows: list[np.ndarray], counts: np.ndarray, generator: np.random.Generator) -> list[np.ndarray]:
    """Deal the examples of each class at random, ``counts`` [C, N] of them to each client."""
    dealt = [
        np.split(generator.permutation(of_class), np.cumsum(count)[:-1])
        for of_class, count in zip(rows, counts, strict=True)
    ]
    return _sorted([np.concatenate(hand) for hand in zip(*dealt, strict=True)])


def _rows_by_class(labels: np.ndarray, field: str = "labels") -> list[np.ndarray]:
    """The indices of each value that occurs, in the order of the values."""
    given = np.asarray(labels)
    if given.ndim != 1 or given.size == 0 or given.dtype.kind not in "biufSU":
        raise DataError(f"{field}: need one value an example, got an array of {given.dtype} {given.shape}")
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        bad = int(np.flatnonzero(~np.isfinite(given))[0])
        raise DataError(f"{field}: example {bad} has {given[bad]}; clean the data first")
    _, sizes = np.unique(given, return_counts=True)
    order = np.argsort(given, kind="stable").astype(np.int64)
    return np.split(order, np.cumsum(sizes)[:-1])


def _sorted(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.sort(part).astype(np.int64) for part in parts]


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(check_count("seed", seed, 0))


def _check_clients(clients: int, n: int, pieces: int = 1) -> None:
    """``pieces``: into how many each client's examples are cut at first."""
    if check_count("clients", clients) > n:
        raise ConfigError("clients", clients, f"there are {n} examples; give at most one client an example")
    check_room(160 * int(clients) * pieces, clients=clients)


def _check_min_size(min_size: int, clients: int, n: int) -> None:
    if check_count("min_size", min_size) * clients > n:
        raise ConfigError("min_size", min_size, f"{clients} clients, {n} examples: give at most {n // clients}")
