"""The report: one HTML file for one or several run folders, which needs no network."""

import html
import importlib.resources
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

import fedax
from fedax.columns import PERSONAL, TIME, describe, show, show_parts
from fedax.errors import UNSEEN, DataError
from fedax.experiments import charts, classes, clients, diagnosis, helped, noted, own, summary, sweeps, tables, toml
from fedax.experiments.config.sections import PYTHON
from fedax.experiments.report import pictures, privacy
from fedax.experiments.runs import Path, Record, lost
from fedax.experiments.statistics import Aim, Target, target_of
from fedax.experiments.summary import GONE, Method, ProblemResults, spread, thousands
from fedax.figures.series import CLASS_COLOURS, COLOURS
from fedax.files import write_atomic

_AGAIN = {"nodes": "fedax deploy run config.toml --link HOST:PORT", PYTHON: "the same fedax.compare(…) in Python"}


def write_report(
    records: Sequence[Record], path: Path, *, target: Aim | None = None, opening: Sequence[str] = ()
) -> None:
    """Write the report of one or several run folders to ``path``; arguments and errors are those of :func:`render`."""
    write_atomic(path, render(records, target=target, opening=opening))


@np.errstate(all="ignore")  # means of numbers near the largest float overflow
def render(records: Sequence[Record], *, target: Aim | None = None, opening: Sequence[str] = ()) -> str:
    """The report's HTML.

    Args:
        records: from :func:`fedax.experiments.read`.
        target: a value of the deciding column, or ``{column: value}``: the report shows what it cost to reach it.
            Default: about the final value of the median method.
        opening: sentences at the beginning of the report.

    Raises:
        ConfigError: a target that cannot be used.
    """
    problems = summary.problems(records)
    aims = [_default_target(problem) if target is None else target_of(problem, target) for problem in problems]
    judges = {id(record): problem.judge for problem in problems for record in problem.records}
    first, several = records[0].config, len(records) > 1
    title = " and ".join(r.folder.name for r in records) if several else first["name"]
    parts = {
        "results": "".join(_results(problem, aims[k], k, problems) for k, problem in enumerate(problems)),
        "classes": _sections("classes", records, _classes),
        "sweep": _sections("sweep", records, _sweep),
        "curves": _curves(problems),
        "privacy": _sections("privacy", records, _privacy),
        "diagnosis": _sections("diagnosis", records, _diagnosis),
        "columns": _sections("columns", records, _columns),
        "clients": _sections("clients", records, lambda record: _clients(record, judges[id(record)])),
        "configuration": "".join(_configuration(record, several) for record in records),
    }
    fields = parts | {
        "version": fedax.__version__,
        "title": html.escape(title),
        "subtitle": html.escape(_subtitle(records)),
        "verdict": _paragraphs([*opening, *_conclusion(records, problems)]),
        "missing": _missing(records),
        "facts": "".join(f"<div><dt>{k}</dt><dd>{_breakable(v)}</dd></div>" for k, v in _facts(records).items()),
        "contents": "".join(f'<a href="#{name}">{_PARTS[name]}</a>' for name, text in parts.items() if text),
        "curves_note": _curves_note(problems),
        "again": _AGAIN.get(first["data"]["name"], "fedax run config.toml"),
        "footer": html.escape(_footer(records)),
        "style": style(),
        "script": script(),
    }
    for name in ("verdict", "results", "classes", "sweep", "privacy", "diagnosis", "clients"):
        fields[name] = fields[name].replace(" %", "\u00a0%")  # no line breaks between a number and its unit
    return filled(file("page.html"), fields).translate(UNSEEN)


_MISSING = 3  # more sentences about missing files are folded

_PARTS = {
    "results": "Final figures",
    "classes": "Classes",
    "sweep": "Sweep",
    "curves": "Curves",
    "privacy": "Privacy",
    "diagnosis": "Diagnosis",
    "columns": "Columns",
    "clients": "Clients",
    "configuration": "Configuration",
}


def _sections(name: str, records: Sequence[Record], inside: Callable[[Record], str]) -> str:
    """A section for each record of which there is something inside."""
    text = ""
    for record in records:
        if content := inside(record):
            start = "<section>" if len(records) > 1 else f'<section id="{name}">'
            of = f" of {html.escape(record.folder.name)}" if len(records) > 1 else ""
            text += f"{start}<h2>{_PARTS[name]}{of}</h2>{content}</section>"
    return text


