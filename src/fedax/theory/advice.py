"""Advice: remedies for what keeps a run from the optimum, the costs that each removes, and the verdict.

The gain of a remedy is the sum of all costs that it removes; for a method these follow from its traits. Among the
remedies that gain about as much as the best one, the cheapest is taken. docs/theory.md, "What is worth a remedy", has
the rules.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedax import algorithms as methods
from fedax.contract.algorithm import Traits
from fedax.contract.local import Solver
from fedax.federation.pace import Async
from fedax.federation.participation import Dropout, Full, Participation, Uniform
from fedax.theory.measure import Diagnosis, Point

SAME = 1e-6  # χ² up to which weights are the same
MATERIAL = 0.002  # a cost is worth a remedy if it is at least this share of what training gains
OFTEN = 20  # a control variate is fresh enough with up to so many rounds between two visits of a client
_PART = 0.01  # a cause of unequal weights is named from this part of their χ² on
_ALIKE = 0.9  # remedies with this share of the best gain count as equal: costs are only known to a factor of two
# The methods that the advice names. Which of them lose least, and the values for ``MOMENTUM``, were tried in
# docs/study/choosing.md and docs/results/advice.md.
PLAIN, NORMALIZED, CORRECTED, HALF = "fedavg", "fednova", "scaffold", "feddyn"
MOMENTUM = "fedavg-m"
SMALL_BATCH = 8  # with batches of at most so many examples momentum loses least
KEEPING = "ca2fl", "ace", "area"  # their servers know what each client sent last
CORRECTED_WEIGHTS = 'pace.weights = "corrected"'
_TRIED = f"{MOMENTUM} with beta = 0.2 or 0.5, or server-momentum with server_momentum = 0.5 or 0.9"

DRIFT, OBJECTIVE, NOISE, COHORT = "drift", "objective", "noise", "cohort"  # the costs


class View(NamedTuple):
    """The traits of a method in round 0 that the theorems need.

    Attributes:
        solver: of the local steps, by which clients drift; ``None``: there are no local steps.
        averaging: ``"weighted"``, w_i ∝ p_i‖a_i‖₁; ``"normalized"``, w_i = p_i; ``None``: for the reason ``why`` it
            is ``exact``, at rest at the optimum of F whatever clients do, or not known.
        corrected: it corrects each client's steps, so that they do not drift.
        tau_eff: FedNova's rule.
        averages: the theorems of Wang et al. cover it, with plain averaging at the server or (not ``plain``) without.
        gradients: its uploads are gradients at the model that its client was sent.
        own_steps: its local steps are those of ``solver``; else ``solver`` only approximates them.
        remedy: a sentence on what removes the bias of unequal work.
    """

    name: str
    lr: float
    solver: Solver | None
    averaging: str | None
    why: str = ""
    exact: bool = False
    corrected: bool = False
    tau_eff: Any = "default"
    averages: bool = False
    plain: bool = True
    own_steps: bool = False
    gradients: bool = False
    remedy: str = "Equal steps remove that."


class Class(NamedTuple):
    """A class of labels: its name, its share of the objective, and the clients that have it."""

    name: str
    share: float
    clients: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Case:
    """A diagnosis, and the quantities that the advice derives from it.

    Attributes:
        f: the figures.
        view: the traits of the method.
        p: [N] the data's weights.
        batch_size, participation: of the run.
        classes: of the labels, where they are whole numbers.
        pace: of a server that does not wait.
        by_number: [N] the weights of the answers, if late ones counted as others do; ``None``: it does not matter who
            answers when.
        names: [N] of the clients; empty: they have none.
    """

    f: Diagnosis
    view: View
    p: np.ndarray
    batch_size: int | None
    participation: Participation
    classes: Sequence[Class] = ()
    pace: Async | None = None
    by_number: np.ndarray | None = None
    names: Sequence[str] = ()

    def name(self, i: int) -> str:
        """The name of a client, or its number."""
        return self.names[i] if self.names else f"client {i}"

    @property
    def last(self) -> Point:
        return self.f.points[-1]

    @property
    def least(self) -> float:
        """The cost up to which nothing is worth doing."""
        return MATERIAL * self.f.gained

    @property
    def uneven(self) -> bool:
        """Whether the cohorts' weights add up to one on average only, for clients that weigh differently."""
        drawn = self.participation.of if isinstance(self.participation, Dropout) else self.participation
        return isinstance(drawn, Uniform) and drawn.size < self.f.clients and self.f.weight_square > 1 + SAME

    @property
    def by_work(self) -> bool:
        """Whether unequal steps, and not the cohorts' weights, make the objective another one."""
        unequal = self.view.averaging == "weighted" or (bool(self.unfair) and self.view.averaging == "normalized")
        return unequal and not self.view.gradients and self.f.steps[0] != self.f.steps[1]

    @property
    def unfair(self) -> str:
        """A clause on why clients count for more that answer soon; empty: they do not, or the server waits for all."""
        q = self.f.arrivals
        if q is None or self.by_number is None:
            return ""
        known = self.p > 0
        whole, number, late = (
            float(np.sum(apart[known] ** 2 / self.p[known]))
            for apart in (q - self.p, self.by_number - self.p, q - self.by_number)
        )
        causes = ["fast clients answer more often"] if number > _PART * whole else []
        causes += ["late answers count for less"] if late > _PART * whole else []
        return " and ".join(causes) or "answers count for what the schedule gives them"

    @property
    def correctable(self) -> bool:
        """Whether corrected weights would make all clients count by p_i."""
        q = self.f.arrivals
        return bool(self.unfair) and q is not None and bool((q[self.p > 0] > 0).all()) and not self.corrected_weights

    @property
    def corrected_weights(self) -> bool:
        return self.pace is not None and self.pace.weights == "corrected"

    @property
    def rounds_between(self) -> float:
        """Rounds between two visits of a client."""
        return self.f.clients / min(self.participation.places(self.f.clients), self.f.clients)

    @property
    def systematic(self) -> str:
        """Cohorts whose weights add up to one."""
        return f'fedax.Systematic({self.participation.places(self.f.clients)}) (participation.kind = "systematic")'

    @property
    def noises(self) -> tuple[float, float]:
        """The costs of minibatch noise and of cohort noise for this method; 0 if not known."""
        x = self.last
        if x.noise_cost is None or x.cohort_cost is None or not (self.view.own_steps or self.view.corrected):
            return 0.0, 0.0
        return x.noise_cost, (x.free_cohort_cost or 0.0) if self.view.corrected else x.cohort_cost

    @property
    def better(self) -> str:
        """The method that lost least on problems like this one: momentum with small batches, else control variates."""
        averages = self.view.plain and self.view.own_steps and self.pace is None
        small = self.batch_size is not None and self.batch_size <= SMALL_BATCH
        return MOMENTUM if averages and small else CORRECTED

    @property
    def costs(self) -> dict[str, float]:
        """The costs that keep the method above the optimum."""
        noise, cohort = self.noises
        other = self.last.inconsistency_cost if self.f.chi2 is not None and self.f.chi2 > SAME else 0.0
        drift = 0.0 if self.view.corrected else self.last.drift_cost or 0.0
        return {OBJECTIVE: other, DRIFT: drift, NOISE: noise, COHORT: cohort}

    @property
    def sure_drift(self) -> float:
        """The lower end of the interval of what drift costs plain local steps: no more than was measured."""
        return 0.0 if self.last.drift_cost_range is None else self.last.drift_cost_range[0]

    @property
    def too_long(self) -> bool:
        """Whether steps are so long that corrected ones would not lower the loss more."""
        return not (self.last.free_descent or 0.0) > (self.last.descent or 0.0)

    @property
    def fresh(self) -> bool:
        """Whether control variates more than halve the noise of cohorts, and clients come back while they are fresh."""
        x = self.last
        free, cohort = x.free_cohort_cost or 0.0, self.noises[1]
        return not self.view.corrected and free < cohort / 2 and self.rounds_between <= OFTEN

    def without(self, *, arrivals: bool, work: bool) -> float:
        """By how much the cost of another objective falls without what arrivals, or unequal work, do to it."""
        x = self.last
        if not self.unfair or x.arrival_cost is None or x.work_cost is None:
            return self.costs[OBJECTIVE] if work else 0.0
        left = 0.0 if arrivals and work else x.work_cost if arrivals else x.arrival_cost if work else math.inf
        return max(self.costs[OBJECTIVE] - left, 0.0)

    def removed(self, name: str) -> dict[str, float]:
        """The part of each cost that a method removes, by its traits; of bias at most what a run can still gain."""
        traits = methods.create(name).traits()
        kinds, costs = removes(traits, everyone=isinstance(self.participation, Full)), self.costs
        removed_costs = {}
        if self.unfair:
            removed_costs[OBJECTIVE] = self.without(arrivals=traits.fair, work=traits.limit == "F")
        elif OBJECTIVE in kinds and (self.by_work or COHORT in kinds):
            removed_costs[OBJECTIVE] = costs[OBJECTIVE]
        if DRIFT in kinds and not self.too_long:
            removed_costs[DRIFT] = self.sure_drift
        total = sum(removed_costs.values())
        if total > self.last.left:
            removed_costs = {kind: cost * self.last.left / total for kind, cost in removed_costs.items()}
        if COHORT in kinds and self.fresh:
            removed_costs[COHORT] = costs[COHORT] - (self.last.free_cohort_cost or 0.0)
        return removed_costs

    def of(self, cost: float) -> str:
        """A cost as text, with its share of what training gains."""
        share = cost / self.f.gained if self.f.gained > 0 and math.isfinite(self.f.gained) else 0.0
        return f"about {shown(cost)} ({percent(share)} of what training gains)" if cost > 0 else "nothing"

    def up_to(self, cost: float) -> str:
        """A cost that is predicted: with fewer rounds than it takes to show it is less."""
        return f"up to {self.of(cost)}" if cost > 0 else "nothing"

    def above(self, cost: float) -> str:
        """A clause on where a run ends with this cost."""
        return f"{self.up_to(cost)} above the lowest loss" if cost > 0 else "at the lowest loss"

    @property
    def visits(self) -> str:
        """A clause: control variates need clients that return."""
        rounds = self.rounds_between
        return "" if rounds < 2 else f", and they need clients that come back (here once in about {rounds:.0f} rounds)"


