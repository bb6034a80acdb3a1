"""Mutation testing: make small changes to the source, one at a time, and see which of them the tests notice.

``pip install coverage && python -m tests.mutants --changes 400`` makes so many changes in the packages of ``FOLDERS``,
in proportion to their lines: another operator or comparison, another number, a ``not`` or a minus less, ``min`` for
``max``. For each it runs the tests of the changed package that execute the changed line, the fastest first, until one
fails. What happened stands in ``changes.jsonl``, from which a second call goes on. Then ``--elsewhere engine
test_registry.py`` tries those that survived on other tests, ``--only 17 23`` tries these changes again, and
``--default`` runs the tests of the default suite alone.

A change costs seconds: one process imports JAX and fedax, and forks for each change; the child exchanges the code of
the changed function, collects and runs. Compiled programs are kept, and all works on a copy of the repository.
"""

import argparse
import ast
import collections
import contextlib
import gc
import hashlib
import importlib
import itertools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

FOLDERS = ("metrics", "privacy", "contract", "theory", "wire", "algorithms", "engine")
BUDGET = 20.0  # CPU seconds for the tests of one change
DEPENDENCIES = """equinox flax.nnx hypothesis jax.experimental.multihost_utils matplotlib.pyplot optax pandas
pydantic rich scipy.optimize scipy.stats sklearn.datasets sklearn.linear_model typer"""

HOOKED = ("indices.py",)  # jaxtyping compiles it
QUIETLY = ["-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]  # they are imported already

# ---- changes

OPERATORS = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Div],
    ast.Div: [ast.Mult],
    ast.FloorDiv: [ast.Mult],
    ast.Mod: [ast.FloorDiv],
    ast.Pow: [ast.Mult],
    ast.BitAnd: [ast.BitOr],
    ast.BitOr: [ast.BitAnd],
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
    ast.And: [ast.Or],
    ast.Or: [ast.And],
}
PAIRS = (("min", "max"), ("minimum", "maximum"), ("argmin", "argmax"), ("any", "all"), ("floor", "ceil"))
NAMES = {**dict(PAIRS), **{b: a for a, b in PAIRS}}


def changed(node: ast.AST, chance: random.Random) -> ast.AST | None:
    """The node with one change, or None where there is nothing to change."""
    match node:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in OPERATORS:
            return type(node)(**{**vars(node), "op": OPERATORS[type(op)][0]()})
        case ast.Compare(ops=ops):
            at = chance.randrange(len(ops))
            other = chance.choice(OPERATORS[type(ops[at])])()
            return ast.Compare(node.left, [*ops[:at], other, *ops[at + 1 :]], node.comparators)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return node.operand
        case ast.Constant(value=bool(value)):
            return ast.Constant(not value)
        case ast.Constant(value=int(value)):
            return ast.Constant(value + chance.choice((1, -1)) if value > 0 else value + 1)
        case ast.Constant(value=float(value)):
            return ast.Constant(2 * value or 1.0)
        case ast.Name(id=name) if name in NAMES:
            return ast.Name(NAMES[name])
        case ast.Attribute(attr=name) if name in NAMES:
            return ast.Attribute(node.value, NAMES[name])
    return None


def places(node: ast.AST, lines: range | None = None) -> Iterator[tuple[ast.AST, range]]:
    """All nodes but those of annotations, messages and patterns, each with the lines that tell whether it is run."""
    match node:
        case ast.Raise() | ast.JoinedStr() | ast.pattern() | ast.keyword(arg="strict"):
            return
        case ast.FunctionDef(name="__repr__" | "__str__"):
            return
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name.endswith(("Error", "warn", "Warning")):
            return
        case ast.expr() | ast.stmt():
            if lines is None or isinstance(node, ast.stmt):
                whole = isinstance(node, ast.stmt) and not hasattr(node, "body")
                lines = range(node.lineno, node.end_lineno + 1) if whole or isinstance(node, ast.expr) else None
            yield node, lines or range(0)
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from places(child, lines)


