"""The commands that train: ``run``, ``compare``, ``sweep``, ``study``."""

import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedax._start import share_gpu
from fedax.cli.console import open_console
from fedax.cli.data import Columns, Drop, kinds
from fedax.cli.exits import run_with_others
from fedax.cli.running import (
    AllowCode,
    Best,
    Methods,
    On,
    Out,
    Resume,
    Set,
    engine_of,
    open_folder,
    read_config,
    run_experiment,
    writing,
)
from fedax.cli.show import show_plan, show_report, show_sweep
from fedax.errors import ConfigError

if TYPE_CHECKING:
    from fedax.experiments import Experiment

Rounds = Annotated[
    int | None, typer.Option(min=1, help="Make a checkpoint after every so many rounds.", show_default=False)
]
Minutes = Annotated[float, typer.Option(help="Make one as soon as so long has passed.")]


def run(
    config: Annotated[str, typer.Argument(help="Configuration: a TOML file, or a recipe.", show_default=False)],
    methods: Methods = None,
    out: Out = None,
    settings: Set = None,
    resume: Resume = False,
    allow_code: AllowCode = False,
    on: On = None,
    checkpoint_rounds: Rounds = None,
    checkpoint_minutes: Minutes = 10.0,
    checkpoint_best: Best = None,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Run with the other processes of SLURM, MPI or Kubernetes.")
    ] = False,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Elsewhere: where process 0 is.", show_default=False)
    ] = None,
    num_processes: Annotated[int | None, typer.Option(help="How many there are.", show_default=False)] = None,
    process_id: Annotated[int | None, typer.Option(help="Which this is, from 0.", show_default=False)] = None,
) -> None:
    """Run the experiment of a configuration file, or a paper's.

    \b
    A small configuration:
      data = {name = "digits", clients = 10, partition = "dirichlet", alpha = 0.1}
      run = {rounds = 50, batch_size = 32, seeds = 3}
      methods = [{name = "fedavg", lr = 0.1}, {name = "fednova", lr = 0.1}]

    \b
    Examples:
      fedax run experiment.toml
      fedax run experiment.toml --set run.rounds=200 --set "methods.*.lr=0.05"
      fedax run experiment.toml --methods fedavg,fednova
      fedax run experiment.toml --on processes:4
      fedax run fednova-figure-2-equal
      fedax run runs/digits-1/config.toml --out runs/again
      fedax run experiment.toml --resume
      srun --ntasks=4 fedax run experiment.toml --distributed
      fedax run experiment.toml --coordinator node1:7000 --num-processes 4 --process-id 0

    Exit code 1: a method diverged, ended worse than it began, or was stopped by its
    guard (the others are finished, all is written).
    Exit code 2: an error, such as bad input, or a folder that cannot be written.
    Exit code 3, or 134 where JAX sees it first: another process was lost.
    Exit code 70: a defect of fedax; the last line says where its traceback is.
    Exit code 129, 130 or 143: ended by SIGHUP, Ctrl-C or SIGTERM, after the round under
    way, with a checkpoint and a report; --resume goes on. A second one ends it at once.
    """
    from fedax import Checkpoints

    given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    missing = [name for name, value in given.items() if value is None]
    if 0 < len(missing) < 3:
        raise ConfigError(missing[0], None, "give --coordinator, --num-processes and --process-id together")

    kept: dict[str, Any] = {"rounds": checkpoint_rounds, "minutes": checkpoint_minutes, "best": checkpoint_best}
    Checkpoints("", **kept)  # refuses bad values before anything begins

    together_by = "--distributed" if distributed else None if missing else "--coordinator"
    if on is not None and together_by is not None:
        raise ConfigError("on", on, f"{together_by} runs one run in many processes, --on each run in one; give one")

    def configured() -> None:
        engine = engine_of(on)
        tables, code = read_config(config, settings, allow_code, methods)
        with engine() as executor:
            run_experiment(tables, code, out, resume, executor=executor, **kept)

    if together_by is None:
        return configured()

    def together() -> None:
        from fedax.engine.processes import connect

        connect(coordinator, num_processes, process_id)
        configured()

    run_with_others(together)


