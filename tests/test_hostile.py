"""Files that are broken, or made to do harm: one clear error, in little time and memory; see tests/fuzz.py."""

import bz2
import contextlib
import fractions
import gzip
import io
import json
import os
import re
import struct
import tarfile
import tracemalloc
import zipfile

import jax
import numpy as np
import pytest

import fedax
from fedax import data, experiments, numbers
from fedax.data.formats import read_cifar10, read_idx, read_leaf, read_libsvm, read_npz
from fedax.engine.saved import read_model
from fedax.errors import CheckpointError, ConfigError, DataError, FedaxError
from fedax.experiments import override, read, read_toml, toml
from fedax.numbers import check_number
from tests import fuzz
from tests.fuzz import write

MEGABYTE = 1 << 20


@contextlib.contextmanager
def refused(message):
    """A DataError, in no more than 8 MB however much the file asks for."""
    tracemalloc.start()
    with pytest.raises(DataError, match=message):
        yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * MEGABYTE


@pytest.mark.parametrize("name", fuzz.readers())
def test_changed_files_are_read_or_refused(tmp_path, name):
    reader = fuzz.readers()[name]()
    for content in reader.good:
        reader.read(tmp_path, content)
    number = 10 if name in ("answer", "attack") else 200  # of their own runs; test_attacks.py has 360
    changed = [*fuzz.at_random(reader, number)]
    with fuzz.traced():
        assert {fuzz.check(reader, tmp_path, content) for content in changed[::8]} == {None}
    del changed[::8]
    assert {fuzz.check(reader, tmp_path, content) for content in changed} == {None}


def npz(path, change=lambda member: member, names=("a.npy",), method=zipfile.ZIP_DEFLATED, flags=0):
    member = io.BytesIO()
    np.save(member, np.arange(4, dtype=np.uint8))
    with zipfile.ZipFile(path, "w", method) as archive:
        for name in names:
            archive.writestr(name, change(member.getvalue()))
    content = bytearray(path.read_bytes())
    content[content.find(b"PK\x01\x02") + 8] |= flags
    return write(path, bytes(content))