def removes(traits: Traits, everyone: bool) -> frozenset[str]:
    """The costs that a method with these traits does not have, though FedAvg has them.

    Example:
        >>> sorted(removes(methods.create("scaffold").traits(), everyone=False))
        ['cohort', 'drift', 'objective']
        >>> sorted(removes(methods.create("mime").traits(), everyone=True))
        ['drift', 'objective']
        >>> sorted(removes(methods.create("fednova").traits(), everyone=True))
        ['objective']
    """
    exact = traits.exact == "always" or (traits.exact == "all clients" and everyone)
    kinds = {OBJECTIVE} if traits.limit == "F" else set()
    kinds |= {DRIFT} if traits.corrects and exact else set()
    return frozenset(kinds | ({COHORT} if traits.corrects and traits.exact == "always" else set()))


class Remedy(NamedTuple):
    """Something to do.

    Attributes:
        take: the method to take instead; empty: to stay with this one.
        gain: what it takes away, in units of the loss.
        verdict: what to do, and why.
        then: what it costs, or what comes next.
    """

    take: str
    gain: float
    verdict: str
    then: str


MOST = "more than by anything else."  # ends the sentence before the remedy, where longer training gains more
AGAIN = "Think again when clients take more local steps, lr grows, or fewer clients take part in a round."


