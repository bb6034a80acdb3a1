"""Runs an experiment: every method with every seed. The run folder is written while it runs."""

import contextlib
import dataclasses
import datetime
import functools
import json
import platform
import secrets
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import jax
import numpy as np

import fedax
from fedax.columns import better
from fedax.contract.personal import has_personal
from fedax.engine import processes, secret, signals
from fedax.engine.batch import on_one_core, worth_batching
from fedax.engine.checkpoint import discard, present
from fedax.engine.devices import device_bytes
from fedax.engine.evaluate import columns
from fedax.engine.fingerprint import differences, same_versions
from fedax.engine.history import Row, save_personal, save_run
from fedax.engine.load import Shared
from fedax.engine.private import outlook
from fedax.engine.saved import read_model, renamed
from fedax.engine.sweep import discard_sweep, was_begun
from fedax.errors import ConfigError, DamagedWarning, DataError, FedaxError
from fedax.experiments import classes, clients, cluster, examples, helped, own, summary, toml, tracked
from fedax.experiments.config.experiment import (
    Experiment,
    build,
    count_parameters,
    job_of,
    measured_by_client,
    within_deadline,
)
from fedax.experiments.config.experiment import columns as columns_of
from fedax.experiments.defaults import judge
from fedax.experiments.report import write_report
from fedax.experiments.runs import (
    ARRIVALS,
    FOLDERS,
    Path,
    Record,
    append_lines,
    append_metrics,
    begun,
    begun_folder,
    few,
    keep_rows,
    locked,
    missing_rounds,
    model_path,
    new_folder,
    order_rows,
    read,
    refuse_links,
    remove_unfinished,
    rows_in,
    rows_of,
    run_of,
    said,
    slug,
    write_json,
)
from fedax.files import write_atomic
from fedax.progress import show_progress
from fedax.sites.protocol.messages import Transport
from fedax.sites.protocol.side_by_side import side_by_side
from fedax.sites.protocol.train import train
from fedax.theory.surrogate import draw_steps
from fedax.tracking import Tracker

Watch = Callable[[str, int, Mapping[str, Any] | None], None]
MadeOf = dict[str, dict[str, str]]
Split = tuple[Any, Any, Any]  # training, validation and test data
_SPLIT = ("data", "val", "test")  # as options name them

_TOGETHER = 32  # the most runs over nodes that share messages
_MESSAGE = 1 << 25  # the most bytes of their models together; larger messages are limited by bandwidth, not by latency
_SHARE = 16  # the splits of all seeds are kept side by side if they take at most 1/16 of the device's memory


