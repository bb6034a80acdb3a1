"""The reasons in a diagnosis: one or two sentences about each figure; docs/theory.md has the rules."""

import math

import numpy as np

from fedax.contract.local import SGD
from fedax.federation.participation import Dropout, Full, Trace, UniformNormalized
from fedax.theory.advice import (
    COHORT,
    CORRECTED,
    CORRECTED_WEIGHTS,
    DRIFT,
    KEEPING,
    NOISE,
    NORMALIZED,
    OBJECTIVE,
    SAME,
    Case,
    percent,
    shown,
)
from fedax.theory.measure import Point

# A client does not follow if the share of its first loss that is left is above both of these.
_FOLLOWS = 3.0  # times the median share of all clients
_LEFT = 0.25
_RARE = 0.25  # a class is rare if its share of the objective is below this part of an even share


def reasons(case: Case) -> list[str]:
    """The reasons that apply: the costs, the largest first, of the objective, drift, noise; single clients; η."""
    rules = {OBJECTIVE: objective, DRIFT: drift, NOISE: noise, COHORT: cohort}
    known = {kind: cost if math.isfinite(cost) else math.inf for kind, cost in case.costs.items()}
    known[OBJECTIVE] = math.inf if case.f.chi2 is None and not case.view.exact else known[OBJECTIVE]
    known[DRIFT] = math.inf if case.last.drift_cost is None else known[DRIFT]
    ranked = [rules[kind] for kind in sorted(rules, key=lambda kind: -known[kind])]
    return [sentence for reason in (*ranked, sums, clients, classes, rate) if (sentence := reason(case))]


def objective(case: Case) -> str:
    """Wang et al. 2020, Theorems 1 and 2."""
    f, view, x = case.f, case.view, case.last
    (low, high), none = f.steps, "No objective inconsistency: "
    if view.exact:
        return f"{none}{f.method} is at rest at the optimum of the data's own objective; {view.why}."
    if f.chi2 is None or f.weights is None or f.floor is None:
        return (
            f"What {f.method} minimises with unlike clients is not known: {view.why}. Compare its "
            "loss with that of "
            f"{NORMALIZED} or {CORRECTED}, which minimise the data's own objective."
        )
    equal, weighted = low == high, view.averaging == "weighted"
    steps = f"every client takes {low} step{'s' * (low > 1)}" if equal else f"clients take {low} to {high} steps"
    if f.chi2 <= SAME and case.unfair:
        return f"{none}the answers of all clients count by the data's weights in the long run (χ² = 0)."
    if f.chi2 <= SAME:
        alike = ", but all alike in each" if weighted else f", but {f.method} counts each by its weight"
        nova = "; FedNova would be FedAvg" * (equal and view.averages)
        return f"{none}{steps} a round{'' if equal else alike} (χ² = 0){nova}."
    cohorts = "cohorts' weights are divided by their sum"
    cause = f"{steps} a round" if case.by_work else cohorts
    if case.unfair:
        cause = " and ".join([case.unfair, *([f"{steps} each time"] if case.by_work else [])])
    ratio = np.divide(f.weights, case.p, out=np.ones_like(case.p), where=case.p > 0)
    i = int(np.argmax(ratio))
    worst = (
        "and is still above it: more rounds come first"
        if x.gradient > f.floor
        else "so that this worst case does not occur here"
    )
    small = x.inconsistency_cost <= case.least
    text = (
        f"Objective inconsistency: {cause}, so {f.method} minimises a surrogate whose weights "
        "differ from the data's "
        f"by χ² = {shown(f.chi2)}; {case.name(i)} counts {shown(ratio[i])} times what it should. By the "
        "last model's curvature "
        f"it rests {case.above(x.inconsistency_cost)} for that: "
        f"{'too little to act upon' if small else 'that is worth a remedy'}. (However long the run, ‖∇F‖² may stay "
        f"at up to 2χ²κ² = {shown(f.floor)} by Theorem 2; the last model has {shown(x.gradient)}, {worst}.)"
    )
    if small:
        return text
    if case.unfair:
        return f"{text} {_ways_back(case)}"
    if cause is cohorts:
        return f"{text} Uniform or Systematic participation, which do not divide, remove that."
    if isinstance(case.participation, UniformNormalized | Trace | Dropout):
        text += f" Part of it is that {cohorts}; Uniform and Systematic participation do not divide."
    return f"{text} {view.remedy}"


def _ways_back(case: Case) -> str:
    """What brings a server that does not wait back to the data's own objective."""
    ways = [f"weights that are corrected for that ({CORRECTED_WEIGHTS})"] if case.correctable else []
    ways += [f"a server that keeps what each client sent last ({', '.join(KEEPING)})", "waiting for all clients"]
    ways[0] = ways[0][0].upper() + ways[0][1:]
    text = f"{', '.join(ways[:-1])}, or {ways[-1]} removes what comes of that"
    return f"{text}; equal steps what comes of unequal work." if case.by_work else f"{text}."


