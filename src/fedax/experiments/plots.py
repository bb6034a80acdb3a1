"""The plots of a run folder, for papers and slides: each as PNG, SVG and PDF, in the style of :mod:`fedax.figures`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LogNorm, Normalize

from fedax.columns import describe
from fedax.errors import UNSEEN
from fedax.experiments import summary, sweeps
from fedax.experiments.runs import Path, Record, slug
from fedax.experiments.summary import GONE, Method, order
from fedax.figures import CLASS_COLOURS, COLOURS, Drawing, Series, along, colour, curves, dash, encode, marker
from fedax.figures.drawing import LINES, canvas, legend, number, powers, style
from fedax.files import write_atomic

FORMATS = ("png", "svg", "pdf")
_HEIGHT = 2.2  # inches
_LETTERS = 20  # longer names of classes are cut off, so that the axes keep their space


def write_plots(record: Record) -> None:
    """Write ``<metric>``, against rounds, ``clients``, and of a sweep ``sweep-<what>`` into plots/, in each format."""
    methods = summary.methods([record])
    for column in summary.metrics(methods):
        _save(curves(series(methods, column), column=column), record, column)
    _save(_drawn(_clients, record.about["clients"]), record, "clients")
    if "sweep" in record.config:
        for panel in sweeps.panels(record):
            _save(_drawn(_panel, record, panel), record, f"sweep-{slug(panel['title'])}")


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


def _save(figure: Drawing, record: Record, name: str) -> None:
    path: Path = record.folder / "plots" / name
    for form in FORMATS:
        write_atomic(path.with_name(f"{name}.{form}"), encode(figure, form))
        figure.set_layout_engine("none")  # the layout of the first format stays


def _drawn(draw: Callable[..., None], *what: Any) -> Drawing:
    figure, axes = canvas(_HEIGHT)
    with style():
        draw(figure, axes, *what)
    return figure


def _clients(figure: Drawing, axes: Any, clients: dict[str, Any]) -> None:
    by_size = order(clients)
    sizes, place = np.asarray(clients["sizes"])[by_size], np.arange(1, len(by_size) + 1)
    if clients["counts"] and len(sizes) <= 60:
        bottom = np.zeros(len(sizes))
        for j, name in enumerate(clients["classes"]):
            counts = np.asarray(clients["counts"])[by_size, j]
            name = name.translate(UNSEEN) if len(name) <= _LETTERS else f"{name[: _LETTERS - 1].translate(UNSEEN)}…"
            axes.bar(place, counts, bottom=bottom, color=CLASS_COLOURS[j % len(CLASS_COLOURS)], label=name, width=0.85)
            bottom = bottom + counts
        if len(clients["classes"]) <= 20:
            classes = figure.legend(title="class", frameon=False, ncols=-(-len(clients["classes"]) // 10),
                                    loc="outside right center", handlelength=1.0)  # fmt: skip
            for text in classes.get_texts():
                text.set_parse_math(False)
    else:
        axes.fill_between(place, sizes, step="mid", color=colour(0), alpha=0.25, linewidth=0)
        axes.step(place, sizes, where="mid", color=colour(0))
        axes.set_ylim(bottom=0)
    axes.set_xlabel("Clients, largest first")
    axes.set_ylabel("Examples")
    for axis in (axes.xaxis, axes.yaxis):
        number(axis, "", whole=True)


def _panel(figure: Drawing, axes: Any, record: Record, panel: dict[str, Any]) -> None:
    """One drawing of a sweep: a curve, or a map with the good points dark."""
    sweep, curve, cells = record.config["sweep"], panel["kind"] == "curve", panel["kind"] == "grid"
    low, high, log = sweeps.scale(record) if curve else sweeps.scale(record, sweeps.SHOWN)
    name = describe(sweep["criterion"]).label
    places = {}
    for side in ("x", "y"):
        axis = panel.get(side)
        if axis is None:
            continue
        # A grid has a cell for each value; other panels place numbers in proportion.
        numeric = axis["numeric"] and not cells
        places[side] = (lambda v: v) if numeric else axis["values"].index
        getattr(axes, f"set_{side}label")(axis["name"])
        if numeric and axis["log"]:
            getattr(axes, f"set_{side}scale")("log")
            powers(getattr(axes, f"{side}axis"))
        elif not numeric:
            getattr(axes, f"set_{side}ticks")(range(len(axis["values"])), list(map(str, axis["values"])))
    if curve:
        handles: list[Any] = []
        for line in panel["lines"]:
            x, k = [places["x"](v) for v in line["x"]], line["k"]
            axes.fill_between(x, line["low"], line["high"], color=colour(k), alpha=0.15, linewidth=0)
            handles += axes.plot(x, line["mean"], marker=marker(k), linestyle=LINES[dash(k)], color=colour(k))
        if log:
            axes.set_yscale("log")
        pad = 1.1 if log else 0.05 * (high - low)
        axes.set_ylim(*((low / pad, high * pad) if log else (low - pad, high + pad)))
        if log:
            powers(axes.yaxis)
        axes.set_ylabel(name)
        legend(figure, handles, [line["label"] for line in panel["lines"]])
        return
    done = [p for p in panel["points"] if p["value"] is not None]
    gone = [p for p in panel["points"] if p["value"] is None]
    scale = (LogNorm if log else Normalize)(low, high, clip=True)
    colours = colormaps["Blues" if sweep["better"] == "higher" else "Blues_r"]
    x, y = ([places[side](p[side]) for p in done] for side in ("x", "y"))
    values = [p["value"] for p in done]
    if cells:
        table = np.full((len(panel["y"]["values"]), len(panel["x"]["values"])), np.nan)
        table[y, x] = values
        image = axes.imshow(table, norm=scale, cmap=colours, origin="lower", aspect="auto")
        axes.grid(visible=False)
        for i, j, p in zip(x, y, done, strict=True):
            dark = sum(colours(scale(p["value"]))[:3]) < 1.5
            text = f"★ {p['text']}" if p is panel["points"][0] else p["text"]
            axes.text(i, j, text, ha="center", va="center", color="white" if dark else "black", fontsize=6)
    else:
        image = axes.scatter(x, y, c=values, norm=scale, cmap=colours, edgecolors="#8591a0")
        if done and done[0] is panel["points"][0]:
            axes.plot(x[0], y[0], "*", color=COLOURS[1], markersize=9)
    axes.plot([places["x"](p["x"]) for p in gone], [places["y"](p["y"]) for p in gone], "x", color=COLOURS[6])
    figure.colorbar(image, ax=axes, label=name, extend="max" if sweep["better"] == "lower" else "min")
    axes.set_title(panel["title"], parse_math=False)