def execute(
    experiment: Experiment,
    folder: Path,
    watch: Watch | None = None,
    checked: "Checked | None" = None,
    track: Tracker | None = None,
    drawn: bool = True,
    executor: Executor | None = None,
    **kept: Any,
) -> Record | None:
    """Run an experiment and write its folder; an experiment that was stopped is continued.

    Finished runs are kept, and a run that was under way continues from its last checkpoint. A finished run whose model
    or rows are damaged or lost is run again, with a warning. The seeds of a method run side by side where that is
    faster; their rows are then interleaved.

    Args:
        experiment: from :func:`fedax.experiments.build`.
        folder: from :func:`fedax.experiments.new_folder`, or a folder with a run of the same configuration. If several
            processes run it together, all give the same folder; the first one writes it, and all write checkpoints.
        checked: from :func:`check_methods`; default: it is called here.
        watch: called as ``watch(label, seed, row)``: first once for each finished run; then with the row ``None`` when
            a run begins, and with each row of its history.
        track: called as ``track(label, seed, params)`` when a run begins or continues; it returns a log that gets the
            run's rows and its end, see :mod:`fedax.tracking`. ``params`` is flat: ``label``, ``seed``, the settings of
            the method and of the sections (``method.lr``, ``data.alpha``), and ``run.id``, which does not change when
            the run continues. Of private runs it gets public columns only. Default: the tracker of the section
            ``track``.
        drawn: whether plots and report are drawn in the end.
        executor: of ``concurrent.futures``: each run, one method with one seed, is a job of it, on one core. Rows come
            when a job is over, and jobs have no checkpoints here. Default: all runs in this process.
        kept: arguments of :class:`fedax.Checkpoints`, without the folder. The best model, where it is asked for, is
            written to ``models/<label>-seed<k>-best.safetensors``.

    Returns:
        The run folder as a record, in the process that writes it. A method that diverges does not stop the others.

    Raises:
        ConfigError, DataError: before anything is written: input that cannot be used; a folder with the run of another
            problem, with a link in it, or with files that no run writes.
        ConfigError: with an executor, jobs that failed, after all others; or a worker with other data or versions.
    """
    config, writes = experiment.config, jax.process_index() == 0
    if processes.count() > 1 and config["run"].get("baselines"):
        raise ConfigError("run.baselines", config["run"]["baselines"], "they run in one process; leave them out")
    checked = check_methods(experiment) if checked is None else checked
    runs = [(label, seed) for label in experiment.methods for seed in config["run"]["seeds"]]
    if config["run"]["split_seeds"] and not any(checked.together.values()):
        runs.sort(key=lambda run: config["run"]["seeds"].index(run[1]))  # one split after the other in memory
    finished = _begin_or_go_on(experiment, folder, checked, runs, kept.get("best") is not None) if writes else None
    agreed = processes.from_first(np.array([run in (finished or ()) for run in runs]))
    done = {run for run, over in zip(runs, agreed, strict=True) if over}
    together = checked.together if executor is None else dict.fromkeys(checked.together, False)
    batches = _batches(folder, runs, done, together)
    done -= {run for batch in batches for run in batch}
    if finished is not None:
        keep_rows(folder, done)
    logs = tracked.Logs((track or experiment.track) if writes else None, config, folder, experiment.public)
    running = _Execution(experiment, folder, checked, watch, logs, kept)
    running.report_begun([run for run in runs if run in done])
    if executor is not None:
        running.elsewhere(batches, executor)
    elif experiment.fleet is not None:
        running.at_nodes(batches)
    else:
        for batch in batches:
            running.here(batch)
    if not writes:
        return None
    for label, seed in sorted(done):
        examples.mend(experiment, folder, label, seed)
        classes.mend(experiment, folder, label, seed)
        if measured_by_client(experiment):
            clients.mend(experiment, folder, label, seed, helped.kept(folder, label, seed))
    if measured_by_client(experiment) and config["run"].get("baselines"):
        clients.add_baselines(experiment, folder)
    return finish(folder, running.compiled, drawn)


def _begin_or_go_on(
    experiment: Experiment, folder: Path, checked: "Checked", runs: Sequence[tuple[str, int]], best: bool
) -> set[tuple[str, int]] | None:
    """Begin a run folder, and return ``None``; or the finished runs of one that was begun, of the same problem."""
    refuse_links(folder)
    remove_unfinished(folder)
    if (about := begun(folder)) is None:
        begin(folder, experiment.config, [experiment], checked.made_of, checked.private)
        return None
    own.check_same(folder, about.get("code", {}), experiment.code.values())
    check_key(folder, experiment)
    _check_same_problem(folder, about, checked.made_of)
    return _finished_runs(folder, experiment, runs, best)


