"""The commands that need no run: ``list``, ``check``, ``cite``, ``privacy``."""

import enum
import os
from typing import Annotated, Any

import typer

from fedax.cli.console import echo, open_console, two_columns
from fedax.errors import ConfigError


class Kind(enum.StrEnum):
    """The argument of ``fedax list``."""

    methods = "methods"
    data = "data"
    tasks = "tasks"
    partitions = "partitions"
    work = "work"
    participation = "participation"
    aggregates = "aggregates"
    compressors = "compressors"
    regularizers = "regularizers"
    trackers = "trackers"
    recipes = "recipes"
    studies = "studies"


def list_(kind: Annotated[Kind | None, typer.Argument(help="What to list; everything if left out.")] = None) -> None:
    """List what a configuration can name: methods, data sets, tasks, partitions,
    work, participation, robust averages, compressors, regularizers; recipes
    (experiments of papers) and studies (many of them, tuned).

    \b
    Examples:
      fedax list
      fedax list methods
    """
    from fedax.algorithms import METHODS
    from fedax.contract.compressors import COMPRESSORS
    from fedax.contract.regularizers import REGULARIZERS
    from fedax.data import PARTITIONS
    from fedax.experiments import datasets, recipes
    from fedax.experiments.study import studies
    from fedax.federation import PARTICIPATION, WORK
    from fedax.tasks import TASKS
    from fedax.tracking import TRACKERS
    from fedax.wire import AVERAGES

    lines = {
        Kind.methods: METHODS.available,
        Kind.data: datasets,
        Kind.tasks: TASKS.available,
        Kind.partitions: PARTITIONS.available,
        Kind.work: WORK.available,
        Kind.participation: PARTICIPATION.available,
        Kind.aggregates: AVERAGES.available,
        Kind.compressors: COMPRESSORS.available,
        Kind.regularizers: REGULARIZERS.available,
        Kind.trackers: TRACKERS.available,
        Kind.recipes: recipes,
        Kind.studies: studies,
    }
    console = open_console()
    for listed in Kind if kind is None else [kind]:
        if kind is None:
            console.print(f"[bold]{listed}[/]")
        console.print(two_columns(lines[listed]()))
        if kind is None and listed is not Kind.studies:
            console.print()


def check(
    method: Annotated[str, typer.Argument(help="Your own, as mine.py:Class, or one of: fedax list methods.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A hyper-parameter; may be repeated."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="The paper's round in NumPy, as mine.py:function: rounds have to equal it."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="In place of least squares, for other outputs: of fedax list tasks, or mine.py:function."),
    ] = None,
) -> None:
    """Check that a method holds what fedax's own methods hold.

    The order of clients, their number, chunks, places and a stop in between do not
    change what it computes, it keeps no hidden state, its costs are counted, and more.

    \b
    Examples:
      fedax check mine.py:FedAvgEMA
      fedax check mine.py:FedAvgEMA --set lr=0.1 --set server=0.9
      fedax check mine.py:FedSAM --reference mine.py:paper
      fedax check mine.py:FedNTD --task softmax_regression

    Exit code 1: something does not hold. Exit code 2: an error, such as bad input.
    Exit code 70: a defect of fedax; the last line says where its traceback is.
    """
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
    from fedax.conformance import check as conforms
    from fedax.conformance.problem import SHAPE
    from fedax.experiments.config.codec import made_method
    from fedax.experiments.config.edit import value_of
    from fedax.experiments.config.sections import MethodSection
    from fedax.experiments.own import configured

    hyper: dict[str, Any] = {}
    for setting in settings or []:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError("set", setting, "give KEY=VALUE, such as lr=0.1")
        hyper[key.strip()] = value_of(text)
    code = configured(False, typed=[method, reference or "", task or ""])
    made = made_method(MethodSection(name=method, **hyper), code)
    paper = None if reference is None else code.function(reference, "reference")
    trained = None
    if task is not None:
        factory = code.task(task, "task")
        trained, _ = factory.bind({key: SHAPE[key] for key in factory.arguments if key in SHAPE}, section="task")
    console = open_console()
    with console.status("checking") as status:
        watch = lambda name: status.update(f"checking: {name}")  # noqa: E731
        result = conforms(made, watch=watch, task=trained, reference=paper)
    console.print(str(result), markup=False, highlight=False, soft_wrap=True)
    if not result.passed:
        raise typer.Exit(1)


def cite(
    methods: Annotated[
        list[str] | None, typer.Argument(help="Of: fedax list methods; fedax itself if left out.", show_default="fedax")
    ] = None,
) -> None:
    """Print the BibTeX of methods' papers, and of fedax.

    \b
    Examples:
      fedax cite
      fedax cite fednova scaffold > references.bib
    """
    from fedax.citations import cite as bibtex

    echo(bibtex(*(methods or [])), nl=False)


