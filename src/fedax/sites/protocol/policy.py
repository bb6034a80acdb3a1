"""The policy of a node's owner: rules that the node enforces, whatever a server requests."""

import dataclasses
import math
import os
import pathlib
import tomllib
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from fedax.columns import PARTS
from fedax.contract.types import Unknown
from fedax.data.summaries import LEAST
from fedax.engine.job import Job
from fedax.errors import ConfigError, unknown
from fedax.numbers import check_count, check_number
from fedax.sites.protocol.agreement import Agreement
from fedax.sites.protocol.refusals import Refusal, Rule

_EQUAL = 1e-6  # relative, of shares of a sum
_EPSILON, _DELTA = 8.0, 1e-5

STRICT = """\
# What the owner of this node allows. The node reads this file when it starts, and keeps its rules whatever a server
# sends. A rule that is left out allows everything. Each refusal is a line in site/log.jsonl of the node's folder.

[runs]
# Which methods and tasks a run may use, by their names: `fedax list` shows them.
methods = ["fedavg", "fedprox", "fednova", "scaffold", "feddyn"]
tasks = ["logistic_regression", "softmax_regression", "linear_regression", "mlp"]
# May a run split rows off for validation and testing?
split = true
# In how many rounds, of all runs together, do clients of this node take part at most?
rounds = 1000
# Which code of others may run here: files beside this one, and modules of packages. Read it first. None without this.
# code = ["mine.py"]

[messages]
# How many questions about data are answered: at most, and on one day. A round with an evaluation asks twice.
total = 5000
daily = 2000

[sums]
# Every number that leaves is a sum, or a mean, in which no client counts for more than 1/clients, and no example for
# more than 1/examples.
clients = 1
examples = 50
# May uploads or figures of single clients leave?
single = false

[work]
# The fewest examples in a local step, or all that a client has; and the fewest local steps before an upload.
batch = 16
steps = 5

[secure]
# Updates leave in secure sums only, over this node and at least so many others.
nodes = 2
# How many of these others may work with the server, and still learn no more than the sum? With 3 nodes and 1, all 3
# have to answer in each round.
colluding = 1
# The largest share of this node in the weight of such a sum.
share = 0.9

[tables]
# Every number of a table's summary, such as the count of a category, is of so many rows at least; 5 without this rule.
rows = 5

[figures]
# The measures that may leave. They are means over this node's examples, and are not masked.
columns = ["train_loss", "val_loss", "val_error", "val_accuracy", "test_loss", "test_error", "test_accuracy"]
# With noise, figures are private, also where the server chooses the model: its standard deviation, in units of how far
# one row can move them, or one client (unit = "clients"). Losses are clipped to [0, bound].
noise = 20.0
bound = 3.0
unit = "rows"
# Without noise: histograms of metrics, such as that of AUC, have at most so many bits.
# bits = 6

# Noise of the node's own on each update, so that the server sees private sums only. It cannot be used with [secure]:
# take one of the two. An update is clipped to the norm `clip`; `noise` is in units of the clip.
# [updates]
# clip = 1.0
# noise = 4.0

# What all noise together may spend, over all runs. When it is spent, the node does not answer any more.
[budget]
epsilon = 8.0
delta = 1e-5
"""


