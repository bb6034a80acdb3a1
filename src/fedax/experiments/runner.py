"""Runs an experiment: every method with every seed, written to its folder as it goes."""

import contextlib
import datetime
import functools
import platform
import secrets
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedax
from fedax.columns import COSTS
from fedax.engine import processes, secret, signals
from fedax.engine.checkpoint import discard, present
from fedax.engine.devices import device_bytes
from fedax.engine.evaluate import columns
from fedax.engine.identity import differences, same_versions
from fedax.engine.job import Job, make_job
from fedax.engine.places.nodes import Transport
from fedax.engine.places.side_by_side import side_by_side
from fedax.engine.private import outlook
from fedax.engine.saved import read_model
from fedax.engine.sweep import discard_sweep, on_one_core, was_begun, worth_lanes
from fedax.engine.train import train
from fedax.errors import BadClientWarning, ConfigError, DamagedWarning, DataError, DivergedWarning, FedaxError
from fedax.experiments import clients, examples, own, summary, toml, tracked
from fedax.experiments.config.experiment import Experiment, count_parameters, measured_by_client
from fedax.experiments.report import write_report
from fedax.experiments.runs import (
    FOLDERS,
    Path,
    Record,
    append_metrics,
    begun,
    begun_folder,
    few,
    keep_rows,
    locked,
    missing_rounds,
    model_path,
    new_folder,
    read,
    refuse_links,
    remove_unfinished,
    rows_of,
    slug,
    write_atomic,
    write_json,
)
from fedax.registry import within
from fedax.tracking import Tracker

Watch = Callable[[str, int, Mapping[str, Any] | None], None]
MadeOf = dict[str, dict[str, str]]

_LANES = 32  # runs over nodes that share messages, at most
_MESSAGE = 1 << 25  # bytes of the models of such runs together, at most: of larger ones the bytes take the time
_SHARE = 16  # the part of the memory that the splits of all seeds may take, so that they are in it side by side
_DRAWS = 50  # rounds for which local work is drawn, to show how it is spread


