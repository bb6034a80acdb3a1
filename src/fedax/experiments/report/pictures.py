"""Pictures in the report: data for page.js, which draws them by uPlot, and tables for readers without scripts."""

import html
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedax.columns import HEARD, heard_enough
from fedax.experiments.runs import finite
from fedax.figures.series import CLASS_COLOURS, COLOURS, Chart, Series, dash

MANY = 8  # with more methods bands are faint and lines thin

_EVALUATIONS = 6  # the most columns of a table of curves


def key(k: int) -> str:
    """The legend key of method ``k``, its line; −1: of a baseline."""
    colour, line = ("cx", "solid") if k < 0 else (f"c{k % len(COLOURS)}", dash(k))
    return f'<svg class="key {colour} {line}" width="30" height="14" aria-hidden="true"><path d="M0 7h30"/></svg>'


def curves(charts: Sequence[Chart], k: int) -> str:
    """The curves of problem ``k``, side by side, with the choice of their x-axis."""
    choice = "".join(
        f'<button type="button" data-axis="{name}" aria-pressed="{"true" if name == "rounds" else "false"}">'
        f"{name.replace('_', ' ').capitalize()}</button>"
        for name in charts[0].along
    )
    bar = f'<div class="live"><span class="label" id="against-{k}">Against</span>'
    bar += f'<span class="choice" role="group" aria-labelledby="against-{k}">{choice}</span></div>'
    return row(charts, bar, f' id="curves-{k}"')


def row(charts: Sequence[Chart], bar: str = "", attributes: str = "") -> str:
    """Pictures of the same series side by side, with one legend.

    Args:
        charts: that differ in y.
        bar: HTML beside the legend.
        attributes: of the element.
    """
    first = charts[0]
    if first.series[0].kind == "cells":
        return _cells(first)
    marks = [(k if s.k is None else s.k, s) for k, s in enumerate(first.series)]
    bars, named = first.series[0].kind == "bars", [i for i, (_, s) in enumerate(marks) if s.label]
    if bars:
        text = "".join(f'<span><span class="patch b{k % len(CLASS_COLOURS)}"></span>{html.escape(s.label)}</span>'
                       for k, s in marks if s.label)  # fmt: skip
        legend = f'<p class="keys">{text}</p>'
    else:
        text = "".join(f'<button type="button" aria-pressed="true" data-k="{i}">{key(marks[i][0])}'
                       f"{html.escape(_named(marks[i][1]))}</button>" for i in named)  # fmt: skip
        some = "".join(f'<button type="button" class="live {each}">{each}</button>' for each in ("all", "none"))
        text += some * (len(named) > MANY)
        legend = f'<div class="legend" role="group" aria-label="methods">{text}</div>' if text else ""
    bar = f'<div class="bar">{bar}{legend}</div>' if bar or legend else ""
    axes = first.along or {"x": (first.x, [s.x for s in first.series])}
    data = {
        "axes": {name: scale._asdict() for name, (scale, _) in axes.items()},
        "series": [_series(s, k, {name: xs[i] for name, (_, xs) in axes.items()}) for i, (k, s) in enumerate(marks)],
        "charts": [
            {"name": c.title, "y": c.y._asdict(), "values": [[_rounded(part) for part in s.parts] for s in c.series]}
            for c in charts
        ],
    }
    above, below = (bar, "") if first.along else ("", bar)  # one picture has its title above the legend
    inside = "".join(_figure(c, below) for c in charts)
    return f'<div class="charts"{attributes}>{above}<div class="grid">{inside}</div>{_embed(data)}</div>'


def _named(s: Series) -> str:
    return f"{s.label} ({s.gone})" if s.gone else s.label


def _series(s: Series, k: int, x: dict[str, np.ndarray]) -> dict[str, Any]:
    """What all pictures of a series share; ``heard`` only where not all were."""
    data: dict[str, Any] = {"label": s.label, "k": k, "kind": s.kind, "gone": s.gone or None}
    data |= {"x": {name: _rounded(places) for name, places in x.items()}, "texts": list(s.texts)}
    if s.kind == "line" and k >= 0:
        data["dash"] = dash(k)
    if s.heard is not None and not heard_enough({HEARD: s.heard}).all():
        data["heard"] = _rounded(s.heard)
    if s.shade is not None:
        data["shade"] = _rounded(s.shade)
    return data


