"""Tables of results: for programs as a data frame and CSV, for papers as LaTeX and Markdown.

:mod:`fedax.experiments.statistics` computes their content.
"""

import math
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedax.columns import PARTS, TIME, describe, raised, show
from fedax.engine.history import tidy
from fedax.errors import ConfigError
from fedax.experiments import summary
from fedax.experiments.runs import Record
from fedax.experiments.runs import read as read_record
from fedax.experiments.statistics import Aim, Difference, Target, difference, interval, reached, target_of
from fedax.experiments.summary import Method, ProblemResults, spread
from fedax.experiments.typeset import Sheet, latex, markdown
from fedax.files import cell, quoting_of
from fedax.numbers import check_number

if TYPE_CHECKING:
    import pandas


def table(records: Sequence[Record], *, target: Aim | None = None, confidence: float = 0.95) -> "pandas.DataFrame":
    """The results of run folders, a row for each method.

    Args:
        records: from :func:`fedax.experiments.read`; of a sweep its best points.
        target: a value of the column that decides, or ``{column: value}``: adds what it cost to reach it.
        confidence: of the intervals, in (0, 1).

    Returns:
        These columns; what there is not is not-a-number.

        - ``problem``, its number, where the folders are of several; ``method``; ``status``; ``seeds``, how many;
          ``judged_by``, the column that decides.
        - Of each measure ``<column>``, the mean over the seeds at the last evaluation; ``<column>_std``, the sample
          standard deviation; ``<column>_low`` and ``<column>_high``, the confidence interval of the mean.
        - ``difference``, of the deciding column to the best method's, with ``difference_low``, ``difference_high`` and
          ``p``, as in :class:`fedax.experiments.statistics.Difference`; ``mark``, ``★`` of a method that is better than
          each other one beyond the test, ``≈`` of tied ones.
        - ``round``, ``clients``, ``local_steps``, ``gradients``, ``bytes_down``, ``bytes_up``, ``seconds`` and, with a
          clock, ``time``: what a run cost, in the mean.
        - With a target ``target_column`` and ``target``; ``reached``, how many seeds did; and over these,
          ``<axis>_to_target`` and ``<axis>_to_target_std`` for each of ``fedax.figures.AXES`` that the runs have.
        - ``epsilon``, of private runs: what one has spent in the end, the most of its seeds.
        - ``heard``, of real clients: the share of their weight that was heard at the last evaluation, the least of the
          seeds.

    Raises:
        ConfigError: a target that cannot be, a confidence out of range.
    """
    import pandas  # slow to import

    check_number("confidence", confidence, 0, 1, open_low=True, open_high=True)
    problems = summary.problems(records)
    rows = []
    for k, problem in enumerate(problems):
        aim = None if target is None else target_of(problem, target)
        for m in problem.methods:
            number = {"problem": k + 1} if len(problems) > 1 else {}
            rows.append(number | _row(problem, m, aim, confidence))
    return pandas.DataFrame(rows)


def rows(records: Sequence[Record]) -> "pandas.DataFrame":
    """The histories of run folders, a value in each row; the columns are those of :func:`read`."""
    runs = ((str(record.folder), run) for record in records for run in record.runs)
    several = len(records) > 1
    return tidy(
        (({"run": folder} if several else {}) | _names(run.label, run.seed, run.point), run.history)
        for folder, run in runs
    )


def _names(label: str, seed: int, point: Mapping[str, Any]) -> dict[str, Any]:
    """What tells a run from the others; a setting with the name of another column gets ``method.`` in front."""
    taken = ("run", "part", "method", "seed", "round", "column", "value")
    return {"method": label, "seed": seed} | {f"method.{k}" if k in taken else k: point[k] for k in point}


def read(folder: str | pathlib.Path, *more: str | pathlib.Path) -> "pandas.DataFrame":
    """All measured values in folders of runs, comparisons, sweeps and studies, as a tidy table, a value in each row.

    Args:
        folder, more: as ``fedax run``, ``compare``, ``sweep`` or ``study`` wrote them; what goes on still, so far.

    Returns:
        ``method``, its label, ``seed``, ``round``, ``column``, such as ``"test_loss"``, and ``value``; of several
        folders ``run`` before these, of a study ``part``; of a sweep the settings of the point after ``seed``.

    Raises:
        ConfigError: no such folder, or nothing was measured yet.
        DataError: a file of it that cannot be read, or holds what no run writes.

    Example:
        >>> import fedax, tempfile
        >>> data, task = fedax.data.quadratics(clients=4, dimension=2), fedax.tasks.quadratic(2)
        >>> place = tempfile.mkdtemp() + "/run"
        >>> _ = fedax.compare(["fedavg", "scaffold"], task, data, rounds=5, seeds=1, out=place)
        >>> rows = read(place)
        >>> losses = rows[rows["column"] == "train_loss"].pivot(index="round", columns="method", values="value")
        >>> losses.shape
        (6, 2)
    """
    import pandas

    found = []
    for place in map(pathlib.Path, (folder, *more)):
        frame = _of_study(place) if (place / "results").is_dir() else rows([read_record(place)])
        if more:
            frame.insert(0, "run", str(place))
        found.append(frame)
    return pandas.concat(found, ignore_index=True)


