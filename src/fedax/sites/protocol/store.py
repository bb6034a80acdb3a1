"""What a node keeps on its disk: agreements of runs, frozen parts of models, its clients' memory and own models."""

import json
import pathlib
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence

import jax

from fedax.contract.types import Tree, Unknown
from fedax.data.formats import parse_json
from fedax.engine.checkpoint import write_tensors
from fedax.engine.saved import Model, client_file, save_as
from fedax.errors import ConfigError, NodeError
from fedax.files import WRITING, damage, rotate, seal, slug, with_digest, write_atomic, write_private
from fedax.sites.protocol.agreement import Agreement
from fedax.sites.protocol.messages import Message, arrays_of, unpacked
from fedax.sites.protocol.refusals import Refusal, Rule

_FROZEN = 8  # the most frozen parts that are kept
_RUNS = 64  # the most runs of which the clients' own models are kept
_VERSION = re.compile(r"(\d+)-(\d+)\.safetensors")  # a client's place, and a version of its memory


class Store:
    """The folder of a node.

    Memory has versions: each exchange starts from one version and writes another; versions to which the server may
    return are kept. So a repeated exchange changes nothing, and a run that continues from an older checkpoint finds the
    memory of that time. A version that is missing is an error, never zero.

    Args:
        folder: its folder.
        names: of its clients.
    """

    def __init__(self, folder: pathlib.Path, names: Sequence[str]):
        self.folder, self.names = folder, names
        for name in ("memory", "agreements"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def secret(self, name: str) -> bytes:
        """32 random bytes of the node, drawn when they are first needed."""
        file = self.folder / name
        if not file.exists():
            write_private(file, secrets.token_bytes(32))
        return file.read_bytes()

    # ---- agreements

    def keep_agreement(self, agreement: Agreement, mark: str, server: str) -> None:
        """Remember an agreement for good, with the mark of the data that it was made for, and who asked for it."""
        stored = seal(agreement.digest) | {"text": agreement.text, "mark": mark, "server": server}
        write_atomic(self._agreement_path(agreement.digest), with_digest(json.dumps(stored).encode()))

    def agreement(self, digest: str) -> tuple[Agreement, str, str]:
        """An agreement by its digest, with its mark, and who asked for it.

        Raises:
            Refusal: the node knows none, or it is damaged.
        """
        path = self._agreement_path(digest)
        if damage(path, digest) is not None:
            raise Refusal(Rule.UNKNOWN)
        stored = json.loads(path.read_bytes())
        return Agreement.of(stored["text"]), stored["mark"], stored["server"]

    def _agreement_path(self, digest: Unknown) -> pathlib.Path:
        if not re.fullmatch(r"[0-9a-f]{32}", str(digest)):
            raise Refusal(Rule.FORM)
        return self.folder / "agreements" / f"{digest}.json"

    # ---- frozen parts

    def keep_frozen(self, digest: str, frozen: Tree) -> None:
        """Keep a frozen part; of many the oldest go."""
        path = self._frozen_path(digest)
        path.parent.mkdir(exist_ok=True)
        write_tensors(path, arrays_of({"frozen": frozen}), "frozen", digest)
        for old in sorted(path.parent.glob("*.safetensors"), key=lambda each: each.stat().st_mtime)[:-_FROZEN]:
            old.unlink(missing_ok=True)

    def frozen(self, digest: str, form: Tree) -> Tree:
        """A frozen part.

        Raises:
            Refusal: it is not there, or damaged.
        """
        path = self._frozen_path(digest)
        if damage(path, digest) is not None:
            raise Refusal(Rule.FROZEN)
        return unpacked(path.read_bytes(), {"frozen": form}, "the frozen part")["frozen"]

    def _frozen_path(self, digest: str) -> pathlib.Path:
        return self.folder / "frozen" / f"{digest}.safetensors"

    # ---- personal models

    def keep_model(self, agreement: Agreement, method: str, index: int, client: str, model: Model) -> None:
        """Keep a client's own model after ``index`` rounds; of many runs the oldest go."""
        run = self.folder / "models" / f"{slug(method)}{_run_of(agreement)}"
        place = run / f"round-{index}"
        place.mkdir(parents=True, exist_ok=True)
        save_as(model, place / client_file(client), f"{agreement.digest}/{client}")
        for old in sorted(run.parent.iterdir(), key=lambda each: each.stat().st_mtime)[:-_RUNS]:
            shutil.rmtree(old)

    def keep_rounds(self, agreement: Agreement, best: int | None) -> None:
        """Of the clients' own models of a run keep the newest, and those of the best round."""
        for run in (self.folder / "models").glob(f"*{_run_of(agreement)}"):
            for old in sorted(run.glob("round-*"), key=lambda each: each.stat().st_mtime)[:-1]:
                if old.name != f"round-{best}":
                    shutil.rmtree(old)

    # ---- memory

    def recall(self, run: str, row: int, version: int, form: Tree, initial: Tree) -> Tree:
        """A client's memory at a version of a run; 0 is the initial one."""
        if not jax.tree.leaves(form):
            return form
        if version == 0:
            return initial
        path, who = self._path(run, row, version), f"client {self.names[row]!r}"
        if not path.exists():
            raise NodeError(f"{who}: its memory is lost: {path.name} is not at its node any more; begin a new run")
        if (wrong := damage(path, f"{run}/{path.name}")) is not None:
            raise NodeError(f"{who}: its memory, {path.name}, is {wrong}; restore it, or begin a new run")
        memory: Tree = unpacked(path.read_bytes(), {"memory": form}, f"{who}: its memory, {path.name}")["memory"]
        return memory

    def remember(self, run: str, row: int, version: int, keep: Sequence[int], memory: Tree) -> None:
        """Write a version of a client's memory, and remove older ones except those to keep.

        A message that arrives late removes nothing that later messages wrote.
        """
        if not jax.tree.leaves(memory):
            return
        path = self._path(run, row, version)
        path.parent.mkdir(exist_ok=True)
        write_tensors(path, arrays_of({"memory": memory}), "memory", f"{run}/{path.name}")
        for old in path.parent.iterdir():
            match = _VERSION.fullmatch(old.name)
            stale = match and int(match[1]) == row and int(match[2]) < version and int(match[2]) not in keep
            if stale or old.name.startswith(WRITING):
                old.unlink(missing_ok=True)

    def forget(self, run: str) -> None:
        """Delete the memory of a run that is over."""
        shutil.rmtree(self.folder / "memory" / run, ignore_errors=True)

    def _path(self, run: str, row: int, version: int) -> pathlib.Path:
        return self.folder / "memory" / run / f"{row}-{version}.safetensors"


def _run_of(agreement: Agreement) -> str:
    """How the name of a folder of own models ends: of one run, whatever its agreement has become since."""
    return f"-seed{agreement.seed}-{agreement.memory[:8]}"


# ---- rounds and the log


def write_line(
    store: Store, message: Message, answer: Message, seconds: float, more: Mapping[str, Unknown] | None = None
) -> None:
    """Write a line of a node's log: a message, the size of its answer, and further entries."""
    head, names = message.head, ("kind", "server", "stage", "round", "exchange")
    line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z")} | {name: head[name] for name in names if name in head}
    line |= {"came": message.size, "left": answer.size, "seconds": round(seconds, 3), **(more or {})}
    for name in ("error", "repeated"):
        if name in answer.head:
            line["error"] = answer.head[name]
    rotate(store.folder / "log.jsonl")
    with (store.folder / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_rounds(path: pathlib.Path) -> dict[str, int]:
    """Run -> the number of its rounds that were answered."""
    try:
        found = parse_json(path.read_bytes()) if path.exists() else {}
        if any(type(count) is not int or count < 0 for count in found.values()):
            raise ValueError("a count that is none")
        return dict(found)
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError("folder", str(path), f"this should count rounds, and cannot be read ({error})") from error