class _Execution:
    """Runs of an experiment, which write its folder while they go on.

    Attributes:
        compiled: label -> seconds of compilation.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        checked: "Checked",
        watch: Watch | None,
        logs: tracked.Logs,
        kept: Mapping[str, Any],
    ):
        self.experiment, self.folder, self.checked, self.watch = experiment, folder, checked, watch
        self.logs, self.kept = logs, kept
        self.writes = jax.process_index() == 0
        self.names = {method["label"]: method["name"] for method in experiment.config["methods"]}
        self.compiled = dict.fromkeys(self.names, 0.0)
        self._data: dict[int, Any] = {}  # seed -> its split, of runs under way

    def report_begun(self, runs: Sequence[tuple[str, int]]) -> None:
        """Tell the watcher of runs that begin."""
        for label, seed in runs:
            if self.watch is not None:
                self.watch(label, seed, None)

    def here(self, batch: Sequence[tuple[str, int]], transport: Transport | None = None) -> None:
        """Run a method with one seed, or with several side by side; with a transport, over nodes."""
        label, seeds = batch[0][0], [seed for _, seed in batch]
        splits = {seed: self._data[seed] if seed in self._data else self.experiment.split(seed) for seed in seeds}
        if transport is None:
            self._data.clear()  # one split after the other in memory
        self._data.update(splits)
        self.report_begun(batch)
        checkpoints = _checkpoints(self.folder, batch)
        if self.experiment.keeps_noise:
            secret.derive(self.folder, checkpoints, slug(label))
        with self.logs.of(batch) as end:
            if transport is None:
                trained = self._simulated(label, splits, checkpoints)
            else:
                trained = [self._trained(label, splits, checkpoints, transport)]
            end([run.status for run in trained])
        self.compiled[label] += sum(run.compile_seconds for run in trained)
        if self.writes:
            for seed, run in zip(seeds, trained, strict=True):
                self._store(label, seed, run)
            discard_sweep(checkpoints) if len(batch) > 1 else discard(checkpoints)

    def _options(self, data: Mapping[int, Split], **more: Any) -> dict[str, Any]:
        """The options of a run, with the training, validation and test data of the first seed."""
        first = dict(zip(_SPLIT, next(iter(data.values())), strict=True))
        experiment = self.experiment
        common = {"work": experiment.work, "participation": experiment.participation}
        return common | first | more | experiment.options

    def _trained(self, label: str, data: Mapping[int, Split], checkpoint: Path, transport: Transport) -> fedax.Run:
        """Train a method with one seed over nodes; ``data``: the seed -> its split."""
        (seed,) = data
        options = self._options(data, checkpoint=checkpoint, best=self.kept.get("best"))
        del options["data"]
        options["callback"] = functools.partial(self._row, label, seed)
        options["arrivals"] = self.folder / ARRIVALS / f"{slug(label)}-seed{seed}.csv"
        method, task, problem = self.experiment.methods[label], self.experiment.task, self.experiment.problem(label)
        return train(method, task, self.experiment.nodes(seed).by(transport), problem, seed=seed, **options)

    def _simulated(self, label: str, data: Mapping[int, Split], checkpoint: Path) -> list[fedax.Run]:
        """Train a method with one seed, or with several side by side; ``data``: seed -> its split."""
        options = self._options(data, checkpoint=fedax.Checkpoints(checkpoint, **self.kept))
        method, task, seeds = self.experiment.methods[label], self.experiment.task, list(data)
        with clients.report_shows(), show_progress(False):  # the progress of all runs is shown instead
            if len(seeds) == 1:
                callback = functools.partial(self._row, label, seeds[0])
                return [fedax.simulate(method, task, seed=seeds[0], callback=callback, **options)]
            watch = lambda point, seed, row: self._row(label, seed, row)  # noqa: E731
            options["place"] = on_one_core(options.get("place"))
            by_seed = {}
            if self.experiment.config["run"]["split_seeds"]:
                by_seed = {seed: dict(zip(_SPLIT, parts, strict=True)) for seed, parts in data.items()}
            swept = fedax.sweep(lambda: method, [{}], task, seeds=seeds, by_seed=by_seed, callback=watch, **options)
            return swept.runs[0]

    def _row(self, label: str, seed: int, row: Row) -> None:
        """Write a row, and pass it on."""
        rounds = self.experiment.config["run"]["rounds"]
        last_round = self.checked.private[label]["rounds"] if label in self.checked.private else rounds
        if self.writes:
            most = None if last_round == rounds else last_round
            append_metrics(self.folder, label, self.names[label], seed, row, most=most)
        self.logs.row(label, seed, row)
        if self.watch is not None:
            self.watch(label, seed, row)

    def _store(self, label: str, seed: int, run: fedax.Run) -> None:
        """Write what a run leaves: its models, its examples, and the figures of classes and clients."""
        experiment, folder = self.experiment, self.folder
        path, best = (model_path(folder, label, seed, best) for best in (False, True))
        data, val, test = self._data[seed]
        if run.best is not None:
            found = classes.decided(experiment, run.best.params, val, test)
            save_run(run, best, True, said(folder, best), classes.threshold_of(found))
        found = classes.decided(experiment, run.params, val, test, run.counts)
        if not has_personal(experiment.methods[label]):
            classes.write(experiment, folder, label, seed, found)
        elif run._models is not None and all(isinstance(each, fedax.FederatedData | None) for each in (val, test)):
            decisions = classes.decided(experiment, run.params, val, test, own=run._models.of)
            classes.write(experiment, folder, label, seed, decisions)
        elif found is not None:
            what = "how its clients' own models choose classes is not known here, so no decisions are shown"
            clients.record_left_out(folder, f"{label}: {what}.")
        save_personal(run, path.with_suffix(""), lambda own: said(folder, own))
        save_run(run, path, of=said(folder, path), threshold=classes.threshold_of(found))
        personal = helped.keep(experiment, folder, label, seed, run, (data, val, test))
        if measured_by_client(experiment) and clients.finite_model(run.params):
            names = () if personal is None else [data.name(i) for i in range(data.num_clients)]
            clients.add_table(experiment, folder, label, seed, run.params, test, run.arrivals, personal, names)
        examples.add(experiment, folder, label, seed, run.params)

    def at_nodes(self, batches: Sequence[Sequence[tuple[str, int]]]) -> None:
        """Run batches over nodes, several side by side in the same messages; the smaller the model, the more."""
        fleet = self.experiment.fleet
        assert fleet is not None
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.experiment.task.entire.form()))
        together = max(1, min(_TOGETHER, _MESSAGE // max(size, 1)))
        if self.experiment.options.get("pace") is not None:  # time is measured
            together = 1
        for at in range(0, len(batches), together):
            calls = [functools.partial(self.here, batch) for batch in batches[at : at + together]]
            with clients.report_shows():
                side_by_side(fleet.transport, calls)

    def elsewhere(self, batches: Sequence[Sequence[tuple[str, int]]], executor: Executor) -> None:
        """Run each run as a job of an executor; what comes back is kept at once, in the order of the runs at the end.

        Seeds that were begun side by side in this process begin anew, each in a job of its own.
        """
        experiment, folder = self.experiment, self.folder
        jobs = _jobs_elsewhere(experiment, batches, self.kept.get("best"))
        seeds = experiment.config["run"]["seeds"]
        take = lambda job, outcome: self._arrived(*jobs[job.key][1:], outcome.files)  # noqa: E731
        try:
            cluster.carry_out([job for job, _, _ in jobs.values()], executor, perform, folder, take)
            for batch in batches:
                if len(batch) > 1:
                    discard_sweep(_checkpoints(folder, batch))
        finally:
            order_rows(folder, [(label, seed) for label in experiment.methods for seed in seeds])

    def _arrived(self, label: str, seed: int, files: Mapping[str, bytes]) -> None:
        """Keep what a job has left."""
        self.report_begun([(label, seed)])
        append_lines(self.folder, files["metrics.jsonl"])
        with self.logs.of([(label, seed)]) as end:
            for _, row in rows_in(files["metrics.jsonl"]):
                self.logs.row(label, seed, row)
                if self.watch is not None:
                    self.watch(label, seed, row)
            end([str(row.status)])
        self.compiled[label] += json.loads(files["summary.json"])["methods"][0]["compile_seconds"]
        for place in ("clients", "examples", "classes", "models"):  # a model says that its run is over
            for name, content in files.items():
                if name.startswith(f"{place}/"):
                    (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                    mine = said(self.folder, self.folder / name)
                    write_atomic(self.folder / name, renamed(content, mine) if place != "clients" else content)
        discard(_checkpoints(self.folder, [(label, seed)]))


def run_folder(
    out: str | Path | None,
    config: Mapping[str, Any],
    name: str,
    resume: bool = False,
    begun: Callable[[Path], None] = lambda folder: None,
) -> Path:
    """The folder of a run: one in which a run of this configuration has begun, or else a new one.

    Args:
        out, name: as in :func:`fedax.experiments.new_folder`.
        config: the whole configuration.
        resume: whether the run must have begun already, in ``out`` or, without it, in the last folder of this name;
            if false, only ``out`` is looked at.
        begun: called with the folder if the run has begun there.

    Raises:
        ConfigError: the folder holds something else, cannot be written to, or, with ``resume``, does not exist.
    """
    folder = begun_folder(out, config, name) if resume or out is not None else None
    # A run may have been stopped before it began.
    if folder is None and resume and (out is None or not Path(out).exists()):
        raise ConfigError("resume", True, "no run of this configuration has begun there; leave --resume out")
    if folder is None:
        return new_folder(out, name)
    begun(folder)
    return folder


@contextlib.contextmanager
def writing(folder: Path, stopped: Callable[[KeyboardInterrupt], None]) -> Iterator[None]:
    """Hold the lock of a run folder; an interrupt is reported before it is raised again.

    Args:
        folder: the run folder.
        stopped: called with the interrupt; it may raise another exception instead.

    Raises:
        ConfigError: another process writes the folder, it cannot be written to, or something in it is a link.
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
    """Write the report of a stopped run and return its path; ``None`` without an evaluation, or on a full disk."""
    with contextlib.suppress(FedaxError, OSError):
        write_report([read(folder)], folder / "report.html")
        return folder / "report.html"
    return None


