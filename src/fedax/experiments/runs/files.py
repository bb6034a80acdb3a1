"""Readers and schemas for the files of a run folder."""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
import pydantic
import safetensors.numpy

from fedax.data import Overview
from fedax.data.formats import parse_json
from fedax.errors import DataError
from fedax.experiments import toml
from fedax.experiments.config.sections import WRITTEN, check
from fedax.experiments.runs.record import Path
from fedax.files import damage, has_digest, regular
from fedax.theory.measure import Point

SEAL = ("sha256", "of")  # what a row or a file says of itself
_LONGEST_LINE = 1 << 20  # bytes of a line of metrics.jsonl


def read_config(path: Path) -> dict[str, Any]:
    regular(path)
    try:
        config = toml.loads(path.read_bytes())
        sections = check(config, WRITTEN)
    except ValueError as error:
        raise DataError(f"{path}: no configuration of a run: {error}") from error
    if sections.sweep is not None:
        if sections.sweep.search == "random" and "seed" not in config["sweep"]:
            raise DataError(f"{path}: no configuration of a run: sweep.seed is missing")
        for name, values in sections.sweep.grid.items():
            section, _, key = name.partition(".")
            ends = isinstance(values, dict) and {"low", "high"} <= {*values}
            known = section in ("methods", "work", "participation", "run", "privacy", "clock", "pace")
            if not (key and known and (ends or isinstance(values, list))):
                raise DataError(f"{path}: no configuration of a run: sweep.grid.{name[:100]!r} is no axis")
            if not values:
                raise DataError(f"{path}: no configuration of a run: sweep.grid.{name[:100]!r} has no values")
    return config


def read_json(path: Path, form: type[pydantic.BaseModel], doubts: list[str] | None = None) -> dict[str, Any]:
    """The content of a file that :func:`write_json` wrote, checked.

    Args:
        path: the file, in a run folder.
        form: of its content.
        doubts: gets a sentence on a file that was edited or moved; ``None``: that is an error.
    """
    regular(path)
    try:
        text = path.read_bytes()
        content = parse_json(text)
        toml.check_plain(content)
        form.model_validate(content)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))[:100]
        raise DataError(f"{path}: not as a run writes it: {place!r}: {first['msg'][:200]}") from None
    except ValueError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if (has_digest(text) or _run(path.parent)) and (wrong := damage(text, said(path.parent, path))) is not None:
        doubt(f"{path}: {wrong}", doubts)
    return content


def doubt(sentence: str, doubts: list[str] | None) -> None:
    """Refuse a file that was edited or moved; or note it, where it is shown all the same."""
    if doubts is None:
        raise DataError(f"{sentence}; restore it; fedax report --trust shows the run all the same")
    doubts.append(f"{sentence}.")


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    left, number = regular(path), 0  # lines written meanwhile are not read
    with path.open("rb") as file:
        # The last line of a run that was killed may be half written.
        while (line := file.readline(min(left, _LONGEST_LINE))).endswith(b"\n"):
            left, number = left - len(line), number + 1
            yield number, line
    if len(line) == _LONGEST_LINE:
        raise DataError(f"{path}, line {number + 1}: longer than {_LONGEST_LINE} bytes; no run writes that")


def run_of(config: bytes, about: Mapping[str, Any]) -> str:
    """What identifies the run of a folder: a digest of its configuration, and of what it is made of."""
    made = json.dumps([about.get("made_of"), about.get("code")], sort_keys=True).encode()
    return hashlib.sha256(config + made).hexdigest()[:12]


def said(folder: Path, path: Path) -> str:
    """What a file of a run folder says that it is: its place in the folder, and the run."""
    run = _run(folder)
    return path.relative_to(folder).as_posix() + f" of run {run}" * (run != "")


def tensors_of(folder: Path, path: Path, most: int) -> dict[str, np.ndarray]:
    """The tensors in a file of a run folder; empty if it is missing, has more than ``most`` bytes, or is damaged."""
    try:
        if regular(path) > most or damage(path, said(folder, path)) is not None:
            return {}
        return safetensors.numpy.load_file(path)
    except (OSError, ValueError, KeyError, safetensors.SafetensorError):
        return {}


def row_of(folder: Path) -> str:
    """What a row of metrics.jsonl says that it is, beside what its columns say."""
    run = _run(folder)
    return f"run {run}" if run else ""


def unsealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a file or a row without what it says of itself."""
    return {name: value for name, value in content.items() if name not in SEAL}


def _run(folder: Path) -> str:
    """The ``run`` in a folder's about.json; empty: an older version of fedax wrote it, or it is not there."""
    try:
        status = (folder / "about.json").stat()
        return _run_in(folder / "about.json", status.st_mtime_ns, status.st_ino, status.st_size)
    except OSError:
        return ""