def privacy(
    delta: Annotated[float, typer.Option(help="The δ of (ε, δ); less than 1/clients.", show_default=False)],
    rounds: Annotated[int, typer.Option(help="Rounds of the run.", show_default=False)],
    clients: Annotated[int, typer.Option(help="Number of clients.", show_default=False)],
    epsilon: Annotated[
        float | None, typer.Option(help="The budget ε: find the least noise for it.", show_default=False)
    ] = None,
    noise: Annotated[
        float | None, typer.Option(help="Or the noise, in units of the clip: find its ε.", show_default=False)
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Each client takes part with this probability (Poisson).", show_default=False)
    ] = None,
    cohort: Annotated[
        int | None, typer.Option(help="Or: so many clients a round, without replacement.", show_default=False)
    ] = None,
    apart: Annotated[
        int | None,
        typer.Option(help="Or: no sampling; a client takes part once in so many rounds.", show_default=False),
    ] = None,
    exchanges: Annotated[int, typer.Option(help="Noisy sums in a round; see the method's page.")] = 1,
    warmup: Annotated[int, typer.Option(help="Noisy sums over all clients before the first round.")] = 0,
    numbers: Annotated[
        int, typer.Option(help="Numbers in a sum, most often the model's: noise of floating point ends somewhere.")
    ] = 0,
    clip: Annotated[
        float | None, typer.Option(help="Also say how large the noise of the mean is.", show_default=False)
    ] = None,
) -> None:
    """Find the least noise for a privacy budget, or what a noise spends, before anything runs.

    The noise is the standard deviation of what is added to a sum of clipped
    uploads, in units of the clip. It is rounded up; the table is for the number shown.

    \b
    Examples:
      fedax privacy --epsilon 3 --delta 1e-6 --rounds 1000 --clients 10000 --rate 0.01
      fedax privacy --noise 1.1 --delta 1e-6 --rounds 1000 --clients 10000 --cohort 100
      fedax privacy --epsilon 8 --delta 1e-6 --rounds 1000 --clients 10000 --apart 8 --clip 0.5

    Exit code 2: an error, such as bad input. Exit code 70: a defect of fedax; the last
    line says where its traceback is.
    """
    from fedax.numbers import check_number
    from fedax.privacy import Ledger, noise_for
    from fedax.privacy.accounting import weakness

    if (epsilon is None) == (noise is None):
        raise ConfigError("epsilon", epsilon, "give either --epsilon, a budget, or --noise")
    given = {"rate": rate, "cohort": cohort, "apart": apart}
    sampling = {name: value for name, value in given.items() if value is not None}
    if len(sampling) != 1:
        given_options = ", ".join(f"--{name} {value:g}" for name, value in sampling.items()) or "none of them"
        raise ConfigError(
            "rate", rate, f"say who takes part by one of --rate, --cohort and --apart, not by {given_options}"
        )
    if clip is not None:
        check_number("clip", clip, 0, open_low=True)
    sampling_options: dict[str, Any] = {**sampling, "exchanges": exchanges, "warmup": warmup, "numbers": numbers}
    if noise is None:
        assert epsilon is not None
        noise = _rounded_up(noise_for(epsilon, delta, rounds, clients, **sampling_options))
    ledger = Ledger(noise, clients, **sampling_options)
    spent = {count: ledger.epsilon(count, delta) for count in sorted({-(-rounds // 4), -(-rounds // 2), rounds})}
    lines = {
        "Noise": f"{noise:.5g} times the clip, on each sum",
        "Epsilon": f"{spent[rounds]:.4g} at delta {delta:g}, after {rounds} round{'s'[: rounds - 1]}",
        "Neighbours": ledger.relation,
        "Accountant": {"PLD": "privacy loss distributions (PLD)", "RDP": "Rényi (RDP)"}[ledger.accountant],
    }
    if clip is not None:
        size = clients * rate if rate else cohort or clients / (apart or 1)
        among = f"in a mean over {size:g} clients" + " (all of them in turn)" * bool(apart)
        lines["On the mean"] = f"{noise * clip / size:.4g} in each number, {among}, clip {clip:g}"
    console = open_console()
    console.print(two_columns(lines))
    table = {f"{count:6}": f"{value:#.4g}".rstrip(".") for count, value in spent.items()}
    console.print(two_columns({"\nRounds": "\nEpsilon"} | table))
    if weak := weakness(delta, clients):
        echo(weak)


def _rounded_up(noise: float) -> float:
    """Round up to five digits."""
    import decimal

    return float(decimal.Context(prec=5, rounding=decimal.ROUND_UP).create_decimal(noise))