def perform(job: cluster.ClusterJob, folder: Path, code: Sequence[str]) -> None:
    """Do the job of a run, at a worker: a :data:`fedax.experiments.cluster.jobs.Perform`."""
    kept: dict[str, Any] = {} if job.best is None else {"best": job.best}
    if isinstance(job.problem, bytes):
        assert job.run is not None
        experiment = alone(cluster.unpacked(job.problem), *job.run)
    else:
        experiment = build(job.problem[0], allow_code=own.here(code))
    execute(experiment, folder, drawn=False, **kept)


def alone(experiment: Experiment, label: str, seed: int) -> Experiment:
    """The experiment with one method and one seed: what a job of an executor runs."""
    config = experiment.config
    run = {**config["run"], "seeds": [seed]}
    run.pop("baselines", None)  # the submitting side has the runs of all methods
    if (column := judge(config, columns_of([experiment]))) is not None:
        run["judge"] = column  # of all methods, and not of this one alone
    rows = [row for row in config["methods"] if row["label"] == label]
    methods = {label: experiment.methods[label]}
    return dataclasses.replace(experiment, config={**config, "run": run, "methods": rows}, methods=methods, track=None)


def _jobs_elsewhere(
    experiment: Experiment, batches: Sequence[Sequence[tuple[str, int]]], best: str | None
) -> dict[str, tuple[cluster.ClusterJob, str, int]]:
    """The jobs of some runs, by their keys, each with its method and its seed."""
    content = b"" if experiment.configured else cluster.packed(dataclasses.replace(experiment, track=None))
    jobs = {}
    for batch in batches:
        for label, seed in batch:
            name = f"{label}, seed {seed}"
            if experiment.configured:
                config = alone(experiment, label, seed).config
                job = cluster.ClusterJob.of(name, [config], code=experiment.code, best=best)
            else:
                job = cluster.ClusterJob(name, content, run=(label, seed), best=best)
            jobs[job.key] = job, label, seed
    return jobs


