"""Each client's examples, split into training, validation and test parts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedax.data.federated import FederatedData, Unseen
from fedax.errors import ConfigError, DataError, unknown
from fedax.numbers import check_count, check_number

_RARE = 0.1  # of a client's examples


class Split(NamedTuple):
    """What :func:`split` gives; ``None`` where no client has an example of a part.

    Example:
        >>> train, val, test = split(FederatedData({"y": np.arange(10)}, sizes=[10]), train=0.8, val=0, test=0.2)
        >>> train.num_examples, val, test.num_examples
        (8, None, 2)
    """

    train: FederatedData
    val: FederatedData | None
    test: FederatedData | None


def split(
    data: FederatedData,
    train: float = 0.7,
    val: float = 0.15,
    test: float = 0.15,
    stratify: bool | str | np.ndarray = False,
    seed: int = 0,
    places: Sequence[int] | None = None,
    clients: float | Sequence[int] | None = None,
) -> Split:
    """Deal each client's own examples at random to training, validation and test.

    A client's n_i examples are dealt in its shares to within one (largest remainders), and every client keeps one for
    training at least. Clients that have none for a part are not in it, so the parts know clients by name.

    Args:
        data: all clients' examples.
        train, val, test: shares ≥ 0, ``train`` above 0, that sum to 1.
        stratify: ``True``: as many of each class ``y`` in a part as its share of the client's, to within two.
            ``"rare"``: so for clients with a class that is rarer than 10 % of their examples, each by its own. Or an
            array of the examples by its name, or classes [n] of all examples.
        seed: ≥ 0, of NumPy's generator. A client's split depends on the seed, its place, its size, and where it is
            stratified its classes, only.
        places: [N] each client's place, ≥ 0, in a federation of which these are some clients: they are dealt as they
            are among all. Default: 0 to N − 1.
        clients: clients that take no part in training, as a share in (0, 1) of all, which is drawn by the seed, or by
            their numbers. Their rows are dealt likewise, to ``train.unseen``: a run evaluates its models there, too.

    Returns:
        Data with the same transform. ``train`` keeps the weights p; ``val`` and ``test`` have those of their clients,
        renormalised. Without names, their clients are called ``client 0`` and so on.

    Raises:
        ConfigError: shares that do not sum to 1; not one place ≥ 0 for each client; no client left out, or none left;
            clients left out without a test row, or of data that leave some out already.
        DataError: ``stratify`` is not one class an example.

    Example:
        >>> data = FederatedData({"y": np.arange(24) % 2}, sizes=[20, 3, 1], names=["A", "B", "C"])
        >>> parts = split(data, train=0.6, val=0.2, test=0.2, stratify=True)
        >>> [(part.names, part.sizes.tolist()) for part in parts]
        [(('A', 'B', 'C'), [12, 2, 1]), (('A', 'B'), [4, 1]), (('A',), [4])]
        >>> [np.bincount(part.client(0)["y"]).tolist() for part in parts]
        [[6, 6], [2, 2], [2, 2]]
        >>> train, _, test = split(data, train=0.5, val=0, test=0.5, clients=[1])
        >>> train.names, test.names, train.unseen.test.names
        (('A', 'C'), ('A',), ('B',))
    """
    shares = {"train": train, "val": val, "test": test}
    for name, share in shares.items():
        check_number(name, share, 0, 1, open_low=name == "train")
    if abs(sum(shares.values()) - 1) > 1e-9:
        raise ConfigError("train", train, f"the shares sum to {sum(shares.values()):.6g}; they have to sum to 1")
    check_count("seed", seed, 0)
    places = range(data.num_clients) if places is None else [check_count("places", place, 0) for place in places]
    if len(places) != data.num_clients:
        raise ConfigError("places", list(places), f"give one for each of the {data.num_clients} clients")
    rare = isinstance(stratify, str) and stratify == "rare"
    classes = _rare_classes(data) if rare else _classes(data, stratify)
    if clients is not None:
        if data.unseen is not None:
            names = list(data.unseen.test.names or ())
            raise ConfigError("clients", clients, f"of these data {names} take no part already; split them all at once")
        return _without(data, _left_out(clients, data.num_clients, seed), shares, stratify, seed, places)
    rows: list[list[np.ndarray]] = [[], [], []]
    for place, start, size in zip(places, data.offsets, data.sizes, strict=True):
        generator = np.random.default_rng([seed, place])
        order = generator.permutation(size)
        if classes is not None:
            _, codes, each = np.unique(classes[start : start + size], return_inverse=True, return_counts=True)
            if not rare or each.min() < _RARE * size:
                ranks = generator.permutation(len(each))  # so that no class is always the first
                order = order[np.argsort(ranks[codes[order]], kind="stable")]
        counts = part_sizes(int(size), list(shares.values()))
        for part, chosen in zip(rows, _divide(order, counts, generator), strict=True):
            part.append(start + np.sort(chosen))
    return Split(*(_part(data, part, whole=k == 0) for k, part in enumerate(rows)))  # type: ignore[arg-type]


def _left_out(clients: float | Sequence[int], n: int, seed: int) -> list[int]:
    """The numbers of the clients that take no part."""
    if isinstance(clients, Sequence) and not isinstance(clients, str):
        chosen = sorted({check_count("clients", each, 0, n - 1) for each in clients})
    else:
        share = check_number("clients", clients, 0, 1, open_low=True, open_high=True)
        drawn = np.random.default_rng([seed, n]).permutation(n)  # the clients' own splits have [seed, 0] to [seed, n-1]
        chosen = sorted(drawn[: max(1, round(share * n))].tolist())
    if not 0 < len(chosen) < n:
        raise ConfigError("clients", clients, f"it leaves out {len(chosen)} of {n} clients; some have to stay")
    return chosen


def _without(
    data: FederatedData, left_out: Sequence[int], shares: Any, stratify: Any, seed: int, places: Sequence[int]
) -> Split:
    """The split of the clients that take part, with that of the others beside its training part."""
    parts = []
    for chosen in ([i for i in range(data.num_clients) if i not in {*left_out}], left_out):
        rows = [np.arange(size) + start if i in {*chosen} else np.zeros(0, np.int64)
                for i, (start, size) in enumerate(zip(data.offsets, data.sizes, strict=True))]  # fmt: skip
        some = _part(data, rows, whole=False)
        assert some is not None
        classes = stratify if isinstance(stratify, bool | str) else np.asarray(stratify)[np.concatenate(rows)]
        parts.append(split(some, **shares, stratify=classes, seed=seed, places=[places[i] for i in chosen]))
    if parts[1].test is None:
        hint = "clients that take no part are evaluated on test rows, and none of those has one: give a larger test"
        raise ConfigError("test", shares["test"], hint)
    parts[0].train.unseen = Unseen(parts[1].train, parts[1].test)
    return parts[0]


def _rare_classes(data: FederatedData) -> np.ndarray | None:
    """The labels, if they are classes: whole numbers."""
    y = data.examples.get("y") if isinstance(data.examples, dict) else None
    return y if y is not None and np.ndim(y) == 1 and np.asarray(y).dtype.kind in "biu" else None


def _classes(data: FederatedData, stratify: Any) -> np.ndarray | None:
    if stratify is False:
        return None
    if stratify is True or isinstance(stratify, str):
        name = "y" if stratify is True else stratify
        names = data.examples if isinstance(data.examples, dict) else {}
        if name not in names:
            raise unknown("stratify", name, ["rare", *names], stratify)
        stratify = names[name]
    classes = np.asarray(stratify)
    if classes.shape != (data.num_examples,) or classes.dtype.kind not in "biufSU":
        raise DataError(f"stratify: an array of {classes.dtype} {classes.shape}; give one class an example")
    if classes.dtype.kind == "f" and (classes != np.rint(classes)).any():
        raise DataError("stratify: its values are not whole, as of a regression; there are no classes to keep")
    return classes


def part_sizes(size: int, shares: Sequence[float]) -> list[int]:
    """Whole parts of ``size`` by largest remainders, of which the first gets one at least.

    Example:
        >>> part_sizes(10, [0.7, 0.15, 0.15]), part_sizes(1, [0.2, 0.0, 0.8])
        ([7, 2, 1], [1, 0, 0])
    """
    exact = [size * share for share in shares]
    counts = [int(each + 1e-9) for each in exact]
    by_rest = sorted(range(3), key=lambda k: (counts[k] - exact[k], k))
    for k in by_rest[: size - sum(counts)]:
        counts[k] += 1
    if not counts[0]:
        counts[int(np.argmax(counts))] -= 1
        counts[0] = 1
    return counts


def _divide(order: np.ndarray, counts: list[int], generator: np.random.Generator) -> list[np.ndarray]:
    """Divide examples into the parts such that any stretch of ``order`` has its share of each part."""
    held_out = _evenly_spread(len(order), counts[1] + counts[2], generator)
    others = order[held_out]
    tested = _evenly_spread(len(others), counts[2], generator)
    return [order[~held_out], others[~tested], others[tested]]


def _evenly_spread(n: int, count: int, generator: np.random.Generator) -> np.ndarray:
    """A mask [n] with ``count`` true entries, evenly spread from a random start: each is true with p = count / n."""
    steps = (np.arange(n + 1) * count + generator.integers(max(n, 1))) // max(n, 1)
    return np.diff(steps) > 0


def _part(data: FederatedData, rows: list[np.ndarray], whole: bool) -> FederatedData | None:
    clients = [i for i, client_rows in enumerate(rows) if len(client_rows)]
    if not clients:
        return None
    chosen = np.concatenate(rows)
    sizes = [len(rows[i]) for i in clients]
    weights = data.weights[clients]
    data_of_part = FederatedData(
        jax.tree.map(lambda leaf: leaf[chosen], data.examples),
        sizes,
        weights / weights.sum() if weights.sum() > 0 else None,
        names=data.names if whole else [data.name(i) for i in clients],
        transform=data.transform,
        overview=data.overview,
        _finite=True,
    )
    if whole:
        data_of_part.weights = data.weights  # not divided by their sum again
        data_of_part.unseen = data.unseen
    return data_of_part
