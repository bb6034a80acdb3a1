"""A fuzzer of file readers: broken and hostile files, made by changes to small good ones. The tests run a few of each.

``python -m tests.fuzz npz 100000 150`` runs a reader on so many inputs, or for so many seconds, guided by coverage
if atheris is installed (``pip install atheris``), else at random. Each input has to be read, or to end in one of
fedax's errors, within 2 s of CPU time and 4 times the memory of its content. ``python -m tests.fuzz`` lists the
readers.
"""

import atexit
import bz2
import collections
import contextlib
import copy
import csv
import datetime
import functools
import gc
import gzip
import importlib
import io
import itertools
import json
import math
import os
import pathlib
import random
import re
import select
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import tracemalloc
import unittest.mock
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

SECONDS = 2.0
DEFLATE = 1032  # the largest compression ratio of deflate

Path = pathlib.Path

# ---- mutations


INTEGERS = (0, 1, 2, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
WORDS = [
    *(str(n).encode() for n in (*INTEGERS, -1, 10**12, 10**30, 10**309)),
    *(b"9" * 5000, b"-0.0", b"1e999", b"1e-999", b"0x" + b"f" * 6000, b"1_0", b"nan", b"NaN", b"-Infinity", b"inf"),
    *(b"true", b"null", b'""', b"''", b"[]", b"{}", b'{"a": [1]}', b"1979-05-27", b"07:32:00", b"\xff\xfe", b"\x00"),
    *(b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"\n", b"\r", b",", b":", b"#", b"=", b".", b" "),
    *(b"[" * 300, b"{" * 300, b'{"a":' * 300, b"[" * 50 + b"]" * 50, b"a." * 300 + b"a = 1\n", b"(" * 300, b"-" * 300),
    *(b"[[a]]\n", b"[a]\n", b"|O", b"<f8", b">u4", b"<U9", b"|S0", b"<U0", b"|V8", b"<M8[ns]", b"<c16", b"<f2", b"?"),
    *(b"[('a', '<i4')]", b"(0, 18446744073709551615)", b"(-1,)", b"()", b"(1,) * 9", b"'fortran_order': True"),
]


def change(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """One to four small random changes of the bytes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 4, 8, 16, 64, 512)))
        kind = rng.randrange(9)
        if kind == 0 and at < len(data):
            data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] if rng.random() < 0.5 else data[at:]
        elif kind == 2:
            data = data[:at] + data[end:]
        elif kind == 3:
            data = data[:at] + rng.choice(WORDS) + data[at:]
        elif kind == 4:
            size, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
            number = rng.choice(INTEGERS) % 256**size
            data = data[:at] + number.to_bytes(size, order) + data[at + size :]
        elif kind == 5:
            data = data[:end] + data[at:end] * rng.choice((1, 1, 2, 50)) + data[end:]
        elif kind == 6:
            other = rng.choice(others)
            data = data[:at] + other[rng.randrange(len(other) + 1) :]
        elif kind == 7:  # a word or a number in a text becomes another
            words = list(itertools.islice(re.finditer(rb"[+-]?[\w.]+|\"[^\"]*\"|'[^']*'|\([^()]*\)", data), 2000))
            if words:
                word = rng.choice(words)
                data = data[: word.start()] + rng.choice(WORDS) + data[word.end() :]
        elif kind == 8:
            data = data[:at] + bytes(rng.randrange(256) for _ in range(rng.choice((1, 2, 8)))) + data[at:]
        data = data[:40_000]
    return data


def plain(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    return change(rng, data, others)


def packed(inner: Callable[..., bytes], pack: Callable, unpack: Callable) -> Callable[..., bytes]:
    """Change the unpacked content and pack it again, or change the packed bytes."""

    def changed(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
        if rng.random() < 0.75:
            with contextlib.suppress(Exception):
                return pack(inner(rng, unpack(data), others))
        return change(rng, data, others)

    return changed


def array(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Change a .npy file: its header, with the right length, or its content."""
    if len(data) < 10 or rng.random() < 0.3:
        return change(rng, data, others)
    end = 10 + struct.unpack("<H", data[8:10])[0]
    header, content = data[10:end], data[end:]
    if rng.random() < 0.6:
        header = change(rng, header, others)
    if rng.random() < 0.5:
        content = change(rng, content, others)
    return data[:8] + struct.pack("<H", min(len(header), 65535)) + header + content


def archive(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Change a zip file: its members, their number, names or compression, or a flag of one."""
    if rng.random() < 0.3:
        return change(rng, data, others)
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            members = [(info.filename, file.read(info)) for info in file.infolist()[:20]]
        i = rng.randrange(len(members))
        name, content = members[i]
        kind = rng.randrange(8)
        if kind == 0:
            members.insert(rng.randrange(len(members) + 1), members[i])
        elif kind == 1:
            members.pop(i)
        elif kind == 2:
            members[i] = (rng.choice(("/", "../", "", "\0")) + name + rng.choice(("", "/", "é", ".npy")), content)
        else:
            members[i] = (name, array(rng, content, others))
        out = io.BytesIO()
        methods = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED] * 9 + [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]  # slow
        with zipfile.ZipFile(out, "w", rng.choice(methods)) as file:
            for name, content in members:
                file.writestr(name, content)
        data = out.getvalue()
        if rng.random() < 0.2:  # encrypted, or sizes that are not so
            at = data.find(b"PK\x01\x02", rng.randrange(len(data))) + rng.choice((8, 10, 16, 20, 24, 28, 30, 42))
            data = data[:at] + rng.choice((1, 255, 9)).to_bytes(1, "little") + data[at + 1 :]
    return data


def opcodes(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Insert or remove operations of a pickle."""
    import pickletools

    if rng.random() < 0.4:
        return change(rng, data, others)
    with contextlib.suppress(ValueError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        places = [place for _, _, place in pickletools.genops(data)]
        at = rng.choice(places)
        code = rng.choice(pickletools.opcodes).code.encode("latin-1")
        extra = code * rng.choice((1, 1, 1, 1000)) + rng.choice((b"", b"\x01", b"\xff\xff\xff\x7f", b"a\nb\n", b"9\n"))
        return data[:at] + extra + data[at + rng.choice((0, 1)) :]
    return change(rng, data, others)


def tagged(inner: Callable[..., bytes]) -> Callable[..., bytes]:
    """Change a file but for its first byte, which tells its kind."""
    return lambda rng, data, others: data[:1] + inner(rng, data[1:], [other[1:] for other in others])


VALUES = (
    None,
    True,
    -1,
    0,
    3,
    2**31,
    2**63,
    10**30,
    0.5,
    -0.5,
    math.nan,
    math.inf,
    "",
    "a",
    "F64",
    [],
    {},
    [[]],
    [0, 0],
)


def node(rng: random.Random, tree: Any) -> None:
    """Change, rename, copy or delete a value somewhere in a JSON tree."""
    inner = tree
    while True:
        keys = [*inner] if isinstance(inner, dict) else [*range(len(inner))]
        if not keys:
            return
        key = rng.choice(keys)
        if not isinstance(inner[key], dict | list) or not inner[key] or rng.random() < 0.2:
            break
        inner = inner[key]
    kind = rng.randrange(5)
    if kind == 0:
        del inner[key]
    elif kind == 1 and isinstance(inner, dict):
        inner[rng.choice(("", "a", "server.0", "ids", "round", "é\n", "add"))] = inner[key]
    elif kind == 1 or (kind == 2 and isinstance(inner, list)):
        inner.insert(rng.randrange(len(inner) + 1), inner[key])
    elif kind == 2:
        inner[key] = inner[rng.choice(keys)]
    elif kind == 3 and isinstance(inner[key], int | float):
        inner[key] += rng.choice((-1, 1, 8, 0.5, 2**40))
    else:
        inner[key] = copy.deepcopy(rng.choice(VALUES))


def tensors(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Change a safetensors file: its header or the JSON in it, with the right length, or its numbers."""
    if len(data) < 8 or rng.random() < 0.15:
        return change(rng, data, others)
    end = 8 + struct.unpack("<Q", data[:8])[0] % 2**32
    header, content = data[8:end], data[end:]
    kind = rng.randrange(8)
    if kind == 0:
        header = change(rng, header, others)
    elif kind == 1:
        content = change(rng, content, others)
    elif kind == 2 and len(content) >= 8:  # of the numbers, whole ones of 64 bits
        at = rng.randrange(0, len(content) - 7, 8)
        content = content[:at] + struct.pack("<q", rng.choice((-1, 0, 1, 2, 3, 2**31, 2**63 - 1))) + content[at + 8 :]
    else:
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
            tree = json.loads(header)
            if kind < 5:
                node(rng, {name: form for name, form in tree.items() if name != "__metadata__"} if kind == 4 else tree)
            else:
                text = json.loads(tree["__metadata__"]["fedax"])
                for _ in range(rng.choice((1, 1, 2))):
                    node(rng, text)
                tree["__metadata__"]["fedax"] = json.dumps(text)
            header = json.dumps(tree).encode()
    changed = struct.pack("<Q", len(header)) + header + content
    return resealed(changed) if rng.random() < 0.8 else changed


def module(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Change an archive of PyTorch: its graph, the description of its tensors, or their numbers."""
    if rng.random() < 0.2:
        return archive(rng, data, others)
    with contextlib.suppress(Exception):
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            members = {info.filename: file.read(info) for info in file.infolist()}
        texts = [name for name in members if name.endswith(".json")]
        name = rng.choice([*texts * 4, *members])
        if name in texts and rng.random() < 0.8:
            tree = json.loads(members[name])
            for _ in range(rng.choice((1, 1, 2, 4))):
                node(rng, tree)
            members[name] = json.dumps(tree).encode()
        else:
            members[name] = change(rng, members[name], others)
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as file:
            for name, content in members.items():
                file.writestr(name, content)
        return out.getvalue()
    return change(rng, data, others)


def resealed(content: bytes) -> bytes:
    """A safetensors file with its digest updated."""
    from fedax.files import has_digest, with_digest

    return with_digest(content) if has_digest(content) else content


def by_start(choices: dict[bytes, Callable[..., bytes]]) -> Callable[..., bytes]:
    """Change a file by the mutation that fits its first bytes."""

    def changed(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
        inner = next((inner for start, inner in choices.items() if data.startswith(start)), plain)
        return inner(rng, data, others)

    return changed


# ---- good files


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def npz(save: Callable = np.savez, **arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def pictures(n: int, *shape: int) -> np.ndarray:
    return (np.arange(n * np.prod(shape)) % 7).astype(np.uint8).reshape(n, *shape)


def images_npz(*shape: int) -> dict[str, np.ndarray]:
    x, y = pictures(2, *shape), np.array([1, 0], np.uint8)
    return {"x_train": x, "y_train": y, "x_test": x[:1], "y_test": y[:1]}


def rows_npz() -> dict[str, np.ndarray]:
    return {
        "train_y": np.array([-1, 1, -1], np.int8),
        "train_data": np.ones(4, np.uint8),
        "train_indices": np.array([2, 10, 4, 122], np.int16),
        "train_indptr": np.array([0, 2, 4, 4], np.int32),
        "train_shape": np.array([3, 123]),
    }


def roles_npz() -> dict[str, np.ndarray]:
    text = np.frombuffer(b"To be, or not to be\n" * 20, np.uint8)
    return {"text": text, "role_ptr": np.array([0, 170, 400], np.int32)}


def binary_batch(n: int = 2) -> bytes:
    return b"".join(bytes([i]) + bytes(3072) for i in range(n))


def python_batch(n: int = 2) -> bytes:
    """As Python 2 and the NumPy of 2009 pickled it."""
    number, pixels = (lambda value: b"J" + struct.pack("<i", value)), bytes(3072 * n)
    head = b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87R(K\x01"
    dtype = b"\x86cnumpy\ndtype\nq\x04U\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN" + number(-1) * 2 + b"K\x00tb\x89T"
    data = head + number(n) + number(3072) + dtype + struct.pack("<i", len(pixels)) + pixels + b"tb"
    labels = b"](" + b"".join(number(i) for i in range(n)) + b"e"
    return b"\x80\x02}q\x01(U\x04data" + data + b"U\x06labels" + labels + b"u."


BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def tar(ending: str, batch: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for name in BATCHES:
            info = tarfile.TarInfo(f"cifar-10-batches/{name}{ending}")
            info.size = len(batch)
            file.addfile(info, io.BytesIO(batch))
    return out.getvalue()


def leaf(x: list, y: list) -> bytes:
    users = {"a": (x, y), "b": (x[:1], y[:1])}
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    return json.dumps({"users": list(users), "num_samples": [len(x), 1], "user_data": data}).encode()


CONFIG = b"""name = "tiny"
[data]
name = "digits"
clients = 3
partition = "dirichlet"
alpha = 0.5
seed = 0
weights = "sizes"
[task]
name = "mlp"
hidden = [4]
[work]
kind = "random-epochs"
low = 1
high = 2
[participation]
kind = "uniform"
size = 2
[run]
rounds = 4
batch_size = 8
seeds = [0, 1]
grad_norm = false
[[methods]]
name = "fedavg"
label = "good"
lr = {value = 0.5, at = {2 = 0.1}}
[[methods]]
name = "fedprox"
label = "other"
lr = 0.1
prox = 0.01
"""
SWEEP = b"""[sweep]
criterion = "test_loss"
better = "lower"
last = 1
search = "grid"
[sweep.grid]
"methods.*.lr" = [0.1, 0.5]
"work.low" = {low = 1, high = 2, points = 2}
"""
OVERRIDES = b"""run.rounds=3
methods.good.lr.value=0.25
methods.*.lr=0.1
data.partition=iid
name="x"
work.kind=steps
work.steps=2"""


def about() -> bytes:
    clients = {
        "sizes": [3, 4, 5],
        "uniform": False,
        "classes": ["0", "1"],
        "counts": [[1, 2], [2, 2], [5, 0]],
        "steps": {"draws": 50, "low": [1, 1, 1], "mean": [1.0, 1.5, 2.0], "high": [1, 2, 2]},
    }
    versions = {"fedax": "0", "jax": "0"}
    top = {"started": "2026-01-01", "device": "1 × cpu", "versions": versions, "parameters": 650, "clients": clients}
    return json.dumps(top, ensure_ascii=False).encode()


def metrics(points: tuple = (None,)) -> bytes:
    lines = []
    for label, method in (("good", "fedavg"), ("other", "fedprox")):
        for point, seed, k in itertools.product(points, (0, 1), (0, 2, 4)):
            costs = {"clients": 2 * k, "local_steps": k, "gradients": k, "bytes_down": k, "bytes_up": k, "seconds": 0.5}
            losses = {"train_loss": 1 / (k + seed + 1), "test_loss": 0.5, "test_accuracy": 0.5}
            at = {} if point is None else {"point": point}
            row = {"label": label, "method": method, **at, "seed": seed, "status": "ok", "round": k, **losses, **costs}
            lines.append(json.dumps(row))
    return "\n".join([*lines, ""]).encode()


def diagnosis() -> bytes:
    point = {
        "smoothness": 1.0,
        "objective_smoothness": 0.5,
        "variance": 0.1,
        "dissimilarity": 0.2,
        "gradient": 0.3,
        "surrogate_gradient": 0.3,
        "move": 0.1,
        "bias": None,
        "cohort_cost": 0.1,
    }
    results = {"label": "good", "models": ["the initial model", "the final one of seed 0"], "points": [point, point]}
    results |= {"steps": [1, 2], "constant": 0.1, "line": [1.0, None], "weights": True, "chi2": 0.1, "floor": 0.0}
    results |= {"lr": 0.1, "max_lr": 0.2, "advice": ["Wait."], "unknown": ["The weather."]}
    return json.dumps({"methods": [results]}).encode()


def model() -> bytes:
    header = (
        b'{"__metadata__":{"sha256":"' + b"0" * 64 + b'"},'
        b'"0":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"1.b":{"dtype":"F32","shape":[],"data_offsets":[8,12]}}'
    )
    return resealed(struct.pack("<Q", len(header)) + header + bytes(12))


# ---- readers


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def load(name: str) -> Callable:
    from fedax import data

    return lambda folder: data.load(name, folder)


def read_idx(folder: Path, content: bytes) -> Any:
    from fedax.data.formats import read_idx

    return read_idx(write(folder / "images", content))


def read_cifar_archive(folder: Path, content: bytes) -> Any:
    write(folder / "cifar-10-python.tar.gz", content)
    return load("cifar10")(folder)


def read_cifar_batch(folder: Path, content: bytes) -> Any:
    from fedax.data.formats import read_cifar10

    kind = "bin" if content[:1] == b"b" else "py"
    place = folder / f"batches-{kind}"
    for name in BATCHES[1:] if not place.exists() else ():
        write(place / (f"{name}.bin" if kind == "bin" else name), binary_batch() if kind == "bin" else python_batch())
    write(place / ("data_batch_1.bin" if kind == "bin" else "data_batch_1"), content[1:])
    return read_cifar10(place)


def read_libsvm(folder: Path, content: bytes) -> Any:
    ending = {b"\x1f\x8b": ".gz", b"BZ": ".bz2"}.get(content[:2], "")
    return load("a9a")(write(folder / f"svm{ending}" / f"a9a{ending}", content).parent)


def read_leaf(folder: Path, content: bytes) -> Any:
    name = "femnist" if content[:1] == b"f" else "shakespeare"
    write(folder / name / "train" / "all.json", content[1:])
    return load(name)(folder)


def read_npz(folder: Path, content: bytes) -> Any:
    name, file = {
        b"m": ("mnist", "mnist.npz"),
        b"a": ("a9a", "a9a.npz"),
        b"s": ("shakespeare", "shakespeare_roles.npz"),
    }.get(content[:1], ("mnist", "mnist.npz"))
    write(folder / file, content[1:])
    return load(name)(folder)


def read_cifar_npz(folder: Path, content: bytes) -> Any:
    if not (folder / "cifar10_part4.npz").exists():
        for i in range(1, 5):
            write(folder / f"cifar10_part{i}.npz", cifar_npz(i))
    write(folder / "cifar10_part0.npz", content)
    return load("cifar10")(folder)


def cifar_npz(i: int) -> bytes:
    arrays = images_npz(32, 32, 3)
    indices = {"index_train": np.array([2 * i, 2 * i + 1]), "index_test": np.array([i])}
    return npz(np.savez_compressed, **arrays, **indices)


def read_medmnist(folder: Path, content: bytes) -> Any:
    write(folder / "pathmnist.npz", content)
    return load("pathmnist")(folder)


PATIENTS = b"63.0,1,4,140,260,0,1,112,1,3,2,?,?,2\n44,1,4,130,0,?,1,127,1,1.5,2,0,3.0,0\n" * 3


def read_heart(folder: Path, content: bytes) -> Any:
    for name in ("cleveland", "hungarian", "switzerland"):
        write(folder / "heart" / f"processed.{name}.data", PATIENTS)
    write(folder / "heart" / "processed.va.data", content)
    return load("heart")(folder)


def read_config(folder: Path, content: bytes) -> Any:
    """What a configuration names is never imported: ``mine.py`` is there, and nobody has allowed it."""
    from fedax.errors import ConfigError
    from fedax.experiments import own, toml
    from fedax.experiments.config import edit
    from fedax.experiments.config.experiment import settings_of
    from fedax.experiments.config.sections import check

    text, _, settings = content.partition(b"\x00set\n")
    tables = edit.read_toml(write(folder / "config.toml", text))
    for setting in settings.decode("utf-8", "replace").split("\n") if settings else ():
        edit.override(tables, setting)
    sections = check(tables)
    write(folder / "mine.py", b"raise SystemExit")
    with unittest.mock.patch.object(own, "_load", side_effect=AssertionError("code was imported")):
        try:
            settings_of(sections, own.configured(False, folder))
        except ConfigError as error:
            if "it would run the code of" not in str(error):
                raise
    toml.dumps(tables)
    return None


OWN_CODE = CONFIG.replace(b'"fedavg"', b'"mine.py:A"').replace(b'"mlp"', b'"json.decoder:scanstring"')
RUN_FILES = {b"c": "config.toml", b"a": "about.json", b"m": "metrics.jsonl", b"d": "diagnosis.json"}


def read_run(folder: Path, content: bytes) -> Any:
    """Read, and drawn as a report."""
    from fedax.experiments import report, runs

    swept = content[:1].isupper()
    place = folder / f"run-{swept}"
    name = RUN_FILES.get(content[:1].lower(), "metrics.jsonl")
    good = (CONFIG + SWEEP * swept, about(), metrics(POINTS if swept else (None,)), diagnosis())
    for file, whole in zip(RUN_FILES.values(), good, strict=True):
        write(place / file, content[1:] if file == name else whole)
    record = runs.read(place)
    report.render([record])
    return None


@functools.cache
def described() -> tuple[Any, ...]:
    """Descriptions of PyTorch's modules, and the numbers that belong to them."""
    from fedax import tasks
    from fedax.tasks.pytorch import constants, describe

    results = [tasks.from_export(path) for path in MODULES if path.stem != "odd"]
    return tuple((json.dumps(describe(task)).encode(), task.init(None), constants(task)) for task in results)


MODULES = sorted(Path(__file__).parent.glob("tasks/pt2/*.pt2"))


def table(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Of a JSON text: what it says, or the text."""
    with contextlib.suppress(ValueError, RecursionError):
        tree = json.loads(data)
        if isinstance(tree, dict) and rng.random() < 0.9:
            for _ in range(rng.choice((1, 1, 2, 4))):
                node(rng, tree)
            return json.dumps(tree).encode()
    return change(rng, data, others)


def read_description(folder: Path, content: bytes) -> Any:
    """The task that a JSON text describes, traced."""
    from fedax.tasks.pytorch import from_description

    try:
        description = json.loads(content)
    except (ValueError, RecursionError):  # is read by others
        return None
    _, params, constants = described()["embedding" in str(description)]
    return trace(from_description(description, params, constants))


def trace(task: Any) -> Any:
    """What the module of a task answers is traced; its parameters."""
    import jax

    model, params = task.init.__self__, task.init(None)
    given = [
        jax.ShapeDtypeStruct((5, *(n or 3 for n in one.shape[1:])), "int32" if "int" in one.dtype else "float32")
        for one in model.graph.inputs
    ]

    def answer(params: Any, given: Any) -> Any:
        return [one for one in model.apply(params, tuple(given), None) if hasattr(one, "shape")]

    jax.eval_shape(answer, params, given)
    return params


def read_module(folder: Path, content: bytes) -> Any:
    """Read; now and then described, and traced too."""
    from fedax import tasks
    from fedax.tasks.pytorch import constants, describe, from_description

    task = tasks.from_export(write(folder / "model.pt2", content), loss=lambda outputs, batch: outputs)
    params = task.init(None)
    if zlib.crc32(content) % 4 == 0:
        trace(from_description(json.loads(json.dumps(describe(task))), params, constants(task)))
    return params


POINTS = ({"lr": 0.1, "work.low": 1}, {"lr": 0.5, "work.low": 1}, {"lr": 0.1, "work.low": 2})


def read_model(folder: Path, content: bytes) -> Any:
    from fedax.engine.saved import read_model

    return read_model(write(folder / "model", content), [np.zeros(2), {"b": np.zeros(())}])


def saved() -> list[bytes]:
    """Models that say how to predict with them: one of fedax's own, one with a transform, one of PyTorch."""
    import jax

    import fedax
    from fedax.engine.saved import Model, load_model

    folder = Path(tempfile.mkdtemp())
    mlp = fedax.tasks.mlp(3, 2, hidden=(2,), l2=0.1)
    table = fedax.data.from_frames({"a": frame()}, label="y")
    linear = fedax.tasks.softmax_regression(table.examples["x"].shape[1], 2)
    module = fedax.tasks.from_export(Path(__file__).parent / "tasks" / "pt2" / "digits.pt2")
    key, form = jax.random.key(0), {"x": ((3,), "float32")}
    models = [
        Model(mlp, mlp.init(key), ("no", "yes"), None, form, {"fedax": "1", "jax": "2"}),
        Model(
            linear,
            linear.init(key),
            table.transform.classes,
            table.transform,
            {"x": (table.examples["x"].shape[1:], "float32")},
            {},
        ),
        Model(module, module.init(key), None, None, {"x": ((1, 8, 8), "uint8")}, {}),
    ]
    results = []
    for given in models:
        given.save(folder / "model")
        load_model(folder / "model")
        results.append((folder / "model").read_bytes())
    return results


def read_saved(folder: Path, content: bytes) -> Any:
    """Read, and now and then traced, as a prediction would."""
    from fedax.engine.saved import load_model

    result = load_model(write(folder / "model", content))
    if len(content) % 16 == 0 and result.example:
        result.predict({name: np.zeros((1, *shape), kind) for name, (shape, kind) in result.example.items()})
    return [result.params]


ROWS = """age,ward,day,seen,y
40,A,2024-01-01,true,no
60.5,"B ""x"", y",2024-02-29,false,yes
,A,,true,no
1e3,Zürich,2024-03-01T12:00:00Z,,yes
"""


def frame() -> Any:
    import pandas

    return pandas.read_csv(io.StringIO(ROWS))


def read_csv(folder: Path, content: bytes) -> Any:
    from fedax.data import from_csv
    from fedax.errors import DoubtfulWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DoubtfulWarning)  # lines with fewer cells
        return from_csv(write(folder / "rows.csv", content), label="y").examples


def pyarrow_table() -> Any:
    import pyarrow

    return pyarrow.Table.from_pandas(frame(), preserve_index=False)


def parquets() -> list[bytes]:
    import pyarrow.parquet

    results = []
    for options in ({}, {"compression": "none", "use_dictionary": False}, {"compression": "zstd", "version": "1.0"}):
        out = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow_table(), out, **options)
        results.append(out.getvalue())
    return results


def read_parquet(folder: Path, content: bytes) -> Any:
    from fedax.data import from_parquet

    return from_parquet(write(folder / "rows.parquet", content), label="y").examples


def workbooks() -> list[bytes]:
    import openpyxl

    results = []
    for more in ([1.5], [True, datetime.datetime(2024, 1, 31, 12), "#N/A"]):
        book, out = openpyxl.Workbook(), io.BytesIO()
        for k, row in enumerate(csv.reader(ROWS.splitlines())):
            book.active.append([*row, *(more if k else "abc"[: len(more)])])
        book.save(out)
        results.append(out.getvalue())
    return results


def read_excel(folder: Path, content: bytes) -> Any:
    from fedax.data import from_csv

    return from_csv(write(folder / "rows.xlsx", content), label="y").examples


def png(size: int = 5, kind: str = "PNG") -> bytes:
    import PIL.Image

    out = io.BytesIO()
    PIL.Image.fromarray(pictures(size, size)).save(out, kind)
    return out.getvalue()


def arrows() -> list[bytes]:
    import pyarrow

    features = {"info": {"features": {"y": {"_type": "ClassLabel", "names": ["a", "b"]}}}}
    image = pyarrow.table({"image": [{"bytes": png(), "path": "x.png"}] * 2, "y": [0, 1]})
    image = image.replace_schema_metadata({"huggingface": json.dumps(features)})
    results = []
    for table in (pyarrow_table(), image):
        for compression in (None, "lz4"):
            out, options = io.BytesIO(), pyarrow.ipc.IpcWriteOptions(compression=compression)
            with pyarrow.ipc.new_stream(out, table.schema, options=options) as stream:
                stream.write_table(table)
            results.append(out.getvalue())
    return results


def read_arrow(folder: Path, content: bytes) -> Any:
    from fedax.data import from_arrow

    return from_arrow(write(folder / "arrow" / "data.arrow", content).parent, label="y").examples


def hdf5s() -> list[bytes]:
    import h5py

    results = []
    for kind in ("plain", "packed", "text"):
        out = io.BytesIO()
        with h5py.File(out, "w") as file:
            for k, name in enumerate(("f0", "f1")):
                if kind == "text":
                    file[f"examples/{name}/snippets"] = ["to be or not " * 9, "to be" * (k + 1)]
                    continue
                options = {"chunks": (1, 6, 6), "compression": "gzip"} if kind == "packed" else {}
                file.create_dataset(f"examples/{name}/pixels", data=np.zeros((k + 1, 6, 6), np.float32), **options)
                file[f"examples/{name}/label"] = np.zeros(k + 1, np.int32)
        results.append(out.getvalue())
    return results


SERVED = """
import pathlib, shutil, sys
sys.path.append(sys.argv[1])
from hdf5_reading import read
for line in sys.stdin:
    path = pathlib.Path(line.strip())
    shutil.rmtree(path.parent / "arrays", ignore_errors=True)
    (path.parent / "arrays").mkdir()
    try:
        read(path, path.parent / "arrays", 1 << 26)
        print("read", flush=True)
    except Exception as error:
        print(ascii(str(error)), flush=True)
"""


@functools.cache
def hdf5_reader() -> list[subprocess.Popen]:
    kept: list[subprocess.Popen] = []
    atexit.register(_end, kept)
    return kept


def _end(kept: list[subprocess.Popen]) -> None:
    for process in kept:
        process.kill()
        process.communicate()
    kept.clear()


def read_hdf5(folder: Path, content: bytes) -> Any:
    """As :func:`fedax.data.from_tff_hdf5` does it, with one process for many files, and a second for each."""
    from fedax.data.hdf5 import made_of
    from fedax.errors import DataError

    path, kept = write(folder / "hdf5" / "x.h5", content), hdf5_reader()
    if not kept:
        command = [sys.executable, "-P", "-c", SERVED, str(Path(importlib.import_module("fedax.data").__file__).parent)]
        kept.append(subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-3, text=True))
    (process,) = kept
    process.stdin.write(f"{path}\n")
    process.stdin.flush()
    ready, _, _ = select.select([process.stdout], [], [], 5)
    reply = process.stdout.readline() if ready else ""
    if reply != "read\n":
        if not reply:  # hung up, or crashed
            _end(kept)
        raise DataError("not read")
    return made_of(path.parent / "arrays", path).examples


def transform_files() -> list[bytes]:
    from fedax.data import fit, plan, summarize

    first = summarize(frame(), least=1)
    column_plan = plan([first], label="y", columns={"ward": "category"})
    second = summarize(frame(), column_plan, least=1)
    made = {b"t": fit(column_plan, [second]), b"p": column_plan, b"s": second, b"f": first}
    return [tag + json.dumps(each.to_json()).encode() for tag, each in made.items()]


def read_transform(folder: Path, content: bytes) -> Any:
    """Read, and used with the other parts as they should be."""
    from fedax import data

    tag, rows = content[:1], frame()
    kind = {b"p": data.Plan, b"s": data.Summary, b"f": data.Summary}.get(tag, data.Transform)
    result = kind.load(write(folder / "transform.json", content[1:]))
    first = summary() if tag != b"f" else result
    if tag == b"t":
        return result(rows)
    requests = result if tag == b"p" else data.plan([first, summary()], label="y", columns={"ward": "category"})
    second = data.summarize(rows, requests, least=1)
    answers = [result if tag == b"s" else second, second]
    transform = data.fit(requests, answers)
    str(data.overview(requests, [first, summary()], answers))
    return transform(rows)


@functools.cache
def summary() -> Any:
    from fedax.data import summarize

    return summarize(frame(), least=1)


def read_pictures(folder: Path, content: bytes) -> Any:
    from fedax.data import from_image_folders

    write(folder / "pictures" / "client" / "b" / "2.png", png())
    write(folder / "pictures" / "client" / "a" / "1.png", content)
    return from_image_folders(folder / "pictures", size=(5, 5)).examples


def read_clients(folder: Path, content: bytes) -> Any:
    from fedax.experiments.clients import read_table

    return read_table(write(folder / "clients.csv", content))


CLIENTS = b'name,n,loss,auc\n"north, upper",3,0.25,\nsouth,40,1.5,0.75\n'


@functools.cache
def checkpointed(tag: bytes) -> tuple[Any, Callable[[], Any], list[tuple[str, bytes]]]:
    """A job, what makes a state of it, and the files of its checkpoint, of which the first is changed.

    ``d``: client memory on the device; ``h``: in host memory; ``p``: a checkpoint of two processes.
    """
    import jax
    import jax.numpy as jnp

    import fedax
    from fedax.engine import checkpoint
    from fedax.engine.loop import State
    from fedax.engine.make import make_job
    from fedax.engine.memory import ClientMemory
    from fedax.engine.places.device import first_state

    data, place = fedax.data.quadratics(clients=5, dimension=2), "host" if tag == b"h" else "device"
    method, task = fedax.create("scaffold", lr=0.1), fedax.tasks.quadratic(2)
    job = make_job(method, task, data, rounds=6, participation=fedax.Uniform(2), place=fedax.Place(client_memory=place))
    server, row = first_state(method, job.x)

    def state() -> State:
        if tag == b"h":
            return State(server, ClientMemory(5, row))
        return State(server, jax.tree.map(lambda leaf: jnp.asarray(np.stack([leaf] * 5)), memory))

    memory = jax.tree.map(np.asarray, row)
    costs = {"clients": 4, "local_steps": 8, "gradients": 8, "bytes_down": 64, "bytes_up": 64, "seconds": 0.5}
    rows = [{"round": k, "train_loss": 0.5 + k, **costs} for k in (0, 2, 4)]
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = checkpoint.Checkpointer(fedax.Checkpoints(folder), [job])
        begun = state()
        if tag == b"h":
            begun.memory.put(np.array([3, 1]), jax.tree.map(lambda leaf: np.stack([leaf, leaf]), memory))
        checkpointer.save(checkpoint.Snapshot(begun, 4, [checkpoint.SavedRun(rows, costs, "finished")]))
        (path,) = Path(folder).iterdir()
        content = path.read_bytes()
        files = [(path.name, content)]
        if tag == b"p":
            with checkpoint._opened(path) as file:
                whole = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                text = file.metadata()["fedax"]
            files = []
            for k, ids in enumerate(([0, 1, 2], [3, 4])):
                part = {name: leaf[ids] if name[:6] != "server" else leaf for name, leaf in whole.items()}
                name = f"round-000000004.{k}-of-2.safetensors"
                checkpoint.write_tensors(path, part, text, name)
                files.append((name, path.read_bytes()))
    return job, state, files


def read_checkpoint(folder: Path, content: bytes) -> Any:
    """Found, and gone on from to the end, in rounds that do nothing."""
    import jax

    from fedax.engine.checkpoint import Checkpointer, Checkpoints
    from fedax.engine.drive import drive
    from fedax.engine.loop import Counters

    tag = content[:1] if content[:1] in (b"h", b"p") else b"d"
    job, state, files = checkpointed(tag)
    place = folder / f"checkpoint-{tag.decode()}"
    for i, (name, good) in enumerate(files):
        write(place / name, good if i else content[1:])

    class Program:
        def prepare(self) -> Any:
            return state(), Counters(0, 0, 0)

        def advance(self, state: Any, start: int, stop: int) -> Any:
            return state, Counters(0, 0, 0)

        def measure(self, state: Any, index: int) -> Any:
            return [{"train_loss": 0.25}]

        def exclusions(self, state: Any) -> Any:
            return [state.exclusions]

        def outcome(self, state: Any, index: int, which: int) -> Any:
            return state, state.server

        def times(self, which: int) -> Any:
            return None

        def pace(self, index: int, which: int) -> dict[str, Any]:
            return {}

        def traffic(self) -> dict[str, Any]:
            return {}

    class Reading(Checkpointer):
        def save(self, saved: Any) -> None:
            pass

    run = drive(Program(), [job], lambda i, row: None, Reading(Checkpoints(place), [job]))[0]
    repr(run)
    memory = run.memory if tag != b"h" else run.memory[np.arange(5)]
    return jax.tree.map(np.asarray, (run.params, memory, run.history))


def status_file() -> bytes:
    run = {
        "method": "good",
        "seed": 0,
        "state": "running",
        "since": 1e9,
        "round": 2,
        "of": 4,
        "at": 1e9,
        "seconds": 0.5,
    }
    failed = {"time": 1e9, "during": "exchange", "why": "the disk is full"}
    node = {"number": 7, "clients": ["north"], "examples": 40, "held": {"test": 3}, "answered": 1e9, "failed": failed}
    requests = {"name": "tiny", "folder": "/nowhere", "rounds": 4, "methods": ["good"], "seeds": [0]}
    known = {"format": 1, "link": "127.0.0.1:9443", "command": "run", "pid": 1, "started": None, "host": "here"}
    known |= {"began": 1e9, "state": "running", "why": None, "ended": None, "run": requests, "written": 1e9}
    known["runs"], known["nodes"] = [run | {"train_loss": 0.5}], [node | {"versions": {"fedax": "1", "jax": "2"}}]
    known["waiting"] = [{"node": 7, "since": 1e9, "until": 2e9, "kind": "exchange"}]
    return json.dumps(known | {"sent": 10, "received": 20}).encode()


def read_status(folder: Path, content: bytes) -> Any:
    """Read, and shown in the terminal and on the page."""
    from fedax.cli.status import _as_text
    from fedax.sites.service import page, status

    write(folder / status.FILE, content)
    result = status.joined(status.read_file(folder), None, "the link is gone")
    text = _as_text(result) + json.dumps(result, allow_nan=False) + page.body(result, lambda folder: "")
    assert text.replace("\n", "").isprintable(), "something moves the cursor"


LOG = b"""{"time": "2026-01-01 10:00:00", "kind": "exchange", "run": 3, "server": "a", "came": 10, "left": 20}
{"time": "2026-01-01 10:00:01", "kind": "hello", "came": 1, "left": 2, "error": "the disk is full"}
"""


def read_node(folder: Path, content: bytes) -> Any:
    """What ``fedax deploy node status`` reads: the log, or how many rounds there were."""
    from fedax.cli.status import node_table

    write(folder / "site" / "log.jsonl", content[1:] if content[:1] != b"r" else LOG)
    write(folder / "site" / "rounds.json", content[1:] if content[:1] == b"r" else b'{"3": 2}')
    result = node_table(folder)
    assert min(result["rounds"], result["messages"], result["came"], result["left"]) >= 0
    assert repr(result).isprintable()


def read_review(folder: Path, content: bytes) -> Any:
    """What an owner said of a summary: it leaves after a yes only."""
    from fedax.sites.protocol.tables import reviews

    write(folder / "review" / "first-1.json", b"{}")
    write(folder / "review" / "first-1.answer", content)
    (decision,) = reviews(folder).values()
    if decision is not None and decision.yes:
        assert json.loads(content)["yes"] is True


def saved_folder() -> list[bytes]:
    """The parts of a folder that ``FederatedData.save`` writes, each with its name before it."""
    import fedax

    place = Path(tempfile.mkdtemp()) / "saved"
    fedax.data.from_frames({"a": frame(), "b": frame()}, label="y").save(place)
    parts = sorted(path for path in place.rglob("*") if path.is_file())
    return [str(path.relative_to(place)).encode() + b"\x00" + path.read_bytes() for path in parts]


def read_folder(folder: Path, content: bytes) -> Any:
    from fedax.data import FederatedData

    for whole in folder_parts():
        name, _, good = whole.partition(b"\x00")
        write(
            folder / "saved" / name.decode(), content[len(name) + 1 :] if content.startswith(name + b"\x00") else good
        )
    data = FederatedData.open(folder / "saved")
    assert data.sizes.min() > 0 and data.sizes.sum() == len(data.examples["x"]) and abs(data.weights.sum() - 1) < 1e-3
    return [data.client(0), data.sizes, data.weights]


@functools.cache
def folder_parts() -> list[bytes]:
    return saved_folder()


def part(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Of one file of a folder, whose name stays: as what it is."""
    name, _, content = data.partition(b"\x00")
    inner = array if name.endswith(b".npy") else table
    return name + b"\x00" + inner(rng, content, [other.partition(b"\x00")[2] for other in others])


# ---- messages of the nodes and of their server


def message_bytes(head: dict[str, Any], arrays: bytes) -> bytes:
    return json.dumps(head).encode() + b"\x00" + arrays


def message(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Its head, or its arrays."""
    head, _, arrays = data.partition(b"\x00")
    if arrays and rng.random() < 0.4:
        return head + b"\x00" + tensors(rng, arrays, [other.partition(b"\x00")[2] for other in others])
    return table(rng, head, [other.partition(b"\x00")[0] for other in others]) + b"\x00" + arrays


def message_of_bytes(content: bytes) -> Any:
    """The message, as :func:`fedax.sites.service.messages.opened` gives it; ``None`` if it would refuse the bytes."""
    from fedax.sites.protocol.messages import Message

    head, _, arrays = content.partition(b"\x00")
    try:
        parsed = json.loads(head)
    except (ValueError, RecursionError):
        return None
    return Message(parsed, arrays) if isinstance(parsed, dict) else None


@functools.cache
def conversation() -> tuple[Any, list[tuple[int, Any, Any]]]:
    """Sites of two nodes, and the messages and answers of a run of SCAFFOLD: [(node, message, answer)]."""
    from tests.engine import here

    exchanges: list[tuple[int, Any, Any]] = []
    at = here.Here(here.sites(problem()[2], [[0, 2], [1]]), lambda *each: exchanges.append(each) or each[2])
    here.trained(*problem(), at, rounds=2, evaluate_every=1)
    return at, exchanges


@functools.cache
def problem() -> tuple[Any, Any, Any]:
    """The method, the task and the data of :func:`conversation`."""
    import fedax

    return fedax.create("scaffold", lr=0.1), fedax.tasks.quadratic(2), fedax.data.quadratics(clients=3, dimension=2)


def requests() -> list[bytes]:
    by_kind = {m.head["kind"]: message_bytes(*m) for number, m, _ in conversation()[1] if number == 7}
    return [*by_kind.values()]


def read_message(folder: Path, content: bytes) -> Any:
    """A node answers any message, and keeps running."""
    at, _ = conversation()
    if (message := message_of_bytes(content)) is not None:
        with contextlib.redirect_stderr(io.StringIO()):  # where a node says what went wrong
            json.dumps(at.sites[7].answer(message).head)


@functools.cache
def oracle() -> Any:
    """Nodes under their owners' policies, and a judge of what they answer."""
    from tests.engine.evil import Oracle

    return Oracle(Path(tempfile.mkdtemp()))


def seed(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    return rng.randbytes(8)


def read_attack(folder: Path, content: bytes) -> Any:
    """A random agreement and question to a node: the answer tells no more than its owner allows."""
    with contextlib.redirect_stderr(io.StringIO()):
        oracle().attack(random.Random(content))


def desk_messages() -> list[bytes]:
    from fedax import data

    first = summary()
    plan = data.plan([first], label="y", columns={"ward": "category"})
    made = data.fit(plan, [data.summarize(frame(), plan, least=1)])
    heads = [{"kind": "hello"}, {"kind": "summarize", "label": "y"}, {"kind": "summarize", "plan": plan.to_json()}]
    heads += [{"kind": "prepare", "transform": made.to_json()}, {"kind": "commit", "digest": made.digest}]
    return [message_bytes(head, b"") for head in heads]


def read_desk(folder: Path, content: bytes) -> Any:
    """A node with a table answers, and no name of a file is taken from a message."""
    from fedax.sites.protocol.tables import Desk

    if (message := message_of_bytes(content)) is not None:
        desk = Desk(frame(), "a", folder / "desk", lambda data: None, least=1, say=lambda text: None)
        with contextlib.redirect_stderr(io.StringIO()):
            json.dumps(desk.answer(message).head)
        assert {path.name for path in folder.iterdir()} <= {"desk"}


def answers() -> list[bytes]:
    by_kind = {m.head["kind"]: message_bytes(*answer) for number, m, answer in conversation()[1] if number == 7}
    return [kind.encode() + b"\x00" + answer for kind, answer in by_kind.items() if kind != "forget"]


def answer(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    kind, _, content = data.partition(b"\x00")
    return kind + b"\x00" + message(rng, content, [other.partition(b"\x00")[2] for other in others])


def read_answer(folder: Path, content: bytes) -> Any:
    """A server takes an answer, or names the clients that gave it."""
    import fedax
    from fedax.sites.protocol.messages import Failure
    from tests.engine import here

    at, exchanges = conversation()
    kind, _, answered = content.partition(b"\x00")
    message = message_of_bytes(answered) or Failure("no message of fedax", False)
    recorded = next(a.head for n, m, a in reversed(exchanges) if n == 7 and m.head["kind"].encode() == kind)

    def spy(number: int, request: Any, good: Any) -> Any:
        if (number, request.head["kind"].encode()) != (7, kind):
            return good
        if isinstance(message, Failure):
            return message
        same = [name for name in good.head if name in message.head and message.head[name] == recorded.get(name)]
        return message._replace(head=message.head | {name: good.head[name] for name in same})

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fedax.DivergedWarning)  # a node that sends NaN, without a guard
        run = here.trained(*problem(), here.Here(at.sites, spy), rounds=2, evaluate_every=1)
    assert all(np.isfinite(run.history[name]).all() for name in ("clients", "gradients", "bytes_up"))


@dataclass(frozen=True)
class Reader:
    """One reader: its good files, how they are changed, and what it may take.

    Attributes:
        read: reads a content, after writing it into a folder.
        good: small files that it reads.
        changed: makes another file of one.
        ratio: bytes that a byte of the file may rightly stand for.
        slack: bytes that it may take whatever the file.
    """

    read: Callable[[Path, bytes], Any]
    good: list[bytes]
    changed: Callable[..., bytes]
    ratio: int = 1
    slack: int = 200_000


def readers() -> dict[str, Callable[[], Reader]]:
    gz = packed(plain, lambda data: gzip.compress(data, 1), gzip.decompress)
    bz = packed(plain, lambda data: bz2.compress(data, 1), bz2.decompress)
    text = b"+1 1:1 4:0.5\n-1 2:-3\n-1 # none\n+1 100:1e-3 123:2\n"
    compressed = np.savez_compressed
    small = images_npz(28, 28)
    tissue = {"train_images": "x_train", "train_labels": "y_train", "test_images": "x_test", "test_labels": "y_test"}
    slides = images_npz(28, 28, 3)
    slides = {name: slides[key][:, None] if "label" in name else slides[key] for name, key in tissue.items()}
    squares = [[round(i % 256 / 255, 6) for i in range(784)]] * 2
    lines = ["To be, or not to be, that is the question: Whether 'tis nobler in the mind to su"] * 2
    runs = [(b"c", CONFIG), (b"a", about()), (b"m", metrics()), (b"d", diagnosis())]
    runs += [(b"C", CONFIG + SWEEP), (b"M", metrics(POINTS))]
    return {
        "idx": lambda: Reader(
            read_idx,
            [idx(pictures(5, 4, 3)), idx(pictures(9)), *(gzip.compress(idx(pictures(n))) for n in (9, 3000))],
            by_start({b"\x1f\x8b": gz}),
            DEFLATE,
        ),
        "cifar-archive": lambda: Reader(
            read_cifar_archive,
            [gzip.compress(tar("", python_batch(1))), gzip.compress(tar(".bin", binary_batch(1)))],
            gz,
            DEFLATE,
            400_000,
        ),
        "cifar-batch": lambda: Reader(
            read_cifar_batch,
            [b"b" + binary_batch(), b"p" + python_batch(), b"p" + python_batch(1)],
            by_start({b"p": tagged(opcodes), b"b": tagged(plain)}),
            1,
            400_000,
        ),
        "cifar-npz": lambda: Reader(read_cifar_npz, [cifar_npz(0)], archive, DEFLATE, 400_000),
        "libsvm": lambda: Reader(
            read_libsvm,
            [text, gzip.compress(text), bz2.compress(text)],
            by_start({b"\x1f\x8b": gz, b"BZ": bz}),
            DEFLATE,
        ),
        "leaf": lambda: Reader(
            read_leaf, [b"f" + leaf(squares, [3, 61]), b"s" + leaf(lines, ["f", "e"])], tagged(plain), 2
        ),
        "npz": lambda: Reader(
            read_npz,
            [
                *(b"m" + npz(save, **small, writer_train=np.array([7, 2])) for save in (np.savez, compressed)),
                *(b"a" + npz(save, **rows_npz()) for save in (np.savez, compressed)),
                *(b"s" + npz(save, **roles_npz()) for save in (np.savez, compressed)),
            ],
            tagged(archive),
            DEFLATE,
        ),
        "medmnist": lambda: Reader(
            read_medmnist, [npz(save, **slides) for save in (np.savez, compressed)], archive, DEFLATE
        ),
        "heart": lambda: Reader(read_heart, [PATIENTS], plain, 8, 2_000_000),
        "config": lambda: Reader(
            read_config, [CONFIG, CONFIG + SWEEP, CONFIG + b"\x00set\n" + OVERRIDES, OWN_CODE], plain, 1, 8_000_000
        ),
        "run": lambda: Reader(read_run, [tag + content for tag, content in runs], tagged(plain), 8, 8_000_000),
        "csv": lambda: Reader(
            read_csv, [ROWS.encode(), ROWS.replace(",", ";").encode("utf-8-sig")], plain, 8, 2_000_000
        ),
        "excel": lambda: Reader(read_excel, workbooks(), archive, DEFLATE, 8_000_000),
        "parquet": lambda: Reader(read_parquet, parquets(), plain, 8, 2_000_000),
        "arrow": lambda: Reader(read_arrow, arrows(), plain, 8, 2_000_000),
        "hdf5": lambda: Reader(read_hdf5, hdf5s(), plain, 8, 2_000_000),
        "transform": lambda: Reader(read_transform, transform_files(), tagged(plain), 8, 2_000_000),
        "pictures": lambda: Reader(read_pictures, [png(), png(40, "JPEG")], plain, 8, 8_000_000),
        "model": lambda: Reader(read_model, [model()], tensors),
        "saved": lambda: Reader(read_saved, saved(), tensors, 8, 8_000_000),
        "clients": lambda: Reader(read_clients, [CLIENTS], plain),
        "pt2": lambda: Reader(
            read_module,
            [path.read_bytes() for path in MODULES],
            module,
            8,
            8_000_000,
        ),
        "description": lambda: Reader(read_description, [text for text, *_ in described()], table, 8, 12_000_000),
        "status": lambda: Reader(read_status, [status_file()], table, 8, 2_000_000),
        "node": lambda: Reader(read_node, [b"l" + LOG, b'r{"3": 2}'], tagged(plain), 8, 2_000_000),
        "review": lambda: Reader(read_review, [b'{"yes": true, "why": ""}', b'{"yes": false, "why": "no"}'], table),
        "folder": lambda: Reader(read_folder, folder_parts(), part, 8, 2_000_000),
        "message": lambda: Reader(read_message, requests(), message, 8, 50_000_000),
        "attack": lambda: Reader(read_attack, [b"attack"], seed, 8, 200_000_000),
        "desk": lambda: Reader(read_desk, desk_messages(), message, 8, 2_000_000),
        "answer": lambda: Reader(read_answer, answers(), answer, 8, 50_000_000),
        "checkpoint": lambda: Reader(
            read_checkpoint,
            [tag + checkpointed(tag)[2][0][1] for tag in (b"d", b"h", b"p")],
            tagged(tensors),
            4,
            400_000,
        ),
    }


# ---- the check


class TooSlow(BaseException):
    pass


def _stop(*_: Any) -> None:
    raise TooSlow


def nbytes(result: Any) -> int:
    import jax

    parts = [result.train, result.test] if hasattr(result, "train") else result
    return sum(leaf.nbytes for leaf in jax.tree.leaves(parts) if hasattr(leaf, "nbytes"))


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """Measure memory, which takes most of the time, of all files that are read within.

    Once for many files: where Python stops tracing while a thread (of Arrow) ends, it can crash: CPython, issue 128679.
    """
    tracemalloc.start()
    try:
        yield
    finally:
        time.sleep(0.2)  # threads come to rest
        tracemalloc.stop()


def check(reader: Reader, folder: Path, content: bytes) -> str | None:
    """What is wrong with the reading of a file, or ``None``; within :func:`traced` also with its memory."""
    from fedax.errors import FedaxError

    error, result = None, None
    gc.disable()  # to look through what all earlier tests left takes seconds
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()  # 0 if not traced
    try:
        result = reader.read(folder, content)
        signal.setitimer(signal.ITIMER_PROF, 0)
    except FedaxError as caught:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if len(str(caught)) > 2000 or not str(caught).isprintable():
            error = f"message {type(caught).__name__} of {len(str(caught))}: {str(caught)[:80]!r}"
    except (Exception, TooSlow) as caught:
        signal.setitimer(signal.ITIMER_PROF, 0)
        frames = [f for f in traceback.extract_tb(caught.__traceback__) if "fedax" in f.filename]
        at = f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else "?"
        error = f"{type(caught).__name__} in {at}: {str(caught)[:60]}"
        caught.__traceback__ = None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        peak = tracemalloc.get_traced_memory()[1] - before
        gc.enable()
    allowed = reader.slack + 4 * max(nbytes(result), len(content) * reader.ratio)
    if error is None and peak > allowed:
        error = f"memory: {peak} bytes, {allowed} allowed"
    return error


def at_random(reader: Reader, number: int, seed: int = 0) -> Iterator[bytes]:
    """Changed files, one after another; what is changed is a good file, or a changed one."""
    rng = random.Random(seed)
    last = reader.good[0]
    for _ in range(number):
        start = last if rng.random() < 0.3 else rng.choice(reader.good)
        last = reader.changed(rng, start, reader.good)
        yield last


def main(name: str, number: int, most: float = math.inf) -> None:
    try:
        import atheris
    except ImportError:
        atheris = None
    watched = ["fedax.data.formats", "fedax.data.readers"]
    watched += [f"fedax.experiments.config.{name}" for name in ("sections", "edit", "codec", "data", "experiment")]
    watched += [f"fedax.experiments.runs.{name}" for name in ("files", "folder", "reading", "record")]
    watched += [f"fedax.experiments.summary.{name}" for name in ("compared", "settings", "words")]
    watched += ["fedax.experiments.toml", "fedax.experiments.report.page"]
    watched += ["fedax.experiments.charts", "fedax.experiments.report.pictures"]
    watched += ["fedax.tasks.pytorch.archive", "fedax.tasks.pytorch.graph", "fedax.tasks.pytorch.model"]
    watched += ["fedax.data.tables", "fedax.data.cells", "fedax.data.hdf5", "fedax.data.pictures"]
    watched += ["fedax.data.transform", "fedax.data.summaries"]
    watched += [
        "fedax.cli.status",
        "fedax.sites.service.status",
        "fedax.sites.service.page",
        "fedax.sites.protocol.site",
        "fedax.sites.protocol.agreement",
        "fedax.sites.protocol.received",
        "fedax.sites.protocol.store",
    ]
    watched += ["fedax.sites.protocol.remote", "fedax.sites.protocol.tables", "fedax.data.federated"]
    watched += ["fedax.experiments.sweeps", "fedax.experiments.diagnosis", "fedax.engine.checkpoint"]
    with atheris.instrument_imports(include=watched) if atheris else contextlib.nullcontext():
        for module in watched:
            importlib.import_module(module)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "the run was begun with another version")  # of a checkpoint that says so
    reader, counts = readers()[name](), collections.Counter()
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="fedax-fuzz-"))
    for content in reader.good:
        reader.read(folder, content)
        with traced():
            print("good file:", check(reader, folder, content) or "read")
    began, done, measuring = time.perf_counter(), 0, contextlib.ExitStack()

    def one(content: bytes) -> None:
        nonlocal done
        if done % 1000 == 0:
            measuring.enter_context(traced())
        if done % 1000 == 100:
            measuring.close()
        result = check(reader, folder, content)
        done += 1
        if result is not None:
            result = re.sub(r"\d+", "0", result)
            counts[result] += 1
            if counts[result] == 1:
                path = write(Path(tempfile.gettempdir()) / "fuzz" / name / str(len(counts)), content)
                print(f"FOUND {result} ({path})", flush=True)
        seconds = time.perf_counter() - began
        if done == number or seconds > most:
            print(f"\n{name}: {done} inputs in {seconds:.0f} s, {len(counts)} findings, guided: {bool(atheris)}")
            for text, times in counts.most_common():
                print(f"  {times} × {text}", flush=True)
            os._exit(0)  # atheris would not return either

    if atheris is None:
        for content in at_random(reader, number, seed=int(time.time())):
            one(content)
        return
    corpus = Path(tempfile.gettempdir()) / "fuzz-corpus" / name  # what reached new lines is kept for the next time
    for i, content in enumerate(reader.good):
        write(corpus / f"good-{i}", content)

    def changed(data: bytes, most: int, seed: int) -> bytes:
        return reader.changed(random.Random(seed), data, reader.good)[:most]

    options = [f"-runs={number + 1000}", "-timeout=60", "-rss_limit_mb=4000", "-max_len=40000", "-print_final_stats=0"]
    atheris.Setup([sys.argv[0], *options, "-verbosity=0", str(corpus)], one, custom_mutator=changed)
    atheris.Fuzz()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        print("\n".join(readers()))
    else:
        main(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:]))