def _batches(
    folder: Path, runs: Sequence[tuple[str, int]], finished: Collection[tuple[str, int]], together: Mapping[str, bool]
) -> list[list[tuple[str, int]]]:
    """The batches of runs that are left: all seeds of a method side by side, or one run each, as they were begun.

    Checkpoints of finished runs are removed here: the process that made them may have been killed before it did so.
    """
    writes = jax.process_index() == 0
    batches = []
    for label in dict.fromkeys(label for label, _ in runs):
        of_method = [run for run in runs if run[0] == label]
        unfinished = [run for run in of_method if run not in finished]
        joint_checkpoint = _checkpoints(folder, of_method) if len(of_method) > 1 else None
        begun_together = joint_checkpoint is not None and unfinished != [] and was_begun(joint_checkpoint)
        if begun_together and processes.count() > 1:
            raise ConfigError(
                "out", str(folder), f"one process has begun all seeds of {label} together: go on with one"
            )
        alone = any(present(_checkpoints(folder, [run])) for run in unfinished)
        if begun_together or (unfinished == of_method and together[label] and not alone):
            batches.append(of_method)
            continue
        batches += [[run] for run in unfinished]
        for run in of_method:
            if writes and run in finished:
                discard(_checkpoints(folder, [run]))
        if writes and joint_checkpoint is not None:
            discard_sweep(joint_checkpoint)
    return sorted(batches, key=lambda batch: runs.index(batch[0]))


