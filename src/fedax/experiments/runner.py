"""Runs an experiment: every method with every seed, written to its folder as it goes."""

import datetime
import functools
import math
import platform
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedax
from fedax.engine.job import make_job
from fedax.errors import BadClientWarning, ConfigError, DivergedWarning
from fedax.experiments import summary, toml
from fedax.experiments.config import Experiment, within
from fedax.experiments.plots import write_plots
from fedax.experiments.report import write_report
from fedax.experiments.runs import (
    Path,
    Record,
    append_metrics,
    keep_rows,
    read,
    slug,
    write_atomic,
    write_json,
    write_model,
)

Watch = Callable[[str, int, Mapping[str, Any] | None], None]

_DRAWS = 50  # rounds for which local work is drawn, to show how it is spread


def execute(
    experiment: Experiment,
    folder: Path,
    watch: Watch | None = None,
    **kept: Any,
) -> Record | None:
    """Run an experiment and fill its folder; or go on with it, where it was stopped.

    What is over stays as it is, and what was under way goes on from its last checkpoint.

    Args:
        experiment: from :func:`fedax.experiments.build`.
        folder: from :func:`fedax.experiments.new_folder`, or that of the same configuration. Of several processes that
            run it together, all give the same; the first writes there, and all their checkpoints.
        watch: called as ``watch(label, seed, row)``; the row is ``None`` when a run begins, then each of its history.
        kept: settings of the :class:`fedax.Checkpoints`, but their folder. Where they ask for the best model, that is
            ``models/<label>-seed<k>-best.safetensors``.

    Returns:
        The run folder, read again by the process that writes it. A method that diverges does not stop the others.
    """
    config, writes = experiment.config, jax.process_index() == 0
    _check_methods(experiment)
    runs = [(label, seed) for label in experiment.methods for seed in config["run"]["seeds"]]
    if config["run"]["split_seeds"]:
        runs.sort(key=lambda each: config["run"]["seeds"].index(each[1]))  # one split after the other in memory
    data: dict[int, Any] = {}  # of the seed under way
    models = {each: folder / "models" / f"{slug(each[0])}-seed{each[1]}.safetensors" for each in runs}
    over = {each for each in runs if models[each].exists()}
    if writes:
        if all((folder / file).exists() for file in ("config.toml", "about.json", "metrics.jsonl")):
            keep_rows(folder, over)
        else:
            begin(folder, config, [experiment])
    names = {method["label"]: method["name"] for method in config["methods"]}
    compiled: dict[str, float] = dict.fromkeys(names, 0.0)
    for label, seed in runs:

        def on_row(row: dict[str, Any], label: str = label, seed: int = seed) -> None:
            if writes:
                append_metrics(folder, label, names[label], seed, row)
            if watch is not None:
                watch(label, seed, row)

        if watch is not None:
            watch(label, seed, None)
        if (label, seed) in over:
            continue
        if seed not in data:
            data = {seed: experiment.split(seed)}
        place = folder / "checkpoints" / f"{slug(label)}-seed{seed}"
        with warnings.catch_warnings():
            for said in (DivergedWarning, BadClientWarning):  # by the report
                warnings.simplefilter("ignore", said)
            run = fedax.simulate(
                experiment.methods[label],
                experiment.task,
                data[seed][0],
                work=experiment.work,
                participation=experiment.participation,
                test=data[seed][1],
                seed=seed,
                callback=on_row,
                checkpoint=fedax.Checkpoints(place, **kept),
                **experiment.options,
            )
        compiled[label] += run.compile_seconds
        if writes:
            if run.best is not None:
                write_model(models[label, seed].with_stem(f"{models[label, seed].stem}-best"), run.best.params)
            write_model(models[label, seed], run.params)
            shutil.rmtree(place, ignore_errors=True)
    return finish(folder, compiled) if writes else None


def _check_methods(experiment: Experiment) -> None:
    """That each method can be run as is asked, before the first one is."""
    parts = {"work": experiment.work, "participation": experiment.participation, "test": experiment.test}
    given: dict[str, Any] = (
        {"task": experiment.task, "data": experiment.data, "shared": {}} | parts | experiment.options
    )
    for label, algorithm in experiment.methods.items() if len(experiment.methods) > 1 else ():
        within(f"methods.{label}", functools.partial(make_job, algorithm, **given))


