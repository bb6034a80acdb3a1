"""The commands ``fedax data``: prepare the tables of several sites by exchanging files."""

import pathlib
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedax.cli.console import echo
from fedax.errors import ConfigError, DataError, printable
from fedax.files import check_ending, name_of

if TYPE_CHECKING:
    from fedax.data import Overview, Summary

group = typer.Typer(
    help="Check tables; turn those of several sites into numbers in the same way, by files that hold no row.",
    epilog="Sites begin with: fedax data summarize TABLE.csv",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

TABLE_ENDINGS = ".csv, .tsv, .txt (also .gz), .xlsx or .parquet"
Table = Annotated[pathlib.Path, typer.Argument(help=f"The site's table: {TABLE_ENDINGS}.", show_default=False)]
Drop = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="Leave this column out; may be repeated.", show_default=False)
]
Label = Annotated[str, typer.Option(metavar="COLUMN", help="The column to predict.", show_default=False)]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN=KIND",
        help="What a column is: number, category, date or text; may be repeated.",
        show_default=False,
    ),
]
TaskKind = Annotated[str | None, typer.Option(help="classification or regression.", show_default="by the label")]
Scale = Annotated[str, typer.Option(help="standard, or none for numbers as they are.")]
MostCategories = Annotated[int, typer.Option(help="Categories of a column with a feature of their own.")]
Positive = Annotated[
    str | None,
    typer.Option(metavar="CLASS", help="Of two classes the one that metrics are about.", show_default="the rarer one"),
]
Target = Annotated[str | None, typer.Option(help="log: learn the label's logarithm.", show_default="the label itself")]
CheckLabels = Annotated[
    bool,
    typer.Option("--check-labels/--no-check-labels", help="Whether a label that looks coded in two ways is an error."),
]
Decimal = Annotated[str | None, typer.Option(help="The decimal point of a .csv file.", show_default="found")]
Encoding = Annotated[str | None, typer.Option(help="Its encoding.", show_default="found")]
WithLabels = Annotated[
    bool, typer.Option("--drop-missing-labels", help="Leave rows without a label out, in place of an error.")
]

_FIRST, _SECOND = "-first.json", "-second.json"


def check(
    files: Annotated[
        list[pathlib.Path],
        typer.Argument(help=f"The tables: {TABLE_ENDINGS}, or a folder of them or of .arrow.", show_default=False),
    ],
    label: Label,
    client: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column that says whose a row is.", show_default="a client a file"),
    ] = None,
    drop: Drop = None,
    column: Columns = None,
    task: TaskKind = None,
    positive: Positive = None,
    drop_missing_labels: WithLabels = False,
    decimal: Decimal = None,
    encoding: Encoding = None,
) -> None:
    """Say what would be used of tables, and what is odd in them, before anything is trained.

    Shows clients, rows, the classes at each client, what each column is used as, what
    is left out and why, and a line for each doubt, the most serious first. Reads only.

    \b
    Examples:
      fedax data check hospitals/*.csv --label readmitted
      fedax data check all.csv --label cost --client site --drop patient --column zip=category

    Exit code 2: an error, such as a file that cannot be read.
    """
    from fedax.data import from_arrow, from_csv, from_parquet
    from fedax.data.cells import shown
    from fedax.data.paths import data_at

    readers: dict[str, Callable[..., Any]] = {"csv": from_csv, "parquet": from_parquet, "arrow": from_arrow}
    where = data_at([str(file) for file in files], "files")
    if (name := where.pop("name")) not in readers:
        raise ConfigError("files", str(files[0]), "these are no tables; there is nothing to check")
    written = {"decimal": decimal, "encoding": encoding}
    for option, value in written.items():
        if value is not None and name != "csv":
            raise ConfigError(option, value, "this goes with .csv files")
    data = readers[name](
        *where.values(), label, client, kinds(column), task, drop=drop or (), positive=positive,
        drop_missing_labels=drop_missing_labels, check_labels=False, **(written if name == "csv" else {}),
    )  # fmt: skip
    assert data.transform is not None and data.transform.label is not None
    if data.overview is None:
        classes = ", ".join(map(shown, data.transform.classes or ()))
        return echo(f"{data}: pictures, with the classes {classes}")
    show(data.overview)
    if data.transform.label.positive is not None:
        echo(f"positive class: {shown(data.transform.label.positive)}")