def _checkpoints(folder: Path, batch: Sequence[tuple[str, int]]) -> Path:
    """The folder for the checkpoints of a run, or of all seeds of a method."""
    label, seed = batch[0]
    return folder / "checkpoints" / f"{slug(label)}-{f'seed{seed}' if len(batch) == 1 else 'seeds'}"


class Checked(NamedTuple):
    """What is known of each method after :func:`check_methods`, by label.

    Attributes:
        made_of: the settings and digests that identify the runs, besides the seed, as text.
        together: whether it is faster to run the seeds side by side.
        columns: the columns of the history.
        private: for private runs, the planned privacy spending, see :func:`fedax.engine.private.outlook`.
    """

    made_of: MadeOf
    together: dict[str, bool]
    columns: dict[str, list[str]]
    private: dict[str, dict[str, Any]]


def check_methods(experiment: Experiment) -> Checked:
    """Check that each method can run with these options, before any of them runs; call it in every process."""
    run, shared = experiment.config["run"], Shared()
    checked = Checked({}, {}, {}, {})
    alike = experiment.fleet is None and bool(run["split_seeds"]) and same_shapes(experiment)
    for label in experiment.methods:
        job = job_of(experiment, label, shared)
        checked.made_of[label] = {name: text for name, text in job.settings().items() if name != "seed"}
        checked.made_of[label] |= {
            f"code {place}": digest for place, digest in experiment.problem(label).get("code", {}).items()
        }
        side_by_side = experiment.fleet is None and (alike or not run["split_seeds"])
        checked.together[label] = side_by_side and worth_batching(job, len(run["seeds"]))
        checked.columns[label] = columns(job)
        if (dp := experiment.options.get("privacy")) is not None and job.ledger is not None:
            checked.private[label] = outlook(dp, job.ledger, run["rounds"])
    return checked


def same_shapes(experiment: Experiment) -> bool:
    """Whether the splits of all seeds have equal shapes, client by client, and fit into memory together."""
    seeds, form = experiment.config["run"]["seeds"], None
    for seed in seeds:
        train, *held = experiment.split(seed)
        parts = [train, *held, *(getattr(train, "unseen", None) or ())]
        leaves = [leaf for part in parts for leaf in jax.tree.leaves(getattr(part, "examples", part))]
        if sum(leaf.nbytes for leaf in leaves) * len(seeds) > device_bytes() / _SHARE:
            return False
        sizes = [tuple(part.sizes) for part in parts if isinstance(part, fedax.FederatedData)]
        form_of_seed = sizes, [(leaf.shape, leaf.dtype) for leaf in leaves], tuple(parts[0].weights)
        if form not in (None, form_of_seed):
            return False
        form = form_of_seed
    return True