def shaped(shape, dtype="|u1"):
    def change(member):
        header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"1234"

    return change


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"names": ("a.npy", "a.npy")}, "two arrays 'a'"),
        ({"names": ("/a.npy",)}, "no array 'a'"),
        ({"names": ("../a.npy",)}, "no array 'a'"),
        ({"method": zipfile.ZIP_BZIP2}, "not packed as NumPy does it"),
        ({"method": zipfile.ZIP_LZMA}, "not packed as NumPy does it"),
        ({"flags": 1}, "encrypted"),
        ({"names": [f"{i}.npy" for i in range(2000)]}, "table of contents"),
        ({"change": shaped("(10000000000,)")}, "not what the file holds"),
        ({"change": shaped("(0, 999999999999999999, 999999999999999999)")}, "not what the file holds"),
        ({"change": shaped("(-4,)")}, "has not the header"),
        ({"change": shaped("(" * 3000)}, "has not the header"),
        ({"change": shaped("(4,)", "O")}, "Python objects"),
        ({"change": shaped("(4,)", "<f3")}, "has not the header"),
        ({"change": shaped("(4,)", "<U0")}, "has not the header"),
        ({"change": shaped([("a", "<i4")], "|V4")}, "structures"),
        ({"change": lambda member: b"PK" + member}, "has not the header"),
        ({"change": lambda member: member[:6] + b"\x09\x00" + member[8:]}, "has not the header"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_npz(tmp_path, given, message):
    path = npz(tmp_path / "set.npz", **given)
    with refused(rf"set\.npz: .*{message}"):
        read_npz(path, ["a"])


def test_npz_fortran_order_and_no_axes(tmp_path):
    turned = np.asfortranarray(np.arange(6).reshape(2, 3))
    np.savez(tmp_path / "set.npz", turned=turned, single=np.array(7), nothing=np.zeros((0, 3)))
    result = read_npz(tmp_path / "set.npz", ["turned", "single", "nothing"])
    assert result["turned"].tolist() == turned.tolist() and result["single"] == 7 and result["nothing"].shape == (0, 3)


def test_a_member_that_unpacks_to_more_than_it_says(tmp_path):
    """zipfile unpacks all of it before it cuts off what is beyond the size that is declared."""
    path = npz(tmp_path / "set.npz", lambda member: member + bytes(64 * MEGABYTE))
    whole, little = (struct.pack("<I", 132 + more) for more in (64 * MEGABYTE, 0))
    content = path.read_bytes()
    assert whole in content
    write(path, content.replace(whole, little))
    with refused(r"set\.npz: cannot be read"):
        read_npz(path, ["a"])


def test_rows_that_are_small_and_dense_are_not(tmp_path):
    n = 10**6
    rows = {"y": np.ones(n, np.int8), "data": np.ones(0), "indices": np.zeros(0, int), "shape": np.array([n, 300])}
    rows["indptr"] = np.zeros(n + 1, np.int8)
    np.savez_compressed(tmp_path / "w8a.npz", **{f"train_{key}": value for key, value in rows.items()})
    tracemalloc.start()
    with pytest.raises(DataError, match="too many for a file of its size"):
        data.load("w8a", tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 * n  # and not 1,200 n


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("set.gz", gzip.compress(b"1\n" * 34 * MEGABYTE, 1, mtime=0)),
        ("set.bz2", bz2.compress(b"1\n" * 500_000)),
        ("set", b"1\n" * 500_000),
        ("set", b"1 1000000000000:1\n"),
        ("set", b"1 " + b"9" * 30 + b":1\n"),
        ("set", b"1 -1:1\n"),
        ("set", b"1 2:1 2:1\n"),
        ("set", b"nan 1:1\n"),
        ("set", b"1e300 1:1\n"),
        ("set", b"1 1:1e300\n"),
        ("set", b"1 1:\x00\n"),
        ("set", b"\xef\xbb\xbf1 1:1\n"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_libsvm(tmp_path, name, content):
    with pytest.raises(DataError, match=name):
        read_libsvm(write(tmp_path / name, content), features=300)


def test_bombs(tmp_path):
    big = write(tmp_path / "idx", gzip.compress(struct.pack(">HBBI", 0, 8, 1, 10**9) + bytes(MEGABYTE), mtime=0))
    with refused("but the file has only"):
        read_idx(big)
    header = tarfile.TarInfo("data_batch_1")
    header.size = 60 * MEGABYTE
    cut = write(tmp_path / "a.tar.gz", gzip.compress(header.tobuf(), mtime=0))
    with refused("cannot be read as CIFAR-10: .*unexpected end of data"):
        read_cifar10(cut)
    extension = tarfile.TarInfo("x")  # a header that tarfile would read as a whole, and in quadratic time
    extension.size, extension.type = 30 * MEGABYTE, b"x"
    extended = write(tmp_path / "b.tar.gz", gzip.compress(extension.tobuf() + b"1" * 30 * MEGABYTE, mtime=0))
    with refused(r"data_batch_1, .* not in it"):
        read_cifar10(extended)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (b"\x80\x02" + b"\x8f" * 100_000 + b".", "exhaust memory|EMPTY_SET"),
        (b"\x80\x02" + b"]" * 100_000 + b".", "exhaust memory"),
        (b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".", "cannot be read"),
        (b"\x80\x02}I1\nNs.", "keys that are no texts"),
        (b"\x80\x04\x8f.", "the operation EMPTY_SET of a pickle, which is refused"),  # slow where hashes collide
        (b"\x80\x02G" + bytes(8) + b".", "the operation BINFLOAT"),
        (b"\x80\x02\x8a\x05" + bytes(4) + b"\x01.", "exhaust memory"),  # 2³²
        (b"\x80\x02Nr" + struct.pack("<I", 10**6) + b".", "exhaust memory"),  # a memo of so many places
        (b"\x80\x02cnumpy\ndtype\n]b.", "cannot be read"),
        (b"S'\\u'\n.", "cannot be read"),
        (b"\x80\x02" + b"(" * 10 + b"e.", "cannot be read"),
    ],
)
def test_pickles(tmp_path, batch, message):
    write(tmp_path / "data_batch_1", batch)
    with refused(message):
        read_cifar10(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 10**5, "too many"),
        ("[" + " " * 40 * 10**5 + "[" * 10**5, "nested too deep"),
        ("[" + "{}," * 10**5, "too many"),
        ('{"users": NaN}', "NaN is no JSON"),
        ('{"users": ' + "9" * 5000 + "}", "cannot be read as LEAF JSON"),
        ('{"users": ["\xff"]}', "cannot be read as LEAF JSON"),
        ('{"users": [[]], "num_samples": [1], "user_data": {}}', "users that are no texts"),
        ('{"users": ["a"], "num_samples": [1e999], "user_data": {}}', "no whole numbers"),
    ],
    ids=range(8),
)
def test_leaf(tmp_path, text, message):
    write(tmp_path / "a.json", text.encode("latin-1"))
    with pytest.raises(DataError, match=rf"a\.json: .*{message}"):
        list(read_leaf(tmp_path))


