"""The plots of a run folder, as PNG for papers and slides."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedax.experiments import summary
from fedax.experiments.runs import Path, Record, write_atomic
from fedax.experiments.style import CLASS_COLOURS, DASHES, colour, dash
from fedax.experiments.summary import Method, metric_name, order

_LINES = dict(zip(DASHES, ("-", "--", ":", "-."), strict=True))


def write_plots(record: Record) -> None:
    """Write ``plots/<metric>.png``, against rounds, and ``plots/clients.png`` into the run folder."""
    found = summary.methods([record])
    for column in summary.metrics(found):
        _save(_curves(found, column), record.folder / "plots" / f"{column}.png")
    _save(_clients(record.about["clients"]), record.folder / "plots" / "clients.png")


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
        label = m.label if m.status != "diverged" else f"{m.label} (diverged)"
        axes.plot(rounds, values.mean(0), _LINES[dash(k)], color=colour(k), label=label.replace("$", r"\$"))
        if m.status == "diverged" and rounds.size:
            axes.plot(rounds[-1], values.mean(0)[-1], "x", color=colour(k), markersize=8, markeredgewidth=2)
        if m.status != "diverged":
            calm.append(values)
    seen = np.concatenate([v.ravel() for v in calm]) if calm else np.zeros(0)
    seen = seen[np.isfinite(seen)]
    if seen.size:  # a diverging method may leave the picture
        if summary.wide(seen):
            axes.set_yscale("log")
            axes.set_ylim(seen.min() / 1.2, seen.max() * 1.2)
        else:
            pad = 0.05 * (seen.max() - seen.min() or 1.0)
            axes.set_ylim(seen.min() - pad, seen.max() + pad)
    axes.set_xlabel("rounds")
    axes.set_ylabel(metric_name(column))
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