def _figure(chart: Chart, bar: str) -> str:
    """A picture that page.js fills, with its values as a table."""
    ends = [f"{s.label} {s.parts[0][-1]:.4g}" for s in chart.series if s.label and s.kind == "line" and s.x.size]
    ends = [*ends[:10], *["…"] * (len(ends) > 10)] if chart.along else []
    about = f"{chart.title}; at the end {', '.join(ends)}" if ends else chart.title
    tall = max(1, len(chart.y.words)) * 58 if chart.y.words and len(chart.series) > 1 else 270
    return (
        f'<figure class="chart" tabindex="0" aria-label="{html.escape(about)}: arrow keys go from value to value and '
        f'from curve to curve, + and − zoom, 0 shows all">{_caption(chart)}{bar}'
        f'<div class="plot" style="height:{tall + 60}px"></div>{_table(chart)}</figure>'
    )


def _caption(chart: Chart) -> str:
    """The title of a picture, its note, and the legend of its shades."""
    scale = '<button type="button" class="live scale"></button>' if chart.along else ""
    text = f"<figcaption><b>{html.escape(chart.title)}</b>{scale}</figcaption>"
    text += f'<p class="note">{html.escape(chart.note)}</p>' if chart.note else ""
    if chart.ramp:
        name, worst, best = map(html.escape, chart.ramp)
        text += f'<p class="scale note">{name}: {worst} <span class="ramp"></span> {best}</p>'
    return text


def _table(chart: Chart) -> str:
    """The values of a picture, folded: of curves at some evaluations, else what is said of each point."""
    if chart.along:
        longest = max((s.x for s in chart.series), key=len)
        places = longest[np.unique(np.linspace(0, len(longest) - 1, _EVALUATIONS).round().astype(int))[: len(longest)]]
        heads = [chart.x.label, *(f"{place:g}" for place in places)]
        rows = []
        share = chart.y.unit == "%"
        for s in chart.series:
            texts = {x: f"{100 * y:.4g} %" if share else f"{y:.4g}" for x, y in zip(s.x, s.parts[0], strict=True)}
            rows.append([_named(s), *(texts.get(place, "") for place in places)])
    else:
        heads = ["Values"]
        rows = [[text.replace("\n", ", ")] for text in dict.fromkeys(t for s in chart.series for t in s.texts)]
        rows = rows if len(rows) <= _ROWS else []
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in row)}</tr>" for row in rows)
    if not rows:
        return ""
    return f'<details class="values" open><summary>As a table</summary><table><tr>{head}</tr>{body}</table></details>'


_ROWS = 300  # of a table of points
_LETTERS = 60  # more words below a table are turned


def _cells(chart: Chart) -> str:
    """A picture of cells: a table, the good ones dark."""
    (s,) = chart.series
    table: list[list[str]] = [["<td></td>"] * len(chart.x.words) for _ in chart.y.words]
    shades = np.zeros(len(s.x)) if s.shade is None else s.shade
    for i, (x, y, shade) in enumerate(zip(s.x, s.values[0], shades, strict=True)):
        level = 0 if math.isnan(shade) else math.ceil(10 * shade - 1e-9)
        word, _, about = s.texts[i].partition("\n") if s.texts else ("", "", "")
        title = f' title="{html.escape(about)}"' * bool(about)
        table[int(y)][int(x)] = f'<td class="h{level}"{title}>{html.escape(word)}</td>'
    rows = [f'<tr><th scope="row">{html.escape(name)}</th>{"".join(row)}</tr>'
            for name, row in zip(chart.y.words, table, strict=True)][::-1]  # fmt: skip
    names = "".join(f'<th scope="col"><span>{html.escape(name)}</span></th>' for name in chart.x.words)
    wide = " wide" * (sum(map(len, chart.x.words)) > _LETTERS)
    foot = f"<tr><th>{html.escape(chart.y.label)}</th>{names}</tr>"
    foot += f'<tr><td></td><td colspan="{len(chart.x.words)}">{html.escape(chart.x.label)}</td></tr>'
    return (
        f'<figure class="chart">{_caption(chart)}<div class="heat{wide}"><table><tbody>{"".join(rows)}</tbody>'
        f"<tfoot>{foot}</tfoot></table></div></figure>"
    )


def _rounded(values: Iterable[float]) -> list[float]:
    return [float(f"{v:.6g}") for v in values]


def _embed(data: Any) -> str:
    """Data for the script of the page, as an HTML element."""
    # "<" is escaped, so that no text in the data can end the script element.
    text = json.dumps(finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'