def compare(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tables: files, or a folder. Or a data set: fedax list data. Or a configuration: a TOML file.",
            show_default="digits",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Separated by commas; see: fedax list methods. Of a configuration: these of its own.",
            show_default="fedavg,fedprox,fednova",
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Of tables: the column to predict.", show_default=False)
    ] = None,
    drop: Drop = None,
    client: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column that says whose a row is.", show_default="a file is a client"),
    ] = None,
    positive: Annotated[
        str | None, typer.Option(metavar="CLASS", help="Of two classes the one to find.", show_default="the rarer")
    ] = None,
    column: Columns = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of communication.", show_default="by data set")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.", show_default="by data set")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="How alike the clients are (Dirichlet); small: unlike.", show_default="0.1")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="Natural clients: a column of the data set, such as writer.", show_default=False)
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs a method, each with another seed.", show_default="by data set")
    ] = None,
    tune: Annotated[
        bool | None,
        typer.Option(
            "--tune/--no-tune",
            help="Choose the lr of each method, and of the baselines, from three by validation.",
            show_default="for small tables of your own, where no lr is set",
        ),
    ] = None,
    settings: Set = None,
    out: Out = None,
    allow_code: AllowCode = False,
    on: On = None,
) -> None:
    """Compare methods on your tables or on a data set, with settings that suit it.

    Tables are .csv (also .tsv, .txt, and these packed by gzip), .xlsx, .parquet or .arrow; one
    that has the name of a data set needs ./ before it. Clients differ in how much they
    work, as in FedNova's experiments; those of most data sets also in their data. All
    choices are shown, can be changed, and are kept in the run folder as config.toml.

    \b
    Examples:
      fedax compare hospitals/ --label readmitted --drop patient
      fedax compare all.csv --label readmitted --client site --positive yes
      fedax compare digits
      fedax compare digits --methods fedavg,fednova-vr --alpha 0.5 --seeds 5
      fedax compare digits --set "methods.*.momentum=0.9"
      fedax compare mnist --by writer --set run.rounds=100
      fedax compare digits --methods mine.py:FedAvgEMA,fedavg
      fedax compare pictures/ --set task.name=mlp
      fedax compare digits --on dask:tcp://node1:8786 --out runs/digits
      fedax compare experiment.toml --methods fedavg,fednova --seeds 5

    Exit code 1: a method diverged, or ended worse than it began (the others are
    finished, all is written).
    Exit code 2: an error, such as bad input, or a folder that cannot be written.
    Exit code 70: a defect of fedax; the last line says where its traceback is.
    Exit code 129, 130 or 143: ended by SIGHUP, Ctrl-C or SIGTERM, after the round under
    way, with a checkpoint and a report; the last line says how to go on.
    """
    from fedax.experiments import override
    from fedax.experiments.config.data import named
    from fedax.experiments.defaults import comparison
    from fedax.experiments.own import configured
    from fedax.experiments.own import names as names_of
    from fedax.experiments.rates import quick

    engine = engine_of(on)
    given = {"data.clients": clients, "data.alpha": alpha, "run.rounds": rounds, "run.seeds": seeds}
    shorthand = [f"{key}={value}" for key, value in given.items() if value is not None]
    options = {"label": label, "drop": drop, "client": client, "positive": positive, "columns": kinds(column)}
    options = {name: value for name, value in options.items() if value}
    set_lr = any(setting.partition("=")[0].strip().endswith(".lr") for setting in settings or [])
    if data is not None and len(data) == 1 and data[0].lower().endswith(".toml"):
        for name, value in (options | ({"by": by} if by is not None else {})).items():
            raise ConfigError(name, value, f"{data[0]} says what the data are: change its section [data]")
        tables, code = read_config(data[0], [*shorthand, *(settings or [])], allow_code, methods)
        with engine() as executor:
            run_experiment(tables, code, out, tune=lambda experiment: bool(tune), executor=executor)
        return
    names = [name.strip() for name in ("fedavg,fedprox,fednova" if methods is None else methods).split(",")]
    names = [name for name in names if name]
    if not names:
        raise ConfigError("methods", methods, "give at least one method; see: fedax list methods")
    title, where = named(data or ["digits"])
    tables = comparison(where["name"], names, title)
    tables["data"] |= where | options
    usual = dict(tables["participation"])
    if by is not None and len(where) > 1:
        raise ConfigError("by", by, f"of tables say: --client {by}")
    if by is not None:
        override(tables, "data.partition=column")
        tables["data"]["column"] = by
    for setting in [*shorthand, *(settings or [])]:
        override(tables, setting)
    code = configured(False, typed=names_of(tables))
    for row in tables["methods"]:
        if "lr" in row and "lr" not in code.method(row["name"], "methods").arguments:
            del row["lr"]

    def tuned(experiment: "Experiment") -> bool:
        return quick(experiment) and on is None and not set_lr if tune is None else tune

    with engine() as executor:
        try:
            run_experiment(tables, code, out, tune=tuned, executor=executor)
        except ConfigError as error:
            if error.field == "data.label" and error.value is None:
                raise ConfigError("--label", None, error.hint) from None
            if error.field != "participation.size" or tables["participation"] != usual:
                raise
            tables["participation"] = {"kind": "full"}  # there are fewer clients than are drawn by default
            run_experiment(tables, code, out, tune=tuned, executor=executor)


