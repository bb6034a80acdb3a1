"""Tables of real clients: how all nodes get the same transform of their tables.

A :class:`Desk` answers for the table of a node: with a first summary, with a second one that a plan asks for; then it
takes the transform that :func:`agree` fits at the server. No row leaves the node, and what leaves can be read there.

The server is not trusted. A summary is of counts of several rows (:func:`fedax.data.summaries.summarize`); only a few
different ones of a column leave, also of a table that has changed; and what is refused is said in fixed texts.
"""

import collections
import functools
import itertools
import json
import os
import pathlib
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from fedax.contract.types import Unknown
from fedax.data.cells import CellError, cells, series, shown
from fedax.data.federated import FederatedData
from fedax.data.formats import parse_json
from fedax.data.summaries import LEAST, Plan, Summary, fit, refused, summarize
from fedax.data.tables import by_value, from_frames
from fedax.data.transform import Document, Transform
from fedax.errors import DataError, FedaxError, NodeError
from fedax.files import damage, has_digest, seal, with_digest, write_atomic
from fedax.sites.protocol.agreement import other_versions, precise_versions
from fedax.sites.protocol.fleet import who
from fedax.sites.protocol.messages import Failure, Message, Transport
from fedax.sites.protocol.refusals import Refusal, Rule
from fedax.sites.protocol.site import Site
from fedax.sites.protocol.store import Store, write_line

MOST = 4  # the most different first summaries of a column that leave before its owner has to look; and second ones
TRANSFORMS = 16  # the most different transforms that are tried; each answer says whether the table goes with it
D = TypeVar("D", bound=Document)
_PAUSE = 0.3  # seconds before missing nodes are looked for again
_LONGEST = 10.0  # the longest such pause, for nodes that wait for their owner
_REMIND = 30.0  # seconds between lines that name the nodes still waited for


