"""Shows an experiment before it runs, and its results."""

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from fedax.cli.console import bullets, print_table, table_of, two_columns

if TYPE_CHECKING:
    from rich.console import Console

    from fedax.experiments import Experiment, Record, Tuning


def show_plan(console: "Console", tuning: "Tuning", folder: pathlib.Path) -> None:
    """Show what a sweep will try."""
    from fedax.experiments.runner import count_parameters
    from fedax.experiments.summary import axis, facts

    first = next(iter(tuning.experiments.values()))[0]
    lines = facts(tuning.config, first.data.sizes.tolist(), count_parameters(first.task))
    methods = [f"{label} ({len(points)} point{'s'[: len(points) - 1]})" for label, points in tuning.points.items()]
    sweep = tuning.config["sweep"]
    axes = "; ".join(f"{path} {axis(values)}" for path, values in sweep["grid"].items())
    lines |= {
        "Sweep": f"{axes}; {sweep['search']} search",
        "Judged by": f"{sweep['criterion']}, {sweep['better']} is better",
    }
    console.print(two_columns({**lines, "Methods": ", ".join(methods), "Folder": str(folder)}))
    console.print()


_TOP = 3  # how many points of a method the table shows


def show_sweep(console: "Console", record: "Record", results: Mapping[str, Any]) -> None:
    """Show the best points of each method, and how to run them again."""
    from rich.markup import escape

    from fedax.columns import describe, show
    from fedax.experiments import sweeps

    console.print(f"\n[bold]{escape(sweeps.about(record))}[/]")
    table = table_of(["Method", "Best points", describe(results["criterion"]).label], texts=2)
    for label in record.labels:
        trials = record.trials(label)
        for k, trial in enumerate(trials[:_TOP]):
            style = "[bold green]" if k == 0 and not trial.failed else "[dim]"
            cells = [label if k == 0 else "", sweeps.settings(trial.point), sweeps.score(record, trial)]
            if trial.failed and trial.failed < len(trial.runs):
                cells[2] += f", {trial.failed} of {len(trial.runs)} seeds {sweeps.failure(trial)}"
            table.add_row(escape(cells[0]), *(f"{style}{escape(cell)}[/]" for cell in cells[1:]))
    print_table(console, table)
    for note in results["notes"]:
        console.print(f"[yellow]•[/] {escape(note)}")
    programs = results["programs"]
    compiled = f"{programs} compiled program{'s'[: programs - 1]}"
    console.print(
        f"\n{len(record.runs)} runs in {compiled}, {show('seconds', results['seconds'])}; all points: sweep.json"
    )
    for file, labels in results["best"].items():
        which = f"   [dim]# {escape(', '.join(labels))}[/]" if len(results["best"]) > 1 else ""
        path = escape(str(record.folder / file))
        console.print(f"The best again: [bold]fedax run {path}[/]{which}", soft_wrap=True)