@functools.lru_cache(8)  # asked for with each row
def _run_in(about: Path, *when: int) -> str:
    try:
        return str(json.loads(about.read_bytes()).get("run", ""))
    except (ValueError, AttributeError, RecursionError):
        return ""  # its reader says so


WholeNumber = Annotated[int, pydantic.Field(ge=0, lt=2**53)]
FiniteNumber = Annotated[float, pydantic.Field(allow_inf_nan=False)]


class _StrictModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)


class _Steps(_StrictModel):
    draws: WholeNumber
    low: list[WholeNumber]
    mean: list[Annotated[FiniteNumber, pydantic.Field(ge=0)]]
    high: list[WholeNumber]


class _Clients(_StrictModel):
    names: list[str] | None = None  # of real clients
    sizes: list[Annotated[WholeNumber, pydantic.Field(ge=1)]] = pydantic.Field(min_length=1)
    uniform: bool
    classes: list[str] | None
    counts: list[list[WholeNumber]] | None
    steps: _Steps

    @pydantic.model_validator(mode="after")
    def _fit(self) -> Self:
        clients, classes = len(self.sizes), len(self.classes or ())
        lengths = {len(self.steps.low), len(self.steps.mean), len(self.steps.high)}
        if self.counts is not None:
            lengths.add(len(self.counts))
            if not classes or {*map(len, self.counts)} != {classes}:
                raise ValueError("counts must have a number for each client and class")
        if lengths != {clients}:
            raise ValueError("steps and counts must have a row for each client")
        return self


class _Majority(_StrictModel):
    class_: str = pydantic.Field(alias="class")
    accuracy: FiniteNumber
    f1: FiniteNumber
    auc: FiniteNumber


class _Drawn(_StrictModel):
    rate: FiniteNumber | None
    places: WholeNumber | None
    cohort: WholeNumber | None
    apart: WholeNumber


class _Outlook(_StrictModel):
    relation: str
    accountant: str
    exchanges: WholeNumber
    warmup: WholeNumber
    rounds: WholeNumber
    epsilon: FiniteNumber | None  # null: infinite
    one: FiniteNumber | None
    drawn: _Drawn | None = None


class About(_StrictModel):
    privacy: dict[str, _Outlook] | None = None  # label -> planned privacy spending; not of a sweep
    public: list[str] | None = None  # columns of private runs that reveal nothing about clients
    better: dict[str, Literal["lower", "higher"]] | None = None  # metrics whose names do not tell
    majority: _Majority | None = None  # metrics of always predicting the commoner of two classes
    made_of: dict[str, dict[str, str]] | None = None  # label -> settings and digests of its runs; not of a sweep
    code: dict[str, str] = {}  # file -> its digest
    id: str | None = None  # by which trackers recognise the run
    started: str
    device: str
    versions: dict[str, str]
    parameters: WholeNumber
    clients: _Clients
    columns: (
        Annotated[dict[str, Any], pydantic.AfterValidator(lambda given: Overview.from_json(given).to_json())] | None
    ) = None  # of tables, by client


_MEASURED = ("smoothness", "objective_smoothness", "variance", "dissimilarity", "gradient", "surrogate_gradient")
_figures: Any = {  # the others are missing where a method has no such figure
    name: (FiniteNumber | None, ... if name in _MEASURED else None)
    for name in Point.__annotations__
    if not name.endswith("_range")
}
_Point: Any = pydantic.create_model("_Point", __base__=_StrictModel, **_figures)


class _Diagnosis(_StrictModel):
    label: str
    models: list[str] = pydantic.Field(min_length=1)
    steps: list[WholeNumber] = pydantic.Field(min_length=2, max_length=2)
    points: list[_Point] = pydantic.Field(min_length=1)
    constant: FiniteNumber | None
    line: list[FiniteNumber | None] = pydantic.Field(min_length=2, max_length=2)
    weights: Any
    chi2: FiniteNumber | None
    floor: FiniteNumber | None
    lr: FiniteNumber | None
    max_lr: FiniteNumber | None
    loosest_lr: FiniteNumber | None = None
    weight_square: FiniteNumber | None = None
    gained: FiniteNumber | None = None
    verdict: str = ""
    take: str = ""
    advice: list[str]
    unknown: list[str]


class Diagnoses(_StrictModel):
    methods: list[_Diagnosis]


class _FineTunedMethod(_StrictModel):
    label: str
    figure: str
    kinds: dict[str, str]
    heads: list[str]
    rows: list[list[str]]
    sentences: list[str]
    table: str  # the digest of it


class FineTuned(_StrictModel):
    methods: list[_FineTunedMethod]


class RunSummary(_StrictModel):
    rows: WholeNumber | None = None  # of metrics.jsonl
    tables: dict[str, str] = {}  # file -> its digest


class AnyTable(_StrictModel):
    """Any table."""
