"""The pictures of a run folder, for its report and its plots: what they show. They are drawn elsewhere."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedax.columns import Direction, describe, show
from fedax.experiments import clients, summary
from fedax.experiments.summary import GONE, Method, ProblemResults, order
from fedax.experiments.sweeps import cut
from fedax.figures.axes import along, chart
from fedax.figures.series import Chart, Scale, Series

_POINTS = 20_000  # the most points of all curves of a problem together
_CURVE_POINTS = 400  # the most points of a curve
_CLOSE, _MOSTLY = 0.006, 0.75  # curves overlap if they are this near (share of the height) for this share of the time
_NAMED = 60  # up to so many clients have their names at the axis
_PLACES = 120  # the most places of a picture of clients
_SPOTS = 2400  # the most clients that a picture draws one by one


# ---- curves


def series(methods: Sequence[Method], column: str, x: str = "rounds") -> list[Series]:
    """The curves of methods, up to the last evaluation that all seeds of a method have.

    Args:
        methods: from :func:`fedax.experiments.summary.methods`, or those of a problem.
        column: the measure.
        x: the axis, one of ``fedax.figures.AXES``; positions are means over the seeds.
    """
    drawn = []
    for m in methods:
        values = m.values(column)
        place = np.mean([along(run.history, x)[: values.shape[1]] for run in m.runs], axis=0)
        drawn.append(Series(m.label, place, values, _gone(m), m.heard))
    return drawn


def _gone(m: Method) -> str:
    """Why a method's curve ends or may leave the picture, and with how many seeds if not with all."""
    if m.status not in GONE:
        return ""
    which = [run.status for run in m.runs].count(m.status)
    return GONE[m.status] + (f" with {which} of {len(m.runs)} seeds" if which < len(m.runs) else "")


def curves(problem: ProblemResults) -> list[Chart]:
    """The curves of a problem, thinned, against rounds and along all its other axes."""
    every, axes, drawn = thinning(problem), summary.axes(problem), []
    for column in summary.curve_order(problem):
        against = {x: [_thin(s, every) for s in series(problem.methods, column, x)] for x in axes}
        first = chart(against["rounds"], "rounds", column)
        others = {x: (axis.scale, [s.x for s in against[x]]) for x, axis in axes.items()}
        on = "; ".join(_listed([problem.methods[k].label for k in group]) for group in together(first))
        drawn.append(replace(first, along=others, note=f"Lying on one another: {on}." if on else ""))
    return drawn


def thinning(problem: ProblemResults) -> int:
    """The thinning of a problem's curves: one of so many evaluations is drawn."""
    longest = max(len(m.runs[0].history["round"]) for m in problem.methods)
    points = longest * len(problem.methods) * len(summary.curve_order(problem))
    return max(1, math.ceil(longest / _CURVE_POINTS), math.ceil(points / _POINTS))


def _thin(s: Series, every: int) -> Series:
    """One of ``every`` evaluations, and the last; the least that was heard at each, or since the one before."""
    at = [*range(0, len(s.x) - 1, every), len(s.x) - 1][: len(s.x)]
    heard = s.heard
    if heard is not None:
        heard = np.array([heard[a + 1 : b + 1].min() for a, b in zip([-1, *at], at, strict=False)])
    return replace(s, x=s.x[at], values=s.values[:, at], heard=heard)


def together(of: Chart) -> list[list[int]]:
    """Groups of two or more lines that overlap, for most of their length and at the end.

    Example:
        >>> lines = [Series(name, [0, 1], [[1.0, end]]) for name, end in {"a": 0.5, "b": 0.9, "c": 0.501}.items()]
        >>> together(Chart("", Scale(), Scale(), lines))
        [[0, 2]]
    """
    heights = [np.log(s.parts[0]) if of.y.log else s.parts[0] for s in of.series]
    near = _CLOSE * np.ptp(np.log(of.scaling) if of.y.log else of.scaling) if of.scaling.size else 0.0
    groups: list[list[int]] = []
    for k, line in enumerate(heights):
        for group in groups:
            other = heights[group[0]]
            if line.size and line.shape == other.shape and np.array_equal(np.isnan(line), np.isnan(other)):
                same = ~(np.abs(line - other) > near)
                if same[-1] and same.mean() >= _MOSTLY:
                    group.append(k)
                    break
        else:
            groups.append([k])
    return [group for group in groups if len(group) > 1]


def _listed(labels: Sequence[str], most: int = 6) -> str:
    """Labels as a list; a long one is cut off."""
    shown = ", ".join(labels[:most] if len(labels) > most + 1 else labels[:-1])
    return f"{shown} and {len(labels) - most} more" if len(labels) > most + 1 else f"{shown} and {labels[-1]}"


