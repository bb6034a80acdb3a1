"""The commands that read what was trained: ``predict``, ``fine-tune``, ``diagnose``, ``report``."""

import enum
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from fedax.cli.console import echo, open_console, print_table, table_of
from fedax.cli.data import TABLE_ENDINGS, Decimal, Encoding
from fedax.cli.running import AllowCode, Out, Set, carry_out, read_config
from fedax.cli.show import show_diagnosis, show_report
from fedax.errors import ConfigError, one_line, unknown

if TYPE_CHECKING:
    from fedax.experiments import Record


def predict(
    model: Annotated[
        pathlib.Path,
        typer.Argument(
            help="A model: *.safetensors, as in a run folder's models; with --client a folder.", show_default=False
        ),
    ],
    source: Annotated[
        pathlib.Path, typer.Argument(help=f"New rows: {TABLE_ENDINGS}; arrays: .npy.", show_default=False)
    ],
    out: Annotated[
        pathlib.Path, typer.Option(help="The .csv or .parquet file to write; has to be new.", show_default=False)
    ],
    decimal: Decimal = None,
    encoding: Encoding = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse rows with cells unlike those of training.")] = False,
    client: Annotated[
        str | None, typer.Option(help="Predict with this client's own model.", metavar="NAME", show_default=False)
    ] = None,
) -> None:
    """Predict for new rows with a model that was trained.

    Writes a row for each row, in their order: all columns but features and label, such as
    an id; the prediction; the probability of each class; and doubts: cells unlike anything
    in training, because they cannot be read, lie far outside, are unknown categories, or
    are missing where none was. They are counted on the screen, too. Of the rows with a
    label the loss and the metrics are printed.

    With --client, MODEL is the folder of a run with personal models; or at a site that of its
    node, state in node.toml, for the models of real clients do not leave their sites.

    \b
    Examples:
      fedax predict runs/hospitals-1/models/fednova-seed0.safetensors new.csv --out predicted.csv
      fedax predict runs/hospitals-1 new.csv --client north --out predicted.csv

    Exit code 2: an error, such as a column that is missing, or doubts with --strict. Exit code 70: a defect of
    fedax; the last line says where its traceback is.
    """
    from fedax import load_model
    from fedax.columns import describe, show
    from fedax.experiments.predictions import model_of_client, predict_file

    loaded = load_model(model if client is None else model_of_client(model, client))
    rows, measured, doubts, written, labelled, unmeasured = predict_file(loaded, source, out, decimal, encoding, strict)
    if written:
        echo(f"note: {source} is read as {written}")
    echo(f"{rows} predictions: {out}")
    if doubts:
        echo(f"{doubts.doubtful} of {rows} rows have cells unlike anything in training (column doubts):")
        for line in doubts.lines():
            echo(f"  {line}")
    if doubts is not None and doubts.unknown:
        echo(f"This model does not know the training ranges of: {', '.join(doubts.unknown)}. A new one will.")
    if measured:
        figures = {f"test_{name}": value for name, value in measured.items()}
        texts = [f"{describe(name).label.removeprefix('Test ')} {show(name, value)}" for name, value in figures.items()]
        label = None if loaded.transform is None else loaded.transform.label
        scale = " (of its logarithm)" if label is not None and label.target == "log" else ""
        which = "The rows have labels" if labelled == rows else f"Of the {labelled} rows with labels"
        echo(f"{which}{scale}: {', '.join(texts)}")
    if unmeasured:
        echo(f"no figures: {unmeasured}")


class Form(enum.StrEnum):
    """The forms of ``fedax export``."""

    numpy = "numpy"
    sklearn = "sklearn"
    onnx = "onnx"