def execute(
    experiment: Experiment,
    folder: Path,
    watch: Watch | None = None,
    checked: "Checked | None" = None,
    track: Tracker | None = None,
    drawn: bool = True,
    **kept: Any,
) -> Record | None:
    """Run an experiment and fill its folder; or go on with it, where it was stopped.

    What is over stays as it is, and what was under way goes on from its last checkpoint. A run that is over, but whose
    model or rows are damaged or lost, is run again, with a warning. The seeds of a method run side by side where that
    is faster; their rows come in turns then.

    Args:
        experiment: from :func:`fedax.experiments.build`.
        folder: from :func:`fedax.experiments.new_folder`, or that of the same configuration. Of several processes that
            run it together, all give the same; the first writes there, and all their checkpoints.
        checked: what :func:`check_methods` gave; default: it is called first.
        watch: called as ``watch(label, seed, row)``; the row is ``None`` when a run begins, then each of its history;
            first of all once for each run that is over.
        track: called as ``track(label, seed, params)`` when a run begins or goes on; what it gives gets the run's rows
            and its end, see :mod:`fedax.tracking`. ``params`` is flat: ``label``, ``seed``, the settings of the method
            and of the sections (``method.lr``, ``data.alpha``), and ``run.id``, which stays when the run goes on.
            Of private runs it gets what is public alone. Default: what the section ``track`` of the configuration asks
            for.
        drawn: whether plots and report are drawn in the end.
        kept: settings of the :class:`fedax.Checkpoints`, but their folder. Where they ask for the best model, that is
            ``models/<label>-seed<k>-best.safetensors``.

    Returns:
        The run folder, read again by the process that writes it. A method that diverges does not stop the others.

    Raises:
        ConfigError, DataError: before anything is written: input that cannot be used; a folder with the run of another
            problem, with a link in it, or with files that no run writes.
    """
    config, writes = experiment.config, jax.process_index() == 0
    by_client = measured_by_client(experiment)
    if processes.count() > 1 and config["run"].get("baselines"):
        raise ConfigError("run.baselines", config["run"]["baselines"], "they run in one process; leave them out")
    checked = check_methods(experiment) if checked is None else checked
    runs = [(label, seed) for label in experiment.methods for seed in config["run"]["seeds"]]
    if config["run"]["split_seeds"] and not any(checked.together.values()):
        runs.sort(key=lambda each: config["run"]["seeds"].index(each[1]))  # one split after the other in memory
    over: set[tuple[str, int]] = set()
    about = None
    if writes:
        refuse_links(folder)
        remove_unfinished(folder)
        if (about := begun(folder)) is None:
            begin(folder, config, [experiment], checked.made_of, checked.private)
        else:
            own.check_same(folder, about.get("code", {}), experiment.code.values())
            check_key(folder, experiment)
            _check_same(folder, about, checked.made_of)
            over = _over(folder, experiment, runs, best=kept.get("best") is not None)
    agreed = processes.from_first(np.array([each in over for each in runs]))
    over = {each for each, done in zip(runs, agreed, strict=True) if done}
    batches = _batches(folder, runs, over, checked.together)
    over -= {each for batch in batches for each in batch}
    if about is not None:
        keep_rows(folder, over)
    names = {method["label"]: method["name"] for method in config["methods"]}
    compiled: dict[str, float] = dict.fromkeys(names, 0.0)
    data: dict[int, Any] = {}  # of the splits under way, by the seed
    logs = tracked.Logs((track or experiment.track) if writes else None, config, folder, experiment.public)
    _say_begun(watch, [each for each in runs if each in over])

    def run_batch(batch: Sequence[tuple[str, int]], there: Transport | None) -> None:
        label = batch[0][0]
        most = checked.private[label]["rounds"] if label in checked.private else None
        most = None if most == config["run"]["rounds"] else most

        def on_row(seed: int, row: dict[str, Any], label: str = label, most: int | None = most) -> None:
            if writes:
                append_metrics(folder, label, names[label], seed, row, most=most)
            logs.row(label, seed, row)
            if watch is not None:
                watch(label, seed, row)

        seeds = [seed for _, seed in batch]
        own_data = {seed: data[seed] if seed in data else experiment.split(seed) for seed in seeds}
        if there is None:
            data.clear()  # one split after the other in memory
        data.update(own_data)
        _say_begun(watch, batch)
        place = _checkpoints(folder, batch)
        if experiment.keeps_noise:
            secret.derive(folder, place, slug(label))
        with logs.of(batch) as end:
            found = _train(experiment, label, own_data, on_row, place, kept, there)
            end([run.status for run in found])
        compiled[label] += sum(run.compile_seconds for run in found)
        if writes:
            for (_, seed), run in zip(batch, found, strict=True):
                if run.best is not None:
                    run.save(model_path(folder, label, seed, best=True), best=True)
                run.save(model_path(folder, label, seed))
                if by_client and clients.finite_model(run.params):
                    clients.add_table(experiment, folder, label, seed, run.params, data[seed][2])
                examples.add(experiment, folder, label, seed, run.params)
            discard_sweep(place) if len(batch) > 1 else discard(place)

    if experiment.fleet is None:
        for batch in batches:
            run_batch(batch, None)
    else:
        _at_nodes(experiment, batches, run_batch)
    for label, seed in sorted(over) if writes else ():
        examples.mend(experiment, folder, label, seed)
        if by_client:
            clients.mend(experiment, folder, label, seed)
    if writes and by_client and config["run"].get("baselines"):
        clients.add_baselines(experiment, folder)
    return finish(folder, compiled, drawn) if writes else None


def run_folder(
    out: str | Path | None,
    config: Mapping[str, Any],
    name: str,
    resume: bool = False,
    begun: Callable[[Path], None] = lambda folder: None,
) -> Path:
    """The folder of a run: that in which this configuration's has begun, or a new one.

    Args:
        out, name: as of :func:`fedax.experiments.new_folder`.
        config: the whole configuration.
        resume: whether the run has to have begun where ``out`` says, or without it in the last folder of this name;
            else only ``out`` is looked at.
        begun: called with the folder where the run has begun.

    Raises:
        ConfigError: the folder holds something else, cannot be written to, or, with ``resume``, is not there.
    """
    folder = begun_folder(out, config, name) if resume or out is not None else None
    if folder is None and resume and (out is None or not Path(out).exists()):  # it may have ended before it began
        raise ConfigError("resume", True, "no run of this configuration has begun there; leave --resume out")
    if folder is None:
        return new_folder(out, name)
    begun(folder)
    return folder


@contextlib.contextmanager
def writing(folder: Path, stopped: Callable[[KeyboardInterrupt], None]) -> Iterator[None]:
    """While a run folder is written: no other process writes it, and one that is interrupted leaves the others.

    Args:
        folder: the run folder.
        stopped: called with the interrupt, before it goes on; it may raise something in its place.

    Raises:
        ConfigError: another process writes it, it cannot be written to, or something in it is a link.
    """
    with locked(folder):
        try:
            yield
        except KeyboardInterrupt as error:
            if signals.kept(error):
                processes.part()
            stopped(error)
            raise


