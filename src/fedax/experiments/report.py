"""The report: one HTML file that needs no network, from one or several run folders."""

import html
import importlib.resources
import json
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.offline

import fedax
from fedax.experiments import diagnosis, summary, sweeps, toml
from fedax.experiments.runs import Path, Record, finite, lost, write_atomic
from fedax.experiments.style import CLASS_COLOURS, colour, dash
from fedax.experiments.summary import (
    Method,
    better,
    metric_name,
    order,
    show,
    show_spread,
    spread,
    thousands,
    with_spread,
)

_AXES = (
    ("round", "rounds", "Rounds"),
    ("local_steps", "local steps of all clients", "Local steps"),
    ("bytes", "bytes sent, down and up", "Bytes"),
    ("seconds", "seconds", "Seconds"),
)


def write_report(records: Sequence[Record], path: Path) -> None:
    """Write the report of one or several run folders to ``path``."""
    write_atomic(path, render(records))


@np.errstate(all="ignore")  # means of numbers near the largest there are
def render(records: Sequence[Record]) -> str:
    """The report's HTML."""
    found = summary.methods(records)
    columns = summary.metrics(found)
    first = records[0].config
    title = first["name"] if len(records) == 1 else " and ".join(r.folder.name for r in records)
    seeds = max(len(m.runs) for m in found)
    template = importlib.resources.files(__package__).joinpath("template.html").read_text(encoding="utf-8")
    fields = {
        "version": fedax.__version__,
        "title": html.escape(title),
        "subtitle": html.escape(_subtitle(records)),
        "verdict": "".join(
            f"<p>{html.escape(sentence)}</p>" for sentence in (*_lost(records), *_verdict(found, columns))
        ),
        "facts": "".join(f"<div><dt>{k}</dt><dd>{_breakable(v)}</dd></div>" for k, v in _facts(records).items()),
        "results_note": _results_note(found, columns, seeds, any("sweep" in record.config for record in records)),
        "table": _table(found, columns),
        "sweep": "".join(_sweep(record, k, len(records) > 1) for k, record in enumerate(records)),
        "curves_note": _curves_note(seeds, any(m.status == "diverged" for m in found)),
        "diagnosis": "".join(_diagnosis(record, len(records) > 1) for record in records),
        "clients": "".join(_clients(record, k, len(records) > 1) for k, record in enumerate(records)),
        "configuration": "".join(_configuration(record, len(records) > 1) for record in records),
        "footer": html.escape(_footer(records)),
        "plotly": plotly.offline.get_plotlyjs(),
        "data": _embed(_data(records, found, columns)),
    }
    for name in ("verdict", "results_note", "table", "sweep", "diagnosis", "clients"):
        fields[name] = fields[name].replace(" %", "\u00a0%")  # no line breaks between a number and its unit
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], template)