class Desk:
    """The table of a node, which is one client, and its :class:`Site` as soon as there is a transform.

    Args:
        table: its rows, a table of pandas, without the columns that its owner drops.
        name: of the client.
        folder: of the node's state. It gets ``transform.json``; ``left/``, a copy of each different summary that left
            and of each transform that was tried; and with ``review`` also ``review/``, each summary before it leaves,
            and what the owner said.
        make: gives the :class:`Site` of the examples.
        review: whether the owner sees each summary before it leaves. Else a rule decides: what summaries hold leaves,
            but for the texts of a column that identify rows (:func:`fedax.data.summaries.refused`).
        drop_missing_labels: whether rows without a label are left out, in place of an error.
        least: the fewest rows that a number of a summary may be of.
        say: is called with lines for the owner.
    """

    def __init__(
        self,
        table: Unknown,
        name: str,
        folder: str | os.PathLike[str],
        make: Callable[[FederatedData], Site],
        *,
        review: bool = False,
        drop_missing_labels: bool = False,
        least: int = LEAST,
        say: Callable[[str], None] = print,
    ):
        self.table, self.name, self.folder, self.say = table, name, pathlib.Path(folder), say
        self.review, self.drop_missing_labels, self.least, self._make = review, drop_missing_labels, least, make
        self._site: Site | None = None
        self._transform: Transform | None = None
        self._why = Refusal(Rule.NO_TRANSFORM)
        (self.folder / "left").mkdir(parents=True, exist_ok=True)
        (self.folder / "site").mkdir(exist_ok=True)
        file = self.folder / "transform.json"
        if file.exists():
            try:
                found = Transform.load(file)
                self._serve(found, self._examples(found))
            except (DataError, Refusal) as error:  # its table is another one now
                self._why = Refusal(Rule.OTHER_TABLE)
                say(f"{name}: {file} does not fit the table ({error}); waiting for `fedax deploy tables`")
        else:
            say(f"{name}: {len(table)} rows, {len(table.columns)} columns; waiting for `fedax deploy tables`")

    def answer(self, message: Message) -> Message:
        """The answer to a message; ``{"error": why}`` where there is none."""
        kinds = {"summarize": self._summarize, "prepare": self._prepare, "commit": self._commit}
        kind = str(message.head.get("kind"))
        if kind == "hello":
            return self._hello(message)
        if kind not in kinds:
            return Message({"error": f"{self.name}: {self._why}"}) if self._site is None else self._site.answer(message)
        began = time.perf_counter()
        try:
            found = Message(kinds[kind](message.head))
        except Exception as error:
            found = Message({"error": str(self._refusal(error))})
        if "waits" not in found.head:  # which is asked again and again
            write_line(Store(self.folder / "site", ()), message, found, time.perf_counter() - began)
        return found

    def _refusal(self, error: Exception) -> Refusal:
        """What the coordinator is told of an error; its owner is told all, also what is in the table."""
        if not isinstance(error, FedaxError):
            traceback.print_exc(file=sys.stderr)
            return Refusal(Rule.FAILED)
        self.say(f"{self.name}: {error.__cause__ or error}")
        if isinstance(error, Refusal):
            return error
        return Refusal(Rule.NUMBER if isinstance(error, CellError) else Rule.COLUMN)

    def _hello(self, message: Message) -> Message:
        """The node's description, with the state of its table."""
        digest = None if self._transform is None else self._transform.digest
        table = {"name": self.name, "rows": len(self.table), "transform": digest}
        if self._site is not None:
            return Message(self._site.answer(message).head | {"table": table})
        return Message({"error": f"{self.name}: {self._why}", "table": table, "versions": precise_versions()})

    def _summarize(self, head: dict[str, Unknown]) -> dict[str, Unknown]:
        """The first summary, or the second one that a plan asks for."""
        plan = None if head.get("plan") is None else _read(Plan, head["plan"])
        label = head.get("label") if plan is None else plan.label
        rows = self._labelled(label, () if plan is None else plan.columns)
        if len(rows) < self.least:
            raise Refusal(Rule.FEW_ROWS, about=f"least = {shown(self.least)}")
        why = None if plan is None else refused(rows, plan)
        if why and not self.review:
            raise Refusal(Rule.IDENTIFIES) from DataError(why)
        summary = summarize(rows, plan, self.least)
        which = "first" if plan is None else "second"
        kept = replace(summary, plan=None)  # the same for plans that ask for the same
        copy = f"{which}-{kept.digest[:12]}.json"
        new = self._is_new(which, kept)
        if self.review and not self._reviewed(copy, which, summary, str(head.get("server", "")), why):
            return {"waits": "its owner"}
        if new:
            kept.save(self.folder / "left" / copy)
            self.say(f"{self.name}: the {which} summary has left, as in {self.folder / 'left' / copy}")
        return {"summary": summary.to_json()}

    def _is_new(self, which: str, summary: Summary) -> bool:
        """Whether it says something that has not left yet, of any column."""
        known = collections.defaultdict[str, set[str]](set)
        for path in (self.folder / "left").glob(f"{which}-*.json"):
            try:
                for name, content in _by_column(parse_json(path.read_bytes())).items():
                    known[name].add(content)
            except (OSError, ValueError, AttributeError, TypeError) as error:
                raise Refusal(Rule.LEFT_UNREADABLE) from DataError(f"{path}: {error}")
        new = [name for name, content in _by_column(summary.to_json()).items() if content not in known[name]]
        if full := [name for name in new if len(known[name]) >= MOST]:
            why = f"{MOST} {which} summaries of column {shown(full[0])} have left, as in {self.folder / 'left'}"
            raise Refusal(Rule.LEFT, about=f"{which} summaries = {MOST}") from DataError(why)
        return bool(new)

    def _reviewed(self, file: str, which: str, summary: Summary, server: str, why: str | None) -> bool:
        """Whether the owner has agreed; at the first request the summary is written for the owner to review."""
        file_ = self.folder / "review" / file
        if file_.exists():
            try:
                decision = _decision(file_)
            except DataError as error:
                raise Refusal(Rule.DECISION) from error
            if decision is not None and not decision.yes:
                raise Refusal(Rule.OWNER, about=f"why = {shown(decision.why)}") if decision.why else Refusal(Rule.OWNER)
            return decision is not None
        file_.parent.mkdir(exist_ok=True)
        for old in file_.parent.glob(f"{which}-*.json"):
            if _decision(old) is None:
                old.unlink()  # nobody asks for it any more
        summary.save(file_)
        columns = len(summary.facts or summary.counts)
        self.say(f"{self.name}: {shown(server)} asks for the {which} summary of the table: {columns} columns, no row.")
        self.say(f"Read it: {file_}" + (f" (look at {why})" if why else ""))
        self.say(f"May it leave? Type yes, or no and why. From elsewhere: fedax deploy review --state {self.folder}")
        return False

    def _labelled(self, label: object, columns: Iterable[str]) -> Unknown:
        """The rows, all with a label; the columns are there, too."""
        if not isinstance(label, str):
            raise Refusal(Rule.NO_LABEL)
        for name in (label, *columns):
            try:
                series(self.table, name)
            except DataError as error:
                raise Refusal(Rule.NO_COLUMN, about=f"column = {shown(name)}") from error
        missing = cells(series(self.table, label), label).missing
        if missing.all() or (missing.any() and not self.drop_missing_labels):
            why = f"label {shown(label)} is missing in {missing.sum()} of {len(missing)} rows"
            raise Refusal(Rule.LABEL_MISSING, about=f"label = {shown(label)}") from DataError(why)
        return self.table[~missing].reset_index(drop=True) if missing.any() else self.table

    def _prepare(self, head: dict[str, Unknown]) -> dict[str, Unknown]:
        """Store a transform; it is not used before all sites have it."""
        found = _read(Transform, head.get("transform"))
        copy = self.folder / "left" / f"transform-{found.digest[:12]}.json"
        if not copy.exists():
            if len([*copy.parent.glob("transform-*.json")]) >= TRANSFORMS:
                raise Refusal(Rule.TRANSFORMS, about=f"transforms = {shown(TRANSFORMS)}")
            found.save(copy)  # before it is tried, for a refusal says something, too
        self._examples(found)
        found.save(self.folder / "next.json")
        return {"digest": found.digest}

    def _commit(self, head: dict[str, Unknown]) -> dict[str, Unknown]:
        """Serve the examples made by the transform that was stored before."""
        if self._transform is None or self._transform.digest != head.get("digest"):
            place = self.folder / "next.json"
            found = Transform.load(place) if place.exists() else None
            if found is None or found.digest != head.get("digest"):
                raise Refusal(Rule.NOT_SENT)
            data = self._examples(found)
            os.replace(place, self.folder / "transform.json")
            self._serve(found, data)
        return {"digest": head["digest"]}

    def _examples(self, transform: Transform) -> FederatedData:
        """The examples that the transform makes of the table."""
        label = transform.label
        rows = self._labelled(label and label.name, [column.name for column in transform.columns])
        assert label is not None
        found = cells(series(rows, label.name), label.name, label.texts)
        texts, codes = found.texts
        bad = np.isnan(found.numbers) if label.classes is None else ~np.isin(texts, label.classes)[codes]
        if bad.any():
            what = "no number" if label.classes is None else "none of the transform's classes"
            first = shown(str(series(rows, label.name).iloc[int(np.flatnonzero(bad)[0])]))
            why = f"label {shown(label.name)} is {what} in {bad.sum()} of {len(rows)} rows, the first is {first}"
            raise Refusal(Rule.LABEL_UNKNOWN, about=f"label = {shown(label.name)}") from DataError(why)
        return from_frames({self.name: rows}, transform=transform)

    def _serve(self, transform: Transform, data: FederatedData) -> None:
        if self._site is not None:
            self._site.close()
        self._site, self._transform = self._make(data), transform
        shape = f"{data.num_examples} examples of {len(transform.features)} features"
        self.say(f"{self.name}: {shape}, by the transform {transform.digest}")