def _of_study(folder: pathlib.Path) -> "pandas.DataFrame":
    """The rows of a study; of a method that was run at several settings those of the last."""
    from fedax.experiments.study.results import floats, lines_of  # which imports this

    lines: dict[tuple[str, str, int], dict[str, Any]] = {}
    for part, line in lines_of(folder):
        if "seed" in line:
            lines[part, line["label"], line["seed"]] = line["history"]
    if not lines:
        raise ConfigError("folder", str(folder), "no run of this study has ended yet; wait for the first")
    named = (({"part": part} | _names(label, seed, {}), history) for (part, label, seed), history in lines.items())
    return tidy((names, floats(history)) for names, history in named)


def _row(problem: ProblemResults, m: Method, aim: Target | None, confidence: float) -> dict[str, Any]:
    judge = problem.judge and m.column(problem.judge)
    row: dict[str, Any] = {"method": m.label, "status": m.status, "seeds": len(m.runs), "judged_by": judge}
    for column in summary.metrics(problem.methods):
        values = m.final(column)
        row |= mean_and_std(column, values)
        row[f"{column}_low"], row[f"{column}_high"] = interval(values, confidence)
    gap = difference(problem, m, confidence)
    row |= {"difference": gap.mean, "difference_low": gap.low, "difference_high": gap.high, "p": gap.p}
    row["mark"] = problem.mark(m)
    row |= {column: m.cost(column) for column in summary.costs_of(problem.methods)}
    if aim is not None:
        result = reached(m, aim)
        row |= {"target_column": aim.column, "target": aim.value, "reached": len(result.seeds)}
        for name, costs in result.costs.items():
            row[f"{name}_to_target"] = float(np.mean(costs)) if costs.size else math.nan
            row[f"{name}_to_target_std"] = _std(costs)
    if m.epsilon is not None:
        row["epsilon"] = m.epsilon
    if (heard := m.heard_counts) is not None:
        row["heard"] = heard["at_the_end"]
    return row


def mean_and_std(column: str, values: np.ndarray) -> dict[str, float]:
    """``<column>`` and ``<column>_std`` over the seeds; not-a-number with too few seeds."""
    return {column: float(np.mean(values)) if values.size else math.nan, f"{column}_std": _std(values)}


def _std(values: np.ndarray) -> float:
    std = spread(values)
    return math.nan if std is None else std


def to_csv(records: Sequence[Record], *, target: Aim | None = None, confidence: float = 0.95) -> str:
    """:func:`table` as comma-separated values; missing values are empty cells.

    A text that a spreadsheet would take for a formula, such as a label ``=a``, gets ``'`` in front.
    """
    return as_csv(table(records, target=target, confidence=confidence))


def as_csv(frame: "pandas.DataFrame") -> str:
    """A table of methods as the text of a CSV file."""
    frame = frame.map(lambda x: cell(x) if isinstance(x, str) else x)
    quoting = quoting_of(str(label) for label in frame["method"])
    return str(frame.rename(columns=cell).to_csv(index=False, lineterminator="\n", quoting=quoting))


def to_latex(records: Sequence[Record], *, target: Aim | None = None, confidence: float = 0.95) -> str:
    """Tables for a paper, as LaTeX; the document needs the package booktabs.

    There is one of the final figures, and with a target one of what it cost to reach it, for each problem. Arguments
    and errors are those of :func:`table`.
    """
    return latex(_sheets(records, target, confidence))


def to_markdown(records: Sequence[Record], *, target: Aim | None = None, confidence: float = 0.95) -> str:
    """The tables of :func:`to_latex`, as Markdown."""
    return markdown(_sheets(records, target, confidence))