@pytest.mark.parametrize("x", [[[True] * 784], [["1"] * 784], [[1e999] * 784], [[-0.0] * 783 + [[]]], ["a" * 784]])
def test_leaf_pictures(tmp_path, x):
    content = json.dumps({"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": x, "y": [1]}}})
    write(tmp_path / "femnist" / "train" / "a.json", content.replace("Infinity", "1e999").encode())
    with pytest.raises(DataError, match="user 'a': x "):
        data.load("femnist", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a." * 50_000 + b"a = 1", "more than 16 parts"),
        (b'"=".' + b"a." * 50_000 + b"a = 1", "more than 16 parts"),
        (b"[" + b"a." * 50_000 + b"a]\n" + b"b = 1\n" * 5000, "too many"),
        (b"a = " + b"[" * 5000, "nested too deep"),
        (b"a = " + b"{a=" * 3000, "nested too deep"),
        (b"a = " + b"[" * 20 + b"]" * 20, "nested too deep"),
        (b"a = [" + b"[]," * 50_000 + b"]", "too many"),
        (b"".join(b"[a%d]\n" % i for i in range(10_001)), "too many"),
        (b"".join(b"[a%d.b.c.d.e.f.g.h.i.j.k]\n" % i for i in range(1000)), "too many"),
        (b"a = 1" + b"0" * 400, "more than 64 bits"),
        (b"a = " + b"9" * 900, "more than 64 bits"),
        (b"a = 0x" + b"f" * 10**6, "more than 1000 characters"),
        (b"a = 1979-05-27", "date"),
        (b"a = '\xff'", "codec can't decode"),
        (b"a = '\x00'", "invalid character"),
        (b"#" * (1 << 24) + b"#", "at most"),
    ],
    ids=range(16),
)
def test_toml(tmp_path, text, message):
    with pytest.raises(ConfigError, match=f"config = .*no TOML: .*{message}|{message}.*at most"):
        read_toml(write(tmp_path / "a.toml", text))


def test_a_byte_order_mark_is_no_mistake(tmp_path):
    assert read_toml(write(tmp_path / "a.toml", b"\xef\xbb\xbfa = 1")) == {"a": 1}


def test_settings_of_methods_that_are_none():
    for methods in (3, [1]):
        with pytest.raises(ConfigError, match=r"methods = .*\[\[methods\]\]"):
            override({"methods": methods}, "methods.*.lr=1")
    tables = {"run": {}}
    override(tables, "run.rounds=" + "[" * 5000)  # a word
    override(tables, "run.seeds=1" + "0" * 5000)
    assert isinstance(tables["run"]["rounds"], str) and isinstance(tables["run"]["seeds"], str)


CHANGES = [
    ("config.toml", b"weights = ", b"weigths = ", "data.weights"),
    ("config.toml", b"rounds = 4", b"rounds = 1979-05-27", "date"),
    ("config.toml", b'label = "good"', b"", "label"),
    ("config.toml", b'kind = "uniform"', b"", "participation.kind"),
    ("config.toml", b"seeds = [0, 1]", b"seeds = 2", "run.seeds"),
    ("config.toml", b'"methods.*.lr" = [0.1, 0.5]', b'"methods.*.lr" = []', "no values"),
    ("config.toml", b"high = 2, points", b"hihg = 2, points", "no axis"),
    ("about.json", b'"counts": [[1, 2]', b'"counts": [[1]', "for each client and class"),
    ("about.json", b'"sizes": [3, 4, 5]', b'"sizes": [3, 4]', "for each client"),
    ("about.json", b'"sizes": [3, 4, 5]', b'"sizes": [3, 4, 5e0]', "sizes.2"),
    ("about.json", b"650", b"NaN", "NaN is no JSON"),
    ("about.json", b"650", b"9" * 30, "64 bits"),
    ("about.json", b'"steps": {', b'"steps": [{', "about.json"),
    ("metrics.jsonl", b'"round": 0', b'"round": null', "line 1: 'round' is no number"),
    ("metrics.jsonl", b'"round": 0', b'"round": "0"', "line 1: 'round' is no number"),
    ("metrics.jsonl", b'"round": 0', b'"round": 1e999', "line 1: 'round' is no number"),
    ("metrics.jsonl", b'"round": 0', b'"rund": 0', "line 1: a column is missing"),
    ("metrics.jsonl", b'"seed": 0', b'"seed": 7', "line 1: a seed"),
    ("metrics.jsonl", b'"label": "good"', b'"label": ["good"]', "line 1: a method"),
    ("metrics.jsonl", b'{"lr": 0.1, "work.low": 1}', b'{"lr": 0.1}', "other columns"),
    ("metrics.jsonl", b'{"lr": 0.1, "work.low": 1}', b"[" * 500 + b"]" * 500, "nested too deep"),
    ("metrics.jsonl", b'"test_loss"', b'"test_lost"', "criterion"),
    ("diagnosis.json", b'"steps": [1, 2]', b'"steps": [1]', "methods.0.steps"),
    ("diagnosis.json", b'"advice": ["Wait."]', b'"advice": "Wait."', "methods.0.advice"),
    ("diagnosis.json", b'"smoothness"', b'"smooth"', "methods.0.points.0.smoothness"),
]