def export(
    model: Annotated[
        pathlib.Path, typer.Argument(help="A model: *.safetensors, as in a run folder's models.", show_default=False)
    ],
    to: Annotated[Form, typer.Option(help="What predicts there.", show_default=False)],
    out: Annotated[
        pathlib.Path | None, typer.Option(help="The folder to make; has to be new.", show_default="MODEL-FORM")
    ] = None,
) -> None:
    """Export a model to where it is used: a folder that predicts without fedax and JAX.

    \b
    The folder has
      model.py        python model.py new.csv prints predictions and probabilities;
                      in Python: from model import predict, predict_proba. It needs NumPy.
      cells.py        how cells of tables are read: the same as in training
      MODEL_CARD.md   data, method, privacy, figures with intervals, and limits
      and the model   weights.npz; an estimator of scikit-learn, model.joblib; or
                      model.onnx, which needs pip install 'fedax[onnx]' to be made

    Linear, logistic and softmax regression and multilayer perceptrons are exported.

    \b
    Examples:
      fedax export runs/hospitals-1/models/fednova-seed0.safetensors --to numpy
      fedax export runs/hospitals-1/models/fednova-seed0.safetensors --to onnx --out shipped

    Exit code 2: an error, such as a model that cannot be exported. Exit code 70: a defect of
    fedax; the last line says where its traceback is.
    """
    from fedax.experiments.exported import export

    echo(f"{export(model, to.value, out)}: model.py predicts, MODEL_CARD.md says what the model is")


def diagnose(
    source: Annotated[
        str, typer.Argument(help="Run folder; or a configuration: a TOML file, or a recipe.", show_default=False)
    ],
    rounds: Annotated[
        int | None, typer.Option(help="Rounds that a configuration is run for.", show_default="10")
    ] = None,
    out: Out = None,
    settings: Set = None,
    allow_code: AllowCode = False,
) -> None:
    """Say which method to take for a problem, what it gains and costs, and why.

    Measures at the initial and at the final models what keeps each method from the
    optimum: another objective, drift of the local steps, the noise of minibatches
    and of sampled cohorts, each in units of the loss. The verdict comes first, here and
    in the report, to which all is added. Of seeds with data of their own, the one
    that ended worst is looked at. A configuration is run first, for few rounds and
    with its first seed.

    \b
    Examples:
      fedax diagnose experiment.toml
      fedax diagnose experiment.toml --rounds 30 --set work.kind=steps --set work.steps=10
      fedax diagnose runs/digits-1

    Exit code 1: a method diverged, or ended worse than it began (the others are
    finished, all is written).
    Exit code 2: an error, such as bad input, or a folder that cannot be written.
    Exit code 70: a defect of fedax; the last line says where its traceback is.
    Exit code 129, 130 or 143: ended by SIGHUP, Ctrl-C or SIGTERM, as fedax run.
    """
    from fedax.experiments import build, read, write_report
    from fedax.experiments.diagnosis import diagnose_run
    from fedax.experiments.own import configured

    if pathlib.Path(source).is_dir():
        for name, value in (("rounds", rounds), ("out", out), ("set", settings)):
            if value is not None and value != []:
                raise ConfigError(name, value, "a run folder is diagnosed as it is; leave this out")
        record = read(source)
        if "sweep" in record.config:
            hint = "it has many points a method; run its best.toml, and diagnose that run"
            raise ConfigError("source", source, f"this is a sweep: {hint}")
        experiment = build(record.config, allow_code=configured(allow_code, source))
    else:
        shorthand = [f"run.rounds={10 if rounds is None else rounds}", *(settings or [])]
        tables, code = read_config(source, shorthand, allow_code)
        seeds = tables["run"].get("seeds")
        tables["run"]["seeds"] = seeds[:1] if isinstance(seeds, list) else 1
        experiment = build(tables, allow_code=code)
        record = carry_out(experiment, out)
    console = open_console()
    with console.status("diagnosing") as status:
        diagnose_run(experiment, record, lambda label: status.update(f"diagnosing {label}"))
    record = read(record.folder)
    try:
        write_report([record], record.folder / "report.html")
    except OSError as error:
        raise ConfigError("source", source, f"its report cannot be written ({error.strerror})") from error
    show_diagnosis(console, record)
    show_report(console, record)