def show_choices(console: "Console", experiment: "Experiment", folder: pathlib.Path) -> None:
    """Show what an experiment will run."""
    from fedax.columns import better
    from fedax.experiments import noted
    from fedax.experiments.following import decides
    from fedax.experiments.runner import count_parameters
    from fedax.experiments.summary import facts, rates, short, telling

    lines = facts(experiment.config, experiment.data.sizes.tolist(), count_parameters(experiment.task))
    if (column := decides(experiment)) is not None and len(experiment.methods) > 1:
        lines["Judged by"] = f"{column}, {better(column, experiment.task.metrics)} is better"
    methods = [
        f"{m['label']} ({', '.join(f'{k} {short(v)}' for k, v in telling(m).items())})"
        for m in experiment.config["methods"]
    ]
    tuned = {"Rates": f"{rates(experiment.tuned)} (--no-tune: as configured)"} if experiment.tuned else {}
    console.print(two_columns({**lines, "Methods": ", ".join(methods), **tuned, "Folder": str(folder)}))
    console.print("[dim]To change any of it: --set run.rounds=200. All settings: config.toml in that folder.[/]\n")
    for line in noted.brief(experiment.config, experiment.data.overview):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def show_results(console: "Console", record: "Record") -> None:
    """Show the table of final figures, the verdict, notes, and how to read them."""
    from rich.markup import escape

    from fedax.columns import TIME, TRAIN, describe, show, shown
    from fedax.experiments import classes, clients, noted, summary

    (problem,) = summary.problems([record])
    columns = shown(summary.table_order(problem), problem.judge)
    columns = [column for column in columns if column not in TRAIN or problem.judge in (None, column)]
    title, *legend = summary.legend(problem)
    heads = ["Method"]
    for column in columns:
        heads.append(describe(column).label)
        if column == problem.judge and problem.tail:
            heads.append(f"Mean of its last {problem.tail}")
    clocked = [TIME] if TIME in summary.costs_of(problem.methods) else []
    table = table_of([*heads, "Traffic", "Time", *(describe(column).label for column in clocked)], title)
    for m in problem.methods:
        cells = []
        for column in columns:
            cells.append(summary.with_spread(column, m.final(column)))
            if column == problem.judge:
                mark = problem.mark(m)
                cells[-1] = f"[bold green]{cells[-1]} ★[/]" if mark == "★" else f"{cells[-1]} {mark}".strip()
                if problem.tail:
                    cells.append(summary.with_spread(column, m.tail(column, problem.tail)))
        if m.status != "finished":
            cells[0] = f"[red]{summary.WORDS[m.status]}[/]"  # more is said below
        traffic = show("bytes_down", m.cost("bytes_down") + m.cost("bytes_up"))
        times = (show(column, m.cost(column)) for column in ("seconds", *clocked))
        table.add_row(escape(m.label), *cells, traffic, *times)
    print_table(console, table)
    for k, sentence in enumerate((*summary.verdict(problem), *noted.doubtful(problem), *summary.spending(problem))):
        console.print(f"[bold]{escape(sentence)}[/]" if k == 0 else escape(sentence))
    if positive := clients.positive_text(record, columns):
        console.print(escape(positive), highlight=False)
    if (majority := record.about.get("majority")) is not None:
        console.print(escape(clients.majority_text(majority)), highlight=False)
    best = problem.chosen or problem.best or problem.methods[0]
    if decided := classes.text(record, best.label):
        console.print(escape(decided), highlight=False)
    for figure in clients.figures_of(record, problem.judge)[:1]:
        spread = summary.over_clients(record, best.label, figure)
        if spread is not None and (worst := clients.worst_text(spread, figure)):
            console.print(escape(worst), highlight=False)
    for sentence in clients.left_out(record.folder):
        console.print(escape(sentence), highlight=False)
    console.print(f"[dim]{escape(' '.join(legend))}[/]")


def show_diagnosis(console: "Console", record: "Record") -> None:
    """Show the verdict, the reasons, each once, and the figures."""
    from rich.markup import escape

    from fedax.experiments import diagnosis

    methods = record.diagnosis
    console.print(f"\n[bold]Verdict[/]\n{escape(diagnosis.verdict(record))}", highlight=False)
    for labels, advice in diagnosis.advice(methods):
        console.print(f"\n[bold]{escape(labels)}[/]")
        console.print(bullets(advice))
    console.print()
    heads = ["", *(escape(method["label"]) for method in methods)]
    table = table_of(heads, f"Measured at {escape(diagnosis.where(methods))}", wraps=True)
    for name, cells in diagnosis.rows(methods):
        table.add_row(name, *cells)
    console.print(table)
    console.print("[bold]What these figures cannot tell[/]")
    console.print(bullets(diagnosis.unknown(methods)))


def show_report(console: "Console", record: "Record") -> None:
    """Show the path of the report; exit code 1 if a method failed."""
    from rich.markup import escape

    from fedax.engine.history import FAILED
    from fedax.experiments import summary

    path = escape(str(record.folder / "report.html"))
    console.print(f"\nReport: [bold]{path}[/]", highlight=False, soft_wrap=True)
    if any(each.status in FAILED for each in summary.methods([record])):
        raise typer.Exit(1)