@pytest.mark.parametrize(("file", "old", "new", "message"), CHANGES, ids=range(len(CHANGES)))
def test_run_folders(tmp_path, file, old, new, message):
    contents = {
        "config.toml": fuzz.CONFIG + fuzz.SWEEP,
        "about.json": fuzz.about(),
        "metrics.jsonl": fuzz.metrics(fuzz.POINTS),
        "diagnosis.json": fuzz.diagnosis(),
    }
    for name, content in contents.items():
        write(tmp_path / name, content)
    assert len(read(tmp_path).runs) == 12
    assert old in contents[file]
    write(tmp_path / file, contents[file].replace(old, new, 1))
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path)
    assert str(tmp_path / file) in str(caught.value)


def test_a_line_without_end(tmp_path):
    for name, content in (("config.toml", fuzz.CONFIG), ("about.json", fuzz.about())):
        write(tmp_path / name, content)
    with (tmp_path / "metrics.jsonl").open("wb") as file:
        file.truncate(1 << 30)
    with refused("line 1: longer than"):
        read(tmp_path)


def changed(content, change):
    """A checkpoint whose header, or the text in it, has become another."""
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:end])
    text = json.loads(header["__metadata__"]["fedax"])
    change(header, text)
    if "fedax" in header.get("__metadata__", {}):
        header["__metadata__"]["fedax"] = text if isinstance(text, str) else json.dumps(text)
    words = json.dumps(header).encode()
    return fuzz.resealed(struct.pack("<Q", len(words)) + words + content[end:])


def run(text):
    """The only run of a checkpoint."""
    return text["runs"][0]


