"""The plots of a run folder, as PNG for papers and slides."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from fedax.columns import describe
from fedax.experiments import summary, sweeps
from fedax.experiments.runs import Path, Record, slug, write_atomic
from fedax.experiments.style import CLASS_COLOURS, DASHES, colour, dash
from fedax.experiments.summary import GONE, Method, order

_LINES = dict(zip(DASHES, ("-", "--", ":", "-."), strict=True))


def write_plots(record: Record) -> None:
    """Write ``<metric>.png``, against rounds, ``clients.png``, and of a sweep ``sweep-<what>.png`` into plots/."""
    found = summary.methods([record])
    for column in summary.metrics(found):
        _save(_curves(found, column), record.folder / "plots" / f"{column}.png")
    _save(_clients(record.about["clients"]), record.folder / "plots" / "clients.png")
    if "sweep" in record.config:
        for panel in sweeps.panels(record):
            _save(_panel(record, panel), record.folder / "plots" / f"sweep-{slug(panel['title'])}.png")


def _save(figure: Figure, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160)
    write_atomic(path, buffer.getvalue())


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e9ed", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _curves(found: Sequence[Method], column: str) -> Figure:
    figure, axes = _figure(6.4, 4.0)
    calm = []
    for k, m in enumerate(found):
        rounds, values = m.values("round").mean(0), m.values(column)
        if len(values) > 1:
            axes.fill_between(rounds, values.min(0), values.max(0), color=colour(k), alpha=0.15, linewidth=0)
        label = f"{m.label} ({GONE[m.status]})" if m.status in GONE else m.label
        axes.plot(rounds, values.mean(0), _LINES[dash(k)], color=colour(k), label=label.replace("$", r"\$"))
        if m.status in GONE and rounds.size:
            axes.plot(rounds[-1], values.mean(0)[-1], "x", color=colour(k), markersize=8, markeredgewidth=2)
        if m.status not in GONE:
            calm.append(values)
    seen = np.concatenate([v.ravel() for v in calm]) if calm else np.zeros(0)
    seen = seen[np.isfinite(seen)]
    if seen.size:  # a method that diverged or ended worse may leave the picture
        if summary.wide(seen) and describe(column).scale == "log":
            axes.set_yscale("log")
            axes.set_ylim(seen.min() / 1.2, seen.max() * 1.2)
        else:
            pad = 0.05 * (seen.max() - seen.min() or 1.0)
            axes.set_ylim(seen.min() - pad, seen.max() + pad)
    axes.set_xlabel("rounds")
    axes.set_ylabel(describe(column).label)
    axes.legend(frameon=False)
    return figure


def _clients(clients: dict[str, Any]) -> Figure:
    figure, axes = _figure(7.2, 3.2)
    by_size = order(clients)
    sizes, place = np.asarray(clients["sizes"])[by_size], np.arange(1, len(by_size) + 1)
    if clients["counts"] and len(sizes) <= 60:
        bottom = np.zeros(len(sizes))
        for j, name in enumerate(clients["classes"]):
            counts = np.asarray(clients["counts"])[by_size, j]
            axes.bar(place, counts, bottom=bottom, color=CLASS_COLOURS[j % len(CLASS_COLOURS)], label=name, width=0.85)
            bottom = bottom + counts
        if len(clients["classes"]) <= 20:
            axes.legend(title="class", frameon=False, ncols=-(-len(clients["classes"]) // 10), fontsize=8,
                        loc="center left", bbox_to_anchor=(1.0, 0.5))  # fmt: skip
    else:
        axes.fill_between(place, sizes, step="mid", color="#0b63c4", alpha=0.25, linewidth=0)
        axes.step(place, sizes, where="mid", color="#0b63c4", linewidth=1.2)
        axes.set_ylim(bottom=0)
    axes.set_xlabel("clients, largest first")
    axes.set_ylabel("examples")
    return figure


def _panel(record: Record, panel: dict[str, Any]) -> Figure:
    """One drawing of a sweep: a curve, or a map with the good points dark."""
    figure, axes = _figure(6.4, 4.0)
    sweep, curve, cells = record.config["sweep"], panel["kind"] == "curve", panel["kind"] == "grid"
    low, high, log = sweeps.scale(record) if curve else sweeps.scale(record, sweeps.SHOWN)
    name = describe(sweep["criterion"]).label
    places = {}
    for side in ("x", "y"):
        axis = panel.get(side)
        if axis is None:
            continue
        # A grid has a cell for each value; elsewhere numbers lie where they are.
        numeric = axis["numeric"] and not cells
        places[side] = (lambda v: v) if numeric else axis["values"].index
        getattr(axes, f"set_{side}label")(axis["name"])
        if numeric and axis["log"]:
            getattr(axes, f"set_{side}scale")("log")
        elif not numeric:
            getattr(axes, f"set_{side}ticks")(range(len(axis["values"])), list(map(str, axis["values"])))
    if curve:
        for line in panel["lines"]:
            x, k = [places["x"](v) for v in line["x"]], line["k"]
            axes.fill_between(x, line["low"], line["high"], color=colour(k), alpha=0.15, linewidth=0)
            axes.plot(x, line["mean"], "o" + _LINES[dash(k)], color=colour(k), label=line["label"].replace("$", r"\$"))
        if log:
            axes.set_yscale("log")
        pad = 1.1 if log else 0.05 * (high - low)
        axes.set_ylim(*((low / pad, high * pad) if log else (low - pad, high + pad)))
        axes.set_ylabel(name)
        axes.legend(frameon=False)
        return figure
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
            axes.text(i, j, text, ha="center", va="center", color="white" if dark else "black", fontsize=8)
    else:
        image = axes.scatter(x, y, c=values, norm=scale, cmap=colours, edgecolors="#8591a0")
        if done and done[0] is panel["points"][0]:
            axes.plot(x[0], y[0], "*", color="#d98200", markersize=14)
    axes.plot([places["x"](p["x"]) for p in gone], [places["y"](p["y"]) for p in gone], "x", color="#a61b2b")
    figure.colorbar(image, ax=axes, label=name, extend="max" if sweep["better"] == "lower" else "min")
    axes.set_title(panel["title"].replace("$", r"\$"), fontsize=10)
    return figure
