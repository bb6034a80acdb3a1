"""Run folders: their files, and how these are written and read.

| file | what |
|---|---|
| config.toml | the whole configuration, defaults included; ``fedax run config.toml`` runs it again |
| about.json | versions, device, start; the clients: sizes, weights, classes, local steps; the columns of their tables |
| code/ | copies of the user's own methods and tasks, from when the run began |
| noise.key | of private runs: the secret key of their noise, see :mod:`fedax.engine.secret`; only for its owner |
| metrics.jsonl | one line for each evaluation, written while the run goes on |
| checkpoints/ | of unfinished runs: what they continue from, see :class:`fedax.Checkpoints` |
| models/ | the final models, ``<label>-seed<k>.safetensors``; if asked for, the best ones, ``…-best.safetensors`` |
| models/<label>-seed<k>/ | of methods with some: the clients' own models, of up to 100 clients |
| clients/ | if clients hold examples out: figures of each client, a table for each run, ``<label>-seed<k>.csv`` |
| baselines/ | if asked for: the same tables for the baselines ``local-only`` and ``pooled`` |
| arrivals/ | at nodes, if the server does not wait: all answers and when they came, ``<label>-seed<k>.csv`` |
| summary.json | status and final figures of every method |
| diagnosis.json | after ``fedax diagnose``: the measurements of :mod:`fedax.experiments.diagnosis` |
| fine-tuned.json, fine-tuned/ | after ``fedax fine-tune``: its verdict, and a table of clients for each method |
| sweep.json | of a sweep: the figures of every point |
| plots/, report.html | the pictures |
| public.html | of private runs, if asked for: what may be published |

The configuration of a sweep has a section ``sweep``, and the rows of its metrics.jsonl name their point.

metrics.jsonl only grows; all other files are written completely or not at all. config.toml is written last when a run
begins: a folder without it holds nothing worth keeping. No file in a run folder may be a link, because a run writes and
removes only its own files.

What is read back says what it is and of which run, under a digest (:func:`fedax.files.damage`): each row, models,
examples, and all JSON. about.json holds the digest of config.toml, and summary.json those of the tables of clients.
"""

from fedax.experiments.runs.files import SEAL, AnyTable, FineTuned, read_json, run_of, said, tensors_of, unsealed
from fedax.experiments.runs.folder import (
    ARRIVALS,
    FINE_TUNED,
    FINE_TUNED_FILE,
    FOLDERS,
    KEY,
    LOCK,
    TRACEBACK,
    append_lines,
    append_metrics,
    begun,
    begun_folder,
    finite,
    keep_rows,
    locked,
    model_path,
    new_folder,
    order_rows,
    refuse_links,
    remove_unfinished,
    write_json,
)
from fedax.experiments.runs.reading import at_end, few, lost, missing_rounds, read, rows_in, rows_of
from fedax.experiments.runs.record import MethodRun, Path, Record, Trial
from fedax.files import slug