def fine_tune(
    run: Annotated[pathlib.Path, typer.Argument(help="A run folder of a simulation.", show_default=False)],
    method: Annotated[
        str | None, typer.Option(help="Which method's model.", show_default="the one that the verdict takes")
    ] = None,
    lr: Annotated[
        str | None,
        typer.Option(
            metavar="RATES", help="Learning rates to try: 0.01,0.1.", show_default="the method's × 0.1, 1, 10"
        ),
    ] = None,
    allow_code: AllowCode = False,
) -> None:
    """Fine-tune a run's shared model at each client, and say whom the run helps and whom it hurts.

    Nothing of the run is trained again. Each client goes on from the shared model
    by gradient descent on its own training rows; and beside it trains alone, from
    the initial model. Rates and numbers of passes are chosen on validation rows, one
    choice for all clients, with at most the run's gradients. Then the method's own
    models, where it has such, or its shared model, are compared with both at each
    client: a client is worse off only where the 95 % interval of its own test rows
    says so; how many would be by chance stands beside.

    \b
    It writes RUN/fine-tuned/METHOD.csv, a row for each client, RUN/fine-tuned.json,
    and the report.

    \b
    Examples:
      fedax fine-tune runs/hospitals-1
      fedax fine-tune runs/hospitals-1 --method ditto --lr 0.01,0.1
    """
    from rich.markup import escape

    from fedax.experiments import build, helped, read, summary, write_report
    from fedax.experiments.own import configured
    from fedax.numbers import check_number

    record = read(run)
    if "sweep" in record.config:
        raise ConfigError("run", str(run), "it is a sweep, of many points a method; run its best.toml, and take that")
    (problem,) = summary.problems([record])
    label = (problem.chosen or problem.best or problem.methods[0]).label if method is None else method
    if label not in record.labels:
        raise unknown("method", label, record.labels)
    rates = None
    if lr is not None:
        try:
            rates = [check_number("lr", float(each), 0, open_low=True, fixed=True) for each in lr.split(",")]
        except ValueError:
            raise ConfigError("lr", lr, "give numbers, such as 0.01,0.1") from None
    experiment = build(record.config, allow_code=configured(allow_code, run))
    console = open_console()
    with console.status(f"fine-tuning {label}"):
        found = helped.fine_tune(experiment, record, label, rates)
    heads, rows = found.summary()
    table = table_of(heads, wraps=True)
    for row in rows:
        table.add_row(*map(escape, row))
    print_table(console, table)
    for sentence in found.sentences():
        console.print(escape(sentence), highlight=False)
    write_report([record], record.folder / "report.html")
    echo(f"A row for each client: {helped.table_path(record.folder, label)}")
    show_report(console, record)


_ENDINGS = {"html": (".html", ".htm"), "csv": (".csv",), "latex": (".tex",), "markdown": (".md",), "json": (".json",)}


class ReportFormat(enum.StrEnum):
    """The formats of ``fedax report``."""

    html = "html"
    csv = "csv"
    latex = "latex"
    markdown = "markdown"
    json = "json"


