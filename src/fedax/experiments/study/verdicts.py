"""The verdicts of a study: tests of the claims of its parts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedax.columns import deciding, show
from fedax.experiments.chance import gap_of
from fedax.experiments.config.sections import seeds_of
from fedax.experiments.report import write_report
from fedax.experiments.runs import Path, Record
from fedax.experiments.study.parts import Study, StudyPart
from fedax.experiments.study.results import record_of
from fedax.experiments.summary import LEVEL, holm, metrics, problems

POWER = 0.8  # of a design, at the smallest difference that it is said to detect


@dataclass(frozen=True)
class Claim:
    """The claim that one method is better than another, and its test.

    Attributes:
        better, worse: labels, as claimed.
        gap: by how much the first is better in the deciding column, the mean over the shared seeds; negative if it is
            worse. Infinite if one diverged with all seeds; not-a-number if both did, or one with some seeds, or they
            share no seed.
        low, high: the ends of its 95 % confidence interval; not-a-number with one seed.
        p: two-sided, of the paired t-test of this pair only; not-a-number with one seed.
        corrected: p corrected by Holm for all claims of the part.
        seeds: how many seeds both have.
    """

    better: str
    worse: str
    gap: float
    low: float
    high: float
    p: float
    corrected: float
    seeds: int

    @property
    def result(self) -> str:
        """``"as claimed"``, ``"the other way"``, or ``"not told"`` if not significant, by the corrected p."""
        if not self.corrected < LEVEL and not math.isinf(self.gap):
            return "not told"
        return "as claimed" if self.gap > 0 else "the other way"


def column_of(part: StudyPart, record: Record) -> str:
    """The column by which a part is judged."""
    (problem,) = problems([record])
    column = problem.judge if part.section.judge is None else deciding(part.section.judge, metrics(problem.methods))
    assert column is not None
    return column


def values_of(part: StudyPart, record: Record) -> dict[str, dict[int, float]]:
    """Method -> seed -> the mean of the last evaluations of the deciding column, signed so that higher is better."""
    (problem,) = problems([record])
    column = column_of(part, record)
    sign = -1.0 if record.better(column) == "lower" else 1.0
    values: dict[str, dict[int, float]] = {}
    for run in record.runs:
        failed = run.status not in ("finished", "worse")
        measured = run.history[deciding(column, run.history)]
        end = -math.inf if failed else sign * float(np.mean(measured[-max(problem.tail, 1) :]))
        values.setdefault(run.label, {})[run.seed] = end
    return values


def claims(part: StudyPart, record: Record) -> list[Claim]:
    """Test each claim of a part by its paired differences, of the means of the last evaluations."""
    by_label = values_of(part, record)
    tested: list[Claim] = []
    for one, other in part.section.claims:
        seeds = [seed for seed in by_label.get(one, {}) if seed in by_label.get(other, {})]
        values = {label: np.array([by_label[label][seed] for seed in seeds]) for label in (one, other) if seeds}
        with np.errstate(invalid="ignore"):  # both may be infinite
            gaps = np.subtract(values[one], values[other]) if seeds else np.zeros(0)
        testable = len(gaps) > 1 and bool(np.isfinite(gaps).all())
        gap = gap_of(values[other], values[one]) if testable else None
        mean = float(gaps.mean()) if len({*np.isfinite(gaps)}) == 1 else math.nan
        low, high = (math.nan, math.nan) if gap is None else gap.interval()
        p = math.nan if gap is None else gap.p
        tested.append(Claim(one, other, mean, low, high, p, math.nan, len(gaps)))
    corrected = holm([1.0 if math.isnan(claim.p) else claim.p for claim in tested])
    return [
        claim if math.isnan(claim.p) else replace(claim, corrected=p)
        for claim, p in zip(tested, corrected, strict=True)
    ]


def fair(part: StudyPart, tested: Sequence[Claim]) -> list[Claim]:
    """The claims without pairs of methods that the part's file excludes as unfair."""
    return [claim for claim in tested if not {claim.better, claim.worse} & {*part.section.unfair}]


def verdict(tested: Sequence[Claim]) -> str:
    """The verdict on the conjunction of several claims: holds, does not hold, or cannot be told.

    That all hold is an intersection-union test (Berger 1982): each pair has to be significant by itself, and p needs no
    correction, since one false positive does not make the others significant. That one does not hold needs p corrected
    for all pairs, since any of them may be a false positive.

    Example:
        >>> def claim(gap, p, corrected):
        ...     return Claim("x", "y", gap, gap - 0.5, gap + 0.5, p, corrected, 5)
        >>> sure, likely, against = claim(1.0, 0.001, 0.003), claim(1.0, 0.04, 0.08), claim(-1.0, 0.01, 0.03)
        >>> verdict([sure, likely]), verdict([sure, against]), verdict([sure, claim(-1.0, 0.04, 0.08)]), verdict([])
        ('holds', 'does not hold', 'cannot be told', 'cannot be told')
    """
    if any(claim.result == "the other way" for claim in tested):
        return "does not hold"
    holds = all(claim.gap > 0 and (claim.p < LEVEL or math.isinf(claim.gap)) for claim in tested)
    return "holds" if tested and holds else "cannot be told"