def _read(kind: type[D], given: Unknown) -> D:
    """A document of a question."""
    if not isinstance(given, dict):
        raise Refusal(Rule.FORM)
    try:
        return kind.from_json(given)
    except DataError as error:
        raise Refusal(Rule.FORM) from error


def _by_column(summary: Mapping[str, Unknown]) -> dict[str, str]:
    """What a summary says of each column, of any version of fedax."""
    parts = [summary.get(part, {}) for part in ("facts", "counts", "alone", "reach")]
    names = dict.fromkeys(itertools.chain.from_iterable(parts))
    return {name: json.dumps([part.get(name) for part in parts], sort_keys=True) for name in names}


# ---- the owner's decisions


class Decision(NamedTuple):
    """The decision of a node's owner on a summary: whether it may leave, and why not."""

    yes: bool
    why: str


def _decision(file: pathlib.Path) -> Decision | None:
    place = file.with_suffix(".answer")
    try:
        content = place.read_bytes()
        wrong = damage(content, place.name) if has_digest(content) else None
        match parse_json(content):
            case {"yes": bool(yes), "why": str(why)} if wrong is None:
                return Decision(yes, why)
        wrong = wrong or "this is no answer of an owner"
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        wrong = f"cannot be read ({error})"
    raise DataError(f"{place}: {wrong}; remove it, and say it again")