def _sheets(records: Sequence[Record], aim: Aim | None, confidence: float) -> list[Sheet]:
    check_number("confidence", confidence, 0, 1, open_low=True, open_high=True)
    problems = summary.problems(records)
    targets = [None if aim is None else target_of(problem, aim) for problem in problems]
    sheets = []
    for k, (problem, target) in enumerate(zip(problems, targets, strict=True)):
        which = "".join(f", {name} {value}" for name, value in problem.differs.items())
        number = str(k + 1) if len(problems) > 1 else ""
        sheet = _final(problem, confidence)
        sheets.append(replace(sheet, name=f"final{number}", title=f"{sheet.title}{which}"))
        if target is not None:
            sheet = costs_to(problem, target)
            sheets.append(replace(sheet, name=f"target{number}", title=f"{sheet.title}{which}"))
    return sheets


def _final(problem: ProblemResults, confidence: float) -> Sheet:
    methods = problem.methods
    columns = {"Method": [m.label for m in methods]}
    bold: frozenset[tuple[int, int]] = frozenset()
    for column in _columns_for_paper(problem):
        if column == problem.judge:
            bold = frozenset((i, len(columns)) for i, m in enumerate(methods) if m is problem.star)
            columns |= _judged_columns(problem, confidence)
        else:
            columns |= means_of(column, methods)
    figures = _NumberFormat("bytes_down", [np.array([m.cost("bytes_down") + m.cost("bytes_up")]) for m in methods])
    columns[_head("Traffic", figures.unit)] = figures.means()
    if TIME in summary.costs_of(methods):
        columns |= means_of(TIME, methods)
    notes = summary.legend(problem) + _explanation(confidence) * bool(problem.p)
    if any(m.epsilon is not None for m in methods):
        columns["ε"] = ["–" if m.epsilon is None else show("epsilon", m.epsilon) for m in methods]
        notes += summary.deltas(problem)
    rows = list(zip(*columns.values(), strict=True))
    return Sheet("final", "Final figures", list(columns), rows, bold, summary.verdict(problem), notes)


def means_of(column: str, methods: Sequence[Method]) -> dict[str, list[str]]:
    """Head -> the final mean ± standard deviation of a column, for each method."""
    figures = _NumberFormat(column, [m.final(column) for m in methods])
    return {_head(describe(column).label, figures.unit): figures.means()}


def compared(problem: ProblemResults, confidence: float = 0.95) -> Sheet | None:
    """The table of intervals and paired differences; ``None`` with fewer than two seeds."""
    if not problem.p:
        return None
    columns = {"Method": [m.label for m in problem.methods], **_judged_columns(problem, confidence)}
    rows = list(zip(*columns.values(), strict=True))
    return Sheet("compared", "Intervals and paired differences", list(columns), rows, notes=_explanation(confidence))


def _judged_columns(problem: ProblemResults, confidence: float) -> dict[str, list[str]]:
    """The table's columns for the deciding measure: means, intervals, differences, p-values."""
    methods, judge = problem.methods, problem.judge
    assert judge is not None
    figures = _NumberFormat(judge, [m.final(judge) for m in methods])
    means = [f"{mean} {problem.mark(m)}".strip() for mean, m in zip(figures.means(), methods, strict=True)]
    columns = {_head(describe(judge).label, figures.unit): means}
    if problem.p and problem.best is not None:
        gaps = [difference(problem, m, confidence) for m in methods]
        columns[f"{100 * confidence:g} % interval"] = [
            figures.ends(*interval(m.final(judge), confidence)) for m in methods
        ]
        columns[_head(f"Difference to {problem.best.label}", figures.unit)] = [figures.gap(gap) for gap in gaps]
        columns["p"] = [_p(gap.p) for gap in gaps]
    return columns


def _explanation(confidence: float) -> list[str]:
    return [
        f"Intervals: {100 * confidence:g} % confidence, each for itself; of a mean by Student's t over the seeds.",
        "Those of differences hold for all pairs of methods together, as p does; both cover what the verdict says.",
    ]


def _columns_for_paper(problem: ProblemResults) -> list[str]:
    """The columns for a paper: the deciding one, and those of held-out data."""
    columns = summary.table_order(problem)
    return [column for column in columns if column == problem.judge or column.startswith(PARTS)] or columns


def costs_to(problem: ProblemResults, target: Target) -> Sheet:
    """The table of what it cost to reach a target, on every axis of cost."""
    results = [reached(m, target) for m in problem.methods]
    label = describe(target.column).label
    way = "at most" if target.better == "lower" else "at least"
    value = f"{100 * target.value:g} %" if describe(target.column).unit == "%" else show(target.column, target.value)
    columns = {
        "Method": [m.label for m in problem.methods],
        "Seeds that reached it": [f"{len(result.seeds)} of {result.of}" for result in results],
    }
    for key, axis in summary.axes(problem).items():
        figures = _NumberFormat(axis.columns[0], [result.costs[key] for result in results])
        name = "Traffic" if key == "bytes" else describe(axis.columns[0]).label
        columns[_head(name, figures.unit)] = figures.means()
    notes = ["Up to the first evaluation that is as good or better, of all clients together."]
    least = min(m.min_heard for m in problem.methods)
    few = f"Evaluations in which less than {100 * least:g} % of the weight was heard do not count."
    notes += [few] * any((m.heard_counts or {}).get("too_few") for m in problem.methods)
    notes += ["Mean ± standard deviation over the seeds that reached it."] * (max(result.of for result in results) > 1)
    title = f"Cost until {label[0].lower()}{label[1:]} is {way} {value}"
    return Sheet("target", title, list(columns), list(zip(*columns.values(), strict=True)), notes=notes)