def summarize(
    table: Table,
    plan: Annotated[
        pathlib.Path | None, typer.Option(help="The coordinator's plan, in the second exchange.", show_default=False)
    ] = None,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="The file to write; has to be new.", show_default="<table>-first.json or -second.json"),
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="What will be predicted, if you know it.", show_default=False)
    ] = None,
    drop: Drop = None,
    drop_missing_labels: WithLabels = False,
    decimal: Decimal = None,
    encoding: Encoding = None,
) -> None:
    """At a site: write what the coordinator has to know of your table.

    The file holds counts, means and sums of squares of each column, and no row. With
    --plan it answers the coordinator's plan: how often each category occurs. It is
    JSON with a line for each column: read it before you send it. Shows what your columns
    look like, and which you might leave out; with --label also copies of the label.

    \b
    Examples:
      fedax data summarize hospital-7.csv --drop patient
      fedax data summarize hospital-7.csv --plan plan.json

    Exit code 2: an error, such as a file that is there already.
    """
    from fedax.data import Plan
    from fedax.data import summarize as summary_of
    from fedax.data.cells import naming
    from fedax.data.tables import read_table, stem, with_labels

    plan_loaded = None if plan is None else Plan.load(plan)
    if plan_loaded is not None:
        for name, value in (("label", label), ("drop", drop)):
            if value:
                raise ConfigError(name, value, "the plan has it already; leave it out")
        label = plan_loaded.label
    elif drop_missing_labels and label is None:
        raise ConfigError("drop_missing_labels", True, "name the label: --label COLUMN")
    target = _new(out, f"{stem(table)}{_FIRST if plan_loaded is None else _SECOND}")
    rows = read_table(table, decimal, encoding, drop=drop or ())
    _show_written(table, rows)
    if label is not None:
        rows = with_labels(name_of(stem(table)), rows, label, drop_missing_labels)
    with naming(table):
        if plan_loaded is None:
            _show_one_table(name_of(stem(table)), rows, label)
        summary = summary_of(rows, plan_loaded)
    summary.save(target)
    echo(f"Wrote {target}: counts and moments of {len(rows)} rows, and no row. Read it, then send it.")
    if plan_loaded is None:
        echo(f"Next, at the coordinator: fedax data plan *{_FIRST} --label {_shell_quoted(label or 'COLUMN')}")
    else:
        echo(f"Next, at the coordinator: fedax data fit {_shell_quoted(str(plan))} *{_SECOND}")


def plan(
    summaries: Annotated[
        list[pathlib.Path],
        typer.Argument(help="The sites' files. A site is called by its file's name.", show_default=False),
    ],
    label: Label,
    out: Annotated[pathlib.Path, typer.Option(help="The file to write; has to be new.")] = pathlib.Path("plan.json"),
    drop: Drop = None,
    column: Columns = None,
    task: TaskKind = None,
    scale: Scale = "standard",
    max_categories: MostCategories = 50,
    positive: Positive = None,
    target: Target = None,
) -> None:
    """At the coordinator: decide what each column is, from the files of all sites.

    Shows the columns by site, which are used and as what, which look like an identifier
    or a date, are nearly constant or mostly missing, and which are dropped and why.

    \b
    Examples:
      fedax data plan *-first.json --label readmitted
      fedax data plan *-first.json --label readmitted --drop patient --column zip=category

    Exit code 2: an error, such as a column that a site lacks.
    """
    from fedax.data import overview
    from fedax.data import plan as plan_of

    place = _new(out, "plan.json")
    summaries_by_site = _load(summaries, _FIRST)
    options: Any = (kinds(column), task, scale, max_categories, drop or (), positive, target)
    plan_made = plan_of(summaries_by_site, label, *options)
    show(overview(plan_made, summaries_by_site))
    plan_made.save(place)
    echo(f"Wrote {place} for {plan_made.task} of {_shell_quoted(label)}. If you agree with it, send it to all sites.")
    echo(f"Next, at each site: fedax data summarize TABLE.csv --plan {_shell_quoted(place.name)}")


def fit(
    plan: Annotated[pathlib.Path, typer.Argument(help="The plan that the sites answered.", show_default=False)],
    summaries: Annotated[
        list[pathlib.Path],
        typer.Argument(help="The sites' answers. A site is called by its file's name.", show_default=False),
    ],
    out: Annotated[pathlib.Path, typer.Option(help="The file to write; has to be new.")] = pathlib.Path(
        "transform.json"
    ),
    check_labels: CheckLabels = True,
) -> None:
    """At the coordinator: make the transform, which turns all tables into numbers in the same way.

    Shows the classes at each site, and which columns look like a copy of the label.

    \b
    Examples:
      fedax data fit plan.json *-second.json

    Exit code 2: an error, such as a file that answers another plan, or a label that
    looks coded in two ways.
    """
    from fedax.data import Plan
    from fedax.data import fit as transform_of
    from fedax.data.overview import class_lines, classes_of, notes_of_answers

    target = _new(out, "transform.json")
    plan_loaded, answers = Plan.load(plan), _load(summaries, _SECOND)
    transform = transform_of(plan_loaded, answers, check_labels)
    classes = {name: (sum(each), *each) for name, each in classes_of(plan_loaded, answers, list(answers)).items()}
    for line in class_lines(plan_loaded.label or "", list(answers), classes, len(answers)):
        echo(line)
    for note in notes_of_answers(plan_loaded, answers):
        hint = f"; plan again with --drop {_shell_quoted(note.column)} to leave it out"
        echo(f"note: {note}{hint * (note.looks == 'copy')}")
    transform.save(target)
    if transform.label is not None and transform.label.positive is not None:
        echo(f"AUC and F1 will be of class {printable(transform.label.positive)}; plan with --positive for the other.")
    echo(f"Wrote {target}: {len(transform.features)} features, digest {transform.digest}. Send it to all sites.")
    echo(f"Next, at each site: fedax data apply {_shell_quoted(target.name)} TABLE.csv")