def reviews(state: pathlib.Path) -> dict[pathlib.Path, Decision | None]:
    """The summaries that a node has given to its owner to review, and the decision on each.

    Args:
        state: the node's folder.
    """
    return {file: _decision(file) for file in sorted((state / "review").glob("*.json"))}


def decide(state: pathlib.Path, yes: bool, why: str = "") -> list[pathlib.Path]:
    """Decide whether the summaries of a node that wait for its owner may leave.

    Args:
        state: the node's folder.
        yes: whether they may leave; also those of which the owner said no before.
        why: goes to the coordinator with a no.

    Returns:
        The summaries that this decided on.
    """
    files = [file for file, decision in reviews(state).items() if decision is None or (yes and not decision.yes)]
    for file in files:
        answer_file = file.with_suffix(".answer")
        answer = seal(answer_file.name) | {"yes": yes, "why": why}
        write_atomic(answer_file, with_digest(json.dumps(answer).encode()))
    return files


# ---- the server


def agree(
    transport: Transport,
    label: str,
    planned: Callable[[Mapping[str, Summary]], Plan],
    keep: Callable[[str, str | None, Document], None],
    *,
    nodes: int | None = None,
    timeout: float = 600.0,
    say: Callable[[str], None] = print,
    check_labels: bool = True,
) -> Transform:
    """Fit one transform for the tables at all nodes, and give it to all of them.

    It is the same, byte for byte, as with summaries in files (:func:`fedax.data.plan`, :func:`fedax.data.fit`).

    Args:
        transport: carries the messages.
        label: the column to predict.
        planned: makes the plan from the first summaries, by the clients' names.
        keep: is called with what each document is, ``"first"``, ``"plan"``, ``"second"`` or ``"transform"``, the client
            that sent it, and the document.
        nodes: how many nodes to wait for; ``None``: those that are there.
        timeout: seconds to wait for nodes, and for the answer of each; owners who look may take longer.
        say: is called with lines for people.
        check_labels: whether a label that looks coded in two ways is an error.

    Raises:
        NodeError: too few nodes; one of another version, without a table, or with the name of another; one that cannot
            answer, or whose owner refuses. No node has the new transform then, unless the message says so.
        DataError: the tables do not go together.
    """
    ask = functools.partial(_ask, transport, _gather(transport, nodes, timeout, say), timeout, say)
    first = _summaries(ask({"kind": "summarize", "label": label}), keep, "first")
    plan = planned(first)
    keep("plan", None, plan)
    second = _summaries(ask({"kind": "summarize", "plan": plan.to_json()}), keep, "second")
    transform = fit(plan, second, check_labels)
    for name, about in ask({"kind": "prepare", "transform": transform.to_json()}).items():
        if about.get("digest") != transform.digest:
            raise NodeError(f"client {name!r}: it took another transform than was sent; its fedax may be another")
    keep("transform", None, transform)
    try:
        ask({"kind": "commit", "digest": transform.digest})
    except NodeError as error:
        raise NodeError(f"{error}; others have the new transform already: run this again when it is back") from error
    return transform