def drift(case: Case) -> str:
    """Client drift: the bias of the mean update, because local steps leave x and clients differ."""
    f, view, x = case.f, case.view, case.last
    if f.steps == (1, 1) or x.move is None:
        return ""
    if x.bias is None or x.free_move is None or x.drift_cost is None or x.drift_cost_range is None:
        return (
            "Client drift cannot be told: the local solver is not linear in the gradients, so there are no steps "
            "without drift to compare with. Compare with a run of fewer local steps."
        )
    which_steps = "the local steps" if view.own_steps else f"local steps of plain SGD at {shown(f.lr)}"
    takes = [_effect_on_descent(point) for point in f.points]
    text = f"Client drift: because {which_steps} leave the model and clients are unlike, the mean update {takes[-1]}"
    text += f" ({takes[0]} at the first model)" if len(takes) > 1 else ""
    low, high = x.drift_cost_range
    text += f". Left to it, a run rests {case.above(x.drift_cost)}: "
    noise, harms = (x.noise_cost or 0.0) + (x.cohort_cost or 0.0), _harms(case)
    if view.corrected:
        rest = "" if harms else ", and it is too little to be worth a correction"
        return f"{text}{f.method} corrects that{rest}."
    if harms is None:
        return (
            f"{text}whether it harms cannot be told, for the noise of minibatches leaves anything "
            f"from {shown(low)} to "
            f"{shown(high)}. Diagnose with a larger batch to know."
        )
    if harms:
        less = f", though less than noise ({shown(noise)})" if x.drift_cost <= noise else ""
        return (
            f"{text}drift harms here{less}. Control variates ({CORRECTED}) take it away; half the lr or half the local "
            "steps leave about a quarter, and want twice the rounds."
        )
    gains = sum(case.removed(CORRECTED).values()) > case.least
    return f"{text}drift does not harm here{'' if gains else ', and control variates would gain nothing that shows'}."


def _effect_on_descent(x: Point) -> str:
    descent, free = x.descent or 0.0, x.free_descent or 0.0
    if not free > 0:
        return "no longer lowers the loss, with drift or without"
    if not descent > 0:
        return "no longer lowers the loss"
    share = 1 - descent / free
    if share > 0.95:
        return "hardly lowers the loss, where it would without"
    if abs(share) < 0.001:
        return "lowers the loss as much as it would without"
    return f"lowers the loss by {percent(abs(share))} {'less' if share > 0 else 'more'} than without"


def noise(case: Case) -> str:
    """The second term of Wang et al. 2020, eq. 97, as rounds show it."""
    x = case.last
    if not case.view.own_steps or not x.variance or x.noise is None or x.noise_cost is None:
        return ""
    act = (
        "too little for lr to decay yet"
        if x.noise_cost <= case.least
        else "let lr decay towards the end, or take larger batches"
    )
    return (
        f"Noise of minibatches: with {case.batch_size} examples each (σ² = {shown(x.variance)}) they "
        "scatter a round's "
        f"update by {_relative_to_update(case, x.noise)}, which keeps a run at this lr "
        f"{case.up_to(x.noise_cost)} above the lowest "
        f"loss: {act}."
    )


def cohort(case: Case) -> str:
    """Karimireddy et al. 2020 have this term, (1 − S/N) ζ²/S, in FedAvg's rate; here drawn and measured."""
    x = case.last
    looked_at = case.view.own_steps or case.view.corrected
    if not looked_at or x.cohort_noise is None or x.cohort_cost is None or not x.cohort_noise:
        return ""
    size, free = case.participation.places(case.f.clients), x.free_cohort_noise
    noise = free if case.view.corrected and free is not None else x.cohort_noise
    cost = case.noises[1]
    text = (
        f"Noise of cohorts: with {size} of {case.f.clients} clients a round, who is drawn scatters the update by "
        f"{_relative_to_update(case, noise)}, which keeps a run at this lr {case.above(cost)}: "
    )
    if cost <= case.least:
        return f"{text}too little for larger cohorts to be worth their traffic."
    text += "larger cohorts, an lr that decays towards the end"
    if case.view.corrected or free is None or not (x.free_cohort_cost or 0.0) < cost / 2:
        return f"{text} or momentum at the server help."
    return (
        f"{text} or control variates help, of which fresh ones leave {shown(x.free_cohort_cost or 0.0)}; they are as "
        f"old as a client's last visit, here about {case.rounds_between:.0f} rounds."
    )


def sums(case: Case) -> str:
    """Σω is random under Uniform participation with unequal p."""
    if not case.uneven:
        return ""
    excess = case.f.weight_square - 1
    matter = (
        "and methods with momentum or control variates suffer most"
        if excess > 0.01
        else "which is little here, but costs nothing to remove"
    )
    return (
        "Weights of cohorts: clients weigh differently and Uniform draws them alike, so the weights of a round add "
        f"up to one on average only, E(Σω)² = {1 + excess:.4g}. Every round is too long or too short by chance, "
        f"even where all clients agree, {matter}. Take {case.systematic}: as unbiased, no dearer, and its weights "
        "add up to one in every round."
    )


def _relative_to_update(case: Case, noise: float) -> str:
    """A noise relative to the mean update, as a share of its square."""
    move = (case.last.free_move if case.view.corrected else case.last.move) or 0.0
    if not move:
        return f"{shown(noise)} (root mean square) about a mean of 0"
    return f"{percent((noise / move) ** 2)} of the mean update's square"