# ---- classes


def reliability(of: str, bins: Mapping[str, np.ndarray], labels: Sequence[str]) -> Chart:
    """How often a class occurs against its probability, a line for each method.

    Args:
        of: the class in words.
        bins: method -> [3, 10] rows by their probability: how many, Σ probability, and how many are of the class.
        labels: of all methods, in the order of their colours.
    """
    drawn = [Series("", np.arange(2), np.array([[0, 1]]), kind="rule", k=-1)]
    for label, (number, said, so) in bins.items():
        some = np.flatnonzero(number)
        p, share = said[some] / number[some], so[some] / number[some]
        texts = [f"{label}: {n:.0f} rows\nmean probability {u:.3f}, share {v:.3f}"
                 for u, v, n in zip(p, share, number[some], strict=True)]  # fmt: skip
        drawn.append(Series(label, p, share[None], k=_place(label, labels), texts=texts))
    note = f"How often {of} occurs among the test rows to which the model gives such a probability of it; on the line "
    note += "they are equal. The calibration error is the mean distance over all rows; bins of few rows scatter."
    axes = Scale("Mean probability"), Scale("Share that is so")
    return Chart(f"Calibration: probability of {of}", *axes, drawn, note)


def _place(label: str, labels: Sequence[str]) -> int:
    """The place of a method, for its colour; −1 of a baseline."""
    return labels.index(label) if label in labels else -1


# ---- clients