def sweep(
    config: Annotated[str, typer.Argument(help="Configuration: a TOML file, or a recipe.", show_default=False)],
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="KEY=VALUES", help="One more axis, or other values of one; may be repeated."),
    ] = None,
    methods: Methods = None,
    out: Out = None,
    settings: Set = None,
    resume: Resume = False,
    allow_code: AllowCode = False,
    checkpoint_rounds: Rounds = None,
    checkpoint_minutes: Minutes = 10.0,
    on: On = None,
) -> None:
    """Try the methods of a configuration at many settings, and find the best.

    Hyper-parameters, work, participation, privacy, clock and pace, compression and
    the batch size may vary; what differs in numbers only runs side by side, with all
    seeds, in one compiled program.

    \b
    A configuration says what to try:
      [sweep]
      criterion = "test_loss"          # may be left out
      [sweep.grid]
      "methods.*.lr" = [0.01, 0.1, 1.0]
      "methods.fedprox.prox" = {low = 0.001, high = 1.0, points = 4}
      "work.steps" = [5, 10]
      "privacy.noise" = [0.5, 1.0]

    \b
    Examples:
      fedax sweep experiment.toml
      fedax sweep experiment.toml --grid "methods.*.lr=0.01,0.1,1"
      fedax sweep experiment.toml --set sweep.search=random --set sweep.points=20
      fedax sweep experiment.toml --resume
      fedax sweep experiment.toml --on slurm:short

    Exit code 1: a method diverged, or ended worse than it began, wherever it was
    tried (all is written).
    Exit code 2: an error, such as bad input, or a folder that cannot be written.
    Exit code 70: a defect of fedax; the last line says where its traceback is.
    Exit code 129, 130 or 143: ended by SIGHUP, Ctrl-C or SIGTERM, after the round under
    way, with a checkpoint and a report; --resume goes on. A second one ends it at once.
    """
    from fedax import Checkpoints
    from fedax.experiments import plan, tune
    from fedax.experiments.config.edit import value_of
    from fedax.experiments.following import Points

    kept: dict[str, Any] = {"rounds": checkpoint_rounds, "minutes": checkpoint_minutes}
    Checkpoints("", **kept)  # refuses bad values before anything begins
    engine = engine_of(on)

    tables, code = read_config(config, settings, allow_code, methods)
    axes: dict[str, Any] = {}
    for given in grid or []:
        key, equals, text = given.partition("=")
        if not equals:
            raise ConfigError("grid", given, "give KEY=VALUES, such as methods.*.lr=0.01,0.1,1")
        values = value_of(text)
        if isinstance(values, str):  # not TOML yet
            listed = value_of(f"[{text}]")
            values = listed if isinstance(listed, list) else [value_of(word) for word in text.split(",")]
        axes[key.strip()] = values if isinstance(values, list | dict) else [values]
    with engine() as executor:
        tuning = plan(tables, axes, code)
        console = open_console()
        folder = open_folder(console, out, tuning.config, f"{tuning.config['name']}-sweep", resume)
        with writing(folder, "sweep", bool(code.sources)):
            show_plan(console, tuning, folder)
            with Points(tuning, console) as watch:
                record, results = tune(tuning, folder, watch, executor=executor, **kept)
    show_sweep(console, record, results)
    show_report(console, record)