def _harms(case: Case) -> bool | None:
    """Whether the cost of drift is material and above that of noise; ``None``: not known."""
    x = case.last
    if x.drift_cost_range is None or x.noise_cost is None or x.cohort_cost is None:
        return None
    low, high = x.drift_cost_range
    if low > case.least:
        return True
    return False if high <= max(case.least, x.noise_cost + x.cohort_cost) else None


def clients(case: Case) -> str:
    """Clients whose loss stays high while the others' falls: wrong labels, or unusual data."""
    if case.f.losses is None or len(case.f.losses) < 2 or case.f.clients < 5:
        return ""
    first, last = case.f.losses[0], case.f.losses[-1]
    if not (np.isfinite(first).all() and np.isfinite(last).all() and (first > 0).all() and (last >= 0).all()):
        return ""
    left = last / first
    median = float(np.median(left))
    slow = np.flatnonzero(left > max(_FOLLOWS * median, _LEFT))
    if not len(slow):
        return ""
    which = ", ".join(case.names[i] if case.names else str(i) for i in slow[:5])
    which = which if case.names else f"client{'s' * (len(slow) > 1)} {which}"
    which += f" and {len(slow) - 5} more" if len(slow) > 5 else ""
    return (
        f"Clients that do not follow: {which} ({percent(float(case.p[slow].sum()))} of the weight) keep "
        f"{percent(float(left[slow].min()))} of their first loss or more, the others {percent(median)} in the median. "
        "Wrong labels do that, and data that are like nobody else's. No method takes it away: all that minimise the "
        "data's own objective count these clients by their weight, and control variates follow them exactly. Look at "
        "their labels first; a robust average (run.aggregate) counts them for less."
    )


def classes(case: Case) -> str:
    """Rare classes, which hardly affect the mean loss."""
    all_classes = case.classes
    rare = [
        class_
        for class_ in all_classes
        if class_.share < _RARE / len(all_classes) or len(class_.clients) == 1 < case.f.clients
    ]
    if not 0 < len(rare) <= max(1, len(all_classes) // 4):
        return ""
    parts = [
        f"class {class_.name} makes {percent(class_.share)} of the objective"
        + (f" and is at {case.name(class_.clients[0])} alone" if len(class_.clients) == 1 else "")
        for class_ in rare[:3]
    ]
    return (
        f"Rare classes: {'; '.join(parts)}. The figures here are of the mean loss, in which a rare class hardly shows: "
        "look at its own recall. The local steps of clients without it unlearn it, which is drift; against that help "
        "control variates, fewer local steps, and weights that count its clients for more."
    )


def rate(case: Case) -> str:
    """The condition of Wang et al. 2020, Theorems 1 to 3; beyond ηL = 2 gradient steps on a quadratic diverge.

    The theorems are for all clients in every round; what Corollary 3 asks of cohorts is stricter.
    """
    f, solver, text = case.f, case.view.solver, ""
    first, last = f.points[0].loss, f.points[-1].loss
    if f.max_lr is not None and f.loosest_lr is not None:
        ratio, beta = f.lr / f.max_lr, f.line[0]
        loosest = (
            "for β² = 1, the loosest case: the models seen show no larger β²"
            if beta == 1
            else f"for β² = {shown(beta)} as measured; for β² = 1, the loosest case, {shown(f.loosest_lr)}"
        )
        reason = f"for L = {shown(f.smoothness)} and the longest work ({loosest})"
        if ratio <= 1:
            text = f"lr = {shown(f.lr)} meets the theorems' lr ≤ {shown(f.max_lr)} {reason}"
            if not isinstance(case.participation, Full):
                text += ", which is for all clients in every round; cohorts ask for less. Keep it while the loss falls."
            elif ratio < 0.1:
                text += f". Try a larger one: {shown(1 / ratio)} times as large still does."
            else:
                text += ": keep it."
        else:
            times = shown(ratio) if ratio < 1000 else f"{ratio:,.0f}"
            text = f"lr = {shown(f.lr)} is {times} times the {shown(f.max_lr)} up to which the theorems hold "
            text += f"{reason}. "
            if len(f.points) == 1:
                text += "Their condition is cautious: keep lr while the loss falls, and halve it when it jumps."
            elif last < first:
                text += (
                    f"Keep it: the loss fell from {shown(first)} to {shown(last)} with it, and their "
                    "condition is cautious. "
                    "Lower it only where the loss jumps."
                )
            else:
                text += f"Lower it: the loss went from {shown(first)} to {shown(last)} with it."
    overshoot = f.lr * f.smoothness
    plain = isinstance(solver, SGD) and solver.momentum is None and solver.decay is None
    if case.view.own_steps and plain and overshoot > 2:
        text += (
            f" lr · L = {shown(overshoot)} is above 2: along the sharpest direction of some client's loss local steps "
            f"overshoot and grow until the curvature falls. If the loss jumps, take lr below 2/L = "
            f"{shown(2 / f.smoothness)}."
        )
    return text.strip()