def changes_of(path: Path, chance: random.Random) -> list[dict[str, Any]]:
    """All places of a file that can be changed, with one change each."""
    text = path.read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    results = []
    for node, lines in places(ast.parse(text)):
        new = changed(node, chance)
        if new is None:
            continue
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        after = ast.unparse(ast.fix_missing_locations(new))
        blank = "\n" * (node.end_lineno - node.lineno)  # what follows keeps its line
        results.append(
            {
                "path": str(path),
                "line": node.lineno,
                "run": [lines.start, lines.stop],
                "at": [start, end],
                "before": text[start:end].decode(),
                "after": after + blank if isinstance(node, ast.stmt) else f"({after}{blank})",
            }
        )
    return results


def chosen(count: int, seed: int) -> list[dict[str, Any]]:
    """So many changes: each package has as many as its lines ask for, drawn from all its places."""
    chance = random.Random(seed)
    files = {folder: sorted(Path("src/fedax", folder).rglob("*.py")) for folder in FOLDERS}
    lines = {folder: sum(len(p.read_text().splitlines()) for p in paths) for folder, paths in files.items()}
    drawn = []
    for folder, paths in files.items():
        every = [change for path in paths for change in changes_of(path, chance)]
        share = round(count * lines[folder] / sum(lines.values()))
        drawn += [{"folder": folder, **change} for change in chance.sample(every, min(share, len(every)))]
    return [{"number": number, **change} for number, change in enumerate(drawn)]


# ---- tests


class Child(Exception):
    """Raised where a forked process leaves the loop over the changes, and goes on as pytest."""


def clock() -> float:
    """CPU seconds of this process and its children."""
    return sum(os.times()[:4])


class Server:
    """A plugin of pytest: before tests are collected it forks for each change, and the child collects and runs them.

    Args:
        loop: called with the server, once all of fedax is imported and before JAX has begun.
    """

    def __init__(self, loop: Callable[["Server"], None]):
        self.loop, self.parent = loop, os.getpid()
        self.begun: Callable[[str], None] = lambda test: None
        self.seconds = float("inf")
        self.tests: dict[str, float] = {}
        self.failed: list[str] = []
        self.not_collected = False

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.session = session
        tracer = coverage.Coverage(data_file=None, source=["src/fedax"], config_file=False)
        with tracer.collect():
            for folder in FOLDERS:
                for path in sorted(Path("src/fedax", folder).rglob("*.py")):
                    name = ".".join(path.relative_to("src").with_suffix("").parts)
                    importlib.import_module(name.removesuffix(".__init__"))
        data = tracer.get_data()
        self.imported = {file: set(data.lines(file)) for file in data.measured_files()}
        self.functions = collections.defaultdict(list)
        for each in gc.get_objects():
            if isinstance(each, types.FunctionType):
                self.functions[each.__code__.co_filename].append(each)
        gc.freeze()
        with contextlib.suppress(Child):
            self.loop(self)
            pytest.exit("done", 0)

    def run(self, tests: list[str], seconds: float, prepare: Callable[[], None]) -> dict[str, Any]:
        """What comes of these tests in a process of their own, which may take so many seconds of the processor."""
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
            os.truncate("../last.log", 0)
            self.pipe, self.session.config.args = write, tests
            prepare()
            self.start = clock()
            raise Child
        os.close(write)
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(child, signal.SIGKILL))
        signal.alarm(int(20 * seconds))  # for those that wait
        with os.fdopen(read, "rb") as pipe:
            answer = pipe.read()
        signal.alarm(0)
        with contextlib.suppress(ProcessLookupError):  # it, and what it has started
            os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not answer and not os.WIFSIGNALED(status):
            pytest.exit(Path("../last.log").read_text(), 1)
        return json.loads(answer) if answer else {"signal": os.WTERMSIG(status)}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.begun(nodeid)
        self.last = clock()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.tests[nodeid] = round(clock() - self.last, 3)
        if clock() - self.start > self.seconds:
            self.session.shouldstop = "the time is spent"

    def pytest_collectreport(self, report: Any) -> None:
        self.not_collected |= report.failed


