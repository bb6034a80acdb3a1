"""The pictures of the report, with the data that the page shows when a reader points at them."""

import html
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedax.columns import HEARD, describe, heard_enough, show
from fedax.experiments import clients, summary, sweeps
from fedax.experiments.report import svg
from fedax.experiments.report.svg import Scale, around
from fedax.experiments.runs import Record, finite
from fedax.experiments.summary import GONE, Method, ProblemResults, order
from fedax.figures.axes import AXES, along
from fedax.figures.style import COLOURS, MARKERS

MANY = 8  # with more methods bands are faint and lines thin

_POINTS = 20_000  # the most points of all curves of a problem together
_CURVE_POINTS = 400  # the most points of a curve
_CLOSE, _MOSTLY = 0.006, 0.75  # curves overlap if they are this near (share of the height) for this share of the time
_NAMED = 60  # up to so many clients have their names at the axis
_COLUMNS = 240  # the most columns of a picture of clients
_SPOTS = 2400  # the most clients that a picture draws one by one


def embed(data: Any) -> str:
    """Data for the script of the page, as an HTML element."""
    # "<" is escaped, so that no text in the data can end the script element.
    text = json.dumps(finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


def key(k: int | None) -> str:
    """The legend key of method ``k``, its line and mark; ``None``: of a baseline."""
    symbol = "" if k is None else f'<use href="#m{k % len(MARKERS)}" x="13" y="7"/>'
    return f'<svg class="key {_colour(k)}" width="26" height="14" aria-hidden="true"><path d="M0 7h26"/>{symbol}</svg>'


def _colour(k: int | None) -> str:
    return "cx" if k is None else f"c{k % len(COLOURS)}"


def _figure(picture: str, about: str, *, head: str = "", note: str = "", spots: Any = None, by: str = "") -> str:
    """A picture with data for the pointer and the keyboard."""
    inside = f"<figcaption>{head}</figcaption>" * bool(head) + picture + f'<p class="note">{note}</p>' * bool(note)
    data = embed(spots) if spots else ""
    start = f'<figure class="chart" tabindex="0" aria-label="{html.escape(about)}"'
    start += f' data-by="{by}">' if by else ">"
    return f"{start}{inside}{data}</figure>"


# ---- curves


def curves(problem: ProblemResults, k: int) -> str:
    """The curves of a problem: means over the seeds, with bands from the lowest to the highest."""
    methods, columns = problem.methods, summary.curve_order(problem)
    every = _thinning(methods, columns)
    axes = summary.axes(problem)
    series = [_series(m, every, axes) for m in methods]
    pictures = [_curve(methods, series, column, every) for column in columns]
    data = {
        "axes": {name: {"name": axis.label, "unit": axis.unit, "whole": axis.whole} for name, axis in axes.items()},
        "series": series,
        "charts": [chart for _, chart in pictures],
    }
    choice = "".join(
        f'<button type="button" data-axis="{name}" aria-pressed="{pressed}">{text}</button>'
        for name, pressed, text in (
            (name, "true" if name == "rounds" else "false", name.replace("_", " ").capitalize()) for name in axes
        )
    )
    bar = f'<div class="live"><span class="label" id="against-{k}">Against</span>'
    bar += f'<span class="choice" role="group" aria-labelledby="against-{k}">{choice}</span></div>'
    legend = "".join(
        f'<button type="button" aria-pressed="true" data-k="{i}">{key(i)}{html.escape(_label_with_status(m))}</button>'
        for i, m in enumerate(methods)
    )
    some = '<button type="button" class="live all">all</button><button type="button" class="live none">none</button>'
    legend += some if len(methods) > MANY else ""
    size = " many" if len(methods) > MANY else ""
    return (
        f'<div class="curves{size}" id="curves-{k}"><div class="bar">{bar}'
        f'<div class="legend" role="group" aria-label="methods">{legend}</div></div>'
        f'<div class="grid">{"".join(text for text, _ in pictures)}</div>{embed(data)}</div>'
    )


def _label_with_status(m: Method) -> str:
    return f"{m.label} ({GONE[m.status]})" if m.status in GONE else m.label


def _thinning(methods: Sequence[Method], columns: Sequence[str]) -> int:
    """The thinning of the curves: one of so many evaluations is drawn."""
    longest = max(len(m.runs[0].history["round"]) for m in methods)
    return max(1, math.ceil(longest / _CURVE_POINTS), math.ceil(longest * len(methods) * len(columns) / _POINTS))


def thinned(problem: ProblemResults) -> int:
    """The thinning of a problem's curves: one of so many evaluations is drawn."""
    return _thinning(problem.methods, summary.curve_order(problem))


def _thin(values: np.ndarray, every: int) -> np.ndarray:
    """Thin [..., n] values: one of ``every``, and the last."""
    length = values.shape[-1]
    return values[..., [*range(0, length - 1, every), length - 1] if length else []]


def _series(m: Method, every: int, axes: Collection[str]) -> dict[str, Any]:
    length = m.values("round").shape[1]
    x = {name: np.mean([along(run.history, name)[:length] for run in m.runs], axis=0) for name in axes}
    return {
        "label": m.label,
        "gone": m.status_text if m.status in GONE else None,
        "x": {name: _rounded(_thin(values, every)) for name, values in x.items()},
    } | _heard(m, every)


def _heard(m: Method, every: int) -> dict[str, Any]:
    """How much of the weight was heard at each point, or since the one before; nothing where it was always all."""
    heard = m.heard
    if heard_enough({HEARD: heard}).all():
        return {}
    at = _thin(np.arange(len(heard)), every)
    return {"heard": _rounded([heard[a + 1 : b + 1].min() for a, b in zip([-1, *at[:-1]], at, strict=True)])}


def _curve(
    methods: Sequence[Method], series: Sequence[dict[str, Any]], column: str, every: int
) -> tuple[str, dict[str, Any]]:
    """The curves of one column against rounds, and their data."""
    about_column = describe(column)
    values = []
    for m in methods:
        thinned_values = _thin(m.values(column), every)
        parts = (
            (thinned_values.mean(0), thinned_values.min(0), thinned_values.max(0))
            if len(thinned_values) > 1
            else (thinned_values[0],)
        )
        values.append([_rounded(part) for part in parts])
    calm = [v for v, m in zip(values, methods, strict=True) if m.status not in GONE] or values
    seen = np.array([number for parts in calm for part in parts for number in part])
    log = about_column.scale == "log" and summary.wide(seen[np.isfinite(seen)])
    y = around(seen, log, about_column.unit) or Scale(0.0, 1.0, unit=about_column.unit)
    x = Scale(0.0, max((v for s in series for v in s["x"]["rounds"]), default=0) or 1.0, whole=True)
    places = [(x.share(s["x"]["rounds"]), [y.share(part) for part in v]) for s, v in zip(series, values, strict=True)]
    groups = together([mean for _, (mean, *_) in places])
    turns = {k: (group.index(k), len(group)) for group in groups for k in group}
    field = marks = ""
    for k, (across, (mean, *ends)) in enumerate(places):
        edge = f'<path class="band" d="{svg.band(across, *ends)}"/>' if ends else ""
        line = f'<path class="line"{_dashed(*turns.get(k, (0, 1)))} d="{svg.path(across, mean)}"/>'
        start = f'<g class="{_colour(k)}" data-k="{k}">'
        field += f"{start}{edge}{line}</g>"
        marks += f"{start}{_marks(k, across, mean, series[k])}</g>"
    label = about_column.label
    ends_at = [f"{m.label} {show(column, v[0][-1])}" for m, v in zip(methods, values, strict=True) if v[0]]
    about = f"{label} against rounds; at the end " + ", ".join(ends_at[:10]) + ", …" * (len(ends_at) > 10)
    on = "; ".join(_listed([methods[k].label for k in group]) for group in groups)
    scale = "log scale" if log else "linear scale"
    head = f'<b>{html.escape(label)}</b><button type="button" class="live scale">{scale}</button>'
    text = _figure(
        svg.frame(about, x, y, field, marks, x_name=AXES["rounds"].label),
        f"{label}: arrow keys go from value to value and from curve to curve, + and − zoom, 0 shows all",
        head=head,
        note=f"Lying on one another: {html.escape(on)}." if on else "",
    )
    chart = {"name": label, "unit": about_column.unit, "log": log, "groups": groups, "values": values}
    return text, chart


def together(lines: Sequence[np.ndarray]) -> list[list[int]]:
    """Groups of two or more lines that overlap, for most of their length and at the end.

    Args:
        lines: the heights of each line's points, as shares of the frame.

    Example:
        >>> together([np.array([1.0, 0.5]), np.array([1.0, 0.9]), np.array([1.0, 0.501])])
        [[0, 2]]
    """
    groups: list[list[int]] = []
    for k, line in enumerate(lines):
        if not line.size:
            continue
        for group in groups:
            if _close(lines[group[0]], line):
                group.append(k)
                break
        else:
            groups.append([k])
    return [group for group in groups if len(group) > 1]


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape or (np.isnan(one) != np.isnan(other)).any():
        return False
    near = ~(np.abs(one - other) > _CLOSE)
    return bool(near[-1] and near.mean() >= _MOSTLY)


def _dashed(turn: int, number: int) -> str:
    """The dashes of the ``turn``-th of ``number`` overlapping lines, so that all are visible."""
    return f' stroke-dasharray="10 {10 * (number - 1)}" stroke-dashoffset="{-10 * turn}"' if number > 1 else ""


def _marks(k: int, x: np.ndarray, y: np.ndarray, about: Mapping[str, Any]) -> str:
    """A method's marks, at other evaluations than its neighbours'; where not all were heard; where it failed."""
    last = len(x) - 1
    if last < 0:
        return ""
    at = sorted({min(last, math.floor(last * (j + (k * 3 % 8) / 8) / 6 + 0.5)) for j in range(7)})
    text = "".join(svg.mark(f"m{k % len(MARKERS)}", x[i], y[i]) for i in at)
    away = [i for i, heard in enumerate(about.get("heard", [])) if not heard_enough({HEARD: heard})]
    text += "".join(svg.mark("away", x[i], y[i]) for i in away)
    gone = about["gone"] and np.isfinite(y[last])
    return text + svg.mark("gone", x[last], min(max(y[last], 0), 1)) if gone else text


def _listed(labels: Sequence[str], most: int = 6) -> str:
    """Labels as a list; a long one is cut off."""
    shown = ", ".join(labels[:most] if len(labels) > most + 1 else labels[:-1])
    return f"{shown} and {len(labels) - most} more" if len(labels) > most + 1 else f"{shown} and {labels[-1]}"


def _rounded(values: Iterable[float]) -> list[float]:
    return [float(f"{v:.6g}") for v in values]


# ---- sweeps


def ramp(record: Record) -> str:
    """The legend for the shades of a sweep's maps."""
    column, higher = record.config["sweep"]["criterion"], record.config["sweep"]["better"] == "higher"
    low, high, _ = sweeps.scale(record, sweeps.SHOWN)
    worst, best = (show(column, value) for value in ((low, high) if higher else (high, low)))
    name = html.escape(describe(column).label)
    return f'<p class="scale note">{name}: {worst} or worse <span class="ramp"></span> {best}</p>'


def panels(record: Record) -> str:
    """The pictures of a sweep: curves over one axis, maps over two."""
    text = ""
    for panel in sweeps.panels(record):
        draw = _sweep_curve if panel["kind"] == "curve" else _sweep_map
        text += draw(record, panel)
    return text


def _sweep_axis(axis: dict[str, Any], cells: bool) -> Scale:
    """The scale of a sweep's axis: one cell for each value of a grid, else numbers in proportion."""
    if axis["numeric"] and not cells:
        return around(axis["values"], axis["log"]) or Scale(0.0, 1.0)
    return Scale.of_words([_cut(str(value)) for value in axis["values"]])


def _cut(text: str, most: int = 16) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _head(panel: dict[str, Any]) -> str:
    note = f' <span class="soft">{html.escape(panel["note"])}</span>' if panel["note"] else ""
    return f"<b>{html.escape(panel['title'])}</b>{note}"


def _sweep_curve(record: Record, panel: dict[str, Any]) -> str:
    column, higher = record.config["sweep"]["criterion"], record.config["sweep"]["better"] == "higher"
    about_column = describe(column)
    low, high, log = sweeps.scale(record)
    best = [v for line in panel["lines"] for v in line["high" if higher else "low"]]
    y = around([low, high, (max if higher else min)(best, default=low)], log, about_column.unit) or Scale(0.0, 1.0)
    x = _sweep_axis(panel["x"], False)
    at = (lambda v: v) if panel["x"]["numeric"] else panel["x"]["values"].index
    field = marks = legend = ""
    spots = []
    for line in panel["lines"]:
        k = line["k"]
        across = x.share([at(v) for v in line["x"]])
        mean, *ends = (y.share(line[part]) for part in ("mean", "low", "high"))
        start = f'<g class="{_colour(k)}">'
        field += f'{start}<path class="band" d="{svg.band(across, *ends)}"/>'
        field += f'<path class="line" d="{svg.path(across, mean)}"/></g>'
        line_marks = "".join(svg.mark(f"m{k % len(MARKERS)}", u, v) for u, v in zip(across, mean, strict=True))
        line_marks += "".join(svg.mark("gone", u, 1.0) for u in x.share([at(v) for v in line["failed"]]))
        marks += f"{start}{line_marks}</g>"
        legend += f"<span>{key(k)}{html.escape(line['label'])}</span>"
        for v, u, height, *shown in zip(
            line["x"], across, mean, *(line[p] for p in ("mean", "low", "high")), strict=True
        ):
            number, *between = (show(column, value) for value in shown)
            spots.append(
                _spot(u, height, f"{line['label']}\n{panel['x']['name']} {v}: {number} ({' to '.join(between)})")
            )
        for v in line["failed"]:
            words = f"{line['label']}\n{panel['x']['name']} {v}: diverged or ended worse"
            spots.append(_spot(float(x.share(at(v))), 1.0, words))
    about = f"{about_column.label} against {panel['title']}"
    left = 52
    picture = svg.frame(about, x, y, field, marks, x_name=panel["x"]["name"], y_name=about_column.label, left=left)
    return _figure(f'<p class="keys">{legend}</p>{picture}', about, head=_head(panel), spots=spots)


def _sweep_map(record: Record, panel: dict[str, Any]) -> str:
    """A map over two axes, the good points dark."""
    higher, cells = record.config["sweep"]["better"] == "higher", panel["kind"] == "grid"
    low, high, log = sweeps.scale(record, sweeps.SHOWN)
    x, y = (_sweep_axis(panel[side], cells) for side in "xy")
    place = [
        [panel[s]["values"].index(p[s]) if axis.words else p[s] for p in panel["points"]]
        for s, axis in (("x", x), ("y", y))
    ]
    across, up = x.share(place[0]), y.share(place[1])
    span = Scale(low, high, log and low > 0) if low < high else None
    good = []
    for point in panel["points"]:
        share = float(span.share(point["value"])) if span and point["value"] is not None else 1.0
        good.append(
            math.nan if point["value"] is None else min(1.0, max(0.0, share if higher or not span else 1 - share))
        )
    field = marks = ""
    if cells:
        table = np.full((len(panel["y"]["values"]), len(panel["x"]["values"])), np.nan)
        table[place[1], place[0]] = np.maximum(good, 0.01)
        field = "".join(f'<path class="h{level}" d="{d}"/>' for level, d in svg.cells(table))
    few = len(panel["x"]["values"])
    for i, (u, v, point, share) in enumerate(zip(across, up, panel["points"], good, strict=True)):
        at = f'x="{svg.percent(u)}" y="{svg.percent(1 - v)}"'
        best = i == 0 and point["value"] is not None
        if point["value"] is None:
            marks += f'<text class="cell bad" {at} dy=".33em">×</text>'
        elif cells:
            dark = " on" if math.ceil(10 * share - 1e-9) > 6 else ""
            if few <= 8:
                spare = " spare" if few > 4 else ""
                text = html.escape(point["text"])
                marks += f'<text class="cell{dark}{spare}" {at} dy="{".85em" if best else ".33em"}">{text}</text>'
            marks += f'<text class="cell{dark}" {at} dy="{"-.2em" if few <= 8 else ".33em"}">★</text>' * best
        else:
            level = max(1, math.ceil(10 * share - 1e-9))
            marks += f'<circle class="h{level}" cx="{svg.percent(u)}" cy="{svg.percent(1 - v)}" r="5.5"/>'
    if panel["points"] and not cells and panel["points"][0]["value"] is not None:
        marks += svg.mark("star", across[0], up[0])
    spots = [_spot(u, v, point["about"]) for u, v, point in zip(across, up, panel["points"], strict=True)]
    longest = max(len(word) for _, word in y.ticks()) if y.ticks() else 0
    measure = describe(record.config["sweep"]["criterion"]).label
    name = f"{panel['title']}: {measure} over {panel['x']['name']} and {panel['y']['name']}"
    picture = svg.frame(
        name, x, y, field, marks, x_name=panel["x"]["name"], y_name=panel["y"]["name"], left=18 + 7 * max(5, longest)
    )
    return _figure(picture, name, head=_head(panel), spots=spots)


def _spot(x: float, y: float, text: str) -> list[Any]:
    """A point with a tooltip: its position in thousandths from the upper left corner, and the text."""
    return [round(1000 * x), round(1000 * (1 - y)), text] if math.isfinite(x + y) else [-1, -1, text]


# ---- classes


def reliability(bins: Mapping[str, np.ndarray], labels: Sequence[str]) -> str:
    """How often a class occurs against its probability, a line for each method.

    Args:
        bins: method -> [3, 10] rows by their probability: how many, Σ probability, and how many are of the class.
        labels: of all methods, in the order of their colours.
    """
    x = y = Scale(0.0, 1.0)
    field, legend, spots = f'<path class="rule" d="{svg.path([0, 1], [0, 1])}"/>', "", []
    for label, (number, said, so) in bins.items():
        k, some = labels.index(label) if label in labels else None, np.flatnonzero(number)
        p, share = said[some] / number[some], so[some] / number[some]
        field += f'<g class="{_colour(k)}"><path class="line" d="{svg.path(p, share)}"/>'
        field += f'<path class="dots" d="{svg.dots(p, share)}"/></g>'
        legend += f"<span>{key(k)}{html.escape(label)}</span>"
        for u, v, n in zip(p, share, number[some], strict=True):
            spots.append(_spot(u, v, f"{label}: {n:.0f} rows\nmean probability {u:.3f}, share {v:.3f}"))
    about = "How often the class occurs against its probability"
    picture = svg.frame(about, x, y, field, height=300, x_name="mean probability", y_name="share that is so")
    return _figure(f'<p class="keys">{legend}</p>{picture}', about, spots=spots)


# ---- clients


def spread(column: str, spreads: Sequence[clients.Spread], labels: Sequence[str]) -> str:
    """A figure over the clients: a row for each method, a dot for each client, a box around the middle half."""
    about_column = describe(column)
    x = around(np.concatenate([of_method.values for of_method in spreads]), unit=about_column.unit) or Scale(0.0, 1.0)
    rows = len(spreads)
    y = Scale.of_words([""] * rows)
    field = marks = ""
    spots = []
    for j, of_method in enumerate(spreads):
        k = labels.index(of_method.label) if of_method.label in labels else None
        at = rows - 1 - j
        over = svg.percent(float(1 - y.share(at + 0.5)))
        marks += f'<text class="row" x="0" y="{over}" dy="15">{html.escape(of_method.label)}</text>'
        finite_clients = np.flatnonzero(np.isfinite(of_method.values))
        if not finite_clients.size:
            continue
        values = of_method.values[finite_clients]
        low, first, middle, third, high = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
        reach = 1.5 * (third - first)
        low, high = values[values >= first - reach].min(), values[values <= third + reach].max()
        least, top, centre = y.share(at - 0.24), y.share(at + 0.24), y.share(at)
        ends = x.share([low, first, middle, third, high])
        box = svg.bars(ends[1:2], ends[3:4], [least], [top])
        lines = "".join(svg.path([u, v], [centre, centre]) for u, v in (ends[:2], ends[3:]))
        lines += "".join(svg.path([ends[i]] * 2, [least, top]) for i in (1, 2, 3))
        most = max(40, _SPOTS // rows)
        ranks = np.argsort(values, kind="stable")
        drawn = finite_clients[
            ranks[np.unique(np.linspace(0, len(ranks) - 1, min(most, len(ranks))).round().astype(int))]
        ]
        shares = x.share(of_method.values[drawn])
        heights = y.share(at + 0.4 * (drawn * 0.618034 % 1 - 0.5))
        field += f'<g class="{_colour(k)}"><path class="band" d="{box}"/><path class="thin" d="{lines}"/>'
        field += f'<path class="dots" d="{svg.dots(shares, heights)}"/></g>'
        for i, u, v in zip(drawn, shares, heights, strict=True):
            value = show(column, of_method.values[i])
            words = f"{of_method.label}\n{of_method.names[i]} ({of_method.sizes[i]} examples): {value}"
            spots.append(_spot(u, v, words))
    about = f"{about_column.label} of each client"
    return _figure(svg.frame(about, x, y, field, marks, height=58 * rows, left=12), about, spots=spots)


def of_clients(about: dict[str, Any]) -> dict[str, str]:
    """Pictures of the clients, the largest first: ``sizes``, and if known ``counts`` of classes and ``steps``.

    Args:
        about: the section on clients of about.json.
    """
    by_size = order(about)
    number = len(by_size)
    groups = np.array_split(by_size, min(number, _columns(about)))
    names = about.get("names") or [f"client {i}" for i in range(number)]
    if number <= _NAMED:
        words = [_cut(names[i]) if about.get("names") else str(i) for i in by_size]
        x, x_name = Scale.of_words(words), "clients, largest first"
    else:
        x, x_name = Scale(0.5, number + 0.5, whole=True), "clients, largest first"
    frame = {"x_name": x_name, "slanted": max(map(len, x.words), default=0) > 4}
    if frame["slanted"]:
        frame["x_name"] = ""
    edges = np.cumsum([0, *map(len, groups)]) / number
    sizes = np.asarray(about["sizes"])
    counts = np.asarray(about["counts"]) if about["counts"] else None
    texts = [_client_text(group, names, sizes, counts, about["classes"]) for group in groups]
    centres = (edges[:-1] + edges[1:]) / 2
    spots = [_spot(u, 0.5, text) for u, text in zip(centres, texts, strict=True)]
    pictures = {"sizes": _sizes(groups, edges, sizes, counts, about["classes"], x, frame, spots)}
    if counts is not None:
        pictures["counts"] = _classes(groups, sizes, counts, about["classes"], x, frame, spots)
    steps = {part: np.asarray(about["steps"][part], float) for part in ("low", "mean", "high")}
    if len({*about["steps"]["low"], *about["steps"]["high"]}) > 1:
        pictures["steps"] = _steps(groups, centres, steps, names, x, frame)
    return pictures


def _columns(about: dict[str, Any]) -> int:
    classes = len(about["classes"]) if about["counts"] else 1
    return max(20, min(_COLUMNS, _POINTS // classes))


def grouped(about: dict[str, Any]) -> int:
    """The most clients that one column of a picture stands for."""
    return math.ceil(len(about["sizes"]) / _columns(about))


def _client_text(group: np.ndarray, names: Sequence[str], sizes: Any, counts: Any, classes: Any) -> str:
    if len(group) > 1:
        some = f"{len(group)} clients, {names[group[0]]} to {names[group[-1]]}"
        text = f"{some}: {sizes[group].max()} to {sizes[group].min()} examples"
    else:
        text = f"{names[group[0]]}: {sizes[group[0]]} examples"
    if counts is not None:
        totals = counts[group].sum(0)
        common = [j for j in np.argsort(-totals, kind="stable")[:3] if totals[j]]
        text += "\n" + ", ".join(f"{100 * totals[j] / totals.sum():.0f} % class {classes[j]}" for j in common)
    return text


def _sizes(
    groups: Any, edges: np.ndarray, sizes: Any, counts: Any, classes: Any, x: Scale, frame: dict[str, Any], spots: Any
) -> str:
    means = np.array([sizes[group].mean() for group in groups])
    y = Scale(0.0, float(means.max()) * 1.05 or 1.0, whole=True)
    left, right, legend = edges[:-1], edges[1:], ""
    if counts is not None and len(sizes) <= _NAMED:
        gap = 0.09 / len(sizes)
        bottom, field = np.zeros(len(groups)), ""
        for j, name in enumerate(classes):
            top = bottom + [counts[group, j].mean() for group in groups]
            d = svg.bars(left + gap, right - gap, y.share(bottom), y.share(top))
            field += f'<path class="b{j % 10}" d="{d}"/>'
            legend += f'<span><span class="patch b{j % 10}"></span>{html.escape(str(name))}</span>'
            bottom = top
        legend = f'<p class="keys">class {legend}</p>'
    else:
        field = f'<path class="area" d="{svg.bars(left, right, np.zeros(len(groups)), y.share(means))}"/>'
    about = f"Examples of each client, largest first: {sizes.max()} to {sizes.min()}"
    picture = svg.frame(about, x, y, field, height=200, y_name="examples", **frame)
    return _figure(legend + picture, about, spots=spots, by="x")


def _classes(groups: Any, sizes: Any, counts: Any, classes: Any, x: Scale, frame: dict[str, Any], spots: Any) -> str:
    share = np.array([(counts[group] / sizes[group, None]).mean(0) for group in groups]).T
    most = float(share.max()) or 1.0
    number = len(classes)
    every = math.ceil(number / 24)
    y = Scale.of_words([_cut(str(name), 10) if j % every == 0 else "" for j, name in enumerate(classes)])
    field = "".join(f'<path class="h{level}" d="{d}"/>' for level, d in svg.cells(share / most))
    about = "The share of each class in the data of each client"
    legend = f'<p class="scale note">share of the client’s data: 0 % <span class="ramp"></span> {100 * most:.0f} %</p>'
    left = 18 + 7 * max(5, *(len(word) for word in y.words))
    picture = svg.frame(about, x, y, field, height=max(120, min(24 * number, 340)), y_name="class", left=left, **frame)
    return _figure(legend + picture, about, spots=spots, by="x")


def _steps(
    groups: Any,
    centres: np.ndarray,
    steps: dict[str, np.ndarray],
    names: Sequence[str],
    x: Scale,
    frame: dict[str, Any],
) -> str:
    low, mean, high = (
        np.array([fold(steps[part][group]) for group in groups])
        for part, fold in (("low", np.min), ("mean", np.mean), ("high", np.max))
    )
    y = Scale(0.0, float(high.max()) * 1.05 or 1.0)
    d = svg.path(centres, y.share(mean))
    points = f'<path class="dots" d="{svg.dots(centres, y.share(mean))}"/>' if len(groups) <= _NAMED else ""
    band = svg.band(centres, y.share(low), y.share(high))
    field = f'<g class="c0"><path class="band" d="{band}"/><path class="line" d="{d}"/>{points}</g>'
    spots = []
    for u, group, *numbers in zip(centres, groups, low, mean, high, strict=True):
        who = names[group[0]] if len(group) == 1 else f"{len(group)} clients, {names[group[0]]} to {names[group[-1]]}"
        least, middle, most = numbers
        text = f"{who}: {middle:.1f} steps a round\nfrom {least:g} to {most:g}"
        spots.append(_spot(u, float(y.share(middle)), text))
    about = "Local steps of each client in a round"
    picture = svg.frame(about, x, y, field, height=200, y_name="local steps a round", **frame)
    return _figure(picture, about, spots=spots, by="x")