def remedies(case: Case) -> list[Remedy]:
    """The remedies for a method that corrects nothing, those that cost least first."""
    name, costs, x = case.view.name, case.costs, case.last
    noisy = f"that only some clients take part in a round keeps it {case.up_to(costs[COHORT])} above the lowest loss"
    other = f"as it is, it minimises another objective, {case.up_to(costs[OBJECTIVE])} above the lowest loss"
    equal = "equal local steps for all clients" if case.by_work else "cohorts drawn by fedax.Systematic"
    noise = (
        f"Corrected weights cost nothing but noise, for rare answers count for more. {', '.join(KEEPING)} do without, "
        "for memory of the model's size at every client, and so does waiting for all clients of a round, for time."
    )
    control = case.by_work and case.view.own_steps and not case.unfair  # variates remove what unequal work does
    return [
        Remedy(
            "", min(case.without(arrivals=True, work=False), x.left) if case.correctable else 0.0,
            f"Keep {name}, with {CORRECTED_WEIGHTS}: {case.unfair}; {other}.", noise,
        ),
        Remedy(
            "", costs[COHORT] if case.uneven else 0.0,
            f"Keep {name}, with cohorts drawn by {case.systematic} in place of Uniform: {noisy}, and with Uniform the "
            "weights of a round do not even add up to one.",
            "Systematic costs nothing; the noise that it leaves, twice the clients a round halve.",
        ),
        Remedy(
            "", 0.0 if control or (case.unfair and not case.by_work) else case.without(arrivals=False, work=True),
            f"Keep {name}, with {equal}, which costs no traffic: {other}.", AGAIN,
        ),
        Remedy(
            "", min(costs[OBJECTIVE], x.left) if case.correctable and case.by_work else 0.0,
            f"Keep {name}, with {equal} and {CORRECTED_WEIGHTS}: {case.unfair}, and clients that work more pull "
            f"harder; {other}.", noise,
        ),
        _method(case, MOMENTUM if case.better == MOMENTUM else ""),
        Remedy(
            "", costs[NOISE],
            f"Keep {name}, and let lr decay towards the end or take larger batches: the noise of minibatches keeps it "
            f"{case.up_to(costs[NOISE])} above the lowest loss.",
            "A decay costs nothing, twice the batch twice the computation for half of the noise.",
        ),
        Remedy(
            "", 0.0 if case.fresh else costs[COHORT],
            f"Keep {name}, with larger cohorts or an lr that decays towards the end: {noisy}.",
            "Twice the clients leave half of that, for twice the traffic; a decay costs nothing.",
        ),
        Remedy(
            "", case.sure_drift if case.too_long and not case.view.corrected else 0.0,
            f"Keep {name} with fewer local steps or a smaller lr: local models drift so far that their mean rests "
            f"{case.up_to(x.drift_cost or 0.0)} above the lowest loss, and control variates would not help with steps "
            "as long as these.",
            "That costs more rounds; think again once it is done.",
        ),
        _method(case, KEEPING[0] if case.unfair else ""),
        _method(case, case.better),
    ]  # fmt: skip