def draw_stopped(folder: Path) -> Path | None:
    """Write the report of a run that was stopped; ``None`` without an evaluation yet, or without room on the disk."""
    with contextlib.suppress(FedaxError, OSError):
        write_report([read(folder)], folder / "report.html")
        return folder / "report.html"
    return None


def _at_nodes(
    experiment: Experiment,
    batches: Sequence[Sequence[tuple[str, int]]],
    run_batch: Callable[[Sequence[tuple[str, int]], Transport | None], None],
) -> None:
    """Runs over nodes: as many share messages as their models are small, for a message takes a while."""
    fleet = experiment.fleet
    assert fleet is not None
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(experiment.task.entire.form()))
    together = max(1, min(_LANES, _MESSAGE // max(size, 1)))
    for at in range(0, len(batches), together):
        works = [lambda there, batch=batch: run_batch(batch, there) for batch in batches[at : at + together]]
        with warnings.catch_warnings():
            for said in (DivergedWarning, BadClientWarning):  # by the report
                warnings.simplefilter("ignore", said)
            side_by_side(fleet.transport, works)


def _say_begun(watch: Watch | None, runs: Sequence[tuple[str, int]]) -> None:
    for label, seed in runs:
        if watch is not None:
            watch(label, seed, None)


def _batches(
    folder: Path, runs: Sequence[tuple[str, int]], over: Collection[tuple[str, int]], together: Mapping[str, bool]
) -> list[list[tuple[str, int]]]:
    """What is to be run, those together that go side by side; what was begun one after another goes on so.

    Checkpoints of runs that are over are removed: the process that made them may have been killed before it did.
    """
    writes = jax.process_index() == 0
    batches = []
    for label in dict.fromkeys(label for label, _ in runs):
        every = [each for each in runs if each[0] == label]
        left = [each for each in every if each not in over]
        whole = _checkpoints(folder, every) if len(every) > 1 else None
        begun_together = whole is not None and left != [] and was_begun(whole)
        if begun_together and processes.count() > 1:
            raise ConfigError(
                "out", str(folder), f"one process has begun all seeds of {label} together: go on with one"
            )
        alone = any(present(_checkpoints(folder, [each])) for each in left)
        if begun_together or (left == every and together[label] and not alone):
            batches.append(every)
            continue
        batches += [[each] for each in left]
        for each in every:
            if writes and each in over:
                discard(_checkpoints(folder, [each]))
        if writes and whole is not None:
            discard_sweep(whole)
    return sorted(batches, key=lambda batch: runs.index(batch[0]))


def _checkpoints(folder: Path, batch: Sequence[tuple[str, int]]) -> Path:
    """Where the checkpoints of a run are, or of all seeds of a method."""
    label, seed = batch[0]
    return folder / "checkpoints" / f"{slug(label)}-{f'seed{seed}' if len(batch) == 1 else 'seeds'}"


def _train(
    experiment: Experiment,
    label: str,
    data: Mapping[int, tuple[Any, Any, Any]],
    on_row: Callable[[int, dict[str, Any]], None],
    place: Path,
    kept: Mapping[str, Any],
    there: Transport | None,
) -> list[fedax.Run]:
    """A method with one seed, or with several side by side; ``data``: of each seed."""
    seeds = list(data)
    first = dict(zip(("data", "val", "test"), data[seeds[0]], strict=True))
    options = {"work": experiment.work, "participation": experiment.participation, **first}
    options |= {"checkpoint": fedax.Checkpoints(place, **kept)} | experiment.options
    method, task = experiment.methods[label], experiment.task
    if there is not None:
        nodes = experiment.nodes(seeds[0]).by(there)
        del options["checkpoint"], options["data"]
        options |= {"checkpoint": place, "best": kept.get("best"), "callback": functools.partial(on_row, seeds[0])}
        return [train(method, task, nodes, experiment.problem(label), seed=seeds[0], **options)]
    with warnings.catch_warnings():
        for said in (DivergedWarning, BadClientWarning):  # by the report
            warnings.simplefilter("ignore", said)
        if len(seeds) > 1:
            watch = lambda point, seed, row: on_row(seed, row)  # noqa: E731
            options = on_one_core(options) | {"progress": False}  # there is that of all runs together
            own = {}
            if experiment.config["run"]["split_seeds"]:
                own = {seed: dict(zip(first, parts, strict=True)) for seed, parts in data.items()}
            found = fedax.sweep(lambda: method, [{}], task, seeds=seeds, by_seed=own, callback=watch, **options)
            return found.runs[0]
        callback = functools.partial(on_row, seeds[0])
        return [fedax.simulate(method, task, seed=seeds[0], callback=callback, progress=False, **options)]


class Checked(NamedTuple):
    """What :func:`check_methods` found, by label.

    Attributes:
        made_of: what makes the runs, besides the seed, as text.
        together: whether the seeds gain from running side by side.
        columns: what is measured.
        private: of private runs, what is known of their privacy, see :func:`fedax.engine.private.outlook`.
    """

    made_of: MadeOf
    together: dict[str, bool]
    columns: dict[str, list[str]]
    private: dict[str, dict[str, Any]]


def check_methods(experiment: Experiment) -> Checked:
    """Check that each method can be run as is asked, before any is; of several processes, in all of them."""
    run, shared = experiment.config["run"], dict[Any, Any]()
    found = Checked({}, {}, {}, {})
    alike = experiment.fleet is None and bool(run["split_seeds"]) and _alike(experiment)
    for label in experiment.methods:
        job = job_of(experiment, label, shared)
        found.made_of[label] = {name: text for name, text in job.settings().items() if name != "seed"}
        found.made_of[label] |= {
            f"code {place}": digest for place, digest in experiment.problem(label).get("code", {}).items()
        }
        side_by_side = experiment.fleet is None and (alike if run["split_seeds"] else True)
        found.together[label] = side_by_side and worth_lanes(job, len(run["seeds"]))
        found.columns[label] = columns(job)
        if (private := outlook_of(experiment, job)) is not None:
            found.private[label] = private
    return found


def job_of(experiment: Experiment, label: str, shared: dict[Any, Any]) -> Job:
    """The job of a method, checked; ``shared``: of several, as of ``make_job``."""
    parts: dict[str, Any] = {"work": experiment.work, "participation": experiment.participation}
    parts |= {"val": experiment.val, "test": experiment.test, "shared": shared} | experiment.options
    made = functools.partial(make_job, experiment.methods[label], experiment.task, experiment.data, **parts)
    return within(f"methods.{label}", made)


def _alike(experiment: Experiment) -> bool:
    """Whether the splits of all seeds have equal shapes, client by client, and room in memory together."""
    seeds, form = experiment.config["run"]["seeds"], None
    for seed in seeds:
        parts = experiment.split(seed)
        leaves = [leaf for each in parts for leaf in jax.tree.leaves(getattr(each, "examples", each))]
        if sum(leaf.nbytes for leaf in leaves) * len(seeds) > device_bytes() / _SHARE:
            return False
        sizes = [tuple(each.sizes) for each in parts if isinstance(each, fedax.FederatedData)]
        own = sizes, [(leaf.shape, leaf.dtype) for leaf in leaves], tuple(parts[0].weights)
        if form not in (None, own):
            return False
        form = own
    return True


def outlook_of(experiment: Experiment, job: Job) -> dict[str, Any] | None:
    """What is known of the privacy of a job's runs; ``None``: they are not private."""
    dp = experiment.options.get("privacy")
    return None if dp is None or job.ledger is None else outlook(dp, job.ledger, experiment.config["run"]["rounds"])


def check_key(folder: Path, experiment: Experiment) -> None:
    """That the secret of private runs is still in their folder."""
    if experiment.keeps_noise and not (folder / secret.FILE).exists():
        way_out = (
            f"its {secret.FILE} is lost, and the noise cannot go on without it; restore it, or name another folder"
        )
        raise ConfigError("out", str(folder), way_out)


def _check_same(folder: Path, about: Mapping[str, Any], made_of: MadeOf) -> None:
    """That a folder's run is of the same problem: data files, say, may be others than before."""
    if (was := about.get("made_of")) is None:
        way_out = (
            "it holds a run of an older version of fedax, which did not keep what it was made of; name another folder"
        )
        raise ConfigError("out", str(folder), way_out)
    same = same_versions(about["versions"])
    for label, now in made_of.items():
        if differs := differences(was.get(label, {}), now, same):
            first = "; ".join(differs[:5]) + ("; …" if len(differs) > 5 else "")
            way_out = f"it holds a run of another problem ({label}: {first}); name another folder with --out"
            raise ConfigError("out", str(folder), way_out)


def _over(folder: Path, experiment: Experiment, runs: Sequence[tuple[str, int]], best: bool) -> set[tuple[str, int]]:
    """The runs that are over and all there; a warning for those of which something is damaged or lost.

    ``best``: whether the best models are asked for too. There are none of runs of which they were not.
    """
    rows, like = rows_of(folder, experiment.config), experiment.task.entire.form()
    found = set()
    for label, seed in runs:
        path, wrong = model_path(folder, label, seed), ""
        if not path.exists():
            if (folder / "summary.json").exists():
                wrong = f"its model, {path.name}, is missing"
        elif missing := missing_rounds(rows.get((label, seed)), experiment.config, over=True):
            wrong = f"rows of rounds {few(missing)} are missing in metrics.jsonl"
        else:
            try:
                read_model(path, like)
                if best and (other := model_path(folder, label, seed, best=True)).exists():
                    read_model(other, like)
                found.add((label, seed))
            except DataError as error:
                wrong = str(error)
        if wrong:
            warnings.warn(f"{label}, seed {seed}: {wrong}; it is run again", DamagedWarning, stacklevel=3)
    return found


def begin(
    folder: Path,
    config: Mapping[str, Any],
    experiments: Sequence[Experiment],
    made_of: MadeOf | None = None,
    private: Mapping[str, Any] | None = None,
) -> None:
    """Write what is known before the first run, config.toml last: from then on the run has begun.

    Args:
        folder: the run folder.
        config: the whole configuration.
        experiments: one, or of a sweep those of all points.
        made_of, private: as :func:`check_methods` gives them; ``None`` of a sweep, whose checkpoints tell what they are
            of.
    """
    text = toml.dumps(config)
    try:
        toml.loads(text.encode())  # or the report could not be drawn in the end
    except ValueError as error:
        raise ConfigError("config", config["name"], f"cannot be kept in a run folder: {error}") from error
    for name in FOLDERS:
        (folder / name).mkdir(exist_ok=True)
    sources = list(experiments[0].code.values())
    about = _about(experiments) | {"made_of": made_of, "privacy": private or None, "code": own.digests(sources)}
    about["public"] = experiments[0].public
    if experiments[0].keeps_noise:
        secret.root(folder)
    write_json(folder / "about.json", about)
    own.write(folder, sources)
    (folder / "metrics.jsonl").touch()
    write_atomic(folder / "config.toml", text)


def finish(folder: Path, compiled: Mapping[str, float], drawn: bool = True) -> Record:
    """Write summary and, where ``drawn``, plots and report; ``compiled``: label -> seconds of compilation."""
    record = read(folder)
    write_json(folder / "summary.json", _summary(record, compiled))
    if drawn:
        draw(record)
    return record


def draw(record: Record) -> None:
    """Write the plots and the report of a run folder."""
    from fedax.experiments.plots import write_plots  # slow

    write_plots(record)
    write_report([record], record.folder / "report.html")


def _about(experiments: Sequence[Experiment]) -> dict[str, Any]:
    devices = jax.devices()
    overview = experiments[0].data.overview
    return {
        "id": secrets.token_hex(6),
        "started": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %z"),
        "device": f"{len(devices)} × {devices[0].device_kind}",
        "versions": {
            "fedax": fedax.__version__,
            "jax": jax.__version__,
            "numpy": np.__version__,
            "Python": platform.python_version(),
        },
        "parameters": count_parameters(experiments[0].task),
        "majority": clients.majority(experiments[0]),
        "clients": _clients(experiments),
        "columns": None if overview is None else overview.to_json(),
    }


def _clients(experiments: Sequence[Experiment]) -> dict[str, Any]:
    data, classes = experiments[0].data, experiments[0].classes
    counts = None
    if classes is not None and isinstance(data, fedax.FederatedData):
        codes = data.examples["y"]
        if data.transform is None:
            _, codes = np.unique(codes, return_inverse=True)
        client = np.repeat(np.arange(data.num_clients), data.sizes)
        counts = np.zeros((data.num_clients, len(classes)), int)
        np.add.at(counts, (client, codes), 1)
    # Of a sweep, all the kinds of work that are tried.
    works = {(str(each.config["work"]), each.config["run"].get("batch_size")): each for each in experiments}
    steps = np.concatenate([_steps(each) for each in works.values()])
    return {
        "names": list(data.names) if data.names else None,
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
        "cost": {column: m.cost(column) for column in COSTS},
        "compile_seconds": compiled,
        **({} if m.epsilon is None else {"epsilon": m.epsilon}),
    }
