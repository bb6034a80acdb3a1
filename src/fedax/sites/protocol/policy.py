"""The policy of a node's owner: rules that the node enforces, whatever a server requests."""

import dataclasses
import math
import pathlib
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fedax.columns import PARTS, PERSONAL
from fedax.contract.types import Unknown
from fedax.data.summaries import LEAST
from fedax.engine.job import Job
from fedax.errors import ConfigError, unknown
from fedax.numbers import check_count, check_number
from fedax.sites.protocol.agreement import Agreement
from fedax.sites.protocol.refusals import Refusal, Rule

_EQUAL = 1e-6  # relative, of shares of a sum
_EPSILON, _DELTA = 8.0, 1e-5

STRICT = pathlib.Path(__file__).with_name("strict.toml").read_text(encoding="utf-8")  # all rules, explained


def _rule(place: str, default: Unknown, check: Callable[..., object], *limits: Unknown, **options: bool) -> Any:
    """A field of :class:`Policy`: its place in the file, and the check of a value, with what that is given."""
    bound = lambda value: check(place, value, *limits, **options)  # noqa: E731
    return dataclasses.field(default=default, metadata={"place": place, "check": bound})


def _check_names(field: str, given: Unknown) -> None:
    if isinstance(given, str) or not isinstance(given, Collection) or not all(isinstance(each, str) for each in given):
        raise ConfigError(field, given, "give a list of names")


def _check_choice(field: str, given: Unknown, *choices: Unknown) -> None:
    if type(given) is not type(choices[0]) or given not in choices:
        raise ConfigError(field, given, f"give {' or '.join(map(str, choices)).lower()}")