def spread(column: str, spreads: Sequence[clients.Spread], labels: Sequence[str], note: str = "") -> Chart:
    """A figure over the clients: a row for each method, a dot for each client, a box around the middle half."""
    about, rows, drawn = describe(column), len(spreads), []
    for j, each in enumerate(spreads):
        k, at = _place(each.label, labels), rows - 1 - j
        here = np.flatnonzero(np.isfinite(each.values))
        if not here.size:
            continue
        values = each.values[here]
        first, middle, third = np.quantile(values, [0.25, 0.5, 0.75])
        reach = 1.5 * (third - first)
        whisker = values[(values >= first - reach) & (values <= third + reach)]
        for kind, x in {"whisker": [whisker.min(), whisker.max()], "box": [first, middle, third]}.items():
            drawn.append(Series("", np.array(x), np.full((1, len(x)), at), kind=kind, k=k))
        number = min(max(40, _SPOTS // rows), len(values))
        ranks = np.argsort(values, kind="stable")
        some = here[ranks[np.linspace(0, len(ranks) - 1, number).round().astype(int)]]
        heights = at + 0.4 * (some * 0.618034 % 1 - 0.5)
        texts = [f"{each.label}\n{each.names[i]} ({each.sizes[i]} examples): {show(column, each.values[i])}"
                 for i in some]  # fmt: skip
        drawn.append(Series("", each.values[some], heights[None], kind="dots", k=k, texts=texts))
    words = tuple(cut(each.label) for each in reversed(spreads))
    return Chart(f"{about.label} of each client", Scale(about.label, about.unit), Scale(words=words), drawn, note)


_SIDES = {0: "not told from chance", 1: "better off", -1: "worse off"}


def before_after(
    column: str,
    names: Sequence[str],
    before: tuple[str, np.ndarray],
    after: tuple[str, np.ndarray],
    way: Direction,
    sides: np.ndarray | None = None,
) -> Chart:
    """A figure of each client with one model against that with another, a dot for each client.

    Args:
        column: of the figure.
        names: [N] of the clients.
        before, after: what the models are called, and their figures [N].
        way: of the figure that is better.
        sides: [N] 1 of clients that are better off after, −1 of those that are worse, 0 else; ``None``: not known.
    """
    about, (x, y) = describe(column), (before[1], after[1])
    there = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    if len(there) > _SPOTS:  # those that are drawn go from the least to the most that changed
        there = there[np.argsort((y - x)[there], kind="stable")]
        there = there[np.linspace(0, len(there) - 1, _SPOTS).round().astype(int)]
    both = np.concatenate([x[there], y[there]])
    ends = np.array([both.min(), both.max()]) if there.size else np.arange(2.0)
    drawn = [Series("", ends, ends[None], kind="rule", k=-1)]
    kinds = {"": there} if sides is None else {word: there[sides[there] == side] for side, word in _SIDES.items()}
    for k, (word, some) in enumerate(kinds.items()):
        if some.size:
            texts = [f"{names[i]}\n{before[0]} {show(column, x[i])}, {after[0]} {show(column, y[i])}" for i in some]
            drawn.append(Series(word, x[some], y[some][None], kind="dots", k=k, texts=texts))
    note = f"Clients {'above' if way == 'higher' else 'below'} the line do better with: {after[0]}."
    if len(there) < len(names):
        note += f" {len(there)} of {len(names)} clients are drawn."
    title = f"{about.label} of each client: {after[0]} against {before[0]}"
    return Chart(title, Scale(cut(before[0], 50), about.unit), Scale(cut(after[0], 30), about.unit), drawn, note)


def of_clients(about: dict[str, Any]) -> dict[str, Chart]:
    """Pictures of the clients, the largest first: ``sizes``, and if known ``counts`` of classes and ``steps``.

    Args:
        about: the section on clients of about.json.
    """
    by_size, sizes = order(about), np.asarray(about["sizes"])
    number, groups = len(sizes), np.array_split(by_size, min(len(sizes), _PLACES))
    names = about.get("names") or [f"client {i}" for i in range(number)]
    who = [names[g[0]] if len(g) == 1 else f"{len(g)} clients, {names[g[0]]} to {names[g[-1]]}" for g in groups]
    counts = np.asarray(about["counts"]) if about["counts"] else None
    texts = [f"{name}: {_about(each, sizes, counts, about['classes'])}" for name, each in zip(who, groups, strict=True)]
    label = "Clients, largest first"
    if number <= _NAMED:
        words = tuple(cut(names[i]) if about.get("names") else str(i) for i in by_size)
        x, at = Scale(label, words=words), np.arange(number)
    else:
        ends = np.cumsum([0, *map(len, groups)])
        x, at = Scale(label, whole=True), (ends[:-1] + ends[1:] + 1) / 2
    bars = [("", np.array([sizes[group].mean() for group in groups]))]
    if counts is not None and number <= _NAMED:
        stacked = np.cumsum([[counts[group, j].mean() for group in groups] for j in range(counts.shape[1])], 0)
        bars = [(f"class {name}", top) for name, top in zip(about["classes"], stacked, strict=True)]
    drawn = [Series(name, at, top[None], kind="bars") for name, top in bars]
    drawn[-1] = replace(drawn[-1], texts=texts)  # the highest
    pictures = {"sizes": Chart("Examples of each client", x, Scale("Examples", whole=True), drawn)}
    if counts is not None:
        share = np.array([(counts[group] / sizes[group, None]).mean(0) for group in groups]).T
        row, column = np.indices(share.shape).reshape(2, -1)
        most = float(share.max()) or 1.0
        cells = Series("", column, row[None], kind="cells", shade=share.ravel() / most)
        across = x if x.words else Scale(label, words=("",) * len(groups))
        up = Scale("Class", words=tuple(cut(str(name), 10) for name in about["classes"]))
        ramp = ("Share of the client’s data", "0 %", f"{100 * most:.0f} %")
        pictures["counts"] = Chart("Classes of each client", across, up, [cells], ramp=ramp)
    low, mean, high = (
        np.array([fold(np.asarray(about["steps"][part], float)[group]) for group in groups])
        for part, fold in (("low", np.min), ("mean", np.mean), ("high", np.max))
    )
    if low.min() < high.max():
        texts = [f"{name}: {b:.1f} steps a round\nfrom {a:g} to {c:g}"
                 for name, a, b, c in zip(who, low, mean, high, strict=True)]  # fmt: skip
        steps = Series("", at, np.stack([low, high]), middle=mean, texts=texts)
        note = f"Line: mean of {about['steps']['draws']} drawn rounds; band: lowest to highest."
        pictures["steps"] = Chart("Local steps of each client", x, Scale("Local steps a round"), [steps], note)
    return pictures


def _about(group: np.ndarray, sizes: np.ndarray, counts: np.ndarray | None, classes: Sequence[Any]) -> str:
    """How many examples clients have, and their commonest classes."""
    most, least = sizes[group].max(), sizes[group].min()
    text = f"{most} to {least} examples" if len(group) > 1 else f"{most} examples"
    if counts is not None:
        totals = counts[group].sum(0)
        common = [j for j in np.argsort(-totals, kind="stable")[:3] if totals[j]]
        text += "\n" + ", ".join(f"{100 * totals[j] / totals.sum():.0f} % class {classes[j]}" for j in common)
    return text


def grouped(about: dict[str, Any]) -> int:
    """The most clients that one place of a picture stands for."""
    return math.ceil(len(about["sizes"]) / _PLACES)