CHECKPOINTS = {
    "no text": (lambda head, text: head.pop("__metadata__"), "it has no digest"),
    "another form": (lambda head, text: text.update(format="\x1b[31m" * 1000), "no checkpoint"),
    "settings in pairs": (lambda head, text: text.update(job=[*text["job"].items()]), "no checkpoint"),
    "settings": (lambda head, text: text["job"].update(seed="9" * 5000), "seed was 9"),
    "lists": (lambda head, text: text.update(more=[[]] * 30_000), "too many lists"),
    "status": (lambda head, text: run(text).update(status=["finished"]), "status"),
    "over before": (
        lambda head, text: (run(text).update(status="stopped"), run(text)["rows"].pop()),
        "stopped with figures",
    ),
    "no rows": (lambda head, text: run(text).update(rows=[]), "no checkpoint"),
    "rows that are none": (lambda head, text: run(text).update(rows={"0": {}}), "no checkpoint"),
    "rounds to come": (lambda head, text: run(text)["rows"][2].update(round=5), "up to round 5"),
    "rounds again": (lambda head, text: run(text)["rows"][1].update(round=0), "do not ascend"),
    "other columns": (lambda head, text: run(text)["rows"][1].update(more=0.5), "other columns"),
    "columns for all": (lambda head, text: [row.update(more=0.5) for row in run(text)["rows"]], "the columns more"),
    "a loss that is text": (lambda head, text: run(text)["rows"][1].update(train_loss="0.5"), "train_loss is '0.5'"),
    "half a client": (lambda head, text: run(text)["rows"][1].update(clients=0.5), "clients is 0.5"),
    "costs without end": (lambda head, text: run(text)["costs"].update(bytes_up=10**400), "bytes_up is 1"),
    "costs below 0": (lambda head, text: run(text)["costs"].update(clients=-1), "clients is -1"),
    "no time": (lambda head, text: run(text)["costs"].update(seconds=float("nan")), "seconds is nan"),
    "costs by name": (lambda head, text: run(text)["costs"].update(add=1), "columns are missing"),
    "no runs": (lambda head, text: text.update(runs=[]), "0 runs"),
    "a run that is none": (lambda head, text: text.update(runs=[3]), "no checkpoint"),
    "over, and not ended": (lambda head, text: text.update(over=True), "has not ended"),
    "over or not": (lambda head, text: text.update(over=2), "no checkpoint"),
    "shapes": (lambda head, text: head["ids"].update(shape=[2**62, 4]), "broken"),
    "axes": (lambda head, text: head["ids"].update(shape=[1] * 30_000 + [5]), "ids should be I64"),
    "types": (lambda head, text: head["memory.0"].update(dtype="U32"), "memory.0 should be .* and is U32"),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints(tmp_path, name):
    change, message = CHECKPOINTS[name]
    content = changed(fuzz.checkpointed(b"d")[2][0][1], change)
    with pytest.raises(CheckpointError, match=message) as caught:
        fuzz.read_checkpoint(tmp_path, b"d" + content)
    assert len(str(caught.value)) < 2000 and str(caught.value).isprintable() and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(("tag", "ids"), [(b"h", [3, 3]), (b"h", [3, 5]), (b"h", [-1, 1]), (b"p", [0, 1, 3])])
def test_checkpoints_of_other_clients(tmp_path, tag, ids):
    """Host memory has room for five clients' rows; of two processes, 3 is the other one's."""
    good = fuzz.checkpointed(tag)[2][0][1]
    old = struct.pack("<2q" if tag == b"h" else "<3q", *([3, 1] if tag == b"h" else [0, 1, 2]))
    assert good.count(old) == 1
    with pytest.raises(CheckpointError, match="client"):
        other = good.replace(old, struct.pack(f"<{len(ids)}q", *ids))
        fuzz.read_checkpoint(tmp_path, tag + fuzz.resealed(other))


TINY = data.quadratics(clients=2, dimension=1)


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("steps", lambda: fedax.Steps([True, 2])),
        ("steps", lambda: fedax.Steps(np.array([True, True]))),
        ("speed", lambda: fedax.Deadline(1.0, [True, 2.0])),
        ("cohorts", lambda: fedax.Trace([[1], [True, 2]])),
        ("weights", lambda: TINY.with_weights([True, 0.0])),
        ("weights", lambda: TINY.with_weights(np.array([True, False]))),
    ],
)
def test_a_truth_value_is_no_number_among_numbers(field, make):
    """NumPy makes a number of it."""
    with pytest.raises(FedaxError, match=f"^{field}"):
        make()


ABSURD = [
    ("clients", lambda: data.quadratics(clients=10**12, dimension=2)),
    ("dimension", lambda: data.quadratics(clients=1, dimension=10**9)),
    ("clients", lambda: data.quadratics(clients=10**5000, dimension=2)),
    ("clients", lambda: data.quadratics(clients=np.int64(2**40), dimension=np.int64(2**20))),
    ("clients", lambda: data.synthetic(1.0, 1.0, clients=10**12)),
    ("clients", lambda: data.sparse_regression(10**12)),
    ("features", lambda: data.sparse_regression(2, features=10**12)),
    ("examples", lambda: data.sparse_regression(2, examples=10**12)),
    ("n", lambda: data.iid(10**12, 10**12)),
    ("n", lambda: data.power_law(10**12, 2)),
    ("clients", lambda: data.dirichlet(np.arange(30_000), 30_000, 0.1, min_size=1)),
    ("clients", lambda: data.dirichlet_labels(np.arange(30_000), 30_000, 0.1)),
    ("clients", lambda: data.dominant(np.arange(30_000), 30_000, 0.1)),
    ("lr", lambda: check_number("lr", 10**400)),
    ("lr", lambda: check_number("lr", fractions.Fraction(10**5000))),
    ("lr", lambda: check_number("lr", 10**30)),
    ("alpha", lambda: data.dirichlet(np.arange(4) % 2, 2, 10**30, min_size=1)),
    ("mu", lambda: data.quadratics(clients=2, dimension=1, mu=10**30, L=1e31)),
    ("steps", lambda: fedax.Steps([1, 10**12])),
    ("high", lambda: fedax.RandomEpochs(1, 10**12)),
    ("high", lambda: fedax.GeometricSteps(1e12)),
    ("size", lambda: fedax.Proportional(10**12)),
    ("epochs", lambda: simulate(work=fedax.Epochs(1e300))),
    ("rounds", lambda: simulate(rounds=10**400)),
    ("batch_size", lambda: simulate(batch_size=10**12)),
    ("parameters", lambda: jax.eval_shape(fedax.tasks.mlp(1, 2, hidden=(10**12, 10**12)).init, jax.random.key(0))),
    ("data.clients", lambda: build({"data": {"name": "synthetic", "alpha": 1.0, "beta": 1.0, "clients": 10**12}})),
    ("data.dimension", lambda: build({"data": {"name": "quadratics", "clients": 2, "dimension": 10**9}})),
    ("data.features", lambda: build({"data": {"name": "sparse_regression", "clients": 2, "features": 10**9}})),
]


