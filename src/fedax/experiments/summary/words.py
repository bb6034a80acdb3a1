"""The comparison in sentences: the verdict, what it covers, the legend of a table, the privacy that was spent."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedax.columns import PERSONAL, describe, show, show_parts
from fedax.experiments import chance
from fedax.experiments.alone import LOCAL_ONLY
from fedax.experiments.chance import Gap
from fedax.experiments.runs import Record
from fedax.experiments.summary.compared import LEVEL, Method, ProblemResults, costs, methods, metrics, spread
from fedax.experiments.summary.settings import over, rates
from fedax.experiments.summary.worth import Versus
from fedax.privacy.accounting import weakness
from fedax.theory.diagnostics import MATERIAL

WORDS = {"diverged": "diverged", "worse": "ended worse", "failed": "stopped by its guard", "unfinished": "unfinished"}
GONE = {status: WORDS[status] for status in ("diverged", "worse")}  # their curves may leave the picture
_SHOWN = 4  # so many names of a list are named
_FEW = 10  # with fewer seeds the test detects only differences of about a standard deviation, or larger ones


def judged(problem: ProblemResults) -> dict[str, Any]:
    """The comparison for summary.json; ``differences``: to the best, with 95 % intervals that hold together."""
    return {
        "column": problem.judge,
        "by_personal_models": [m.label for m in problem.methods if m.column(f"{problem.judge}").endswith(PERSONAL)],
        "better": problem.better,
        "over": over(problem.records[0].config, len(problem.seeds)),
        "seeds": problem.seeds,
        "test": f"{_test_of(problem)}, Bonferroni over all pairs",
        "covered": problem.covered,
        "best": problem.best and problem.best.label,
        "differences": {
            label: {name: value for name, value in _interval(gap).items() if name != "p"}
            for label, gap in problem.gaps.items()
        },
        "p": problem.p,
        "star": problem.star and problem.star.label,
        "tied": [m.label for m in problem.tied],
        "too_small_to_matter": [label for label in problem.p if problem.small(label)],
        "tail_evaluations": problem.tail,
    }


def conclusion(problem: ProblemResults) -> dict[str, Any]:
    """The whole verdict for a program: docs/experiments.md, "The verdict for scripts", says what its names mean."""
    return {
        "verdict": verdict(problem),
        "take": None if problem.judge is None or alone_is_better(problem) else problem.chosen and problem.chosen.label,
        "train_alone": problem.judge is not None and bool(alone_is_better(problem)),
        "recommendation": recommendation(problem),
        "still_improving": problem.falling,
        "judged": judged(problem),
        "baselines": {label: _against(found) for label, found in problem.against.items()},
        "methods": [
            {
                "label": m.label,
                "status": m.status,
                "status_text": m.status_text,
                "final": {column: described(m.measured.final(column)) for column in metrics([m.measured])},
            }
            | ({"heard": heard} if (heard := m.heard_counts) else {})
            for m in problem.methods
        ],
        "differs": problem.differs,
    }


def _against(found: Versus) -> dict[str, Any]:
    """A baseline for :func:`conclusion`; differences are those of the method less the baseline."""
    sides = found.sides
    return {
        "method": found.label,
        "column": found.column,
        "personal_models": found.personal,
        "mean": found.mean,
        "baseline": found.baseline,
        "difference": None if found.gap is None else _interval(found.gap),
        "covers_test_examples": found.sure,
        "clients": {name: _interval(gap) for name, gap in found.clients.items()},
        "gain": sides[1],
        "lose": sides[-1],
        "not_distinguished": sides[0],
    }


def _interval(gap: Gap) -> dict[str, float]:
    low, high = gap.interval()
    return {"mean": gap.mean, "low": low, "high": high, "p": gap.p}


def described(values: np.ndarray) -> dict[str, Any] | None:
    """Mean, standard deviation and single values of the seeds; ``None`` without values."""
    return {"mean": values.mean(), "std": spread(values), "seeds": values} if values.size else None


def verdict(problem: ProblemResults) -> list[str]:
    """Sentences: the answer, the difference, what to take, whether it is worth it, what failed, what that covers."""
    column = problem.judge
    if column is None:
        text = "The methods minimise different objectives and there are no held-out data: none is called the best."
        return [text, *filter(None, [recommendation(problem)]), *_failures(problem)]
    finished = [m for m in problem.methods if m.status == "finished"]
    if finished and not problem.seeds:
        apart = ["The methods have no seed in common: they are not compared."] * (len(finished) > 1)
        return [*apart, *_failures(problem)]
    answer = alone_is_better(problem) or _answer(problem, finished)
    sentences = [*answer, recommendation(problem), *_worth(problem), *_failures(problem)]
    tested = problem.gaps or any(found.gap is not None for found in problem.against.values())
    return [*filter(None, sentences), *(_coverage(problem) if tested else [])]


def _answer(problem: ProblemResults, finished: Sequence[Method]) -> list[str]:
    """The winner, and the difference to the next."""
    best, column = problem.best, str(problem.judge)
    if best is None:
        only = problem.chosen
        if only is None or not (problem.against or len(problem.methods) > 1):
            return ["No method came to a good end with all seeds."] * (not finished and len(problem.methods) > 1)
        why = ", the only method that came to a good end with all seeds" if len(problem.methods) > 1 else ""
        return [f"{only.label} ended at {_name(column)} {with_spread(column, only.final(column))}{why}."]
    sign = 1 if problem.better == "lower" else -1
    compared = (m for m in finished if m is not best and m not in problem.unmeasured)
    others = sorted(compared, key=lambda m: sign * float(np.mean(m.final(column))))
    figure, following = f"{_name(column)} {with_spread(column, best.final(column))}", others[0]
    behind = f"Next is {following.label}, {with_spread(column, following.final(column))}"
    if not problem.gaps:
        return [f"{best.label} ended best, {figure}: one seed does not tell this from chance.", f"{behind}."]
    equal = [m.label for m in problem.tied if m is not best]
    if problem.star is not None:
        first = f"{best.label} is best: {figure}"
    elif equal:
        first = f"{best.label} ended best, {figure}, and is not distinguished from {_few(equal)}"
    else:
        first = f"{best.label} ended best on these examples: {figure}"
    second = f"{behind}: {_lead(column, problem.better, problem.gaps[following.label], 1)}"
    if problem.small(following.label) and not problem.gaps[following.label].same:
        second += f", too small to matter, less than {100 * MATERIAL:g} % of what training gained"
    return [f"{first}.", f"{second}."]


def alone_is_better(problem: ProblemResults) -> list[str]:
    """The answer where clients do better alone than by any of the methods; else nothing."""
    alone = problem.against.get(LOCAL_ONLY)
    if alone is None or alone.claim >= 0 or _slight(problem, alone):
        return []
    lower, ends = alone.better == "lower", [alone.mean]
    if _decides(problem, alone):  # of all methods, also those that came to no good end
        finals = (m.final(str(problem.judge)) for m in problem.methods)
        ends += [float(np.mean(final)) for final in finals if final.size]
    front = min(ends) if lower else max(ends)
    if front == alone.baseline or (front < alone.baseline) == lower:
        return []
    which = f"the federated methods {show(alone.column, front)} {'or more' if lower else 'at most'}"
    which = f"{alone.label} {show(alone.column, front)}" if len(problem.methods) == 1 else which
    reached = f"{_name(alone.column)} {show(alone.column, alone.baseline)}"
    tried = any(m.has_personal for m in problem.methods)
    first = "Neither a common model nor personal models help here" if tried else "No common model helps here"
    first = "Federated training falls short here" if _pooled_is_better(problem) else first
    first = f"{first}: clients that train alone reach {reached}, {which}."
    assert alone.gap is not None
    return [first, f"Training alone is {_lead(alone.column, alone.better, alone.gap, -1, alone.label)}."]


def _pooled_is_better(problem: ProblemResults) -> bool:
    """Whether one model on all rows ended better than clients that train alone."""
    alone, pooled = problem.against[LOCAL_ONLY], problem.against.get("pooled")
    return pooled is not None and (pooled.baseline < alone.baseline) == (alone.better == "lower")


def _decides(problem: ProblemResults, found: Versus) -> bool:
    """Whether a comparison with a baseline is of the figure by which methods are judged."""
    return str(problem.judge).removesuffix(PERSONAL) == found.column


def _slight(problem: ProblemResults, found: Versus) -> bool:
    """Whether a difference to a baseline is too small to matter."""
    gained = problem.gained if _decides(problem, found) else 0.0
    return abs(found.mean - found.baseline) < MATERIAL * gained


def recommendation(problem: ProblemResults) -> str:
    """What to do next: the same in the verdict, the diagnosis and the report; empty where nothing can be said."""
    chosen, best, judge = problem.chosen, problem.best, problem.judge
    if judge is not None and alone_is_better(problem):
        if _pooled_is_better(problem):
            rounds = 2 * problem.records[0].config["run"]["rounds"]
            helps = "one model on all rows in one place does better than either"
            return f"Give it more rounds (run.rounds={rounds}), or train alone: {helps}."
        them = "take personal models (--methods ditto,mr-mtl)"
        if tried := [m.label for m in problem.methods if m.has_personal]:
            them = f"give the personal models of {_few(tried)} more of their own (a lower lam, more steps)"
        return (
            f"Train alone, or {them}: these data ask for a model for each client. Or do clients mean different things "
            "by a label?"
        )
    if chosen is None:
        lost = all(m.status in (*GONE, "failed") for m in problem.methods)
        one = len(problem.methods) == 1
        them = "its learning rate first, or have it" if one else "their learning rates first, or have them"
        return f"Lower {them} chosen (--tune, fedax sweep)." * lost
    text = f"Take {chosen.label}" * (len(problem.methods) > 1)
    others = [m.label for m in problem.tied if m is not chosen]
    if best is not None and chosen is not best:
        less = "less" if costs(chosen) < costs(best) else "no more"
        text += f": it is not distinguished from {best.label}, and costs {less}"
    elif others and problem.gaps:
        text += f": none of those that may be as good ({_few(others)}) costs clearly less"
    text += "." * bool(text)
    if problem.falling:
        rounds = 2 * problem.records[0].config["run"]["rounds"]
        text += (
            f" Its {_name(str(judge))} still got better in the last rounds: give it more first (run.rounds={rounds})."
        )
    if best is not None and not problem.gaps:
        text += " Repeat it with several seeds before you rely on it (run.seeds=5)."
    return text.strip()


def _worth(problem: ProblemResults) -> list[str]:
    """Whether it is worth it to train together: against clients that train alone, and all rows in one place."""
    sentences = []
    if (alone := problem.against.get(LOCAL_ONLY)) is not None:
        ends = f"{_name(alone.column)} {show(alone.column, alone.mean)} against {show(alone.column, alone.baseline)}"
        if alone.gap is None:
            sentences.append(f"Of clients that train alone: {ends}; one seed does not tell this from chance.")
        elif not alone_is_better(problem):
            against = f"{alone.label} is {_lead(alone.column, alone.better, alone.gap, 1, 'clients that train alone')}"
            what = "personal models are" if alone.personal else "a common model is"
            worth = {1: f"{what.capitalize()} worth it: ", 0: f"Whether {what} worth it is not clear: ", -1: ""}
            sentences.append(f"{worth[alone.claim]}{against}, {ends}{_on(alone)}.")
        if alone.clients:
            sides = alone.sides
            parts = [f"{len(sides[side])} {word}{_named(sides[side])}" for side, word in _SIDES.items()]
            sentences.append(f"Of {len(alone.clients)} clients, against training alone: {', '.join(parts)}.")
    if (pooled := problem.against.get("pooled")) is not None:
        end = (
            f"One model on all rows in one place reaches {_name(pooled.column)} {show(pooled.column, pooled.baseline)}"
        )
        if pooled.gap is not None:
            unclear = pooled.side(pooled.gap) == 0 and not pooled.gap.same
            end += f", and is not distinguished from {pooled.label}: " if unclear else ": it is "
            whom = "" if unclear else pooled.label
            end += f"{_lead(pooled.column, pooled.better, pooled.gap, -1, whom)}{_on(pooled)}"
        sentences.append(f"{end}.")
    return sentences


_SIDES = {1: "gain", -1: "lose", 0: "not distinguished"}


def _on(found: Versus) -> str:
    """A clause: the test examples are not covered."""
    return "" if found.sure else " on these test examples"


def _lead(column: str, way: str | None, gap: Gap, side: int, over: str = "") -> str:
    """By how much one is ahead or behind, with the interval and p of the same correction.

    Args:
        column: the measure.
        way: which is better, "lower" or "higher".
        gap: one less another.
        side: 1: of the one; −1: of the other.
        over: what it is ahead of.
    """
    if gap.same:
        return f"no different from {over}" if over else "no different"
    sign = side * (1 if way == "higher" else -1)
    sign = -sign if (behind := sign * gap.mean < 0) else sign
    low, high = sorted(sign * end for end in gap.interval())
    unit = describe(column).unit
    values = [(100 if unit == "%" else 1) * value + 0.0 for value in (sign * gap.mean, low, high)]
    most = max(abs(value) for value in values if math.isfinite(value))
    digits = max(1 - math.floor(math.log10(most)), 0) if most else 0
    mean, low_text, high_text = (
        f"{value:.1e}" if most and not 1e-4 <= most < 1e5 else f"{value:.{digits}f}" for value in values
    )
    points = " percentage points" if unit == "%" else ""
    where = f"behind {over}" if behind else f"ahead of {over}" if over else "ahead"
    p = f"p = {gap.p:.2g}" if gap.p >= 1e-4 else "p < 0.0001"
    interval = f"95 % interval {low_text} to {high_text}, {p}"
    few = "too few test examples for an interval"
    text = f"by {mean}{points} ({interval if math.isfinite(gap.error) else few})".replace("-", "−")
    return f"{where.strip()} {text}"


def _name(column: str) -> str:
    """The label of a column inside of a sentence."""
    label = describe(column).label
    return label[0].lower() + label[1:]


def _few(names: Sequence[str]) -> str:
    """The first of some names."""
    return listed(names) if len(names) <= _SHOWN + 1 else f"{', '.join(names[:_SHOWN])} and {len(names) - _SHOWN} more"


def _named(names: Sequence[str]) -> str:
    return f" ({_few(names)})" if names else ""


def _coverage(problem: ProblemResults) -> list[str]:
    """Sentences on what the interval and the verdict cover, and what they do not."""
    correct = ", for all pairs of methods together" if len(problem.p) > 1 else ""
    config = problem.records[0].config
    covered = problem.covered or chance.covered(config, str(problem.judge), examples=False, clients=0)
    times = f"{len(problem.seeds)} {'splits' if chance.SPLIT in covered else 'seeds'}"
    sentences = [f"Intervals and p cover chance in {listed(covered)}: {_test_of(problem)} over {times}{correct}."]
    data, part = config["data"], chance.part_of(problem.judge)
    if not problem.sure:
        hint = ", and no method has a star; run.split_seeds = true covers them" if "split" in data else ""
        hint = "; judge by unseen_loss" if chance.leaves_out_each(data) else hint
        sentences.append(f"They do not cover the {'validation' if part == 'val' else part} examples{hint}.")
    elif part in ("val", "test") and "split" in data and chance.SPLIT not in covered:
        sentences.append("Another split may say otherwise: run.split_seeds = true covers that too.")
    elif data.get("partition", "column") != "column" and chance.DEALT not in covered:
        sentences.append("Clients that are dealt anew may say otherwise: run.split_seeds = true covers that too.")
    if chance.EXAMPLES in covered and any(not found.sure for found in problem.against.values()):
        sentences.append("Those against training alone and all rows in one place do not cover the test examples.")
    return sentences


def _test_of(problem: ProblemResults) -> str:
    """The name of the test."""
    if problem.judge is not None and chance.overlap(problem.records[0].config, problem.judge):
        return "a corrected resampled t-test"
    clustered = bool({chance.EXAMPLES, chance.VALIDATION} & {*problem.covered}) and problem.sure
    return "a paired t-test with errors clustered by seed and example" if clustered else "a paired t-test"


def _failures(problem: ProblemResults) -> list[str]:
    sentences = []
    if unmeasured := [m.label for m in problem.unmeasured]:
        what = f"{_name(str(problem.judge))} is not finite with some seeds, so it does not compare"
        them = "them" if len(unmeasured) > 1 else "it"
        sentences.append(f"{_few(unmeasured)}: {what} {them}; another column may (run.judge).")
    for m in problem.methods:
        if m.status != "finished":
            sentences.append(f"{m.label}: {m.status_text}.")
        if m.losses_text:
            sentences.append(f"{m.label}: {m.losses_text}.")
        if m.heard_text:
            sentences.append(f"{m.heard_text[0].upper()}{m.heard_text[1:]}.")
    return sentences


def listed(names: Sequence[str]) -> str:
    """Names as in a sentence: "a", "a and b", "a, b and c"."""
    *first, last = names or [""]
    return f"{', '.join(first)} and {last}" if first else last


def legend(problem: ProblemResults) -> list[str]:
    """Sentences on how to read a table of final figures: rounds, the meaning of ±, the judging column, marks."""
    config = problem.records[0].config
    seeds = len(problem.seeds) or max(len(m.runs) for m in problem.methods)
    spread = f"; ± is the standard deviation over {over(config, seeds)}" if seeds > 1 else ", one seed"
    at_most = "at most " if "patience" in config["run"] else ""
    rounds = config["run"]["rounds"]
    sentences = [f"After {at_most}{rounds} round{'s' * (rounds != 1)}{spread}."]
    if problem.left_out:
        rest = "; ".join(f"{', '.join(map(str, seeds))} of {label}" for label, seeds in problem.left_out.items())
        counted = f"seed{'s' * (len(problem.seeds) > 1)} {listed([*map(str, problem.seeds)])}"
        sentences.append(f"Only seeds that all methods have are counted ({counted}), not {rest}.")
    column = "" if problem.judge is None else describe(problem.judge).label
    if problem.judge is not None:
        sentences.append(f"Judged by {column} ({problem.better} is better).")
    if personal := [m.label for m in problem.methods if m.personal]:
        sentences.append(f"Of {listed(personal)} all figures are those of personal models.")
    if tuned := problem.records[0].about.get("tuned"):
        sentences.append(f"Learning rates are {rates(tuned)}.")
    if problem.star is not None:
        sentences.append(f"★: better than each other method by {column}, p < {LEVEL} for all pairs together.")
    elif problem.tied:
        text = f"≈: not distinguished from the best by {column}, p ≥ {LEVEL} for all pairs together or too close to "
        sentences.append(f"{text}matter.")
    if problem.p and len(problem.seeds) < _FEW:
        sentences.append("So few seeds show large differences only.")
    return sentences


def with_spread(column: str, values: np.ndarray) -> str:
    """Mean and standard deviation over seeds, with the unit; a dash without values."""
    if not values.size:
        return "–"
    return " ".join(filter(None, show_parts(column, float(np.mean(values)), spread(values))))


NOT_PRIVATE = "Not private: the noise was made of a number that is in the configuration (noise_seed)."


def spending(problem: ProblemResults) -> list[str]:
    """Sentences on the privacy that runs have spent; methods that spent the same share one."""
    labels_by_text: dict[str, list[str]] = {}
    ends = problem.records[0].config["run"]["rounds"]
    for m in problem.methods:
        if m.epsilon is not None:
            text = f"spent epsilon = {show('epsilon', m.epsilon)} at delta = {m.delta:g}"
            if any(run.spent for run in m.runs):
                last = max(int(run.history["round"][-1]) for run in m.runs if run.spent)
                text += f"; the budget ended the run after round {last} of {ends}"
            labels_by_text.setdefault(text, []).append(m.label)
    sentences = [f"{listed(labels)}: {text}." for text, labels in labels_by_text.items()]
    for record in problem.records:
        sentences += [sentence for sentence in weaknesses(record) if sentence not in sentences]
    if labels_by_text and problem.records[0].config["privacy"].get("noise_seed") is not None:
        sentences.append(NOT_PRIVATE)
    return sentences


def weaknesses(record: Record) -> list[str]:
    """Sentences on an ε that says little: its δ is not below one over the number of clients, or it is 0."""
    found = methods([record])
    deltas = dict.fromkeys(m.delta for m in found if m.delta is not None)
    texts = [weakness(delta, len(record.about["clients"]["sizes"])) for delta in deltas]
    sentences = [f"{text[0].upper()}{text[1:]}." for text in texts if text]
    if none := [m.label for m in found if m.epsilon == 0]:
        what = "epsilon = 0 does not say that nothing is revealed: what is, has a probability of at most delta"
        sentences.append(f"{listed(none)}: {what}.")
    return sentences


def deltas(problem: ProblemResults) -> list[str]:
    """A sentence on what ε in a table stands for."""
    values = list(dict.fromkeys(f"{m.delta:g}" for m in problem.methods if m.delta is not None))
    return [f"ε: the privacy that a run has spent, at δ = {' or '.join(values)}, the most of its seeds."]