def decisive(tested: Sequence[Claim]) -> Claim | None:
    """The pair that decides the verdict: the least gap of those significantly the other way, or else of all."""
    compared = [claim for claim in tested if not math.isnan(claim.gap)]
    against = [claim for claim in compared if claim.result == "the other way"]
    return min(against or compared, key=lambda claim: claim.gap, default=None)


def effect(claim: Claim, column: str) -> str:
    """By how much the first method of a pair is better, in the column's units, with the 95 % interval.

    Example:
        >>> effect(Claim("x", "y", -0.01, -0.03, 0.01, 0.3, 0.3, 5), "test_accuracy")
        'x against y -1.00 % (-3.00 % to 1.00 %)'
    """
    if math.isinf(claim.gap):
        return f"{claim.better} against {claim.worse}, which failed" if claim.gap > 0 else f"{claim.better} failed"
    between = "" if math.isnan(claim.low) else f" ({show(column, claim.low)} to {show(column, claim.high)})"
    return f"{claim.better} against {claim.worse} {show(column, claim.gap)}{between}"


def least(seeds: int, tests: int = 1, level: float = 0.05) -> float:
    """The smallest difference that a paired t-test detects with a power of 80 %, in standard deviations of a residual.

    Args:
        seeds: S ≥ 2 of each method.
        tests: the number of tests for which a p-value is corrected, by Bonferroni's bound on Holm's correction.
        level: of the two-sided test.

    Example:
        >>> round(least(3), 1), round(least(10), 1), round(least(3, tests=29), 1)
        (4.6, 1.4, 24.9)
    """
    from scipy import special

    freedom = seeds - 1
    critical = special.stdtrit(freedom, 1 - level / tests / 2)
    return float(special.nctdtrinc(freedom, 1 - POWER, critical) * math.sqrt(2 / seeds))


def design(part: StudyPart) -> str:
    """The power of a part's paired tests, as a sentence: the smallest difference that is detected with 80 %.

    Its unit is the standard deviation of a run's residual, without the effects of method and seed.
    """
    seeds = len({*seeds_of("run.seeds", part.config["run"].get("seeds", 1))})
    pairs = sum(not {one, other} & {*part.section.unfair} for one, other in part.section.claims)
    if not pairs:
        return ""
    if seeds < 2:
        return "One seed tells no difference from chance."
    text = f"{seeds} seeds: a pair is told with 80 % if it differs by {least(seeds):.2g} standard deviations of a run"
    if pairs > 1:
        text += f", against the claim of {pairs} pairs by {least(seeds, pairs):.2g}"
    return f"{text}."


def outcome(study: Study, folder: Path) -> list[str]:
    """For each part with claims and results, a text: the claim, the effect, the verdict."""
    texts = []
    for part in study.parts.values():
        record = record_of(study, part, folder)
        if record is not None and part.section.claims:
            where = ", ".join(part.section.shows) or part.name
            claimed = f"{where}, claimed: “{part.section.text}”" if part.section.text else where
            texts.append(f"{claimed} {conclusion(part, record)}")
    return texts


def conclusion(part: StudyPart, record: Record) -> str:
    """Sentences: the effect with its interval, the verdict, and the pairs that do not count.

    Args:
        part: a part with claims.
        record: its runs, from :func:`record_of`.
    """
    tested = claims(part, record)
    counted = fair(part, tested)
    column, least_pair = column_of(part, record), decisive(counted)
    text = "No pair can be compared yet." if least_pair is None else f"Found: {effect(least_pair, column)}"
    if least_pair is not None:
        most = max((claim for claim in counted if not math.isnan(claim.gap)), key=lambda claim: claim.gap)
        text += "." if most is least_pair else f"; at most {effect(most, column)}."
    if part.section.provisional:
        return f"{text} Nothing follows from it: {part.section.provisional}"
    scope = f", {part.section.scope}" if part.section.scope else ""
    text += f" Verdict{scope}: {verdict(counted)}"
    if len(counted) > 1:
        counts = {way: sum(claim.result == way for claim in counted) for way in ("as claimed", "the other way")}
        ways = " and ".join(f"{number} {way}" for way, number in counts.items())
        text += f"; of {len(counted)} pairs {ways}, beyond chance"
    text += "."
    compared = {label for claim in tested for label in (claim.better, claim.worse)}
    if left_out := {label: why for label, why in part.section.unfair.items() if label in compared}:
        reasons = "; ".join(f"{label} ({why})" for label, why in left_out.items())
        text += f" Pairs that say nothing of the methods: those with {reasons}."
    return text


def write_page(study: Study, folder: Path) -> Path | None:
    """Write the page of a study, ``report.html``, from the results so far; ``None`` if there are none."""
    by_part = [record_of(study, part, folder) for part in study.parts.values()]
    records = [record for record in by_part if record is not None]
    if not records:
        return None
    path = folder / "report.html"
    write_report(records, path, opening=outcome(study, folder))
    return path