def simulate(rounds=1, **settings):
    fedax.simulate(fedax.create("fedavg", lr=0.1), fedax.tasks.quadratic(1), TINY, rounds=rounds, **settings)


def build(given):
    experiments.build(given | {"run": {"rounds": 1}, "methods": [{"name": "fedavg", "lr": 0.1}]})


@pytest.mark.parametrize(("field", "make"), ABSURD, ids=range(len(ABSURD)))
def test_absurd_sizes(field, make):
    with pytest.raises(ConfigError, match=rf"^{re.escape(field)} = "):
        make()


def test_what_fits_the_memory_is_made(monkeypatch):
    """The estimates are above what is taken, and not far."""
    for make, size in (
        (lambda: data.quadratics(clients=5000, dimension=8), 5000 * 8 * 8 * 8),
        (lambda: data.sparse_regression(100, features=50, examples=100), 100 * 100 * 50 * 8),
        (lambda: data.synthetic(1.0, 1.0, clients=50), 50 * 450 * 61 * 4),
        (lambda: data.iid(200_000, 100), 200_000 * 8),
    ):
        tracemalloc.start()
        make()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        monkeypatch.setattr(numbers, "host_bytes", lambda peak=peak: int(peak * 0.8))
        with pytest.raises(ConfigError, match="this would take more than"):
            make()
        monkeypatch.setattr(numbers, "host_bytes", lambda size=size: 8 * size)
        make()
        monkeypatch.undo()


def hidden(path, kind):
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    return path


READ = {
    "mnist.npz": lambda path: data.load("mnist", path.parent),
    "a9a": lambda path: data.load("a9a", path.parent),
    "cifar-10-python.tar.gz": lambda path: data.load("cifar10", path.parent),
    "femnist/train/a.json": lambda path: data.load("femnist", path.parent.parent.parent),
    "images": read_idx,
    "data_batch_1": lambda path: read_cifar10(path.parent),
    "a.toml": read_toml,
    "model": lambda path: read_model(path, []),
    "about.json": lambda path: read(path.parent),
    "checkpoint-d/round-000000005.0-of-1.safetensors": lambda path: fuzz.read_checkpoint(
        path.parent.parent, fuzz.checkpointed(b"d")[2][0][1]
    ),
}


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "loop"])
@pytest.mark.parametrize("name", READ)
def test_what_is_no_file(tmp_path, name, kind):
    write(tmp_path / "config.toml", fuzz.CONFIG)
    write(tmp_path / "metrics.jsonl", fuzz.metrics())
    with pytest.raises(FedaxError, match=re.escape(str(tmp_path))):
        READ[name](hidden(tmp_path / name, kind))


@pytest.mark.parametrize("folder", ["x" * 5000, "a\x00b"])
def test_names_that_cannot_be(folder):
    with pytest.raises(DataError, match="mnist"):
        data.load("mnist", folder)
    for reader in (read, read_toml):
        with pytest.raises(ConfigError):
            reader(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_without_permission(tmp_path):
    write(tmp_path / "mnist.npz", b"").chmod(0)
    with pytest.raises(DataError, match="Permission denied"):
        data.load("mnist", tmp_path)


def test_what_is_written_is_read(tmp_path):
    """The limits are far beyond what a run writes."""
    rows = [[round_ % 7, 1000] for round_ in range(20_000)]
    config = {"participation": {"cohorts": rows}, "work": {"speed": [0.123456789] * 100_000}}
    assert toml.loads(toml.dumps(config).encode()) == config
