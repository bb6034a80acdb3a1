"""Is it worth it to train together? A method against clients that train alone, and against one model on all rows.

Of a method with personal models these are compared, as they are what clients get.

Both are compared on the test examples of each client, with the seeds, splits and effort of tuning of the method; the
figure of all is the mean over the test examples, each client's weighted by how many it has. Differences are those of
the seeds, as in :mod:`fedax.experiments.chance`, corrected for the number of baselines, and by client for the number of
clients; and for the number of methods, since the method was chosen by the same figures: if it was not, the best of ten
that equal the baseline would be called better in 7 % of all cases. Where all seeds share their test examples, only the
seeds of training are covered, and the sentences say so; from ``chance.MANY_CLIENTS`` clients on, this holds of single
clients only.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedax.columns import PERSONAL, deciding
from fedax.experiments import chance, clients, examples
from fedax.experiments.chance import Gap, gap_of
from fedax.experiments.runs import Record

if TYPE_CHECKING:
    from fedax.experiments.summary.compared import Method

LEVEL = 0.05  # of all tests


@dataclass(frozen=True)
class Versus:
    """A method against a baseline, over the seeds that both have.

    Attributes:
        label: of the method.
        column: of the figure, ``"test_loss"`` or that of a metric.
        better: ``"lower"`` or ``"higher"``.
        mean, baseline: the figure of both, over seeds and test examples.
        gap: the method less the baseline; ``None`` with one seed.
        sure: whether it covers the test examples.
        personal: whether the method's personal models are compared.
        clients: client -> the gap for it alone; empty with one seed or one client, and where the seeds share their test
            examples: a client's few say nothing of others.
    """

    label: str
    column: str
    better: str
    mean: float
    baseline: float
    gap: Gap | None
    sure: bool
    personal: bool = False
    clients: dict[str, Gap] = field(default_factory=dict)

    def side(self, gap: Gap | None) -> int:
        """1 where the method is better than the baseline beyond chance, −1 where it is worse, else 0."""
        if gap is None or gap.p >= LEVEL:
            return 0
        return 1 if (gap.mean < 0) == (self.better == "lower") else -1

    @property
    def claim(self) -> int:
        """The side of all clients together; 0 where the test examples are not covered: others may say otherwise."""
        return self.side(self.gap) if self.sure else 0

    @property
    def sides(self) -> dict[int, list[str]]:
        """The clients that gain (1), lose (−1), or are not distinguished (0)."""
        return {side: [name for name, gap in self.clients.items() if self.side(gap) == side] for side in (1, -1, 0)}


def versus(record: Record, method: "Method", seeds: list[int], judge: str, methods: int) -> dict[str, Versus]:
    """Baseline -> the method, chosen from so many, against it; only baselines that were run."""
    of_method = clients.by_seed(record, method.label_in_folder)
    known = {label: clients.by_seed(record, label) for label in clients.BASELINES}
    known = {label: tables for label, tables in known.items() if tables}
    results = {}
    for label, tables in known.items():
        shared = [seed for seed in seeds if seed in tables and seed in of_method]
        pairs = [(of_method[seed], tables[seed]) for seed in shared]
        if pairs and (found := _versus(record, method.label, pairs, judge, len(known), methods)) is not None:
            results[label] = found
    return results


def _versus(
    record: Record,
    label: str,
    pairs: list[tuple[clients.ClientTable, clients.ClientTable]],
    judge: str,
    baselines: int,
    methods: int,
) -> Versus | None:
    figure = judge.removeprefix("test_").removesuffix(PERSONAL)
    known = all(figure in table.values for pair in pairs for table in pair)
    if not known or record.better(f"test_{figure}") is None:
        figure = "loss"
    column, config = f"test_{figure}", record.config
    names = [name for name in pairs[0][0].names if all(name in table.names for pair in pairs for table in pair)]
    ours = np.array([_ordered(pair[0], names, pair[0].of(figure)) for pair in pairs])
    theirs = np.array([_ordered(pair[1], names, pair[1].of(figure)) for pair in pairs])
    sizes = np.array([_ordered(pair[0], names, pair[0].sizes) for pair in pairs])
    both = np.isfinite(ours) & np.isfinite(theirs)
    if not both.any(1).all():
        return None
    weights = np.where(both, sizes, 0)
    one, other = (np.average(np.where(both, values, 0), axis=1, weights=weights) for values in (theirs, ours))
    overlap, redrawn = chance.overlap(config, column), chance.redrawn(config, "test")
    of_clients = counts = None
    if not redrawn and both.all() and len(names) >= chance.MANY_CLIENTS:  # the sums of the clients are enough
        counts = sizes[0]
        of_clients = np.repeat(theirs.mean(0), counts), np.repeat(ours.mean(0), counts)
    several = len(pairs) > 1
    gap = gap_of(one, other, overlap, of_clients, counts, baselines * methods) if several else None
    by_client = {
        name: gap_of(theirs[:, i], ours[:, i], overlap, tests=len(names) * methods)
        for i, name in enumerate(names)
        if several and redrawn and len(names) > 1 and both[:, i].all()
    }
    way = record.better(column) or "lower"
    sure, personal = redrawn or of_clients is not None, f"{figure}{PERSONAL}" in pairs[0][0].values
    return Versus(label, column, way, float(other.mean()), float(one.mean()), gap, sure, personal, by_client)


def _ordered(table: clients.ClientTable, names: list[str], values: np.ndarray) -> np.ndarray:
    places = {name: i for i, name in enumerate(table.names)}
    return values[[places[name] for name in names]]


def over_clients(record: Record, label: str, figure: str, shared: bool = False) -> clients.Spread | None:
    """How a figure is spread over the clients of a method or a baseline; ``None``: there are no tables of it.

    Args:
        record: the run folder.
        label: of the method or the baseline.
        figure: such as ``"loss"``: of the models that clients get, their personal ones where there are any.
        shared: of the shared model in any case.
    """
    tables = clients.tables(record, label)
    figure = figure if shared or not tables else deciding(figure, tables[0].values)
    column = f"test_{figure}"
    return clients.spread_of(
        label, tables, figure, record.better(column) or "lower", chance.overlap(record.config, column),
        None if not tables else _examples(record, label, column, tables[0]),
    )  # fmt: skip


def _examples(record: Record, label: str, column: str, table: clients.ClientTable) -> dict[str, np.ndarray] | None:
    """Client -> the values of its test examples, means over the seeds; ``None`` where they are not stored."""
    found = examples.mean_of(record.folder, label, record.config["run"]["seeds"], column)
    if found is None or not np.array_equal(found.sizes, table.sizes):
        return None
    return dict(zip(table.names, np.split(found.values, np.cumsum(table.sizes)[:-1]), strict=True))