@dataclasses.dataclass(frozen=True)
class Policy:
    """The rules of a node's owner. A rule that is left out allows everything.

    Args:
        methods: the names of the methods that a run may use; ``None``: all.
        tasks: the same of tasks.
        split: whether a run may deal the rows of each client to training, validation and test.
        rounds: in how many rounds, of all runs together, its clients take part at most, ≥ 1.
        code: files, and modules of packages, of methods and tasks that may run here.
        total: how many questions about data are answered at most, ≥ 1.
        daily: the same on one day.
        clients: of each sum that leaves no client has more than 1/clients of the weight, ≥ 1.
        examples: and no example more than 1/examples, ≥ 1.
        single: whether uploads and figures of single clients may leave.
        rows: how many rows a number of a table's summary is of at least, ≥ 5.
        batch: the fewest examples in a local step, or all that a client has, ≥ 1.
        steps: the fewest local steps before an upload, ≥ 0.
        nodes: updates leave in secure sums only, over at least so many *other* nodes, ≥ 1; ``None``: also without.
        colluding: in secure sums how many other nodes may work with the server and still learn nothing, ≥ 0. So many
            nodes have to stay in each exchange that twice their number is above all and these together.
        share: in secure sums this node has no more than this share of the weight, in (0, 1].
        columns: which measures may leave the node, such as ``["train_loss"]``.
        noise: z > 0, the standard deviation of Gaussian noise on each figure that leaves, in units of how far one
            client can move it; ``None``: figures leave as they are. Clients' losses are clipped to [0, ``bound``]
            before they are summed. Of held-out examples, which belong to no single client, the mean is clipped: shares
            to [0, 1], others to [0, ``bound``]. What has no such bound is refused: gradients, and metrics that are made
            of sums. The noise is of a secret of the node, and the same where the same question is asked again.
        bound: b > 0, the largest loss; with ``noise`` only.
        unit: what the noise of figures hides: ``"clients"``, or ``"rows"``, where losses are clipped row by row.
        bits: the most bits of a metric's histogram, ≥ 1; ``None``: any number.
        clip: C > 0, the longest norm of one client's update. With it each sum of updates that leaves has Gaussian noise
            of standard deviation ``update_noise`` · C · (the largest weight of a client in it).
        update_noise: z > 0; with ``clip`` only, and not with ``nodes``.
        epsilon: the budget ε > 0 of all noise together, over all runs: (ε, δ)-differential privacy of clients, as the
            server sees them. Default: 8, where there is noise.
        delta: its δ, from 1e-12, below 1; default: 1e-5.

    Raises:
        ConfigError: values out of range; settings that do not go together.

    Source: Dwork et al. 2006, "Our data, ourselves: privacy via distributed noise generation".

    Example:
        >>> policy = Policy(columns=["train_loss"], clients=2)
        >>> policy.refused(["train_loss", "grad_norm_sq"])
        ['grad_norm_sq']
        >>> policy.check_sum(np.array([0.9, 0.1]), np.array([500, 60]))
        Traceback (most recent call last):
        fedax.sites.protocol.refusals.Refusal: its owner's policy (sums.clients = 2) is against a sum in which one ...
    """

    methods: Collection[str] | None = None
    tasks: Collection[str] | None = None
    split: bool = True
    rounds: int | None = None
    code: Collection[str] = ()
    total: int | None = None
    daily: int | None = None
    clients: int = 1
    examples: int = 1
    single: bool = True
    rows: int = LEAST
    batch: int = 1
    steps: int = 0
    nodes: int | None = None
    colluding: int = 1
    share: float = 0.9
    columns: Collection[str] | None = None
    noise: float | None = None
    bound: float | None = None
    unit: str = "clients"
    bits: int | None = None
    clip: float | None = None
    update_noise: float | None = None
    epsilon: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        for name in ("methods", "tasks", "code", "columns"):
            given = getattr(self, name)
            if given is not None and (isinstance(given, str) or not all(isinstance(each, str) for each in given)):
                raise ConfigError(_place(name), given, "give a list of names")
        for name in ("split", "single"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(_place(name), getattr(self, name), "give true or false")
        for count, low in (("rounds", 1), ("total", 1), ("daily", 1), ("clients", 1), ("examples", 1), ("batch", 1),
                          ("steps", 0), ("rows", LEAST), ("nodes", 1), ("colluding", 0), ("bits", 1)):  # fmt: skip
            if getattr(self, count) is not None:
                check_count(_place(count), getattr(self, count), low)
        for name in ("noise", "bound", "clip", "update_noise", "epsilon"):
            if getattr(self, name) is not None:
                check_number(_place(name), getattr(self, name), 0, open_low=True, fixed=True)
        if self.unit not in ("clients", "rows"):
            raise ConfigError(_place("unit"), self.unit, "give clients or rows")
        check_number(_place("share"), self.share, 0, 1, open_low=True, fixed=True)
        if self.delta is not None:
            check_number(_place("delta"), self.delta, 1e-12, 1, open_high=True, fixed=True)
        for one, other in (("noise", "bound"), ("clip", "update_noise")):
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                missing, there = (one, other) if getattr(self, one) is None else (other, one)
                text = f"{_place(one)} and {_place(other)} go together; the other is {getattr(self, there)}"
                raise ConfigError(_place(missing), None, text)
        if self.clip is not None and self.nodes is not None:
            way_out = "whole numbers of secure sums have no room for noise of the node's own; take one of the two"
            raise ConfigError("secure.nodes", self.nodes, way_out)
        if self.clip is not None and self.noise is None and self.columns != []:
            way_out = "figures without it would tell what the noise on updates hides; give one, or figures.columns = []"
            raise ConfigError("figures.noise", None, way_out)
        if not self.noised:
            for name in ("epsilon", "delta"):
                if getattr(self, name) is not None:
                    raise ConfigError(_place(name), getattr(self, name), "there is no noise that could spend it")
            return
        for field, z in {"noise": self.noise, "update_noise": self.update_noise}.items():
            if z is not None and (each := self.spent(z**-2)) > self.budget:
                way_out = f"one answer spends ε = {each:.3g}, more than {_place('epsilon')} = {self.budget:g}"
                raise ConfigError(_place(field), z, f"{way_out}; give more noise")

    @property
    def noised(self) -> bool:
        """Whether anything leaves with noise of the node's own."""
        return self.noise is not None or self.clip is not None

    @property
    def budget(self) -> float:
        """The ε that all noise may spend."""
        return _EPSILON if self.epsilon is None else self.epsilon

    def spent(self, loss: float, tail: float = 0.0) -> float:
        """The ε of answers with noise z_1, z_2, …: that of one Gaussian mechanism.

        Args:
            loss: Σ 1/z².
            tail: the part of δ that the end of the noise takes, as of :meth:`fedax.privacy.Ledger.tail`.
        """
        from fedax.privacy import Ledger

        left = (self.delta or _DELTA) - tail
        if not loss:
            return 0.0
        return math.inf if left < 1e-12 else Ledger(loss**-0.5, 1).epsilon(1, left)

    @property
    def figures(self) -> dict[str, Unknown]:
        """Which figures may leave, as a coordinator is told: the columns, ``None`` for all; and whether with noise."""
        return {"columns": None if self.columns is None else sorted(self.columns), "noise": self.noise is not None}

    # ---- what a run may be

    def check_run(
        self, agreement: Agreement, job: Job, sizes: Sequence[int], single: bool, measured: Sequence[str]
    ) -> None:
        """Refuse a run before its first round.

        Args:
            agreement, job: the agreement, and the job that the node derived from it.
            sizes: how many examples each of the node's clients has for training.
            single: whether uploads leave one by one.
            measured: the columns to which the node contributes.

        Raises:
            Refusal: a rule forbids it.
        """
        self.check_problem(agreement.config)
        wire, batch = job.hyper.wire, job.plan.batch_size
        if not self.split and agreement.split is not None:
            raise Refusal(Rule.SPLIT, False)
        if batch is not None and batch < min(self.batch, max(sizes)):
            raise Refusal(Rule.BATCH, self.batch)
        if wire.faults is not None and (wire.secure is not None or self.clients > 1 or self.examples > 1):
            raise Refusal(Rule.SILENCED)
        if wire.guard is not None and self.clients > 1:
            raise Refusal(Rule.GUARD, self.clients)
        self.check_upload(single, wire.guard is not None, wire.secure is not None)
        if refused := self.refused(measured):
            raise Refusal(Rule.COLUMNS, self._listed(self.columns), ", ".join(refused))
        if "grad_norm_sq" in measured and wire.secure is None:
            self.check_work(1)  # a gradient is an update of one step
            if self.clients > 1:
                raise Refusal(Rule.GRADIENT, self.clients)
        metrics = job.plan.task.whole_metrics
        sums = [name for name in measured if name.startswith(PARTS) and name.partition("_")[2] in metrics]
        if self.noise and (unbounded := [name for name in measured if name == "grad_norm_sq"] + sums):
            raise Refusal(Rule.UNBOUNDED, self.noise, ", ".join(unbounded))
        if self.bits is not None and any(getattr(metric, "bits", 0) > self.bits for metric in metrics.values()):
            raise Refusal(Rule.BITS, self.bits)

    def check_problem(self, config: Mapping[str, Unknown]) -> None:
        """Refuse a run by the names of its method and its task.

        Raises:
            Refusal: a rule forbids it.
        """
        for rule, allowed, part in ((Rule.METHOD, self.methods, "method"), (Rule.TASK, self.tasks, "task")):
            if allowed is not None and part in config:
                section = config[part]
                name = section.get("name") if isinstance(section, dict) else None
                if name not in allowed:
                    raise Refusal(rule, self._listed(allowed), str(name)[:80])

    def refused(self, columns: Sequence[str]) -> list[str]:
        """The columns among ``columns`` that may not leave."""
        return [] if self.columns is None else [name for name in columns if name not in self.columns]

    @staticmethod
    def _listed(names: Collection[str] | None) -> str:
        return "[" + ", ".join(sorted(names or ())) + "]"

    # ---- what an answer may be

    def check_sum(self, weights: np.ndarray, sizes: np.ndarray) -> None:
        """Refuse a sum over clients that reveals too much of one of them, or of one example.

        Args:
            weights: [k] the weights of the clients, ≥ 0.
            sizes: [k] how many examples each has.

        Raises:
            Refusal: it does.
        """
        weights = np.asarray(weights, float)
        if not (total := float(weights.sum())):
            return
        share = weights / total
        if share.max() > (1 + _EQUAL) / self.clients:
            raise Refusal(Rule.CLIENTS, self.clients)
        if float((share / np.maximum(sizes, 1)).max()) > (1 + _EQUAL) / self.examples:
            raise Refusal(Rule.EXAMPLES, self.examples)

    def check_held(self, number: int) -> None:
        """Refuse figures of too few held-out examples.

        Raises:
            Refusal: they are.
        """
        if number < self.examples:
            raise Refusal(Rule.HELD, self.examples)

    def check_table(self, number: int) -> None:
        """Refuse figures of single clients, of whom each has at least so many test examples.

        Raises:
            Refusal: a rule is against it.
        """
        if self.noise is not None:
            raise Refusal(Rule.NO_FIGURES, self.noise)
        if not self.single:
            raise Refusal(Rule.SINGLE, False)
        if self.clients > 1:
            raise Refusal(Rule.ONE_BY_ONE, self.clients)
        if self.refused(["test_loss"]):
            raise Refusal(Rule.COLUMNS, self._listed(self.columns), "test_loss")
        self.check_held(number)

    def check_upload(self, single: bool, guarded: bool, secure: bool) -> None:
        """Refuse an upload in a form in which it may not leave.

        Args:
            single: whether it is that of one client.
            guarded: whether a guard tells which uploads were accepted.
            secure: whether it leaves in a secure sum.

        Raises:
            Refusal: a rule is against it.
        """
        if self.nodes is not None and not secure:
            raise Refusal(Rule.SECURE, self.nodes)
        if single and not self.single:
            raise Refusal(Rule.SINGLE, False)
        if self.clip is not None and (single or guarded or secure):
            raise Refusal(Rule.NOISE, self.clip)

    def check_work(self, steps: int) -> None:
        """Refuse an upload after too few local steps.

        Raises:
            Refusal: they are too few.
        """
        if steps < self.steps:
            raise Refusal(Rule.STEPS, self.steps)

    def check_nodes(self, number: int) -> None:
        """Refuse a secure sum over so many nodes, this one among them.

        Raises:
            Refusal: they are too few.
        """
        if self.nodes is not None and number - 1 < self.nodes:
            raise Refusal(Rule.NODES, self.nodes)

    # ---- where it is from

    @classmethod
    def of(cls, table: Mapping[str, Unknown]) -> "Policy":
        """The policy of the tables of a file.

        Raises:
            ConfigError: a section or a rule that there is not, or as the class.

        Example:
            >>> Policy.of({"sums": {"clients": 3}}).clients
            3
        """
        given: dict[str, Unknown] = {}
        for section, rules in table.items():
            if section not in _SECTIONS:
                raise unknown("policy", section, _SECTIONS)
            if not isinstance(rules, Mapping):
                raise ConfigError(section, rules, f"it is a section: [{section}]")
            for rule, value in rules.items():
                if rule not in _SECTIONS[section]:
                    raise unknown(section, rule, _SECTIONS[section])
                given[_SECTIONS[section][rule]] = value
        return cls(**given)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Policy":
        """The policy in a TOML file; :data:`STRICT` has all rules, with explanations.

        Raises:
            ConfigError: it cannot be read, or has no such rule.
        """
        return cls.of(read_table(pathlib.Path(path)))


def read_table(
    path: pathlib.Path, field: str = "policy", way_out: str = "fedax deploy policy writes one"
) -> dict[str, Unknown]:
    """The tables of a policy's file, or of another; ``field`` and ``way_out`` are for the error.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(field, str(path), f"it cannot be read ({error}); {way_out}") from error


# section -> rule -> the field of Policy
_SECTIONS = {
    "runs": {name: name for name in ("methods", "tasks", "split", "rounds", "code")},
    "messages": {name: name for name in ("total", "daily")},
    "sums": {name: name for name in ("clients", "examples", "single")},
    "tables": {"rows": "rows"},
    "work": {name: name for name in ("batch", "steps")},
    "secure": {name: name for name in ("nodes", "colluding", "share")},
    "figures": {name: name for name in ("columns", "noise", "bound", "unit", "bits")},
    "updates": {"clip": "clip", "noise": "update_noise"},
    "budget": {name: name for name in ("epsilon", "delta")},
}
_PLACES = {field: f"{section}.{rule}" for section, rules in _SECTIONS.items() for rule, field in rules.items()}


def _place(field: str) -> str:
    """The section and the name of a rule in the file."""
    return _PLACES[field]