_CAUSES = {
    OBJECTIVE: "clients that work more pull harder, so that {name} minimises another objective",
    DRIFT: "its clients' unlike data pull their local models apart",
    COHORT: "only some clients take part in a round",
    NOISE: "its minibatches are noisy",
}
_LONGER = "train longer or with a larger lr"
_PRICE = "fedavg-m sends one model more to each client, momentum at the server nothing; tune lr together with it."


def _method(case: Case, take: str) -> Remedy:
    """The remedy of taking another method, with all costs that it removes; of momentum all costs, which it lowers."""
    if not take:
        return Remedy("", 0.0, "", "")
    removed, name = case.costs if take == MOMENTUM else case.removed(take), case.view.name
    gain = sum(removed.values())
    kinds = sorted((kind for kind in removed if removed[kind] > case.least), key=lambda kind: -removed[kind])
    kinds = kinds or sorted(removed, key=lambda kind: -removed[kind])
    cohorts = f"cohorts make {name} minimise another objective"
    if case.unfair:
        more = ", and clients that work more pull harder" * (case.by_work and take != KEEPING[0])
        cohorts = f"{case.unfair}{more}, so that {name} minimises another objective"
    own = case.unfair or not case.by_work
    causes = [cohorts if kind == OBJECTIVE and own else _CAUSES[kind].format(name=name) for kind in kinds]
    verdict = f"Take {take} in place of {name}: {', and '.join(causes)}; that costs {case.up_to(gain)}"
    if take == KEEPING[0]:
        verdict += ", which a server that knows what each client sent last takes away."
        late = case.pace is not None and case.pace.max_staleness is not None
        more = ", no pace.max_staleness, by which clients may never be heard," if late else ""
        then = (
            f'It needs pace.start = "idle"{more} and memory of the model\'s size at every client; so do '
            f"{' and '.join(KEEPING[1:])}. Where clients can keep nothing, wait for all clients of a round."
        )
        return Remedy(take, gain, verdict, then)
    if take == MOMENTUM:
        return Remedy(take, gain, f"{verdict}; with batches as small as these momentum lost least ({_TRIED}).", _PRICE)
    verdict += ", which control variates take away."
    half = f"{HALF} needs the memory alone, and has one more number to tune (alpha = 0.01 or 0.1); "
    then = (
        f"They cost twice the traffic, and memory of the model's size at every client{case.visits}; "
        f"{half * (case.pace is None)}where clients can keep nothing, take "
        f"{MOMENTUM if case.pace is None else 'fewer local steps'}."
    )
    return Remedy(take, gain, verdict, then)


def verdict(case: Case) -> tuple[str, str]:
    """What to do, the largest gain first, and what comes next; and the method to take instead of this one, if any."""
    f, x = case.f, case.last
    total = sum(case.costs.values())
    if not math.isfinite(total + f.gained):
        return f"Nothing can be said of {f.method}: figures are not finite here. Lower its lr first.", ""
    take, gain, text, then = (
        _advice_with_corrections(case) if case.view.corrected else _advice_without_corrections(case)
    )
    if len(f.points) == 1:
        then = "This was measured at one model alone; diagnose a run to see what holds at its end."
    elif gain < x.left > max(3 * total, case.least):
        momentum = case.view.plain and case.view.own_steps and take != MOMENTUM
        ways = f"train longer, with a larger lr, or with momentum ({_TRIED})" if momentum else _LONGER
        return f"First of all, {ways}: {case.up_to(x.left)} is still to be had so, {MOST} {text}", take
    return f"{text} {then}".strip(), take