def apply(
    transform: Annotated[pathlib.Path, typer.Argument(help="The coordinator's transform.", show_default=False)],
    table: Table,
    out: Annotated[
        pathlib.Path | None, typer.Option(help="The folder to write; has to be new.", show_default="<table>")
    ] = None,
    drop_missing_labels: WithLabels = False,
    decimal: Decimal = None,
    encoding: Encoding = None,
) -> None:
    """At a site: make the folder that its node serves.

    \b
    Examples:
      fedax data apply transform.json hospital-7.csv

    Exit code 2: an error, such as a column that is missing.
    """
    from fedax.data import Transform, from_frames
    from fedax.data.doubts import in_words
    from fedax.data.tables import read_table, stem

    target = _new(out, stem(table))
    fitted = Transform.load(transform)
    frame = read_table(table, decimal, encoding)
    _show_written(table, frame)
    examples = from_frames({name_of(stem(table)): frame}, transform=fitted, drop_missing_labels=drop_missing_labels)
    examples.save(target)
    echo(f"Wrote {target}: {examples.num_examples} examples, {len(fitted.features)} features.")
    if doubts := fitted.doubts(frame):  # if the transform was not fitted on this table
        echo(f"note: {in_words(doubts)}")
    echo(f"The transform's digest, the same at all sites: {fitted.digest}")
    echo(f"Next, here: fedax deploy node --link HOST:PORT --data {_shell_quoted(str(target))} --key KEY")


def kinds(given: Sequence[str] | None) -> dict[str, str]:
    """Column -> kind, from options ``--column COLUMN=KIND``."""
    by_column: dict[str, str] = {}
    for option in given or ():
        name, equals, kind = option.rpartition("=")
        if not equals or name in by_column:
            raise ConfigError("column", option, "give COLUMN=KIND, such as zip=category, once for a column")
        by_column[name] = kind
    return by_column


def _show_one_table(site: str, rows: Any, label: str | None) -> None:
    """Show the columns of one table, as far as that is possible without the other sites."""
    from fedax.data import fit, overview, summarize
    from fedax.data import plan as plan_of
    from fedax.data.rows import notes_of_rows

    first = {site: summarize(rows, least=1)}
    try:
        plan_made = plan_of(first, label)
    except DataError as error:  # for instance no usable column; other sites may have some
        echo(f"note: {error}")
        return
    second = {site: summarize(rows, plan_made, least=1)}
    try:
        transform = fit(plan_made, second, check_labels=False)
        more = [] if label is None else notes_of_rows({site: transform(rows)}, transform)
    except DataError:  # one class only, for instance
        more = []
    show(overview(plan_made, first, second, more))


def _show_written(table: pathlib.Path, rows: Any) -> None:
    if how := rows.attrs.get("written"):
        echo(f"note: {table} is read as {how}")


def show(columns: "Overview") -> None:
    """Show clients, classes and columns by site, which are left out, and what looks odd."""
    from fedax.data.cells import shown
    from fedax.data.overview import in_columns

    echo(columns.about()[0])
    for line in in_columns(*columns.by_class()) if columns.classes else ():
        echo(line)
    echo(columns.text())
    for name, why in columns.dropped.items():
        echo(f"left out: {shown(name)}: {why}")
    for line in columns.lines(lambda column: f"--drop {_shell_quoted(column)}"):
        echo(f"note: {line}")


COMMANDS: dict[str, Callable[..., None]] = {
    "check": check,
    "summarize": summarize,
    "plan": plan,
    "fit": fit,
    "apply": apply,
}


def _new(out: pathlib.Path | None, usual: str) -> pathlib.Path:
    """The path to write, which must not exist yet."""
    target = pathlib.Path(usual) if out is None else out
    if usual.endswith(".json"):
        check_ending(target, ".json")
    if target.exists() or target.is_symlink():
        raise ConfigError("out", str(target), "this is there already; move it away, or name another with --out")
    if not target.absolute().parent.is_dir():
        raise ConfigError("out", str(target), "there is no such folder; make it first")
    return target


def _load(files: Sequence[pathlib.Path], ending: str) -> "dict[str, Summary]":
    """The summaries of the sites, by name."""
    from fedax.data import Summary

    summaries: dict[str, Summary] = {}
    for file in files:
        name = name_of(file.name).removesuffix(ending).removesuffix(".json")
        if name in summaries:
            raise ConfigError("summaries", str(file), f"another file is of a site called {name!r}, too; rename one")
        summaries[name] = Summary.load(file)
    return summaries


def _shell_quoted(text: str) -> str:
    """A text quoted for a shell, without control characters."""
    return shlex.quote(printable(text))