def _embed(data: Any) -> str:
    # "<" is escaped, so that no text in the data can end the script element.
    return json.dumps(finite(data), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _breakable(text: str) -> str:
    """Escaped text that may be broken after an underscore."""
    return html.escape(text).replace("_", "_<wbr>")


# ---- words


def _subtitle(records: Sequence[Record]) -> str:
    config, clients = records[0].config, records[0].about["clients"]
    if len(records) > 1:
        return f"{len(records)} experiments side by side"
    names = ", ".join(dict.fromkeys(m["name"] for m in config["methods"]))
    return f"{names} on {config['data']['name']} with {len(clients['sizes'])} clients"


def _facts(records: Sequence[Record]) -> dict[str, str]:
    each = [summary.facts(r.config, r.about["clients"]["sizes"], r.about["parameters"]) for r in records]
    return {name: " / ".join(dict.fromkeys(facts[name] for facts in each)) for name in each[0]}


def _lost(records: Sequence[Record]) -> list[str]:
    """What is missing in the run folders."""
    return [f"{record.name}: {sentence}" for record in records for sentence in lost(record)]


def _verdict(found: Sequence[Method], columns: Sequence[str]) -> list[str]:
    sentences = []
    judged = [c for c in columns if c != "train_loss" and better(c) and not c.endswith("loss")][:1]
    for column in [*judged, "train_loss"]:
        winner = summary.best(found, column)
        if winner is None:
            continue
        sign = -1 if better(column) == "higher" else 1
        others = [m for m in found if m is not winner and m.final(column).size]
        second = min(others, key=lambda m: sign * float(np.mean(m.final(column))))
        most = {"lower": "Lowest", "higher": "Highest"}[better(column) or "lower"]
        name = metric_name(column)
        name = name[0].lower() + name[1:]
        text = f"{most} {name}: {winner.label}, {with_spread(winner, column)}; next {second.label}, "
        gap = abs(float(np.mean(winner.final(column))) - float(np.mean(second.final(column))))
        noise = max((spread(m.final(column)) or 0.0) for m in (winner, second))
        text += with_spread(second, column)
        sentences.append(text + ("; the gap is within the spread of the seeds." if gap <= noise and noise else "."))
    for m in found:
        if m.status != "finished":
            sentences.append(f"{m.label}: {m.status_text}.")
        if m.losses_text:
            sentences.append(f"{m.label}: {m.losses_text}.")
    return sentences


def _results_note(found: Sequence[Method], columns: Sequence[str], seeds: int, swept: bool) -> str:
    note = "Of a sweep, the best point of each method. " if swept else ""
    note += "After the last round" + (f"; mean ± standard deviation over {seeds} seeds. " if seeds > 1 else ". ")
    if any(summary.best(found, c) for c in columns):
        note += "★ marks the best mean among the methods that finished. "
    return note + "Costs are those of one run, of all clients together; time leaves out compilation and evaluation."


def _curves_note(seeds: int, diverged: bool) -> str:
    band = "Lines are means over the seeds, bands run from the lowest to the highest seed. " if seeds > 1 else ""
    cross = "A cross marks where a method diverged. " if diverged else ""
    return f"{band}{cross}Touch a curve for its values; drag to zoom in, double-click to go back."


def _footer(records: Sequence[Record]) -> str:
    about = records[0].about
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return f"Begun {about['started']} on {about['device']}. {versions}."


# ---- table


def _table(found: Sequence[Method], columns: Sequence[str]) -> str:
    shown = summary.table_order(columns)
    costs = ["round", "local_steps", "gradients", "bytes", "seconds"]
    names = ["Method", *map(metric_name, shown), "Rounds", "Local steps", "Gradients",
             "Traffic down + up", "Time"]  # fmt: skip
    winners = {column: summary.best(found, column) for column in shown}
    rows = []
    for k, m in enumerate(found):
        hyper = " · ".join(f"{key} {summary.short(value)}" for key, value in m.hyper.items())
        pill = "" if m.status == "finished" else f'<span class="pill {m.status}">{m.status_text}</span>'
        cells = [
            f'<td><span class="key" style="background:{colour(k)}"></span>{html.escape(m.label)}'
            f'<span class="hyper">{html.escape(hyper)}</span>{pill}</td>',
        ]
        for name, column in zip(names[1:], shown, strict=False):
            winner = ' class="best"' if winners[column] is m else ""
            cells.append(f'<td{winner} data-name="{html.escape(name)}">{_cell(m, column)}</td>')
        for name, column in zip(names[-5:], costs, strict=True):
            cells.append(f'<td data-name="{name}">{_cost(m, column)}</td>')
        rows.append(f'<tr class="{m.status}">{"".join(cells)}</tr>')
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    return f"<div class='table'><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


def _cell(method: Method, column: str) -> str:
    values = method.final(column)
    if not values.size:
        return "–"
    text, noise = show(column, float(np.mean(values))), spread(values)
    number, _, unit = text.partition(" ")
    beside = "" if noise is None else f' <span class="spread">{show_spread(column, noise)}</span>'
    return f'<span class="value">{number}{beside} {unit}</span>'


def _cost(method: Method, column: str) -> str:
    if column != "bytes":
        return show(column, method.cost(column))
    down, up = show("bytes_down", method.cost("bytes_down")), show("bytes_up", method.cost("bytes_up"))
    number, _, unit = down.partition(" ")
    return f"{number} + {up}" if up.endswith(f" {unit}") else f"{down} + {up}"


# ---- curves


def _data(records: Sequence[Record], found: Sequence[Method], columns: Sequence[str]) -> dict[str, Any]:
    return {
        "axes": [{"key": key, "name": name, "short": short} for key, name, short in _AXES],
        "metrics": [_metric(found, column) for column in columns],
        "series": [_series(m, k, columns) for k, m in enumerate(found)],
        "clients": [_client_data(record) for record in records],
        "sweeps": [_sweep_data(record) for record in records],
        "class_colours": CLASS_COLOURS,
    }


def _metric(found: Sequence[Method], column: str) -> dict[str, Any]:
    percent = "accuracy" in column
    calm = [m for m in found if m.status != "diverged"] or found
    seen = np.concatenate([m.values(column).ravel() for m in calm])
    seen = seen[np.isfinite(seen)]
    log = not percent and summary.wide(seen)
    formats = {"format": ".2%", "ticks": ".0%"} if percent else {"format": ".4~g", "ticks": ""}
    return {"key": column, "name": metric_name(column), "log": log, **formats}


def _series(m: Method, k: int, columns: Sequence[str]) -> dict[str, Any]:
    x = {key: m.values(key).mean(0) for key in ("round", "local_steps", "seconds")}
    x["bytes"] = (m.values("bytes_down") + m.values("bytes_up")).mean(0)
    values = {column: m.values(column) for column in columns}
    band = {c: {"mean": v.mean(0), "low": v.min(0), "high": v.max(0)} for c, v in values.items()}
    return {
        "label": m.label,
        "seeds": len(m.runs),
        "diverged": m.status_text if m.status == "diverged" else None,
        "colour": colour(k),
        "dash": dash(k),
        "x": {key: _rounded(v) for key, v in x.items()},
        "values": {c: {part: _rounded(v) for part, v in parts.items()} for c, parts in band.items()},
    }


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{v:.6g}") for v in values]


# ---- sweep


def _sweep(record: Record, k: int, several: bool) -> str:
    if "sweep" not in record.config:
        return ""
    title = f"Sweep of {html.escape(record.folder.name)}" if several else "Sweep"
    diverged = any(trial.diverged for label in record.labels for trial in record.trials(label))
    note = sweeps.about(record) + (" A cross marks where a seed diverged." if diverged else "")
    text = f'<section><h2>{title}</h2><p class="note">{html.escape(note)}</p>'
    if notes := sweeps.notes(record):
        text += _list(notes)
    panels = sweeps.panels(record)
    if any(panel["kind"] != "curve" for panel in panels):
        text += f'<div class="classes scale ramped" id="ramp-{k}"></div>'
    plots = "".join(
        f'<div><h3>{html.escape(panel["title"])}</h3><p class="note">{html.escape(panel["note"])}</p>'
        f'<div class="plot" id="panel-{k}-{i}"></div></div>'
        for i, panel in enumerate(panels)
    )
    return (
        f'{text}<div class="grid">{plots}</div>{"".join(_trials(record, label) for label in record.labels)}</section>'
    )


def _trials(record: Record, label: str) -> str:
    """All points of a method, folded; the best stands in the line that unfolds them."""
    trials = record.trials(label)
    if not trials:
        return ""
    column = metric_name(record.config["sweep"]["criterion"])
    best = f"{label}: {sweeps.settings(trials[0].point)}"
    rows = "".join(
        f"<tr><td>{html.escape(sweeps.settings(trial.point))}</td>"
        f'<td data-name="{html.escape(column)}">{html.escape(sweeps.score(record, trial))}</td>'
        f'<td data-name="Diverged seeds">{trial.diverged or "–"}</td></tr>'
        for trial in trials
    )
    head = f"<th>Point</th><th>{html.escape(column)}</th><th>Diverged seeds</th>"
    number = f"{len(trials)} points" if len(trials) > 1 else "1 point"
    return (
        f"<details><summary>{html.escape(best)} <span class='spread'>{html.escape(sweeps.score(record, trials[0]))}, "
        f"the best of {number}</span></summary>"
        f"<div class='table'><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _sweep_data(record: Record) -> dict[str, Any] | None:
    if "sweep" not in record.config:
        return None
    column, way = record.config["sweep"]["criterion"], record.config["sweep"]["better"]
    panels = sweeps.panels(record)
    for panel in panels:
        low, high, log = sweeps.scale(record) if panel["kind"] == "curve" else sweeps.scale(record, sweeps.SHOWN)
        panel |= {"low": low, "high": high, "log": log}
        for line in panel.get("lines", ()):
            line |= {"colour": colour(line["k"]), "dash": dash(line["k"])}
    low, high, _ = sweeps.scale(record, sweeps.SHOWN)
    ends = [show(column, value) for value in (low, high)]
    higher = way == "higher"
    return {
        "name": metric_name(column),
        "percent": "accuracy" in column,
        "higher": higher,
        "ends": ends if higher else ends[::-1],
        "panels": panels,
    }


# ---- diagnosis


def _diagnosis(record: Record, several: bool) -> str:
    if not record.diagnosis:
        return ""
    labels = [html.escape(found["label"]) for found in record.diagnosis]
    head = "".join(f"<th>{text}</th>" for text in ("", *labels))
    rows = ""
    for name, cells in diagnosis.rows(record.diagnosis):
        columns = zip(labels, cells, strict=True)
        values = "".join(f'<td data-name="{label}">{html.escape(cell)}</td>' for label, cell in columns)
        rows += f"<tr><td>{html.escape(name)}</td>{values}</tr>"
    table = f"<div class='table'><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    advice = ""
    for label, found in zip(labels, record.diagnosis, strict=True):
        advice += f'<h3 class="gap">{label}</h3>{_list(found["advice"])}'
    advice += f'<h3 class="gap">What these figures cannot tell</h3>{_list(diagnosis.unknown(record.diagnosis))}'
    title = f"Diagnosis of {html.escape(record.folder.name)}" if several else "Diagnosis"
    note = f"Measured at {html.escape(diagnosis.where(record.diagnosis))} (a → b: at the first and at the last)."
    return f'<section><h2>{title}</h2><p class="note">{note}</p>{table}{advice}</section>'


def _list(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(sentence)}</li>' for sentence in sentences)}</ul>"


# ---- clients


def _client_data(record: Record) -> dict[str, Any]:
    clients = record.about["clients"]
    steps = clients["steps"]
    varied = len({*steps["low"], *steps["high"]}) > 1
    return {**clients, "order": order(clients), "steps": steps if varied else None}


def _clients(record: Record, k: int, several: bool) -> str:
    clients = record.about["clients"]
    sizes, steps = np.asarray(clients["sizes"]), clients["steps"]
    note = (
        f"{len(sizes)} clients hold {thousands(int(sizes.min()))} to {thousands(int(sizes.max()))} examples "
        f"(median {np.median(sizes):g}). "
    )
    parts = [_plot("Examples of each client", f"sizes-{k}", "low")]
    if clients["counts"]:
        counts = np.asarray(clients["counts"])
        own, whole = (counts / sizes[:, None]).max(1), counts.sum(0).max() / sizes.sum()
        note += (
            f"The commonest class of a client makes up {100 * np.median(own):.0f} % of its data in the median; "
            f"that of all data together, {100 * whole:.0f} %. "
        )
        parts.append(_plot("Classes of each client", f"counts-{k}", "tall"))
    if clients["uniform"]:
        note += "In the objective every client weighs the same. "
    low, high = min(steps["low"]), max(steps["high"])
    if low == high:
        note += f"Each takes {low} local step{'s' if low > 1 else ''} in a round."
    else:
        ratio = max(steps["mean"]) / (min(steps["mean"]) or math.inf)
        unlike = f"; the busiest client does {ratio:.3g} times the work of the idlest" if ratio > 1 else ""
        about = (
            f"{low} to {high} steps in a round that it takes part in{unlike}. "
            f"Line: mean of {steps['draws']} rounds; band: lowest to highest."
        )
        parts.append(_plot("Local steps of each client", f"steps-{k}", "low", about))
    title = f"Clients of {html.escape(record.folder.name)}" if several else "Clients"
    return f'<section><h2>{title}</h2><p class="note">{note}</p>{"".join(parts)}</section>'


def _plot(title: str, name: str, height: str, note: str = "") -> str:
    text = f'<p class="note">{note}</p>' if note else ""
    return f'<h3 class="gap">{title}</h3>{text}<div class="plot {height}" id="{name}"></div>'


def _configuration(record: Record, several: bool) -> str:
    text = f"<pre>{html.escape(toml.dumps(record.config))}</pre>"
    name = html.escape(record.folder.name)
    return f"<details><summary>{name}</summary>{text}</details>" if several else text
