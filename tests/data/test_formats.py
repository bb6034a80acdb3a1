"""File formats: tiny files written here byte by byte are read back; damaged and malicious ones are refused."""

import bz2
import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile

import numpy as np
import pytest

from fedax.data.formats import npz_names, read_cifar10, read_idx, read_leaf, read_libsvm, read_npz
from fedax.errors import DataError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (5, 4, 3), np.uint8)
BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def planes(seed, n=3):
    """Pixels [n, 3, 32, 32] as CIFAR-10 stores them, and labels."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (n, 3, 32, 32), np.uint8), generator.integers(0, 10, n)


def python_batch(pixels, labels):
    """A batch as Python 2 and the NumPy of 2009 pickled it, opcode by opcode (protocol 2)."""

    def string(text):
        return b"T" + struct.pack("<i", len(text)) + text

    def number(value):
        return b"J" + struct.pack("<i", value)

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87R(K\x01"
        + number(len(pixels))
        + number(3072)
        + b"\x86cnumpy\ndtype\nq\x04U\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN"
        + number(-1) * 2
        + b"K\x00tb\x89"
        + string(pixels.tobytes())
        + b"tb"
    )
    listed = b"](" + b"".join(number(label) for label in labels) + b"e"
    names = b"](" + b"U\x05a.png" * len(labels) + b"e"
    pairs = ((b"batch_label", string(b"a batch")), (b"labels", listed), (b"data", array), (b"filenames", names))
    return b"\x80\x02}q\x01(" + b"".join(string(key) + value for key, value in pairs) + b"u."


def binary_batch(pixels, labels):
    return b"".join(bytes([label]) + image.tobytes() for image, label in zip(pixels, labels, strict=True))


def tar(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"cifar-10-batches/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("array", [IMAGES, IMAGES[:, 0, 0]], ids=["images", "labels"])
def test_idx(tmp_path, array):
    assert np.array_equal(read_idx(write(tmp_path / "plain", idx(array))), array)
    assert np.array_equal(read_idx(write(tmp_path / "packed.gz", gzip.compress(idx(array), mtime=0))), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as an idx file"),
        (b"PK\x03\x04" + bytes(20), "starts with 504b0304"),
        (struct.pack(">HBBI", 0, 13, 1, 4) + bytes(16), "starts with 00000d01"),  # floating-point numbers
        (idx(IMAGES)[:-1], r"\(5, 4, 3\) bytes, but holds only 59"),
        (idx(IMAGES) + b"!", "but holds more"),
        (struct.pack(">HBB3I", 0, 8, 3, 60_000, 2**31, 2**31) + bytes(9), "but the file has only 25"),
        (gzip.compress(idx(IMAGES), mtime=0)[:-10], "cannot be read as an idx file"),
        (gzip.compress(struct.pack(">HBBI", 0, 8, 1, 2**32 - 1), mtime=0), "but the file has only"),
        (gzip.compress(idx(IMAGES)[:-2], mtime=0), "but holds only 58"),
        (struct.pack(">HBB4I", 0, 8, 4, 0, *[2**32 - 1] * 3), "cannot be read as an idx file"),
    ],
)
def test_bad_idx(tmp_path, content, message):
    with pytest.raises(DataError, match=message) as caught:
        read_idx(write(tmp_path / "images", content))
    assert str(tmp_path / "images") in str(caught.value)


def test_the_python_batch_written_here_is_numpys():
    """Or the test of the reader would prove nothing: NumPy itself reads the same pixels from it."""
    pixels, labels = planes(0)
    batch = pickle.loads(python_batch(pixels, labels), encoding="bytes")
    assert np.array_equal(batch[b"data"].reshape(pixels.shape), pixels)
    assert batch[b"labels"] == labels.tolist()


@pytest.mark.parametrize("encode", [python_batch, binary_batch])
def test_cifar10(tmp_path, encode):
    ending = ".bin" if encode is binary_batch else ""
    files = {f"{name}{ending}": encode(*planes(i)) for i, name in enumerate(BATCHES)}
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, content in (files | {"readme.html": b"?"}).items():
        write(folder / name, content)
    for path in (folder, tar(tmp_path / "archive.tar.gz", dict(reversed(files.items())))):
        batches = read_cifar10(path)
        assert list(batches) == BATCHES
        for i, (images, labels) in enumerate(batches.values()):
            pixels, expected = planes(i)
            assert images.shape == (3, 32, 32, 3) and images.dtype == np.uint8
            assert np.array_equal(labels, expected)
            for channel in range(3):
                assert np.array_equal(images[..., channel], pixels[:, channel])


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    marker = tmp_path / "marker"

    class Attack:
        def __reduce__(self):
            return os.mkdir, (str(marker),)

    for protocol in range(6):
        for content in (Attack(), {"data": [Attack()]}):
            attack = pickle.dumps(content, protocol=protocol)
            path = tar(tmp_path / "attack.tar.gz", {"data_batch_1": attack})
            with pytest.raises(DataError, match=r"asks for '\w+\.mkdir', which is refused"):
                read_cifar10(path)
            assert not marker.exists()
            pickle.loads(attack)  # it does run where nothing forbids it
            marker.rmdir()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02cbuiltins\neval\n(S'1'\ntR.",
        b"\x80\x02cnumpy\nload\n.",
        b"\x80\x02cnumpy.core.multiarray\nfromfile\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.",
    ],
)
def test_no_other_name_is_admitted(tmp_path, content):
    with pytest.raises(DataError, match="which is refused"):
        read_cifar10(tar(tmp_path / "a.tar.gz", {"data_batch_1": content}))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_1", b"", "cannot be read as CIFAR-10"),
        ("data_batch_1", python_batch(*planes(0))[:-9], "cannot be read as CIFAR-10"),
        ("data_batch_1", pickle.dumps([1, 2]), "cannot be read as CIFAR-10"),
        ("data_batch_1", b"\x80\x02Nr\xff\xff\xff\xff.", "made to exhaust memory"),
        ("data_batch_1", b"\x80\x02" + b"]" * 2000 + b".", "made to exhaust memory"),
        ("data_batch_1", python_batch(planes(0)[0][:2], [1, 2, 3]), "not one row of 3072 bytes for each"),
        ("data_batch_1", python_batch(planes(0)[0], [1, 2, 10]), "labels from 1 to 10"),
        ("data_batch_1", python_batch(*planes(0)).replace(b"u1", b"i1"), "not one row of 3072 bytes"),
        ("data_batch_1.bin", binary_batch(*planes(0))[:-1], "9218 bytes are not a multiple of the 3073"),
        ("data_batch_1.bin", bytes([11]) + bytes(3072), "labels from 11 to 11"),
        ("data_batch_1.bin", binary_batch(*planes(0)), "data_batch_2, .* test_batch not in it"),
    ],
)
def test_bad_cifar10(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message) as caught:
        read_cifar10(tar(tmp_path / "cifar.tar.gz", {name: content}))
    assert "cifar.tar.gz" in str(caught.value)


def test_cut_off_archive(tmp_path):
    path = tar(tmp_path / "cifar.tar.gz", {name: python_batch(*planes(i)) for i, name in enumerate(BATCHES)})
    content = path.read_bytes()
    for share in (0.02, 0.3, 0.9):
        with pytest.raises(DataError, match=r"cifar\.tar\.gz: "):
            read_cifar10(write(path, content[: int(share * len(content))]))


def test_an_archive_that_declares_too_much(tmp_path):
    info = tarfile.TarInfo("data_batch_1")
    info.size = 8**11 - 1
    write(tmp_path / "cifar.tar.gz", gzip.compress(info.tobuf(), mtime=0))
    with pytest.raises(DataError, match="data_batch_1: 8589934591 bytes"):
        read_cifar10(tmp_path / "cifar.tar.gz")


LIBSVM = b"+1 1:1 4:0.5\n-1 2:-3\n-1\n"


@pytest.mark.parametrize(("ending", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress)])
def test_libsvm(tmp_path, ending, pack):
    x, y = read_libsvm(write(tmp_path / f"set{ending}", pack(LIBSVM)), features=5)
    assert x.dtype == y.dtype == np.float32
    assert x.tolist() == [[1, 0, 0, 0.5, 0], [0, -3, 0, 0, 0], [0, 0, 0, 0, 0]]
    assert y.tolist() == [1, -1, -1]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("set", b""),
        ("set", b"+1 0:1\n"),  # indices count from 1
        ("set", b"+1 6:1\n"),  # beyond the features
        ("set", b"+1 2:1 1:1\n"),
        ("set", b"+1 1:nan\n"),
        ("set", b"inf 1:1\n"),
        ("set", b"one 1:1\n"),
        ("set", bytes(range(256))),
        ("set.gz", LIBSVM),
        ("set.gz", gzip.compress(LIBSVM, mtime=0)[:-9]),
        ("set.bz2", bz2.compress(LIBSVM)[:-9]),
    ],
)
def test_bad_libsvm(tmp_path, name, content):
    with pytest.raises(DataError, match=name):
        read_libsvm(write(tmp_path / name, content), features=5)


def leaf(**users):
    sizes = [len(x) for x, _ in users.values()]
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    return {"users": list(users), "num_samples": sizes, "user_data": data}


def test_leaf(tmp_path):
    write(tmp_path / "b.json", json.dumps(leaf(second=([[3.0]], [1]), nobody=([], []))).encode())
    write(tmp_path / "a.json", json.dumps(leaf(first=([[1.0], [2.0]], [0, 1]))).encode())
    write(tmp_path / "notes.txt", b"not read")
    assert list(read_leaf(tmp_path)) == [("first", [[1.0], [2.0]], [0, 1]), ("second", [[3.0]], [1])]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "a.json: cannot be read as LEAF JSON"),
        (b"[1, 2]", "a.json: cannot be read as LEAF JSON"),
        (b"[" * 100_000, "a.json: cannot be read as LEAF JSON"),
        (b'{"users": []}', "cannot be read as LEAF JSON"),
        (json.dumps(leaf(a=([1], [1])) | {"num_samples": [2]}).encode(), "'a' has not the 2 examples"),
        (json.dumps(leaf(a=([1, 2], [1]))).encode(), "'a' has not the 2 examples"),
        (json.dumps(leaf(a=([1], [1])) | {"users": ["b"]}).encode(), "'b' has not the 1 examples"),
        (
            json.dumps(leaf(a=([1], [1])) | {"users": ["a", "a"], "num_samples": [1, 1]}).encode(),
            "user 'a' occurs twice",
        ),
        (json.dumps(leaf()).encode(), "no example"),
    ],
)
def test_bad_leaf(tmp_path, content, message):
    write(tmp_path / "a.json", content)
    with pytest.raises(DataError, match=message):
        list(read_leaf(tmp_path))


def test_leaf_without_files(tmp_path):
    with pytest.raises(DataError, match=r"no \.json file"):
        list(read_leaf(tmp_path))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, save):
    arrays = {"a": IMAGES, "b": np.asfortranarray(RNG.standard_normal((3, 4))), "c": np.array(["x", "yz"])}
    save(tmp_path / "set.npz", **arrays)
    read = read_npz(tmp_path / "set.npz", ["a", "b", "c"])
    assert all(np.array_equal(read[name], array) and read[name].dtype == array.dtype for name, array in arrays.items())
    assert npz_names(tmp_path / "set.npz") == ["a", "b", "c"]


def npz(path, header, content):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content)
    return path


def test_bad_npz(tmp_path):
    path = tmp_path / "set.npz"
    good = b"{'descr': '|u1', 'fortran_order': False, 'shape': (4,), }"
    assert read_npz(npz(path, good, b"1234"), ["a"])["a"].tobytes() == b"1234"
    with pytest.raises(DataError, match=r"set\.npz: no array 'b' .*\['a\.npy'\]"):
        read_npz(path, ["b"])
    whole = path.read_bytes()
    for header, content, message in (
        (good, b"123", "is not what the file holds"),
        (good, b"12345", "is not what the file holds"),
        (good.replace(b"(4,)", b"(40000000000,)"), b"1234", "is not what the file holds"),
        (good.replace(b"(4,)", b"(-4,)"), b"1234", "has not the header of an array"),
        (good.replace(b"|u1", b"|O"), b"1234", "Python objects"),
        (b"[open]", b"1234", "has not the header of an array"),
    ):
        with pytest.raises(DataError, match=message):
            read_npz(npz(path, header, content), ["a"])
    for content in (b"", b"1234", whole[:-20], whole.replace(b"1234", b"1235")):
        with pytest.raises(DataError, match=r"set\.npz: cannot be read as a NumPy archive"):
            read_npz(write(path, content), ["a"])
    np.savez(path, a=np.array([{}, None], dtype=object))
    with pytest.raises(DataError, match="Python objects"):
        read_npz(path, ["a"])