def digest(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if Path(file).is_file() else ""


def mapped(file: str, server: Server) -> dict[str, Any]:
    """The lines of the source that each test of a file runs, without child processes."""

    def prepare() -> None:
        tracer = coverage.Coverage(data_file=None, source=["src/fedax"], config_file=False)
        tracer.start()
        server.begun = tracer.switch_context

        def answer() -> dict[str, Any]:
            tracer.stop()
            data, lines = tracer.get_data(), {}
            for source in data.measured_files():
                result = collections.defaultdict(list)
                for line, tests in data.contexts_by_lineno(source).items():
                    for test in tests:
                        result[test].append(line)
                lines[str(Path(source).relative_to(Path.cwd()))] = result
            return {"tests": server.tests, "failed": server.failed, "lines": lines}

        server.answer = answer

    nothing = {"tests": {}, "failed": [], "lines": {}}
    return {"file": file, "digest": digest(file), **nothing, **server.run([file], 900, prepare)}


def reads(change: dict[str, Any], maps: list[dict[str, Any]], imported: bool) -> list[str]:
    """The tests that run the changed line, then their neighbours: JAX runs a line only for who compiles it first.

    Of all of them the fastest, as many as the time allows, file by file for the sake of their fixtures.
    """
    lines, first, then = set(range(*change["run"])), {}, {}
    for table in maps:
        result = table["lines"].get(change["path"], {})
        tests = {test for test, run in result.items() if lines.intersection(run)} or set(result if imported else ())
        good = {test: seconds for test, seconds in table["tests"].items() if test not in table["failed"]}
        if tests.intersection(good):
            first |= {test: seconds for test, seconds in good.items() if test in tests}
            then |= {test: seconds for test, seconds in good.items() if test not in tests}
    every = [*sorted(first, key=first.get), *sorted(then, key=then.get)]
    sums = itertools.accumulate((first | then)[test] for test in every)
    chosen = [test for test, seconds in zip(every, sums, strict=True) if seconds < BUDGET] or every[:1]
    files = {file: place for place, file in reversed([*enumerate(test.split("::")[0] for test in chosen)])}
    return sorted(chosen, key=lambda test: files[test.split("::")[0]])


def codes(code: types.CodeType) -> Iterator[tuple[tuple[str, int], types.CodeType]]:
    """All code objects within one, each with its name and its line."""
    yield (code.co_qualname, code.co_firstlineno), code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def tried(change: dict[str, Any], maps: list[dict[str, Any]], server: Server) -> dict[str, Any]:
    """Run the tests on one change, and return the outcome."""
    path = Path(change["path"]).resolve()
    imported = not server.imported[str(path)].isdisjoint(range(*change["run"])) or change["run"] == [0, 0]
    tests = reads(change, maps, imported)
    original, stat = path.read_bytes(), path.stat()
    start, end = change["at"]
    if original[start:end].decode() != change["before"]:
        return {"result": "gone"}
    if not tests:
        return {"result": "not run"}

    def prepare() -> None:
        sys.dont_write_bytecode = True  # of this change, for the next one
        server.session.config.option.maxfail = 1
        server.seconds = BUDGET
        if imported or path.name in HOOKED:
            for name in [name for name in sys.modules if name.split(".")[0] == "fedax"]:
                del sys.modules[name]
        else:
            new = dict(codes(compile(path.read_bytes(), str(path), "exec", dont_inherit=True)))
            for function in server.functions[str(path)]:
                key = function.__code__.co_qualname, function.__code__.co_firstlineno
                if not key[0].endswith("<lambda>"):
                    function.__code__ = new[key]

        def answer() -> dict[str, Any]:
            done = server.tests and not server.not_collected
            result = "caught" if server.failed else "survived" if done else "did not import"
            return {"result": result, "by": server.failed[:1], "ran": len(server.tests), "of": len(tests)}

        server.answer = answer

    begun = time.monotonic(), sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    path.write_bytes(original[:start] + change["after"].encode() + original[end:])  # tests start processes, too
    try:
        answer = server.run(tests, BUDGET + 30, prepare)
    finally:
        if os.getpid() == server.parent:
            path.write_bytes(original)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # what Python has compiled of it is right again
    if "signal" in answer:
        stopped = answer["signal"] in (signal.SIGXCPU, signal.SIGKILL)
        answer = {"result": "timed out" if stopped else "caught", **answer}
    spent = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - begun[1]
    return {**answer, "seconds": round(time.monotonic() - begun[0], 1), "processor": round(spent, 1)}


# ---- the command


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add(path: Path, record: dict[str, Any]) -> None:
    with path.open("a") as file:
        print(json.dumps(record, ensure_ascii=False), file=file)


def table(result: list[dict[str, Any]]) -> str:
    """The outcomes of the changes, by package."""
    kinds = ("caught", "did not import", "timed out", "survived", "not run")
    rows = [f"| package | changes | {' | '.join(kinds)} |", "|---" * (len(kinds) + 2) + "|"]
    for folder in (*FOLDERS, "all"):
        results = [each["result"] for each in result if folder in (each["folder"], "all")]
        rows.append(f"| {folder} | {len(results)} | {' | '.join(str(results.count(kind)) for kind in kinds)} |")
    return "\n".join(rows)


def copied(to: Path) -> None:
    """A copy of the repository as it is now; what did not change is left, with what Python has compiled of it."""
    listed = subprocess.check_output(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], text=True)
    for name in filter(None, listed.split("\0")):
        source, target = Path(name), to / name
        if source.is_file() and not (target.is_file() and target.read_bytes() == source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def files_of(name: str) -> list[str]:
    """A file of tests; or those of a package, and the package itself for its doctests."""
    path = Path("tests", name)
    return [str(path)] if path.is_file() else [*map(str, sorted(path.glob("test_*.py"))), f"src/fedax/{name}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--changes", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--elsewhere", nargs="*", default=[], help="the survivors, on these files or folders of tests")
    parser.add_argument("--default", action="store_true", help="with the tests of the default suite alone")
    parser.add_argument("--only", type=int, nargs="*", default=[], help="these changes, again")
    parser.add_argument("--at", type=Path, default=Path("/tmp/fedax-mutants"), help="for the copy and the records")
    args = parser.parse_args()
    at = args.at.resolve()
    if Path.cwd() != at / "copy":
        copied(at / "copy")
        os.chdir(at / "copy")
        paths = {"PYTHONPATH": str(at / "copy/src"), "JAX_COMPILATION_CACHE_DIR": str(at / "compiled")}
        os.environ.update(paths, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0")
        os.execv(
            sys.executable, [sys.executable, "-W", "ignore", "-m", "tests.mutants", *sys.argv[1:], "--at", str(at)]
        )

    for name in ["tests.conftest", *DEPENDENCIES.split()]:  # JAX has read its settings then, and has not begun
        importlib.import_module(name)
    if not (at / "chosen.jsonl").exists():
        for change in chosen(args.changes, args.seed):
            add(at / "chosen.jsonl", change)
    screen = os.fdopen(os.dup(1), "w")
    log = os.open(at / "last.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)

    def loop(server: Server) -> None:
        maps = {each["file"]: each for each in records(at / "maps.jsonl")}
        done = {each["number"]: each for each in records(at / "changes.jsonl")}
        for change in records(at / "chosen.jsonl"):
            last = done.get(change["number"])
            survived = last and last["result"] in ("survived", "not run") and last["elsewhere"] != args.elsewhere
            if not (change["number"] in args.only if args.only else survived if args.elsewhere else not last):
                continue
            files = [file for name in args.elsewhere or [change["folder"]] for file in files_of(name)]
            for file in files:
                if file not in maps or maps[file]["digest"] != digest(file):
                    maps[file] = mapped(file, server)
                    add(at / "maps.jsonl", maps[file])
                    print(file, len(maps[file]["tests"]), *maps[file]["failed"], file=screen, flush=True)
            record = {**change, "elsewhere": args.elsewhere, **tried(change, [maps[file] for file in files], server)}
            add(at / "changes.jsonl", record)
            done[change["number"]] = record
            print(
                *(record[key] for key in ("number", "path", "line", "before", "after", "result")),
                file=screen,
                flush=True,
            )
        print(table(list(done.values())), file=screen, flush=True)

    server = Server(loop)
    pytest.main([*QUIETLY, *([] if args.default else ["tests"])], plugins=[server])
    if os.getpid() != server.parent:
        with os.fdopen(server.pipe, "w") as pipe:
            json.dump(server.answer(), pipe)
        os._exit(0)


if __name__ == "__main__":
    main()