def report(
    runs: Annotated[list[pathlib.Path], typer.Argument(help="One or several run folders.", show_default=False)],
    form: Annotated[
        ReportFormat,
        typer.Option("--format", help="A page; tables for a paper or a program; json: the verdict."),
    ] = ReportFormat.html,
    target: Annotated[
        str | None,
        typer.Option(metavar="[COLUMN=]VALUE", help="Show what it cost to reach it.", show_default=False),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column that decides.", show_default="as it was run"),
    ] = None,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="File to write.", show_default="RUN/report.html, or comparison.html; tables are printed"),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Only what may be published of a private run, to RUN/public.html.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Show what was edited or moved all the same, with a note.")
    ] = False,
) -> None:
    """Draw the report of one run, or of several together; or print tables of them.

    A run that was stopped, or still goes on, has a report too. Methods are
    compared within a problem: runs with other data, tasks, work, participation,
    rounds or batch stand apart.

    Tables have means and standard deviations over the seeds, confidence
    intervals, paired differences to the best method, and costs; with a target
    also the rounds, local steps, gradients, bytes and seconds until it is
    reached. The LaTeX needs the package booktabs. Figures for a paper are in the
    run folder's plots, as PDF and SVG.

    With --judge another column decides, with tests of its own. Without --out
    its figures against traffic and time are drawn, too.

    A report shows figures that no noise hides. With --public it is a page, or a
    table, of what may be published of a private run: settings of the methods,
    what is measured on public examples, and the privacy that is spent.

    \b
    Examples:
      fedax report runs/digits-1
      fedax report runs/digits-1 runs/digits-2 --out both.html
      fedax report runs/digits-1 --format latex --target test_accuracy=0.9
      fedax report runs/digits-1 --format csv --out digits.csv
      fedax report runs/digits-1 --judge test_accuracy --out by-accuracy.html
      fedax report runs/digits-1 --format json
      fedax report runs/private-1 --public
    """
    from fedax.columns import describe
    from fedax.experiments import clients, read, summary, tables, write_report
    from fedax.experiments.runs import lost
    from fedax.files import check_ending, write_atomic

    if out is not None:
        check_ending(out, *_ENDINGS[form])
    aim = None if target is None else _target(target)
    records = [read(folder, trust) for folder in runs]
    for record in records:
        for sentence in (*lost(record), *clients.damaged(record)):
            echo(f"warning: {one_line(f'{record.folder}: {sentence}', 1000)}", err=True)
    opening = []
    if judge is not None:
        if public:
            raise ConfigError("judge", judge, "the verdict is not public; leave it out with --public")
        opening = [f"Judged by {describe(judge).label}, as this report was asked for."]
        records = summary.judged_by(records, judge)
    page = records[0].folder / ("public.html" if public else "report.html")
    path = out or (page if len(records) == 1 else pathlib.Path("comparison.html"))
    text = ""
    if public:
        text = _public(records, form, target)
    elif form is not ReportFormat.html:
        made: dict[ReportFormat, Callable[..., str]] = {
            ReportFormat.csv: tables.to_csv,
            ReportFormat.latex: tables.to_latex,
            ReportFormat.markdown: tables.to_markdown,
            ReportFormat.json: _conclusions,
        }
        text = made[form](records, target=aim)
    try:
        if form is ReportFormat.html and not public:
            write_report(records, path, target=aim, opening=opening)
            if judge is not None and path == page:
                from fedax.experiments.plots import write_plots  # slow

                write_plots(records[0], judge)
        elif form is ReportFormat.html or out is not None:
            write_atomic(path, text)
    except OSError as error:
        raise ConfigError("out", str(path), f"cannot be written ({error.strerror}); name another with --out") from error
    echo(path if form is ReportFormat.html or out is not None else text.rstrip("\n"))
    if (number := len(summary.problems(records))) > 1:
        echo(f"these runs are of {number} different problems, which the report keeps apart", err=True)


def _conclusions(records: "list[Record]", target: object) -> str:
    """The verdict on each problem, as strict JSON."""
    import json

    from fedax.experiments import summary
    from fedax.experiments.runs import finite

    if target is not None:
        raise ConfigError("target", target, "the verdict does not have it; take another --format")
    content = {"problems": [summary.conclusion(problem) for problem in summary.problems(records)]}
    return json.dumps(finite(content), indent=1, ensure_ascii=False, allow_nan=False)


def _public(records: "list[Record]", form: ReportFormat, target: str | None) -> str:
    """The publishable part of a run folder, as text."""
    from fedax.experiments.report.public import FORMS, public

    if target is not None:
        raise ConfigError("target", target, "what it cost to reach it is not public; leave it out with --public")
    if len(records) > 1:
        hint = "with --public give one folder: its page says what all of its runs have spent together"
        raise ConfigError("runs", [str(record.folder) for record in records], hint)
    if form not in FORMS:
        raise ConfigError("format", form.value, f"the verdict is not public; take one of {', '.join(FORMS)}")
    return FORMS[form](public(records[0]))


def _target(text: str) -> float | dict[str, float]:
    """Parse a target: a value of the deciding column, or ``COLUMN=VALUE``."""
    column, _, value = text.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        raise ConfigError("target", text, "give a number, or COLUMN=NUMBER, such as test_accuracy=0.9") from None
    return {column.strip(): number} if column else number