def _gather(transport: Transport, nodes: int | None, wait: float, say: Callable[[str], None]) -> dict[int, str]:
    """Number -> name of the nodes that are there, sorted by name."""
    found: dict[int, str] = {}
    end, remind = time.monotonic() + wait, time.monotonic() + 2.0
    while True:
        new = [number for number in transport.nodes() if number not in found]
        hello = dict.fromkeys(new, Message({"kind": "hello", "server": who()}))
        for number, answer in transport.ask(hello, max(1.0, end - time.monotonic())) if hello else ():
            if isinstance(answer, Failure):
                if not answer.gone:
                    raise NodeError(f"node {number}: {answer.text}")
                continue
            name, rows = _present(number, answer.head)
            if name in found.values():
                raise NodeError(f"client {name!r} is at two nodes; give every client a name of its own, or stop one")
            found[number] = name
            say(f"{name}: {rows} rows")
        if len(found) >= (nodes or 1):
            return dict(sorted(found.items(), key=lambda each: by_value(each[1])))
        names = ", ".join(sorted(found.values(), key=by_value)) or "none"
        if time.monotonic() > end:
            raise NodeError(f"{len(found)} nodes are there after {wait:g} s ({names}), and {nodes or 1} should be")
        if time.monotonic() > remind:
            say(f"waiting for {nodes or 1} nodes; there: {names}")
            remind = time.monotonic() + _REMIND
        time.sleep(_PAUSE)


def _present(number: int, about: dict[str, Unknown]) -> tuple[str, int]:
    """The name and the rows of a node with a table."""
    match about:
        case {"table": {"name": str(name)}} | {"names": [str(name), *_]}:
            place = f"client {name!r}"
        case _:
            name, place = "", f"node {number}"
    versions, table = about.get("versions"), about.get("table")
    if isinstance(versions, dict) and (differing := other_versions(versions)):
        raise NodeError(f"{place}: its node has {differing}")
    if not isinstance(table, dict):
        note = f" ({about['error']})" if "error" in about else ""
        raise NodeError(f"{place}: its node has no table, but a folder of arrays{note}; start it with --data TABLE.csv")
    rows = table.get("rows")
    if not name.isprintable() or not name.strip() or type(rows) is not int or rows < 1:
        raise NodeError(f"{place}: it does not say who is there")
    return name, rows


def _ask(
    transport: Transport, names: Mapping[int, str], timeout: float, say: Callable[[str], None], head: dict[str, Unknown]
) -> dict[str, dict[str, Unknown]]:
    """The answers of all nodes by name; nodes that are gone, or wait for their owners, are asked again.

    An error is raised after all nodes have answered, so that it names every one that cannot.
    """
    pending, found, errors = dict(names), dict[str, dict[str, Unknown]](), list[str]()
    end, remind, pause = time.monotonic() + timeout, 0.0, _PAUSE
    message = Message(head | {"server": who()})
    while pending:
        with_owners, online = [], {*transport.nodes()}
        messages = {number: message for number in pending if number in online}
        remaining = max(1.0, end - time.monotonic())
        for number, answer in transport.ask(messages, remaining) if messages else ():
            name = pending[number]
            match answer:
                case Failure(gone=True):
                    continue
                case Message(head={"waits": _}):
                    with_owners.append(name)
                    continue
                case Failure(text=wrong) | Message(head={"error": wrong}):
                    errors.append(f"client {name!r}: {str(wrong).removeprefix(f'{name}: ')}")
                case Message(head=answered):
                    found[name] = answered
            del pending[number]
        if with_owners:  # people take their time
            end = time.monotonic() + timeout
        elif pending and time.monotonic() > end:
            errors += [f"client {name!r}: no answer in {timeout:g} s" for name in pending.values()]
        if errors:
            raise NodeError("; ".join(errors))
        if pending and time.monotonic() > remind:
            remind = time.monotonic() + _REMIND
            for name in pending.values():
                say(f"waiting for {name}" + (": its owner looks at what is to leave" if name in with_owners else ""))
        if pending:
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST)
    return {name: found[name] for name in names.values()}


def _summaries(
    answers: Mapping[str, dict[str, Unknown]], keep: Callable[[str, str | None, Document], None], which: str
) -> dict[str, Summary]:
    found = {}
    for name, about in answers.items():
        try:
            found[name] = Summary.from_json(about["summary"])
        except (DataError, KeyError, TypeError, AttributeError) as error:
            raise NodeError(f"client {name!r}: its answer is no summary ({error})") from None
        keep(which, name, found[name])
    return found