# ---- numbers


def _head(label: str, unit: str) -> str:
    return f"{label} ({unit})" if unit else label


def _p(value: float) -> str:
    return "–" if math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.2g}"


class _NumberFormat:
    """Formats the numbers of a column: in one unit, with as many decimals as their spread justifies.

    Args:
        column: of the history; it determines the unit.
        values: for each method, [seeds]; may be empty.

    Attributes:
        unit: for the head of the column.
    """

    def __init__(self, column: str, values: Sequence[np.ndarray]):
        self.values = [
            of_method if of_method.size and np.isfinite(of_method).all() else np.zeros(0) for of_method in values
        ]
        known = [of_method for of_method in self.values if of_method.size]
        means, stds = (
            np.abs([float(np.mean(of_method)) for of_method in known]),
            np.array([_std(of_method) for of_method in known]),
        )
        self.factor, self.unit = _unit(column, float(means.max(initial=0.0)))
        fixed = np.array([not _scientific(self.factor * mean) for mean in means], bool)
        plain_means, stds = self.factor * means[fixed], self.factor * stds[fixed]
        stds = stds[stds > 0]  # drops not-a-number
        largest = float(plain_means.max(initial=0.0))
        # Two digits of the smallest spread, and no more than four of the largest number.
        digits = 1 - math.floor(math.log10(stds.min())) if stds.size else 4
        cap = 3 - math.floor(math.log10(largest)) if largest else 2
        whole = describe(column).type == "whole" and self.factor == 1 and not stds.size
        self.decimals = 0 if whole else max(0, min(digits, cap))

    def means(self) -> list[str]:
        """Mean ± standard deviation of each method."""
        return [self.mean(k) for k in range(len(self.values))]

    def mean(self, k: int) -> str:
        """Mean ± standard deviation of a method."""
        values = self.values[k]
        if not values.size:
            return "–"
        mean, std = self.factor * float(np.mean(values)), self.factor * _std(values)
        if _scientific(mean):
            power = math.floor(math.log10(abs(mean)))
            scaled, noise = f"{mean / 10**power:.2f}", "" if math.isnan(std) else f" ± {std / 10**power:.2f}"
            return f"({scaled}{noise}) × {raised(power)}" if noise else f"{scaled} × {raised(power)}"
        return f"{self._number(mean)}" + ("" if math.isnan(std) else f" ± {std:.{self.decimals}f}")

    def ends(self, low: float, high: float) -> str:
        """An interval."""
        if math.isnan(low):
            return "–"
        return f"[{self._number(self.factor * low)}, {self._number(self.factor * high)}]"

    def gap(self, gap: Difference) -> str:
        """A difference with its interval; a dash for the best method itself."""
        if math.isnan(gap.low):
            return "–"
        return f"{self._number(self.factor * gap.mean, '+')} {self.ends(gap.low, gap.high)}"

    def _number(self, value: float, sign: str = "") -> str:
        text = f"{value:{sign}.2e}" if _scientific(value) else f"{value:{sign}.{self.decimals}f}"
        return text.replace("-", "−")


def _scientific(value: float) -> bool:
    return value != 0 and not 1e-3 <= abs(value) < 1e5


def _unit(column: str, largest: float) -> tuple[float, str]:
    """The factor for the values of a column, and their unit after it."""
    about_column = describe(column)
    if about_column.unit == "%":
        return 100.0, "%"
    if about_column.unit == "s":
        return (1.0, "s") if largest < 100 else (1 / 60, "min") if largest < 6000 else (1 / 3600, "h")
    names = ("B", "kB", "MB", "GB", "TB") if about_column.unit == "B" else ("", "10³", "10⁶", "10⁹", "10¹²")
    if about_column.type != "whole" or (about_column.unit != "B" and largest < 1e4):
        return 1.0, ""
    power = min(len(names) - 1, max(0, math.floor(math.log10(largest) / 3))) if largest else 0
    return 1000.0**-power, names[power]