def _advice_without_corrections(case: Case) -> Remedy:
    """The remedy for a method without corrections."""
    known = remedies(case)
    best = max(remedy.gain for remedy in known)
    if best > case.least:
        return next(remedy for remedy in known if remedy.gain >= _ALIKE * best)
    name, x, total = case.view.name, case.last, sum(case.costs.values())
    if x.drift_cost is None and case.view.solver is not None:
        why = "its local steps cannot be compared with steps without drift, so that only noise was looked at"
        return Remedy("", 0.0, f"Keep {name}: {why}.", AGAIN)
    if (x.drift_cost or 0.0) > case.least:
        high = shown(x.drift_cost_range[1]) if x.drift_cost_range else "more"
        why = f"drift may cost it up to {high}, but the noise of minibatches hides whether it costs anything"
        return Remedy("", 0.0, f"Keep {name} for now: {why}.", f"Compare it with {CORRECTED}, or diagnose again with a "
                      "larger batch.")  # fmt: skip
    momentum = case.view.plain and case.view.own_steps and len(case.f.points) > 1
    if momentum and x.left > max(3 * total, case.least):
        text = (
            f"Take {MOMENTUM} in place of {name}, or train longer: what keeps {name} from the lowest loss is not that "
            f"clients are unlike, nor noise, but that it is still on its way; {case.up_to(x.left)} is left, and "
            f"momentum goes faster ({_TRIED})."
        )
        return Remedy(MOMENTUM, x.left, text, _PRICE)
    much = f"costs it more than {case.of(total)}" if total else "costs it anything"
    why = f"neither that clients are unlike nor noise {much}, so {CORRECTED} would gain nothing that shows"
    return Remedy("", 0.0, f"Keep {name}: {why}.", AGAIN)


def _advice_with_corrections(case: Case) -> Remedy:
    """The remedy for a method that corrects drift: to keep it, or to save its price."""
    name, x, free = case.f.method, case.last, case.last.free_cohort_cost or 0.0
    equal = case.f.steps[0] == case.f.steps[1]
    instead = PLAIN if equal or case.pace is not None else NORMALIZED
    work = 0.0 if case.pace is None or equal else x.work_cost or 0.0
    unfair = (x.arrival_cost or 0.0) > case.least and not case.corrected_weights
    how = f", with {CORRECTED_WEIGHTS}," * unfair
    if x.drift_cost is None or x.cohort_cost is None:
        return Remedy("", 0.0, f"Keep {name}: there is nothing here to compare it with.", "")
    saved = {DRIFT: case.sure_drift, COHORT: x.cohort_cost - free}
    again = f"Think again when clients take {'fewer' if max(saved.values()) > case.least else 'more'} local steps"
    if saved[DRIFT] > case.least:
        reason = f"without its corrections drift would keep it {case.up_to(saved[DRIFT])} above the lowest loss"
    elif saved[COHORT] > case.least:
        reason = (
            f"that only some clients take part in a round would cost {instead} {case.up_to(x.cohort_cost)}, and with "
            f"corrections {case.up_to(free)}"
        )
    elif work > case.least:
        reason = f"{instead} would minimise another objective by unequal work, {case.up_to(work)} above the lowest loss"
    else:
        text = (
            f"Take {instead}{how} in place of {name}: what {name} corrects would cost {instead} "
            f"{case.up_to(x.drift_cost)} by drift and {case.up_to(x.cohort_cost)} by the choice of who takes part, too "
            "little to be worth its price: memory of the model's size at every client, and for most such methods twice "
            "the traffic."
        )
        return Remedy(instead, 0.0, text, f"{again}, or lr grows.")
    price = (
        "Its price is memory of the model's size at every client, and for most such methods twice the traffic of "
        f"{instead}{case.visits}."
    )
    return Remedy("", 0.0, f"Keep {name}: {reason}.", price)


def shown(value: float) -> str:
    """A number with three digits."""
    return f"{value:.3g}"


def percent(share: float) -> str:
    """A share in percent."""
    if share < 0.001:
        return "less than 0.1 %"
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"