def begin(folder: Path, config: Mapping[str, Any], experiments: Sequence[Experiment]) -> None:
    """Write what is known before the first run; ``experiments``: one, or of a sweep those of all points."""
    text = toml.dumps(config)
    try:
        toml.loads(text.encode())  # or the report could not be drawn in the end
    except ValueError as error:
        raise ConfigError("config", config["name"], f"cannot be kept in a run folder: {error}") from error
    write_atomic(folder / "config.toml", text)
    write_json(folder / "about.json", _about(experiments))
    (folder / "metrics.jsonl").touch()


def finish(folder: Path, compiled: Mapping[str, float]) -> Record:
    """Write summary, plots and report; ``compiled``: label -> seconds of compilation."""
    record = read(folder)
    write_json(folder / "summary.json", _summary(record, compiled))
    write_plots(record)
    write_report([record], folder / "report.html")
    return record


def count_parameters(task: fedax.Task) -> int:
    """How many numbers the model has."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(task.form()))


def _about(experiments: Sequence[Experiment]) -> dict[str, Any]:
    devices = jax.devices()
    return {
        "started": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %z"),
        "device": f"{len(devices)} × {devices[0].device_kind}",
        "versions": {
            "fedax": fedax.__version__,
            "jax": jax.__version__,
            "numpy": np.__version__,
            "Python": platform.python_version(),
        },
        "parameters": count_parameters(experiments[0].task),
        "clients": _clients(experiments),
    }


def _clients(experiments: Sequence[Experiment]) -> dict[str, Any]:
    data, classes = experiments[0].data, experiments[0].classes
    counts = None
    if classes is not None:
        _, codes = np.unique(data.examples["y"], return_inverse=True)
        client = np.repeat(np.arange(data.num_clients), data.sizes)
        counts = np.zeros((data.num_clients, len(classes)), int)
        np.add.at(counts, (client, codes), 1)
    # Of a sweep, all the kinds of work that are tried.
    works = {(str(each.config["work"]), each.config["run"].get("batch_size")): each for each in experiments}
    steps = np.concatenate([_steps(each) for each in works.values()])
    return {
        "sizes": data.sizes,
        "uniform": experiments[0].config["data"]["weights"] == "uniform",
        "classes": classes,
        "counts": counts,
        "steps": {"draws": len(steps), "low": steps.min(0), "mean": steps.mean(0), "high": steps.max(0)},
    }


def _steps(experiment: Experiment) -> np.ndarray:
    """[draws, N] local steps, as the work draws them."""
    ids, sizes = jnp.arange(experiment.data.num_clients), jnp.asarray(experiment.data.sizes, jnp.int32)
    batch_size = experiment.config["run"].get("batch_size")
    draw = jax.jit(lambda key: experiment.work.draw(key, ids, sizes, batch_size))
    return np.stack([draw(jax.random.key(k)) for k in range(_DRAWS)])


def _summary(record: Record, compiled: Mapping[str, float]) -> dict[str, Any]:
    """Status and final figures of every method, for programs."""
    (problem,) = summary.problems([record])
    found = [_method_summary(m, problem, compiled[m.label]) for m in summary.methods([record])]
    return {"name": record.name, "judged": summary.judged(problem), "methods": found}


def _method_summary(m: summary.Method, problem: summary.Problem, compiled: float) -> dict[str, Any]:
    final = {}
    for column in summary.metrics([m]):
        values = m.final(column)
        final[column] = summary.described(values)
    tail = m.tail(problem.judge, problem.tail) if problem.judge and problem.tail else np.zeros(0)
    return {
        "label": m.label,
        "status": m.status,
        "status_text": m.status_text,
        "seeds": {str(run.seed): {"status": run.status, "round": run.history["round"][-1]} for run in m.runs},
        "final": final,
        "tail": summary.described(tail),
        "cost": {column: m.cost(column) for column in summary.COSTS},
        "compile_seconds": compiled,
    }
