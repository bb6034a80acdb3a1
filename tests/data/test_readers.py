"""Data sets by name: from tiny copies in every form in which people have them, and from the real files."""

import gzip
import importlib.metadata
import json
import pathlib
import struct

import numpy as np
import pytest

from fedax import data
from fedax.errors import ConfigError, DataError

RNG = np.random.default_rng(0)


def pictures(n, *shape, classes=10):
    return RNG.integers(0, 256, (n, *shape), np.uint8), RNG.integers(0, classes, n).astype(np.uint8)


def write_idx(path, array, pack=bytes):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()))


def write_leaf(folder, **users):
    folder.mkdir(parents=True)
    content = {
        "users": list(users),
        "num_samples": [len(x) for x, _ in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    (folder / "all_data_0.json").write_text(json.dumps(content))


def test_digits_need_no_file(monkeypatch):
    monkeypatch.delenv("FEDAX_DATA", raising=False)
    digits = data.load("digits")
    assert digits.classes == 10 and digits.groups == {}
    x = np.concatenate([digits.train["x"], digits.test["x"]])
    assert x.shape == (1797, 8, 8, 1) and x.dtype == np.uint8 and x.max() == 255
    # Seventeen grey values remain seventeen, so that the scaling lost nothing.
    assert len(np.unique(x)) == 17
    for part, per_class in ((digits.train, (140, 147)), (digits.test, (34, 36))):
        counts = np.bincount(part["y"])
        assert part["y"].dtype == np.int32 and per_class[0] <= counts.min() <= counts.max() <= per_class[1]
    assert np.array_equal(data.load("digits").test["x"], digits.test["x"])


def test_digits_are_those_that_scikit_learn_reads(monkeypatch):
    """Wherever it keeps their file."""
    digits = data.load("digits")
    monkeypatch.setattr(importlib.metadata.PathDistribution, "locate_file", lambda self, path: "elsewhere")
    for own, theirs in zip(
        (digits.train, digits.test), (data.load("digits").train, data.load("digits").test), strict=True
    ):
        assert all(np.array_equal(own[name], theirs[name]) and own[name].dtype == theirs[name].dtype for name in own)


def test_available_is_what_load_knows(tmp_path):
    lines = data.available()
    assert set(lines) >= {"digits", "mnist", "fashion_mnist", "cifar10", "femnist", "shakespeare", "w8a", "a9a"}
    assert all(line and "\n" not in line for line in lines.values())
    for name in lines.keys() - {"digits"}:
        with pytest.raises(DataError, match=f"{name}: nothing of it in .*would do: .*https?://") as e:
            data.load(name, tmp_path)
        assert str(tmp_path) in str(e.value)
    with pytest.raises(ConfigError, match="did you mean 'mnist'"):
        data.load("mnits")


def test_the_folder_comes_from_the_argument_or_else_the_environment(tmp_path, monkeypatch):
    x, y = pictures(4, 28, 28)
    np.savez(tmp_path / "fashion_mnist.npz", x_train=x, y_train=y, x_test=x[:1], y_test=y[:1])
    monkeypatch.delenv("FEDAX_DATA", raising=False)
    with pytest.raises(DataError, match="no folder given, and FEDAX_DATA is not set"):
        data.load("fashion_mnist")
    assert len(data.load("fashion_mnist", str(tmp_path)).train["y"]) == 4
    monkeypatch.setenv("FEDAX_DATA", str(tmp_path))
    assert len(data.load("fashion_mnist").train["y"]) == 4
    with pytest.raises(DataError, match="nothing of it in"):
        data.load("fashion_mnist", tmp_path / "elsewhere")


def test_mnist_npz_with_and_without_writers(tmp_path):
    (x, y), (x_test, y_test) = pictures(5, 28, 28), pictures(2, 28, 28)
    arrays = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}
    np.savez(tmp_path / "mnist.npz", **arrays)
    plain = data.load("mnist", tmp_path)
    assert np.array_equal(plain.train["x"], x[..., None]) and np.array_equal(plain.train["y"], y)
    assert np.array_equal(plain.test["x"], x_test[..., None]) and np.array_equal(plain.test["y"], y_test)
    assert plain.groups == {}
    np.savez(tmp_path / "mnist.npz", **arrays, writer_train=np.array([7, 2, 7, 2, 2], np.int16))
    written = data.load("mnist", tmp_path)
    assert [part.tolist() for part in data.by_column(written.groups["writer"])] == [[1, 3, 4], [0, 2]]
    assert repr(written) == "Dataset(mnist: 5 training and 2 test examples, 2 of writer)"


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST/raw"), ("fashion_mnist", "fashion_mnist")])
def test_idx_pair(tmp_path, name, folder):
    (x, y), (x_test, y_test) = pictures(3, 28, 28), pictures(2, 28, 28)
    place = tmp_path / folder
    write_idx(place / "train-images-idx3-ubyte.gz", x, gzip.compress)
    write_idx(place / "train-labels-idx1-ubyte", y)
    write_idx(place / "t10k-images-idx3-ubyte", x_test)
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte not in it"):
        data.load(name, tmp_path)
    write_idx(place / "t10k-labels-idx1-ubyte.gz", y_test, gzip.compress)
    read = data.load(name, tmp_path)
    assert np.array_equal(read.train["x"][..., 0], x) and np.array_equal(read.train["y"], y)
    assert np.array_equal(read.test["x"][..., 0], x_test) and np.array_equal(read.test["y"], y_test)
    write_idx(place / "train-labels-idx1-ubyte", y[:-1])
    with pytest.raises(DataError, match="labels must be 3 whole numbers"):
        data.load(name, tmp_path)


def test_cifar10_archive_and_parts_agree(tmp_path):
    batches = {name: pictures(2, 3, 32, 32) for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")}
    folder = tmp_path / "original" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name, (x, y) in batches.items():
        (folder / f"{name}.bin").write_bytes(b"".join(bytes([b]) + a.tobytes() for a, b in zip(x, y, strict=True)))
    original = data.load("cifar10", tmp_path / "original")
    *train, (x_test, y_test) = batches.values()
    assert np.array_equal(original.train["x"].transpose(0, 3, 1, 2), np.concatenate([x for x, _ in train]))
    assert np.array_equal(original.train["y"], np.concatenate([y for _, y in train]))
    assert np.array_equal(original.test["x"].transpose(0, 3, 1, 2), x_test)
    assert np.array_equal(original.test["y"], y_test)

    x, y = original.train.values()
    order = RNG.permutation(10).reshape(5, 2)
    for i, index in enumerate(order):
        test = slice(0, 2) if i == 3 else slice(0, 0)
        part = {"x_train": x[index], "y_train": y[index], "index_train": index.astype(np.int32)}
        place = np.array([0, 1], np.int32)[test]
        part |= {"x_test": original.test["x"][test], "y_test": original.test["y"][test], "index_test": place}
        np.savez(tmp_path / f"cifar10_part{i}.npz", **part)
    parts = data.load("cifar10", tmp_path)
    for split in ("train", "test"):
        for key in ("x", "y"):
            assert np.array_equal(getattr(parts, split)[key], getattr(original, split)[key])
    (tmp_path / "cifar10_part4.npz").rename(tmp_path / "cifar10_part5.npz")
    with pytest.raises(DataError, match=r"cifar10_part4\.npz: cannot be read"):
        data.load("cifar10", tmp_path)


def test_pathmnist(tmp_path):
    (x, y), (x_test, y_test) = pictures(4, 28, 28, 3, classes=9), pictures(2, 28, 28, 3, classes=9)
    arrays = {"train_images": x, "train_labels": y[:, None], "val_images": x, "val_labels": y[:, None]}
    np.savez_compressed(tmp_path / "pathmnist.npz", **arrays, test_images=x_test, test_labels=y_test[:, None])
    read = data.load("pathmnist", tmp_path)
    assert read.classes == 9
    assert np.array_equal(read.train["x"], x) and np.array_equal(read.train["y"], y)
    assert np.array_equal(read.test["x"], x_test) and np.array_equal(read.test["y"], y_test)


def test_femnist(tmp_path):
    x, y = pictures(5, 28, 28, classes=62)
    flat = (x.reshape(5, 784) / 255).tolist()
    labels = y.tolist()
    place = tmp_path / "femnist" / "data"
    write_leaf(place / "train", f_01=(flat[:3], labels[:3]), f_02=(flat[3:4], labels[3:4]))
    assert data.load("femnist", tmp_path).test is None
    write_leaf(place / "test", f_01=(flat[4:], labels[4:]), f_02=([], []))
    read = data.load("femnist", tmp_path)
    assert read.classes == 62 and read.groups["writer"].tolist() == [0, 0, 0, 1]
    assert np.array_equal(read.train["x"][..., 0], x[:4]) and np.array_equal(read.train["y"], y[:4])
    assert np.array_equal(read.test["x"][..., 0], x[4:]) and np.array_equal(read.test["y"], y[4:])
    for i, (bad, message) in enumerate(
        (
            ([flat[0][:-1]], "not 784 numbers an example"),
            ([["?"] * 784], "not 784 numbers an example"),
            ([[10**400] * 784], "not 0, 1, … 255 divided by 255"),
            ([[2.0] * 784], "not 0, 1, … 255 divided by 255"),
            ([[0.0011] * 784], "not 0, 1, … 255 divided by 255"),
            ([[-0.5] * 784], "not 0, 1, … 255 divided by 255"),
        )
    ):
        write_leaf(tmp_path / f"{i}" / "femnist" / "train", f_01=(bad, [0]))
        with pytest.raises(DataError, match=f"'f_01': x .*{message}"):
            data.load("femnist", tmp_path / f"{i}")


def test_shakespeare_from_leaf(tmp_path):
    text = "".join(chr(32 + i % 95) for i in range(100)) + "\n"
    x, y = [text[i : i + 80] for i in range(21)], [text[i + 80] for i in range(21)]
    write_leaf(tmp_path / "shakespeare" / "data" / "train", HAMLET=(x[:4], y[:4]), OPHELIA=(x[4:], y[4:]))
    read = data.load("shakespeare", tmp_path)
    assert read.groups["role"].tolist() == [0] * 4 + [1] * 17
    assert read.classes == len(data.CHARACTERS) == 96
    for i in (0, 20):
        assert "".join(data.CHARACTERS[c] for c in read.train["x"][i]) == x[i]
        assert "".join(data.CHARACTERS[c] for c in read.train["y"][i]) == x[i][1:] + y[i]
    for i, (bad, label) in enumerate(((x[0][:-1], "a"), (x[0], "ab"), (80, "a"), ("é" * 80, "a"), ("\t" * 80, "a"))):
        write_leaf(tmp_path / f"{i}" / "shakespeare" / "train", HAMLET=([bad], [label]))
        with pytest.raises(DataError, match=r"'HAMLET': (an example is not 80|the character)"):
            data.load("shakespeare", tmp_path / f"{i}")


def test_shakespeare_holds_out_the_end_of_each_role(tmp_path):
    lengths = [161, 160, 80 * 7 + 1, 500, 4]  # of which windows: 2, none, 7, 6, none
    text = np.frombuffer("".join(chr(32 + i % 95) for i in range(sum(lengths))).encode(), np.uint8)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    np.savez(tmp_path / "shakespeare_roles.npz", text=text, role_ptr=ends)
    read = data.load("shakespeare", tmp_path)
    assert read.groups["role"].tolist() == [0] + [2] * 5 + [3] * 4
    assert read.train["x"].shape == (10, 80) and len(read.test["x"]) == 1 + 2 + 2
    role = text[ends[2] : ends[3]] - 31
    assert np.array_equal(read.train["x"][1:6].ravel(), role[:400])
    assert np.array_equal(read.train["y"][1:6].ravel(), role[1:401])
    assert np.array_equal(read.test["x"][1:3].ravel(), role[400:560])
    assert np.array_equal(read.test["y"][1:3].ravel(), role[401:561])
    for bad, message in (
        ({"role_ptr": ends[:-1]}, "role_ptr does not cut up the text"),
        ({"role_ptr": ends[:0]}, "hold the ends of its roles"),
        ({"role_ptr": ends[[0, -1, 2, -1]]}, "role_ptr does not cut up the text"),
        ({"text": text[:100], "role_ptr": np.array([0, 100])}, "no role speaks 161 characters"),
        ({"text": text + np.uint8(128)}, "neither printable ASCII"),
    ):
        np.savez(tmp_path / "shakespeare_roles.npz", **{"text": text, "role_ptr": ends} | bad)
        with pytest.raises(DataError, match=rf"shakespeare_roles\.npz: .*{message}"):
            data.load("shakespeare", tmp_path)


def test_a9a_from_text_and_from_rows_agree(tmp_path):
    text = "-1 3:1 11:1\n+1 5:1 123:1\n-1\n"
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a9a").write_text(text)
    assert data.load("a9a", tmp_path / "text").test is None
    (tmp_path / "text" / "a9a.t").write_text("+1 122:1\n")
    read = data.load("a9a", tmp_path / "text")
    assert read.classes is None and read.train["x"].shape == (3, 123) and read.test["x"].shape == (1, 123)
    assert np.argwhere(read.train["x"] == 1).tolist() == [[0, 2], [0, 10], [1, 4], [1, 122]]
    assert read.train["x"].dtype == np.float32 and read.train["y"].tolist() == [-1, 1, -1]

    rows = {
        "train_y": np.array([-1, 1, -1], np.int8),
        "train_data": np.ones(4, np.uint8),
        "train_indices": np.array([2, 10, 4, 122], np.int16),
        "train_indptr": np.array([0, 2, 4, 4], np.int32),
        "train_shape": np.array([3, 123]),
    }
    np.savez(tmp_path / "a9a.npz", **rows)
    again = data.load("a9a", tmp_path)
    assert np.array_equal(again.train["x"], read.train["x"]) and np.array_equal(again.train["y"], read.train["y"])
    for key, bad in (
        ("train_indptr", np.array([0, 4, 2, 4])),
        ("train_indptr", np.array([0, 2, 4, 5])),
        ("train_indices", np.array([2, 10, 4, 123])),
        ("train_indices", np.array([2, 10, 4, -1])),
        ("train_shape", np.array([3, 10**12])),
        ("train_data", np.ones(3)),
        ("train_y", np.array([-1, 0, 1], np.int8)),
        ("train_y", np.array(1, np.int8)),
    ):
        np.savez(tmp_path / "a9a.npz", **rows | {key: bad})
        with pytest.raises(DataError, match=r"a9a\.npz: "):
            data.load("a9a", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": np.array([0, 10, 1], np.uint8)}, "labels from 0 to 10, not 0 to 9"),
        ({"y_train": np.array([0, 1], np.uint8)}, "labels must be 3 whole numbers"),
        ({"y_train": np.array([0.0, 1.0, 2.0])}, "labels must be 3 whole numbers, not float64"),
        ({"x_train": np.zeros((3, 28, 28))}, "images must be uint8"),
        ({"x_train": np.zeros((3, 28, 27), np.uint8)}, r"must be uint8 \[n, 28, 28, 1\], not uint8 \(3, 28, 27\)"),
        ({"x_train": np.zeros(3, np.uint8)}, "images must be uint8"),
        ({"writer_train": np.array([0, 1])}, "writer_train must be 3 whole numbers"),
    ],
)
def test_pictures_that_do_not_fit(tmp_path, change, message):
    x, y = pictures(3, 28, 28)
    np.savez(tmp_path / "mnist.npz", **{"x_train": x, "y_train": y, "x_test": x, "y_test": y} | change)
    with pytest.raises(DataError, match=f"mnist.npz: .*{message}"):
        data.load("mnist", tmp_path)


class TestRealFiles:
    """The counts that are known of the whole sets."""

    def test_mnist(self, data_folder: pathlib.Path):
        mnist = data.load("mnist", data_folder)
        assert mnist.train["x"].shape == (60000, 28, 28, 1) and mnist.test["x"].shape == (10000, 28, 28, 1)
        assert np.bincount(mnist.train["y"]).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
        sizes = [len(part) for part in data.by_column(mnist.groups["writer"])]
        assert (len(sizes), min(sizes), max(sizes), np.median(sizes)) == (539, 19, 131, 116)

    def test_fashion_mnist(self, data_folder: pathlib.Path):
        fashion = data.load("fashion_mnist", data_folder)
        assert np.bincount(fashion.train["y"]).tolist() == [6000] * 10
        assert np.bincount(fashion.test["y"]).tolist() == [1000] * 10

    def test_cifar10(self, data_folder: pathlib.Path):
        cifar = data.load("cifar10", data_folder)
        assert cifar.train["x"].shape == (50000, 32, 32, 3) and cifar.test["x"].shape == (10000, 32, 32, 3)
        assert np.bincount(cifar.train["y"]).tolist() == [5000] * 10
        assert np.bincount(cifar.test["y"]).tolist() == [1000] * 10
        # The original order starts with a frog, two lorries, a deer and two cars.
        assert cifar.train["y"][:6].tolist() == [6, 9, 9, 4, 1, 1]
        means = cifar.train["x"].mean(axis=(0, 1, 2)) / 255
        assert np.allclose(means, [0.4914, 0.4822, 0.4465], atol=1e-4)

    def test_sparse_sets(self, data_folder: pathlib.Path):
        w8a, a9a = data.load("w8a", data_folder), data.load("a9a", data_folder)
        assert w8a.test is None and w8a.train["x"].shape == (49749, 300)
        assert np.count_nonzero(w8a.train["x"]) == 579_586 and (w8a.train["y"] == 1).sum() == 1479
        assert (~w8a.train["x"].any(axis=1)).sum() == 4203
        assert a9a.train["x"].shape == (32561, 123) and a9a.test["x"].shape == (16281, 123)
        assert np.count_nonzero(a9a.train["x"]) == 451_592 and (a9a.train["y"] == 1).sum() == 7841
        assert (a9a.test["y"] == 1).sum() == 3846

    def test_shakespeare(self, data_folder: pathlib.Path):
        plays = data.load("shakespeare", data_folder)
        with np.load(data_folder / "shakespeare_roles.npz", allow_pickle=False) as file:
            windows = (np.diff(file["role_ptr"]) - 1) // 80
            text = file["text"].tobytes().decode()
        windows = windows[windows >= 2]
        assert len(np.unique(plays.groups["role"])) == len(windows) == 1055
        assert len(plays.train["x"]) + len(plays.test["x"]) == windows.sum()
        assert len(plays.test["x"]) == np.ceil(windows / 5).sum()
        assert "".join(data.CHARACTERS[c] for c in plays.train["x"][0]) in text
        assert np.array_equal(plays.train["x"][:, 1:], plays.train["y"][:, :-1])
