"""A run on disk: what a run folder holds, how it is written and how it is read again.

| file | what |
|---|---|
| config.toml | the whole configuration, defaults included; ``fedax run config.toml`` runs it again |
| about.json | versions, device, start; the clients: sizes, weights, classes, local steps; their tables' columns |
| code/ | own methods and tasks, as they were when the run began |
| noise.key | of private runs the secret of their noise, see :mod:`fedax.engine.secret`; for nobody else to read |
| metrics.jsonl | one line an evaluation, as the run goes |
| checkpoints/ | of runs that are not over, what they go on from; see :class:`fedax.Checkpoints` |
| models/ | the final models, one ``<label>-seed<k>.safetensors`` a run; where asked, the best, ``…-best.safetensors`` |
| clients/ | where each client holds examples out, a table of them a run: ``<label>-seed<k>.csv`` |
| baselines/ | the same of the baselines, ``local-only`` and ``pooled``, where asked |
| summary.json | status and final figures of every method |
| diagnosis.json | what :mod:`fedax.experiments.diagnosis` measured, where asked |
| sweep.json | of a sweep: the figures of every point |
| plots/, report.html | the pictures |
| public.html | where asked, what may be published of private runs |

The configuration of a sweep has a section ``sweep``, and the rows of its metrics.jsonl tell their point.

All files but metrics.jsonl, which only grows, are written whole or not at all. Of a run that begins, config.toml is the
last: a folder without it holds nothing that has to be kept. Models hold a digest of themselves. Nothing in a run folder
may be a link, for what a run writes or removes has to be its own.
"""

from fedax.engine.checkpoint import write_atomic
from fedax.experiments.runs.folder import (
    FOLDERS,
    KEY,
    LOCK,
    TRACEBACK,
    append_metrics,
    begun,
    begun_folder,
    finite,
    keep_rows,
    locked,
    model_path,
    new_folder,
    refuse_links,
    remove_unfinished,
    write_json,
)
from fedax.experiments.runs.reading import few, lost, missing_rounds, read, rows_of
from fedax.experiments.runs.record import MethodRun, Path, Record, Trial
from fedax.files import slug

__all__ = [
    "FOLDERS", "KEY", "LOCK", "TRACEBACK", "MethodRun", "Path", "Record", "Trial", "append_metrics", "begun",
    "begun_folder", "few", "finite", "keep_rows", "locked", "lost", "missing_rounds", "model_path", "new_folder",
    "read", "refuse_links", "remove_unfinished", "rows_of", "slug", "write_atomic", "write_json",
]  # fmt: skip