def _check_positive(field: str, given: Unknown, most: float = math.inf) -> None:
    check_number(field, given, 0, most, open_low=True, fixed=True)


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

    methods: Collection[str] | None = _rule("runs.methods", None, _check_names)
    tasks: Collection[str] | None = _rule("runs.tasks", None, _check_names)
    split: bool = _rule("runs.split", True, _check_choice, True, False)
    rounds: int | None = _rule("runs.rounds", None, check_count)
    code: Collection[str] = _rule("runs.code", (), _check_names)
    total: int | None = _rule("messages.total", None, check_count)
    daily: int | None = _rule("messages.daily", None, check_count)
    clients: int = _rule("sums.clients", 1, check_count)
    examples: int = _rule("sums.examples", 1, check_count)
    single: bool = _rule("sums.single", True, _check_choice, True, False)
    rows: int = _rule("tables.rows", LEAST, check_count, LEAST)
    batch: int = _rule("work.batch", 1, check_count)
    steps: int = _rule("work.steps", 0, check_count, 0)
    nodes: int | None = _rule("secure.nodes", None, check_count)
    colluding: int = _rule("secure.colluding", 1, check_count, 0)
    share: float = _rule("secure.share", 0.9, _check_positive, 1)
    columns: Collection[str] | None = _rule("figures.columns", None, _check_names)
    noise: float | None = _rule("figures.noise", None, _check_positive)
    bound: float | None = _rule("figures.bound", None, _check_positive)
    unit: str = _rule("figures.unit", "clients", _check_choice, "clients", "rows")
    bits: int | None = _rule("figures.bits", None, check_count)
    clip: float | None = _rule("updates.clip", None, _check_positive)
    update_noise: float | None = _rule("updates.noise", None, _check_positive)
    epsilon: float | None = _rule("budget.epsilon", None, _check_positive)
    delta: float | None = _rule("budget.delta", None, check_number, 1e-12, 1, open_high=True, fixed=True)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if (given := getattr(self, field.name)) is not None or field.default is not None:
                field.metadata["check"](given)
        for one, other in (("noise", "bound"), ("bound", "noise"), ("clip", "update_noise"), ("update_noise", "clip")):
            if getattr(self, one) is None and getattr(self, other) is not None:
                text = f"{_PLACES[one]} and {_PLACES[other]} go together; the other is {getattr(self, other)}"
                raise ConfigError(_PLACES[one], None, text)
        if self.clip is not None and self.nodes is not None:
            hint = "whole numbers of secure sums have no room for noise of the node's own; take one of the two"
            raise ConfigError("secure.nodes", self.nodes, hint)
        if self.clip is not None and self.noise is None and self.columns != []:
            hint = "figures without it would tell what the noise on updates hides; give one, or figures.columns = []"
            raise ConfigError("figures.noise", None, hint)
        for name in ("epsilon", "delta"):
            if not self.noised and getattr(self, name) is not None:
                raise ConfigError(_PLACES[name], getattr(self, name), "there is no noise that could spend it")
        for name in ("noise", "update_noise"):
            if (z := getattr(self, name)) is not None and (each := self.spent(z**-2)) > self.budget:
                hint = f"one answer spends ε = {each:.3g}, more than budget.epsilon = {self.budget:g}"
                raise ConfigError(_PLACES[name], z, f"{hint}; give more noise")

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

    def check_run(self, job: Job, sizes: Sequence[int], single: bool, measured: Sequence[str]) -> None:
        """Refuse a run before its first round, of which :meth:`check_agreement` let the agreement pass.

        Args:
            job: that the node derived from the agreement.
            sizes: how many examples each of the node's clients has for training.
            single: whether uploads leave one by one.
            measured: the columns to which the node contributes.

        Raises:
            Refusal: a rule forbids it.
        """
        wire, batch, metrics = job.hyper.wire, job.plan.batch_size, job.plan.task.whole_metrics
        self.refuse(Rule.BATCH, batch is not None and batch < min(self.batch, max(sizes)))
        hides = wire.secure is not None or self.clients > 1 or self.examples > 1
        self.refuse(Rule.SILENCED, wire.faults is not None and hides)
        self.refuse(Rule.GUARD, wire.guard is not None and self.clients > 1)
        self.check_upload(single, wire.guard is not None, wire.secure is not None)
        self.refuse(Rule.COLUMNS, self.refused(measured))
        if "grad_norm_sq" in measured and wire.secure is None:
            self.refuse(Rule.STEPS, self.steps > 1)  # a gradient is an update of one step
            self.refuse(Rule.GRADIENT, self.clients > 1)
        sums = [name for name in measured if name.startswith(PARTS) and name.partition("_")[2] in metrics]
        if self.noise is not None:
            self.refuse(Rule.UNBOUNDED, [name for name in measured if name == "grad_norm_sq"] + sums)
            self.refuse(Rule.PERSONAL, [name for name in measured if name.endswith(PERSONAL)])
        if self.bits is not None:
            self.refuse(Rule.BITS, any(getattr(metric, "bits", 0) > self.bits for metric in metrics.values()))

    def check_agreement(self, agreement: Agreement) -> None:
        """Refuse a run by the names of its method and its task, or because it splits rows; before anything is made.

        Raises:
            Refusal: a rule forbids it.
        """
        for rule, allowed, part in ((Rule.METHOD, self.methods, "method"), (Rule.TASK, self.tasks, "task")):
            if allowed is not None and part in agreement.config:
                section = agreement.config[part]
                name = section.get("name") if isinstance(section, dict) else None
                self.refuse(rule, [] if name in allowed else [str(name)[:80]])
        self.refuse(Rule.SPLIT, not self.split and agreement.split is not None)

    def refused(self, columns: Sequence[str]) -> list[str]:
        """The columns among ``columns`` that may not leave."""
        return [] if self.columns is None else [name for name in columns if name not in self.columns]

    def refuse(self, rule: Rule, broken: bool | np.bool_ | Sequence[str]) -> None:
        """Refuse what breaks a rule.

        Args:
            rule: the rule.
            broken: whether it is broken, or the names that break it.

        Raises:
            Refusal: it is.
        """
        if broken:
            value = getattr(self, _FIELDS[rule.setting]) if rule.setting else None
            listed = value if value is None or isinstance(value, int | float) else f"[{', '.join(sorted(value))}]"
            raise Refusal(rule, listed, ", ".join(broken) if isinstance(broken, Sequence) else "")

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
        self.refuse(Rule.CLIENTS, share.max() > (1 + _EQUAL) / self.clients)
        self.refuse(Rule.EXAMPLES, (share / np.maximum(sizes, 1)).max() > (1 + _EQUAL) / self.examples)

    def check_table(self, number: int) -> None:
        """Refuse figures of single clients, of whom each has at least so many test examples.

        Raises:
            Refusal: a rule is against it.
        """
        self.refuse(Rule.NO_FIGURES, self.noise is not None)
        self.refuse(Rule.SINGLE, not self.single)
        self.refuse(Rule.ONE_BY_ONE, self.clients > 1)
        self.refuse(Rule.COLUMNS, self.refused(["test_loss"]))
        self.refuse(Rule.HELD, number < self.examples)

    def check_upload(self, single: bool, guarded: bool, secure: bool) -> None:
        """Refuse an upload in a form in which it may not leave.

        Args:
            single: whether it is that of one client.
            guarded: whether a guard tells which uploads were accepted.
            secure: whether it leaves in a secure sum.

        Raises:
            Refusal: a rule is against it.
        """
        self.refuse(Rule.SECURE, self.nodes is not None and not secure)
        self.refuse(Rule.SINGLE, single and not self.single)
        self.refuse(Rule.NOISE, self.clip is not None and (single or guarded or secure))

    def check_nodes(self, number: int) -> None:
        """Refuse a secure sum over so many nodes, this one among them.

        Raises:
            Refusal: they are too few.
        """
        self.refuse(Rule.NODES, self.nodes is not None and number - 1 < self.nodes)

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


def read_table(
    path: pathlib.Path, field: str = "policy", hint: str = "fedax deploy policy writes one"
) -> dict[str, Unknown]:
    """The tables of a policy's file, or of another; ``field`` and ``hint`` are for the error.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(field, str(path), f"it cannot be read ({error}); {hint}") from error


_PLACES = {field.name: field.metadata["place"] for field in dataclasses.fields(Policy)}
_FIELDS = {place: name for name, place in _PLACES.items()}
_SECTIONS: dict[str, dict[str, str]] = {}  # section -> rule -> the field of Policy
for _place, _name in _FIELDS.items():
    _SECTIONS.setdefault(_place.partition(".")[0], {})[_place.partition(".")[2]] = _name