def file(name: str) -> str:
    """A file of this package, as text."""
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def filled(template: str, fields: Mapping[str, str]) -> str:
    """A template with its fields, such as ``{{title}}``."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], template)


def style() -> str:
    """The style sheet of the report."""
    return file("uplot/uPlot.min.css") + filled(file("page.css"), _colours())


def script() -> str:
    """The script of the report: uPlot, with its licence, and what draws by it."""
    licence, uplot = file("uplot/LICENSE"), file("uplot/uPlot.iife.min.js").partition("\n")[2]
    sharp = "const devicePixelRatio = Math.max(2, window.devicePixelRatio);"  # for printers
    return (
        f"/* uPlot 1.6.32\n\n{licence} */\n(() => {{ {sharp}\n{uplot}\nwindow.uPlot = uPlot; }})();\n{file('page.js')}"
    )


def _colours() -> dict[str, str]:
    """The colours of methods and classes, for the style sheet."""
    names = " ".join(f"--c{k}: {colour};" for k, colour in enumerate(COLOURS))
    classes = [f".c{k} {{ color: var(--c{k}); }}" for k in range(len(COLOURS))]
    classes += [f".b{k} {{ background: {c}; }}" for k, c in enumerate(CLASS_COLOURS)]
    heat = "color-mix(in srgb, var(--heat) {}%, transparent)"
    classes += [f".h{k} {{ background: {heat.format(10 * k)}; }}" for k in range(1, 11)]
    return {"colours": f"{names} --patches: {' '.join(CLASS_COLOURS)};", "classes": "\n".join(classes)}


def _breakable(text: str) -> str:
    """Escaped text that may wrap after an underscore."""
    return html.escape(text).replace("_", "_<wbr>")


# ---- words


def _subtitle(records: Sequence[Record]) -> str:
    config, about = records[0].config, records[0].about["clients"]
    if len(records) > 1:
        return f"{len(records)} experiments side by side"
    names = ", ".join(dict.fromkeys(own.label_of(m["name"]) for m in config["methods"]))
    number, data = len(about["sizes"]), config["data"]["name"]
    if data in ("nodes", PYTHON):
        return f"{names} with {number} {'real ' * (data == 'nodes')}clients"
    return f"{names} on {data} with {number} clients"


def _facts(records: Sequence[Record]) -> dict[str, str]:
    facts_of_records = [summary.facts(r.config, r.about["clients"]["sizes"], r.about["parameters"]) for r in records]
    return {name: " / ".join(dict.fromkeys(facts[name] for facts in facts_of_records)) for name in facts_of_records[0]}


def _conclusion(records: Sequence[Record], problems: Sequence[ProblemResults]) -> list[str]:
    """Sentences: the best method of each problem, and the verdicts of diagnoses."""
    if len(problems) == 1:
        sentences = summary.verdict(problems[0]) + noted.doubtful(problems[0]) + summary.spending(problems[0])
    else:
        differ = ", ".join(problems[0].differs)
        sentences = [
            f"Problem {k + 1}, {_problem_name(p)}: {' '.join(summary.verdict(p)[:1])}" for k, p in enumerate(problems)
        ]
        sentences.append(
            f"These runs are of {len(problems)} different problems ({differ} differ). "
            "Methods are compared within each, and never across."
        )
    name = (lambda record: f"{record.folder.name}: ") if len(records) > 1 else lambda record: ""
    why = [(record, diagnosis.why(record)) for record in records if record.diagnosis]
    return sentences + [f"{name(record)}Diagnosis: {text}" for record, text in why if text]


def _missing(records: Sequence[Record]) -> str:
    """Sentences about files that are missing or damaged in the run folders."""
    sentences = [
        f"{record.name}: {sentence}" for record in records for sentence in (*lost(record), *clients.damaged(record))
    ]
    if len(sentences) > _MISSING:
        summary_line = f"<summary>{len(sentences)} things are missing in these folders</summary>"
        fold = f"<details>{summary_line}{_paragraphs(sentences)}</details>"
        return f'<div class="missing">{fold}</div>'
    return f'<div class="missing">{_paragraphs(sentences)}</div>' if sentences else ""


def _problem_name(problem: ProblemResults) -> str:
    """A name for a problem: the settings in which it differs from the others."""
    return ", ".join(f"{name} {value}" for name, value in problem.differs.items())


def _results(problem: ProblemResults, aim: Target | None, k: int, problems: Sequence[ProblemResults]) -> str:
    several = len(problems) > 1
    title = f"Final figures, problem {k + 1}: {_problem_name(problem)}" if several else "Final figures"
    sentences = summary.verdict(problem) + noted.doubtful(problem) + summary.spending(problem)
    verdict = f'<div class="verdict">{_paragraphs(sentences)}</div>' if several else ""
    swept = any("sweep" in record.config for record in problem.records)
    note = "Of a sweep, the best point of each method. " if swept else ""
    note += " ".join(summary.legend(problem))
    if positive := clients.positive_text(problem.records[0], summary.table_order(problem)):
        note += f" {positive}"
    majority = problem.records[0].about.get("majority")
    if majority is not None:
        note += f" {clients.majority_text(majority)}"
    note += " Costs are those of one run, of all clients together; time leaves out compilation and evaluation."
    return (
        f"<section class='results'{' id=results' * (k == 0)}><h2>{html.escape(title)}</h2>{verdict}"
        f"<p class='note'>{html.escape(note)}</p>{_table(problem)}"
        f"{_sheet(tables.compared(problem))}{_sheet(tables.costs_to(problem, aim) if aim else None)}</section>"
    )


def _default_target(problem: ProblemResults) -> Target | None:
    """The default target: about the final value of the median method, rounded to two digits."""
    column = problem.judge
    ends = {m.label: m.final(column) for m in problem.methods if m.status == "finished"} if column else {}
    means = sorted(float(np.mean(end)) for end in ends.values() if np.isfinite(end).all() and end.any())
    if column is None or problem.better is None or len(means) < 2:
        return None
    lower = problem.better == "lower"
    middle = means[len(means) // 2 if lower else (len(means) - 1) // 2]
    if not middle:
        return None
    place = 10.0 ** (math.floor(math.log10(abs(middle))) - 1)  # round to two digits, towards the easier side
    value = (math.ceil if lower else math.floor)(middle / place * (1 - 1e-9 if lower else 1 + 1e-9)) * place
    return Target(column, float(f"{value:.2g}"), problem.better) if math.isfinite(value) else None


def _sheet(sheet: tables.Sheet | None) -> str:
    """A further table; a long one is folded."""
    if sheet is None:
        return ""
    unfolded = "" if len(sheet.rows) > pictures.MANY else " open"
    inside = f'<p class="note">{html.escape(" ".join(sheet.notes))}</p>{table_of_texts(sheet.heads, sheet.rows)}'
    return f"<details{unfolded}><summary>{html.escape(sheet.title)}</summary>{inside}</details>"


def _paragraphs(sentences: Sequence[str]) -> str:
    return "".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences)


def _curves_note(problems: Sequence[ProblemResults]) -> str:
    methods = [m for problem in problems for m in problem.methods]
    every = max(map(charts.thinning, problems))
    note = "Lines are means over the seeds, bands run from the lowest to the highest seed. "
    note = note if max(len(m.runs) for m in methods) > 1 else ""
    note += "Of lines that lie on one another the first is the widest. "
    note += "⊗: the method diverged, or ended worse than it began. " if any(m.status in GONE for m in methods) else ""
    note += f"Of {every} evaluations one is drawn. " if every > 1 else ""
    away = any(m.heard_text for m in methods)
    note += "○: not all of the clients' weight was heard there; the note of the table says in how many. " * away
    use = "Point at a curve for its values; drag to zoom in, double-click to go back. By keyboard: arrows, +, − and 0."
    return f'{note}<span class="live">{use}</span>'


def _curves(problems: Sequence[ProblemResults]) -> str:
    text = ""
    for k, problem in enumerate(problems):
        if len(problems) > 1:
            text += f'<h3 class="gap">Problem {k + 1}: {html.escape(_problem_name(problem))}</h3>'
        text += pictures.curves(charts.curves(problem), k)
    return text


def _footer(records: Sequence[Record]) -> str:
    about = records[0].about
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return f"Begun {about['started']} on {about['device']}. {versions}."


# ---- table


def _table(problem: ProblemResults) -> str:
    costs = ["local_steps", "gradients", "bytes", "seconds"]
    cost_names = ["Local steps", "Gradients", "Traffic down + up", "Time"]
    if TIME in summary.costs_of(problem.methods):
        costs, cost_names = [*costs, TIME], [*cost_names, describe(TIME).label]
    if all("wire_down" in run.history for m in problem.methods for run in m.runs):
        costs, cost_names = [*costs, "wire", "waited"], [*cost_names, "Over the network", "Waited"]
    measured = []  # (head, column, how many last evaluations)
    for column in summary.table_order(problem):
        measured.append((describe(column).label, column, 1))
        if column == problem.judge and problem.tail:
            measured.append((f"mean of its last {problem.tail} evaluations", column, problem.tail))
    rows = []
    for k, m in enumerate(problem.methods):
        hyper = " · ".join(f"{key} {summary.short(value)}" for key, value in m.hyper.items())
        pill = "" if m.status == "finished" else f'<span class="pill {m.status}">{m.status_text}</span>'
        cells = [(f'{pictures.key(k)}{html.escape(m.label)}<span class="hyper">{html.escape(hyper)}</span>{pill}', "")]
        for _, column, last in measured:
            mark = {"★": "best", "≈": "tied"}.get(problem.mark(m), "")
            mark = mark if column == problem.judge and last == 1 else ""
            cells.append((_cell(column, m.tail(column, last)), mark))
        rows.append((m.status, [*cells, *((_cost(m, column), "") for column in costs)]))
    return tabular(["Method", *(name for name, *_ in measured), *cost_names], rows)


def tabular(names: Sequence[str], rows: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> str:
    """A table; each row is (class, cells), each cell (HTML, class)."""
    text = ""
    for kind, ((first, _), *cells) in rows:
        text += f'<tr{_class_attribute(kind)}><th scope="row">{first}</th>'
        for name, (cell, mark) in zip(names[1:], cells, strict=True):
            text += f'<td{_class_attribute(mark)} data-name="{html.escape(name)}">{cell}</td>'
        text += "</tr>"
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)
    kind = " dense" * (len(names) > 8)
    kind += ' wide" tabindex="0" role="region" aria-label="table' * (len(rows) > pictures.MANY)
    return f'<div class="table{kind}"><table><thead><tr>{head}</tr></thead><tbody>{text}</tbody></table></div>'


def table_of_texts(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts, which are escaped."""
    return tabular(names, [("", [(html.escape(cell), "") for cell in row]) for row in rows])


