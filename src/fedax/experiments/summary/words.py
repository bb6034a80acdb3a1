"""The comparison in sentences: the verdict, what it covers, the legend of a table, the privacy that was spent."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedax.columns import describe, show, show_parts
from fedax.experiments import chance
from fedax.experiments.runs import Record
from fedax.experiments.summary.compared import LEVEL, ProblemResults, methods, spread
from fedax.experiments.summary.settings import over
from fedax.privacy.accounting import weakness
from fedax.theory.diagnostics import MATERIAL

WORDS = {"diverged": "diverged", "worse": "ended worse", "failed": "stopped by its guard", "unfinished": "unfinished"}
GONE = {status: WORDS[status] for status in ("diverged", "worse")}  # their curves may leave the picture
_FEW = 10  # with fewer seeds the test detects only differences of about a standard deviation, or larger ones


def judged(problem: ProblemResults) -> dict[str, Any]:
    """The comparison for summary.json; ``differences``: to the best method, with 95 % intervals."""
    return {
        "column": problem.judge,
        "better": problem.better,
        "over": over(problem.records[0].config, len(problem.seeds)),
        "seeds": problem.seeds,
        "test": f"{_test_of(problem)}, Holm over all pairs",
        "covered": problem.covered,
        "best": problem.best and problem.best.label,
        "differences": {
            label: dict(zip(("mean", "low", "high"), (gap.mean, *gap.interval()), strict=True))
            for label, gap in problem.gaps.items()
        },
        "p": problem.p,
        "star": problem.star and problem.star.label,
        "tied": [m.label for m in problem.tied],
        "too_small_to_matter": [label for label in problem.p if problem.small(label)],
        "tail_evaluations": problem.tail,
    }


def described(values: np.ndarray) -> dict[str, Any] | None:
    """Mean, standard deviation and single values of the seeds; ``None`` without values."""
    return {"mean": values.mean(), "std": spread(values), "seeds": values} if values.size else None


def verdict(problem: ProblemResults) -> list[str]:
    """Sentences: by how much methods differ, which is best, what that covers, and which methods did not finish."""
    return [*_ranking(problem), *_failures(problem)]


def _ranking(problem: ProblemResults) -> list[str]:
    column, best, methods = problem.judge, problem.best, problem.methods
    if column is None:
        return ["The methods minimise different objectives and there are no held-out data: none is called the best."]
    if best is None:
        apart = not problem.seeds and sum(m.status == "finished" for m in methods) > 1
        return ["The methods have no seed in common: they are not compared."] if apart else []
    name = describe(column).label
    name, extreme = name[0].lower() + name[1:], {"lower": "Lowest", "higher": "Highest"}[problem.better or "lower"]
    sign = 1 if problem.better == "lower" else -1
    others = [m for m in methods if m is not best and m.status == "finished"]
    others.sort(key=lambda m: sign * float(np.mean(m.final(column))))
    text = f"{extreme} {name}: {best.label}, {with_spread(column, best.final(column))}; "
    text += f"next {others[0].label}, {with_spread(column, others[0].final(column))}."
    if not problem.p:
        return [f"{text} One seed does not tell this from chance."]
    sentences = [_interval(problem, others[0].label, name), text]
    if problem.star is not None:
        which = "each other method" if len(others) > 1 else "it"
        p = f"p {'≤' if len(others) > 1 else '='} {max(problem.p.values()):.2g}"
        sentences.append(f"The difference to {which} is more than chance ({p}).")
    tied = [m.label for m in problem.tied if m is not best]
    small = [label for label in tied if problem.small(label)]
    chancy = [label for label in tied if label not in small]
    if chancy:
        sentences.append(f"But {_list(chancy)} {_tie(chancy, 'may be chance')}.")
    if small:
        sentences.append(f"But {_list(small)} {_tie(small, 'too small to matter')}, {_IMMATERIAL}.")
    return [*sentences, *_coverage(problem)]


_IMMATERIAL = f"less than {100 * MATERIAL:g} % of what training gained"


def _tie(labels: Sequence[str], why: str) -> str:
    be = "" if why.startswith("may") else "is " if len(labels) == 1 else "are "
    return f"ties with it: the difference {be}{why}" if len(labels) == 1 else f"tie with it: the differences {be}{why}"


def _interval(problem: ProblemResults, label: str, name: str) -> str:
    """The difference of a method to the best, with its interval, as a sentence."""
    assert problem.best is not None
    gap, unit = problem.gaps[label], describe(str(problem.judge)).unit
    values = [(100 if unit == "%" else 1) * value for value in (gap.mean, *gap.interval())]
    digits = 1 - math.floor(math.log10(most)) if (most := max(map(abs, values))) else 0
    mean, low, high = (f"{value:+.{max(digits, 0)}f}" for value in values)
    if most and not 1e-4 <= most < 1e5:
        mean, low, high = (f"{value:+.1e}" for value in values)
    what = f"{name} (percentage points)" if unit == "%" else name
    text = f"{label} less {problem.best.label}, {what}: {mean}, 95 % interval {low} to {high}."
    return text.replace("-", "−") if "-" not in f"{label}{problem.best.label}{what}" else text


def _coverage(problem: ProblemResults) -> list[str]:
    """Sentences on what the interval and the verdict cover, and what they do not."""
    correct = ", corrected for all pairs of methods" if len(problem.p) > 1 else ""
    times = f"{len(problem.seeds)} {'splits' if chance.SPLIT in problem.covered else 'seeds'}"
    sentences = [f"This covers {_list(problem.covered)}: {_test_of(problem)} over {times}{correct}."]
    data, part = problem.records[0].config["data"], chance.part_of(problem.judge)
    if not problem.sure:
        way_out = ", and no method has a star; run.split_seeds = true covers them" if "split" in data else ""
        sentences.append(f"It does not cover the {'validation' if part == 'val' else part} examples{way_out}.")
    elif part is not None and "split" in data and chance.SPLIT not in problem.covered:
        sentences.append("Another split may say otherwise: run.split_seeds = true covers that too.")
    elif data.get("partition", "column") != "column" and chance.DEALT not in problem.covered:
        sentences.append("Clients that are dealt anew may say otherwise: run.split_seeds = true covers that too.")
    return sentences


def _test_of(problem: ProblemResults) -> str:
    """The name of the test."""
    if problem.judge is not None and chance.overlap(problem.records[0].config, problem.judge):
        return "a corrected resampled t-test"
    clustered = chance.EXAMPLES in problem.covered and problem.sure
    return "a paired t-test, its error clustered by seed and example," if clustered else "a paired t-test"


def _failures(problem: ProblemResults) -> list[str]:
    sentences = []
    for m in problem.methods:
        if m.status != "finished":
            sentences.append(f"{m.label}: {m.status_text}.")
        if m.losses_text:
            sentences.append(f"{m.label}: {m.losses_text}.")
    return sentences


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def legend(problem: ProblemResults) -> list[str]:
    """Sentences on how to read a table of final figures: rounds, the meaning of ±, the judging column, marks."""
    config = problem.records[0].config
    seeds = len(problem.seeds) or max(len(m.runs) for m in problem.methods)
    spread = f"; ± is the standard deviation over {over(config, seeds)}" if seeds > 1 else ", one seed"
    at_most = "at most " if "patience" in config["run"] else ""
    sentences = [f"After {at_most}{config['run']['rounds']} rounds{spread}."]
    if problem.left_out:
        rest = "; ".join(f"{', '.join(map(str, seeds))} of {label}" for label, seeds in problem.left_out.items())
        counted = f"seed{'s' * (len(problem.seeds) > 1)} {_list([*map(str, problem.seeds)])}"
        sentences.append(f"Only seeds that all methods have are counted ({counted}), not {rest}.")
    if problem.judge is not None:
        sentences.append(f"Judged by {describe(problem.judge).label} ({problem.better} is better).")
    if problem.star is not None:
        sentences.append(f"★: better than each other method, p < {LEVEL} (Holm).")
    elif problem.tied:
        sentences.append(f"≈: tied with the best, p ≥ {LEVEL} (Holm) or too close to matter.")
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
    sentences = [f"{_list(labels)}: {text}." for text, labels in labels_by_text.items()]
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
        sentences.append(f"{_list(none)}: {what}.")
    return sentences


def deltas(problem: ProblemResults) -> list[str]:
    """A sentence on what ε in a table stands for."""
    values = list(dict.fromkeys(f"{m.delta:g}" for m in problem.methods if m.delta is not None))
    return [f"ε: the privacy that a run has spent, at δ = {' or '.join(values)}, the most of its seeds."]