def study(
    name: Annotated[
        str, typer.Argument(help="A study: a TOML file, or one of fedax list studies.", show_default=False)
    ],
    out: Annotated[pathlib.Path | None, typer.Option(help="Folder of the study.", show_default="studies/NAME")] = None,
    part: Annotated[
        list[str] | None, typer.Option("--part", metavar="PART", help="Only this part; may be repeated.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes at a time: --on processes:N.", show_default="one a core")
    ] = None,
    on: On = None,
    hours: Annotated[
        float | None, typer.Option(min=0, help="Stop after so many; the same command goes on.", show_default=False)
    ] = None,
) -> None:
    """Do all experiments of a study: tune each method on validation data, then run it with all seeds.

    A study is cut into jobs of one core each: the tuning of one method, or one
    method with one seed. What is done stays done: the same command goes on after
    a stop, and does nothing where nothing is left.

    \b
    The folder has, when it ends and when it is stopped:
      results/      a line for each job: settings, rows, seconds of its core
      report.html   tables, curves, and what came out of each claim
      jobs/         the run folder of each job

    \b
    Examples:
      fedax study fednova
      fedax study momentum --hours 2
      fedax study momentum --part figure-1c-again
      fedax study mine.toml --jobs 1
      fedax study speedup --on dask:tcp://node1:8786

    Exit code 0: all is done. Exit code 1: something is left.
    Exit code 2: an error, such as bad input or a job that failed.
    Exit code 70: a defect of fedax; the last line says where its traceback is.
    Exit code 129, 130 or 143: ended by SIGHUP, Ctrl-C or SIGTERM, with a checkpoint of
    each job.
    """
    import math

    from fedax.experiments import study as studies
    from fedax.files import slug

    if jobs is not None and on is not None:
        raise ConfigError("jobs", jobs, f"--on {on} says where jobs run; give one of both")
    engine = engine_of(on)
    if on is not None and on.partition(":")[0] == "processes":
        jobs = int(on.partition(":")[2]) if ":" in on else None
        engine = engine_of(None)
    console = open_console()
    share_gpu()  # before a schedule makes JAX look for devices

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    with engine() as executor:
        loaded = studies.read_study(name, part or ())
        folder = out or pathlib.Path("studies") / slug(loaded.section.name)
        for each in loaded.parts.values():  # the power of the design, before anything runs
            if power := studies.design(each):
                say(f"{each.name}: {power}")
        done = False
        try:
            done = studies.carry_out(loaded, folder, jobs, math.inf if hours is None else hours, say, executor)
        except OSError as error:
            raise ConfigError("out", str(folder), f"cannot write there ({error.strerror}); name another") from error
        finally:
            page = studies.write_page(loaded, folder)
    for sentence in studies.outcome(loaded, folder):
        say(sentence)
    if page is not None:
        say(str(page))
    if not done:
        raise typer.Exit(1)