def check_key(folder: Path, experiment: Experiment) -> None:
    """Check that the secret key of private runs is still in their folder."""
    if experiment.keeps_noise and not (folder / secret.FILE).exists():
        hint = f"its {secret.FILE} is lost, and the noise cannot go on without it; restore it, or name another folder"
        raise ConfigError("out", str(folder), hint)


def _check_same_problem(folder: Path, about: Mapping[str, Any], made_of: MadeOf) -> None:
    """Check that the run in a folder is of the same problem; data files, for example, may have changed."""
    if (before := about.get("made_of")) is None:
        hint = (
            "it holds a run of an older version of fedax, which did not keep what it was made of; name another folder"
        )
        raise ConfigError("out", str(folder), hint)
    same = same_versions(about["versions"])
    for label, settings in made_of.items():
        if differs := differences(before.get(label, {}), settings, same):
            first = "; ".join(differs[:5]) + ("; …" if len(differs) > 5 else "")
            hint = f"it holds a run of another problem ({label}: {first}); name another folder with --out"
            if (began := about["versions"].get("fedax")) != fedax.__version__:  # which may draw other data
                hint += f", or go on with fedax {began}, which began it"
            raise ConfigError("out", str(folder), hint)


def _finished_runs(
    folder: Path, experiment: Experiment, runs: Sequence[tuple[str, int]], best: bool
) -> set[tuple[str, int]]:
    """The finished runs with complete files; warns about finished runs whose files are damaged or lost.

    ``best``: whether best models are asked for; runs that were started without have none.
    """
    rows, form = rows_of(folder, experiment.config), experiment.task.entire.form()
    complete = set()
    for label, seed in runs:
        path, problem = model_path(folder, label, seed), ""
        if not path.exists():
            if (folder / "summary.json").exists():
                problem = f"its model, {path.name}, is missing"
        elif missing := missing_rounds(rows.get((label, seed)), experiment.config, over=True):
            problem = f"rows of rounds {few(missing)} are missing in metrics.jsonl"
        else:
            try:
                read_model(path, form, said(folder, path))
                if best and (other := model_path(folder, label, seed, best=True)).exists():
                    read_model(other, form, said(folder, other))
                complete.add((label, seed))
            except DataError as error:
                problem = str(error)
        if problem:
            warnings.warn(f"{label}, seed {seed}: {problem}; it is run again", DamagedWarning, stacklevel=3)
    return complete


def begin(
    folder: Path,
    config: Mapping[str, Any],
    experiments: Sequence[Experiment],
    made_of: MadeOf | None = None,
    private: Mapping[str, Any] | None = None,
) -> None:
    """Write all that is known before the first run; config.toml is last, and marks that the run has begun.

    Args:
        folder: the run folder.
        config: the whole configuration.
        experiments: one; of a sweep those of all points.
        made_of, private: from :func:`check_methods`; ``None`` for a sweep, whose checkpoints identify their problem.
    """
    text = toml.dumps(config)
    try:
        toml.loads(text.encode())  # the report reads it again
    except ValueError as error:
        raise ConfigError("config", config["name"], f"cannot be kept in a run folder: {error}") from error
    for name in FOLDERS:
        (folder / name).mkdir(exist_ok=True)
    sources = list(experiments[0].code.values())
    about = _run_facts(experiments) | {"made_of": made_of, "privacy": private or None, "code": own.digests(sources)}
    about["public"] = experiments[0].public
    about["tuned"] = experiments[0].tuned or None
    about["run"] = run_of(text.encode(), about)
    if experiments[0].keeps_noise:
        secret.root(folder)
    write_json(folder / "about.json", about)
    own.write(folder, sources)
    (folder / "metrics.jsonl").touch()
    write_atomic(folder / "config.toml", text)