def _class_attribute(name: str) -> str:
    return f' class="{name}"' * bool(name)


def _cell(column: str, values: np.ndarray) -> str:
    if not values.size:
        return "–"
    number, noise, unit = show_parts(column, float(np.mean(values)), spread(values))
    beside = noise and f' <span class="spread">{noise}</span>'
    return f'<span class="value">{f"{number} {unit}".strip()}{beside}</span>'


def _cost(method: Method, column: str) -> str:
    if column not in ("bytes", "wire"):
        return show(column, method.cost(column))
    down, up = (show(f"{column}_{way}", method.cost(f"{column}_{way}")) for way in ("down", "up"))
    number, _, unit = down.partition(" ")
    return f"{number} + {up}" if up.endswith(f" {unit}") else f"{down} + {up}"


# ---- classes


def _classes(record: Record) -> str:
    """What the final models decide for the test rows: recall and precision by class, confusion, and calibration."""
    found = {label: classes.of_method(record, label) for label in record.labels}
    found = {label: of_seeds for label, of_seeds in found.items() if of_seeds}
    if not found:
        return ""
    names = classes.names_of(record, next(iter(found.values())))
    two, seeds = len(names) == 2, max(map(len, found.values()))
    note = f"Of the test rows of all clients; means over {seeds} seeds. " if seeds > 1 else "Of the test rows. "
    if two and any(np.isfinite(each.threshold) for of_seeds in found.values() for each in of_seeds):
        rows, positive = (
            np.mean([each.chosen for each in next(iter(found.values()))], axis=0) @ k for k in ([1, 1], [0, 1])
        )
        note += f"A row is decided for class {names[1]} from the threshold on, the probability with the best F1 on the "
        note += f"{rows:.0f} validation rows ({positive:.0f} of class {names[1]}). It is saved with the model, and "
        note += "fedax predict decides by it. "
    else:
        note += "A row is decided for its most probable class. "
    note += "Recall: of the rows of a class, the share that is decided so. Precision: of the rows that are decided so, "
    note += "the share that is of the class."
    table, heads = [], ["Method"]
    for label, of_seeds in found.items():
        figures = classes.figures(names, of_seeds)
        heads = ["Method", *figures]
        cells = [_cell("threshold" if name == "Threshold" else "accuracy", v) for name, v in figures.items()]
        table.append(("", [(cell, "") for cell in (html.escape(label), *cells)]))
    text = f'<p class="note">{html.escape(note)}</p>{tabular(heads, table)}'
    of = f"class {names[1]}" if two else "the most probable class"
    colours = [method["label"] for method in record.config["methods"]]
    summed = {label: classes.bins(of_seeds) for label, of_seeds in found.items()}
    text += pictures.row([charts.reliability(of, summed, colours)])
    for k, (label, of_seeds) in enumerate(found.items()):
        rows = "" if seeds == 1 else f", the rows of {len(of_seeds)} seeds together"
        inside = _confusion(names, classes.confusion(of_seeds)) + _calibration(of, summed[label])
        opened = " open" * (k == 0 and len(names) <= pictures.MANY)
        text += f"<details{opened}><summary>{html.escape(f'{label}: counts{rows}')}</summary>{inside}</details>"
    return text


