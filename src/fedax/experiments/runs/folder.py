"""Writing a run folder: making and finding it, its lock, and the rows of metrics.jsonl."""

import contextlib
import itertools
import json
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedax.data.formats import parse_json
from fedax.engine import secret
from fedax.engine.history import Row
from fedax.errors import ConfigError, DataError
from fedax.experiments import own, toml
from fedax.experiments.runs.files import About, lines_of, read_config, read_json, row_of, said, unsealed
from fedax.experiments.runs.record import Path
from fedax.files import WRITING, hold, seal, slug, with_digest, write_atomic

LOCK = ".lock"
KEY = secret.FILE
TRACEBACK = "traceback-"  # the prefix of files that unexpected errors leave
ARRIVALS = "arrivals"  # the folder of the traces of runs at nodes whose server does not wait
FINE_TUNED, FINE_TUNED_FILE = "fine-tuned", "fine-tuned.json"  # what fedax fine-tune writes: tables, and the verdict
FOLDERS = ("models", "plots", "checkpoints", "clients", "baselines", "examples", "classes")


def new_folder(out: str | Path | None, name: str) -> Path:
    """Make the folder of a run, and check that it can be written to.

    Args:
        out: the folder; it must be new or empty, or hold only files of a run that was stopped before it began.
            ``None``: ``runs/<name>-<number>``, with the first free number.
        name: the experiment's name.

    Raises:
        ConfigError: the folder holds something, or cannot be written to.
    """
    folder = Path("runs") if out is None else Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if out is None:
            folder = _numbered(folder, slug(name))
        if not _unused(folder):
            raise ConfigError("out", str(folder), "this folder is not empty; name another with --out, or empty it")
        for name in FOLDERS:
            (folder / name).mkdir(exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError("out", str(folder), f"cannot write there ({reason}); name another with --out") from error
    return folder


def _numbered(parent: Path, name: str) -> Path:
    """Make the folder with the first free number; safe if another process does so at the same moment."""
    for number in itertools.count(1):
        folder = parent / f"{name}-{number}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            break
    return folder


def _unused(folder: Path) -> bool:
    """Whether a folder is empty, or holds only files that a run writes before it begins."""
    for path in folder.iterdir():
        if path.is_symlink():
            return False
        if path.name in FOLDERS:
            if not path.is_dir() or any(path.iterdir()):
                return False
        elif path.name in ("about.json", own.FOLDER):
            try:
                known = read_json(folder / "about.json", About).get("code", {})  # raises if it is no file of a run
            except DataError:
                return False
            if path.name == own.FOLDER and not {file.name for file in path.iterdir()} <= {*known}:
                return False
        elif path.name == "metrics.jsonl":
            if not path.is_file() or path.stat().st_size:
                return False
        elif path.name not in (LOCK, KEY) and not path.name.startswith((WRITING, TRACEBACK)):
            return False
    return True


def refuse_links(folder: Path) -> None:
    """Refuse a run folder in which a file or folder that runs write or remove is a symbolic link.

    Raises:
        ConfigError: the first such link.
    """
    files = ("config.toml", "about.json", "metrics.jsonl", "summary.json", "diagnosis.json", FINE_TUNED_FILE, LOCK, KEY)
    places = [
        folder / name for name in (*files, "report.html", "public.html", *FOLDERS, ARRIVALS, FINE_TUNED, own.FOLDER)
    ]
    if not any(path.is_symlink() for path in places):
        for name in (*FOLDERS, ARRIVALS, FINE_TUNED, own.FOLDER):
            for above, folders, inside in os.walk(folder / name):
                places += [Path(above) / name_in_folder for name_in_folder in (*folders, *inside)]
    for path in places:
        if path.is_symlink():
            raise ConfigError("out", str(path), "this is a link, and a run writes in its own folder only; remove it")


def begun_folder(out: str | Path | None, config: Mapping[str, Any], name: str | None = None) -> Path | None:
    """The folder in which a run of this configuration has begun, or ``None``; the section ``track`` may differ.

    Args:
        out: the folder to look at; ``None``: the last of ``runs/<name>-<number>`` with this configuration.
        config: the whole configuration, from :func:`fedax.experiments.build`.
        name: the name in the folders; default: the experiment's.

    Raises:
        ConfigError: ``out`` holds the run of another configuration.
    """
    candidates = [] if out is None else [Path(out)]
    if out is None:
        first = re.escape(slug(name or config["name"]))
        numbered = ((re.fullmatch(rf"{first}-(\d+)", p.name), p) for p in Path("runs").glob("*"))
        candidates = [path for _, path in sorted(((int(m[1]), path) for m, path in numbered if m), reverse=True)]
    wanted = toml.loads(toml.dumps(config).encode())
    for folder in candidates:
        if not (folder / "config.toml").exists():
            continue
        differ = list(_differences("", wanted, {**read_config(folder / "config.toml"), "track": wanted.get("track")}))
        if not differ:
            return folder
        if out is not None:
            first_few = "; ".join(differ[:5]) + ("; …" if len(differ) > 5 else "")
            raise ConfigError("out", str(folder), f"it holds another run ({first_few}); name another folder with --out")
    return None


def _differences(path: str, new: Any, old: Any) -> Iterator[str]:
    if isinstance(new, dict) and isinstance(old, dict):
        for key in dict.fromkeys([*new, *old]):
            yield from _differences(f"{path}.{key}" if path else key, new.get(key), old.get(key))
    elif isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        for i, (one, other) in enumerate(zip(new, old, strict=True)):
            yield from _differences(f"{path}[{i}]", one, other)
    elif new != old and not (new != new and old != old):  # two NaN, such as of run.faults, count as equal
        yield f"{path} was {old!r}, is {new!r}"


def locked(folder: Path) -> contextlib.AbstractContextManager[object]:
    """Acquire the lock of a run folder.

    Raises:
        ConfigError: another process holds it, or the folder cannot be written to.
    """
    refuse_links(folder)
    try:
        busy = ConfigError("out", str(folder), "another process is writing this run; wait for it, or stop it")
        return hold(folder / LOCK, busy)
    except OSError as error:
        raise ConfigError("out", str(folder), f"cannot write there ({error.strerror or error})") from error


def keep_rows(folder: Path, over: Collection[tuple[str, int]]) -> None:
    """Remove all rows from metrics.jsonl but those of finished runs, given by label and seed."""
    lines = []
    for number, line in lines_of(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else ():
        try:
            row = parse_json(line)
            if (row["label"], row["seed"]) in over:
                lines.append(line)
        except (ValueError, LookupError, TypeError) as error:
            raise DataError(f"{folder / 'metrics.jsonl'}, line {number}: not as a run writes it ({error})") from error
    write_atomic(folder / "metrics.jsonl", b"".join(lines))


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files that :func:`write_atomic` left in a run folder when its process was killed."""
    for found in (folder.glob(f"{WRITING}*"), *((folder / name).rglob(f"{WRITING}*") for name in FOLDERS)):
        for path in found:
            path.unlink()


def model_path(folder: Path, label: str, seed: int, best: bool = False) -> Path:
    """The path of a run's final model, or of its best one."""
    return folder / "models" / f"{slug(label)}-seed{seed}{'-best' * best}.safetensors"


def write_json(path: Path, content: Mapping[str, Any], indent: int | None = 1) -> None:
    """Strict JSON, atomically, which says what it is: numbers that are not finite become null."""
    run = f" of run {content['run']}" if "run" in content else None
    of = said(path.parent, path) if run is None else path.name + run
    text = json.dumps(finite(seal(of) | unsealed(content)), indent=indent, ensure_ascii=False, allow_nan=False)
    write_atomic(path, with_digest(f"{text}\n".encode()))


def finite(content: Any) -> Any:
    """Plain Python values of any nested content, ``None`` for numbers that are not finite.

    Example:
        >>> finite({"loss": float("nan"), "steps": np.arange(2)})
        {'loss': None, 'steps': [0, 1]}
    """
    if isinstance(content, Mapping):
        return {str(k): finite(v) for k, v in content.items()}
    if isinstance(content, np.ndarray | np.generic):
        return finite(content.tolist())
    if isinstance(content, list | tuple):
        return [finite(v) for v in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


def append_metrics(
    folder: Path,
    label: str,
    method: str,
    seed: int,
    row: Row,
    point: Mapping[str, Any] | None = None,
    most: int | None = None,
) -> None:
    """Add one evaluation to metrics.jsonl, and see it on its way to the disk.

    The last one of a run says how that ended, where it did not come well to its last round. ``most``: the round with
    which a budget of privacy ends the run, where that is before its last one.
    """
    status = "ok" if row.status in (None, "finished") else row.status
    if row["round"] == most and status not in ("diverged", "failed"):
        status = "spent"
    at = {} if point is None else {"point": point}
    line = finite({"label": label, "method": method, **at, "seed": seed, "status": status, **row})
    with open(folder / "metrics.jsonl", "ab") as file:
        file.write(sealed_row(folder, line))


def sealed_row(folder: Path, row: Mapping[str, Any]) -> bytes:
    """A row as a line of metrics.jsonl, which says of which run it is."""
    text = json.dumps(unsealed(row) | seal(row_of(folder)), ensure_ascii=False, allow_nan=False)
    return with_digest(f"{text}\n".encode())


def append_lines(folder: Path, lines: bytes) -> None:
    """Add the rows of another run folder to metrics.jsonl."""
    with open(folder / "metrics.jsonl", "ab") as file:
        file.write(b"".join(sealed_row(folder, json.loads(line)) for line in lines.splitlines()))


def order_rows(folder: Path, runs: Sequence[tuple[str, int]]) -> None:
    """Sort metrics.jsonl by the runs, given by label and seed; the rows of a run keep their order."""
    lines: dict[tuple[str, int], list[Any]] = {run: [] for run in runs}
    for _, line in lines_of(folder / "metrics.jsonl"):
        row = parse_json(line)
        lines[row["label"], row["seed"]].append(line)
    write_atomic(folder / "metrics.jsonl", b"".join(line for of_run in lines.values() for line in of_run))


def begun(folder: Path) -> dict[str, Any] | None:
    """The content of about.json, if a run has begun in a folder; else ``None``.

    Raises:
        ConfigError: a run has begun, but about.json is lost.
        DataError: about.json cannot be read, or was edited or moved.
    """
    if not (folder / "config.toml").exists():
        return None
    if (folder / "about.json").exists():
        return read_json(folder / "about.json", About)
    rows = folder / "metrics.jsonl"
    if (rows.exists() and rows.stat().st_size) or any(any((folder / name).glob("*")) for name in FOLDERS):
        hint = "its about.json is lost, which tells what the run was made of; restore it, or name another folder"
        raise ConfigError("out", str(folder), hint)
    return None