def finish(folder: Path, compiled: Mapping[str, float], drawn: bool = True) -> Record:
    """Write the summary and, if ``drawn``, plots and report; ``compiled``: label -> seconds of compilation."""
    record = read(folder)
    (problem,) = summary.problems([record])
    methods = [_method_summary(m, problem, compiled[m.label]) for m in summary.methods([record])]
    for method in methods:
        if (about := classes.described(record, method["label"])) is not None:
            method["classes"] = about
    content: dict[str, Any] = {"name": record.name, "judged": summary.judged(problem), "methods": methods}
    rows = sum(len(run.history["round"]) for run in record.runs)
    content |= {"rows": rows, "tables": clients.digests(folder)}
    write_json(folder / "summary.json", content)
    if drawn:
        draw(record)
    return record


def draw(record: Record) -> None:
    """Write the plots and the report of a run folder."""
    from fedax.experiments.plots import write_plots  # slow

    write_plots(record)
    write_report([record], record.folder / "report.html")


def _run_facts(experiments: Sequence[Experiment]) -> dict[str, Any]:
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
        "better": _directions(experiments[0].task),
        "majority": clients.majority(experiments[0]),
        "clients": _client_facts(experiments),
        "columns": None if overview is None else overview.to_json(),
    }


def _directions(task: fedax.Task) -> dict[str, str] | None:
    """Which way is better, of metrics that know it where their names do not tell."""
    ways = {name: better(f"test_{name}", task.metrics) for name in task.metrics}
    return {name: way for name, way in ways.items() if way not in (None, better(f"test_{name}"))} or None


def _client_facts(experiments: Sequence[Experiment]) -> dict[str, Any]:
    data, classes = experiments[0].data, experiments[0].classes
    counts = None
    if classes is not None and isinstance(data, fedax.FederatedData):
        codes = data.examples["y"]
        if data.transform is None:
            _, codes = np.unique(codes, return_inverse=True)
        client = np.repeat(np.arange(data.num_clients), data.sizes)
        counts = np.zeros((data.num_clients, len(classes)), int)
        np.add.at(counts, (client, codes), 1)
    # For a sweep: every work and batch size that is tried.
    works = {
        (str(experiment.config["work"]), experiment.config["run"].get("batch_size")): experiment
        for experiment in experiments
    }
    steps = np.concatenate([_drawn_steps(experiment) for experiment in works.values()])
    return {
        "names": list(data.names) if data.names else None,
        "sizes": data.sizes,
        "uniform": experiments[0].config["data"]["weights"] == "uniform",
        "classes": classes,
        "counts": counts,
        "steps": {"draws": len(steps), "low": steps.min(0), "mean": steps.mean(0), "high": steps.max(0)},
    }


def _drawn_steps(experiment: Experiment) -> np.ndarray:
    """[draws, N] local steps of each client, drawn for some rounds."""
    batch_size, work = experiment.config["run"].get("batch_size"), experiment.work
    if isinstance(work, fedax.Deadline):
        work = within_deadline(experiment, next(iter(experiment.methods)))[0]  # other methods may send more
    return np.asarray(draw_steps(work, np.asarray(experiment.data.sizes, np.int32), batch_size))


def _method_summary(m: summary.Method, problem: summary.ProblemResults, compiled: float) -> dict[str, Any]:
    tail = m.tail(problem.judge, problem.tail) if problem.judge and problem.tail else np.zeros(0)
    return {
        "label": m.label,
        "status": m.status,
        "status_text": m.status_text,
        "seeds": {str(run.seed): {"status": run.status, "round": run.history["round"][-1]} for run in m.runs},
        "final": {column: summary.described(m.measured.final(column)) for column in summary.metrics([m.measured])},
        "tail": summary.described(tail),
        "cost": {column: m.cost(column) for column in summary.costs_of(problem.methods)},
        "compile_seconds": compiled,
        **({} if m.epsilon is None else {"epsilon": m.epsilon}),
    }