def _confusion(names: Sequence[str], counts: np.ndarray) -> str:
    """The table of decisions by class, with recall at the right and precision below."""
    right, true, said = np.diag(counts), counts.sum(1), counts.sum(0)
    shares = [
        [show("accuracy", a / b) if b else "–" for a, b in zip(right, each, strict=True)] for each in (true, said)
    ]
    rows = [[f"class {name}", *map(thousands, counts[c].tolist()), shares[0][c]] for c, name in enumerate(names)]
    return table_of_texts(["Test rows of", *(f"decided for {name}" for name in names), "Recall"],
                          [*rows, ["Precision", *shares[1], ""]])  # fmt: skip


def _calibration(of: str, bins: np.ndarray) -> str:
    rows = []
    for k, (number, said, so) in enumerate(bins.T):
        each = [show("accuracy", value / number) if number else "–" for value in (said, so)]
        low, high = (100 * place // bins.shape[1] for place in (k, k + 1))
        rows.append([f"{low} to {high} %", thousands(int(number)), *each])
    return table_of_texts([f"Probability of {of}", "Test rows", "Mean probability", "Share that is so"], rows)


# ---- sweep


def _sweep(record: Record) -> str:
    if "sweep" not in record.config:
        return ""
    failed = any(trial.failed for label in record.labels for trial in record.trials(label))
    note = sweeps.about(record) + (" ⊗ and ×: a seed diverged or ended worse than it began." if failed else "")
    text = f'<p class="note">{html.escape(note)}</p>'
    if notes := sweeps.notes(record):
        text += _list(notes)
    tables = "".join(_trials(record, label) for label in record.labels)
    drawn = "".join(pictures.row([picture]) for picture in sweeps.charts(record))
    return f'{text}<div class="grid">{drawn}</div>{tables}'


def _trials(record: Record, label: str) -> str:
    """The folded table of all points of a method; its summary line shows the best."""
    trials = record.trials(label)
    if not trials:
        return ""
    column = describe(record.config["sweep"]["criterion"]).label
    best = f"{label}: {sweeps.settings(trials[0].point)}"
    rows = [(sweeps.settings(t.point), sweeps.score(record, t), str(t.failed or "–")) for t in trials]
    number = f"{len(trials)} points" if len(trials) > 1 else "1 point"
    return (
        f"<details><summary>{html.escape(best)} <span class='spread'>{html.escape(sweeps.score(record, trials[0]))}, "
        f"the best of {number}</span></summary>{table_of_texts(['Point', column, 'Failed seeds'], rows)}</details>"
    )


# ---- privacy


def _privacy(record: Record) -> str:
    if "privacy" not in record.config:
        return ""
    parts = "".join(_list(sentences, head) for head, sentences in privacy.parts(record).items())
    return f'<p class="note">{html.escape(privacy.note(record))}</p>{table_of_texts(*privacy.table(record))}{parts}'


# ---- diagnosis


def _diagnosis(record: Record) -> str:
    if not record.diagnosis:
        return ""
    labels = [method["label"] for method in record.diagnosis]
    rows = [(name, *cells) for name, cells in diagnosis.rows(record.diagnosis)]
    advice = "".join(_list(sentences, labels) for labels, sentences in diagnosis.advice(record.diagnosis))
    limits = _list(diagnosis.unknown(record.diagnosis), "What these figures cannot tell")
    note = f"Measured at {html.escape(diagnosis.where(record.diagnosis))} (a → b: at the first and at the last)."
    figures = f'<h3 class="gap">The figures</h3><p class="note">{note}</p>{table_of_texts(["Figure", *labels], rows)}'
    return f"{advice}{figures}{limits}"


def _list(sentences: Sequence[str], head: str = "") -> str:
    above = f'<h3 class="gap">{html.escape(head)}</h3>' if head else ""
    return f"{above}<ul>{''.join(f'<li>{html.escape(sentence)}</li>' for sentence in sentences)}</ul>"


# ---- columns of tables


def _columns(record: Record) -> str:
    overview = noted.overview_of(record)
    if overview is None:
        return ""
    shape = f'<p class="note">{html.escape(overview.about()[0])}.</p>'
    if overview.classes:
        names, counts = overview.by_class()
        shape += table_of_texts(["Class", "Rows", *names[2:]], counts)
    note = "What the columns of the tables are used as, in how many rows each is missing, and the mean of its numbers "
    note += "or its commonest value: of all rows, and at each client. " + " ".join(overview.shortened())
    heads, rows = overview.table()
    cells = []
    for row in rows:
        words = "names" * (row[1] in ("category", "label"))  # names may wrap, numbers may not
        cells.append(("", [(html.escape(cell), words * (k > 2)) for k, cell in enumerate(row)]))
    text = tabular(["Column", "Used as", "Missing", "Mean or commonest", *heads[4:]], cells)
    if overview.dropped:
        left_out = [f"{name}: {why}" for name, why in overview.dropped.items()]
        text += f"<details><summary>{len(left_out)} columns are left out</summary>{_list(left_out)}</details>"
    notes = noted.lines(record.config, overview)
    looked_at = _list(notes, "To look at") if notes else ""
    return f'{shape}{looked_at}<p class="note gap">{html.escape(note)}</p>{text}'


# ---- clients


def _spreads(record: Record, judge: str | None) -> list[tuple[str, list[clients.Spread]]]:
    """For each figure of clients, how it is spread for each method and baseline."""
    spreads = []
    for figure in clients.figures_of(record, judge):
        by_label = [summary.over_clients(record, label, figure) for label in (*record.labels, *clients.BASELINES)]
        spreads.append((figure, [method_spread for method_spread in by_label if method_spread is not None]))
    return spreads


def _helped(record: Record) -> str:
    """Whom a run helps: what ``fedax fine-tune`` found; and personal models against the shared one."""
    text = ""
    try:
        found = helped.found_in(record)
    except DataError as error:
        return f'<p class="note">{html.escape(str(error))}</p>'
    for about, table in found:
        column, kinds = f"test_{about['figure']}", about["kinds"]
        text += f'<h3 class="gap">Does {html.escape(about["label"])} help each client?</h3>'
        text += table_of_texts(about["heads"], about["rows"]) + _list(about["sentences"])
        own, way = (kinds[helped.OWN], table.values[about["figure"]]), record.better(column) or "lower"
        for kind in (helped.LOCAL_ONLY, helped.TUNED):
            other = kinds[kind], table.values[helped.named(about["figure"], kind)]
            sides = helped.sides(about, table, kind, way)
            text += pictures.row([charts.before_after(column, table.names, other, own, way, sides)])
    for label in record.labels:
        tables = clients.tables(record, label)
        if not tables or f"loss{PERSONAL}" not in tables[0].values:
            continue
        shared, own_models = (summary.over_clients(record, label, "loss", shared=each) for each in (True, False))
        if shared is not None and own_models is not None:
            before, after = (f"{label}, shared model", shared.values), (f"{label}, own model", own_models.values)
            text += pictures.row([charts.before_after("test_loss", shared.names, before, after, "lower")])
    private = record.config.get("privacy") is not None
    return text + f'<p class="note">{html.escape(helped.NOT_COVERED)}</p>' * (private and bool(text) and not found)


def _by_client(record: Record, judge: str | None) -> str:
    """The figures of each client, for the methods and the baselines."""
    text, labels = "", [method["label"] for method in record.config["methods"]]
    for i, (figure, spreads) in enumerate(_spreads(record, judge)):
        column = f"test_{figure}"
        described = describe(column)
        seeds = len(record.config["run"]["seeds"])
        about = f"{described.label} on each client's own test examples"
        about += f", the mean over {seeds} seeds. " if seeds > 1 else ". "
        about += f"{(record.better(column) or 'lower').capitalize()} is better. "
        if own_models := [method_spread.label for method_spread in spreads if method_spread.personal]:
            about += f"Of {', '.join(own_models)} it is that of each client's personal model. "
        if any(np.isnan(method_spread.values).any() for method_spread in spreads):
            about += "Clients where it is not defined, as where all test examples are of one class, are left out. "
        if i == 0:
            about += (
                "Local only: each client trains a model of its own on its own data. Pooled: one model on all data in "
                "one place. Both have as many gradients as the method that asked for most; they are no federated "
                "methods, and are not ranked with them. "
            ) * any(method_spread.label in clients.BASELINES for method_spread in spreads)
        if not spreads:
            continue
        text += pictures.row([charts.spread(column, spreads, labels, about)]) + _spread_table(column, spreads)
    if sentences := clients.left_out(record.folder):
        text += f'<p class="note">{html.escape(" ".join(sentences))}</p>'
    return text


def _spread_table(column: str, spreads: Sequence[clients.Spread]) -> str:
    names = ("Mean over clients", "Standard deviation", "Mean of the worst tenth", "Worst clients")
    rows = []
    for method_spread in spreads:
        number, noise, unit = show_parts(column, method_spread.mean, method_spread.std)
        deviation = f"{noise.removeprefix('± ')} {unit}".strip() or "–"
        worst = html.escape(clients.named_worst(method_spread, column)) or "none beyond chance"
        cells = (
            html.escape(method_spread.label),
            f"{number} {unit}".strip(),
            deviation,
            show(column, method_spread.worst_tenth),
        )
        apart = "baseline" if method_spread.label in clients.BASELINES else ""
        rows.append((apart, [*((cell, "") for cell in cells), (worst, "names")]))
    return tabular(["Method", *names], rows)


def _clients(record: Record, judge: str | None) -> str:
    about_clients = record.about["clients"]
    sizes, steps = np.asarray(about_clients["sizes"]), about_clients["steps"]
    note = (
        f"{len(sizes)} clients hold {thousands(int(sizes.min()))} to {thousands(int(sizes.max()))} examples "
        f"(median {np.median(sizes):g}). "
    )
    if about_clients["counts"]:
        counts = np.asarray(about_clients["counts"])
        commonest, overall = (counts / sizes[:, None]).max(1), counts.sum(0).max() / sizes.sum()
        note += (
            f"The commonest class of a client makes up {100 * np.median(commonest):.0f} % of its data in the median; "
            f"that of all data together, {100 * overall:.0f} %. "
        )
    if record.config["run"].get("split_seeds"):
        note += f"Shown are those of seed {record.config['run']['seeds'][0]}: each seed has a split of its own. "
    if (number := charts.grouped(about_clients)) > 1:
        note += f"In the pictures {number} clients of like size share a place. "
    if about_clients["uniform"]:
        note += "In the objective every client weighs the same. "
    low, high = min(steps["low"]), max(steps["high"])
    if low == high:
        note += f"Each takes {low} local step{'s' if low > 1 else ''} in a round."
    else:
        ratio = max(steps["mean"]) / (min(steps["mean"]) or math.inf)
        unlike = f"; the busiest client does {ratio:.3g} times the work of the idlest" if ratio > 1 else ""
        note += f"They take {low} to {high} local steps in a round that they take part in{unlike}."
    drawn = "".join(pictures.row([chart]) for chart in charts.of_clients(about_clients).values())
    return f'<p class="note">{note}</p>{_helped(record)}{_by_client(record, judge)}{drawn}'


def _configuration(record: Record, several: bool) -> str:
    text = f"<pre>{html.escape(toml.dumps(record.config))}</pre>"
    name = html.escape(record.folder.name)
    return f"<details><summary>{name}</summary>{text}</details>" if several else text
