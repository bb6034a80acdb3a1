"""FederatedData: what the clients hold, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import data
from fedax.errors import DataError
from fedax.sites.protocol.site import Site

POOLED = {"x": np.arange(12.0).reshape(6, 2), "y": np.arange(6)}


def test_partitions_of_this_package_fit():
    labels = np.random.default_rng(0).integers(0, 3, 90)
    parts = data.dirichlet(labels, clients=3, alpha=0.5)
    federation = data.FederatedData.from_partition({"y": labels}, parts, weights=np.full(3, 1 / 3))
    for i, part in enumerate(parts):
        assert np.array_equal(federation.client(i)["y"], labels[part])
    assert np.allclose(federation.weights, 1 / 3)


def test_clients_and_partition_agree():
    parts = [np.array([0, 3]), np.array([1, 2, 4])]
    one = data.FederatedData.from_partition(POOLED, parts)
    two = data.FederatedData.from_clients([{key: column[part] for key, column in POOLED.items()} for part in parts])
    assert np.array_equal(one.examples["x"], two.examples["x"]) and np.array_equal(one.sizes, two.sizes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: data.FederatedData({}, [1]), "examples: there is no array"),
        (lambda: data.FederatedData(POOLED, [2, 3]), "sum to 5"),
        (lambda: data.FederatedData(POOLED, [6, 0]), "client 1 has 0 examples"),
        (lambda: data.FederatedData(POOLED, np.array([2.0, 4.0])), "sizes: need one whole number"),
        (lambda: data.FederatedData({"x": np.array([1.0, np.nan])}, [2]), r"client 0, examples\['x'\], row 1 is NaN"),
        (lambda: data.FederatedData(POOLED, [2, 4], weights=np.array([0.5, 0.6])), "sum to 1.1"),
        (lambda: data.FederatedData(POOLED, [2, 4], weights=np.array([1.5, -0.5])), "client 1 has weight -0.5"),
        (lambda: data.FederatedData.from_partition(POOLED, [np.array([0, 6])]), r"parts\[0\]"),
        (lambda: data.FederatedData.from_partition(POOLED, []), "parts: the list is empty"),
        (lambda: data.FederatedData.from_clients([{"x": np.ones(2)}, {"z": np.ones(2)}]), r"clients\[1\]"),
        (lambda: data.FederatedData.from_clients([{"x": np.ones((2, 3))}, {"x": np.ones((2, 4))}]), r"clients\[1\]"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(DataError, match=message):
        make()


POOL = {"x": np.arange(12.0).reshape(6, 2), "y": np.arange(6)}
PARTS = [np.array([4, 0, 2]), [5], np.array([1, 0])]  # 0 belongs to two clients, 3 to none


def test_a_partition_gives_each_client_its_rows_in_its_order():
    data = fedax.FederatedData.from_partition(POOL, PARTS)
    assert (data.num_clients, data.num_examples, data.max_size) == (3, 6, 3)
    assert data.sizes.tolist() == [3, 1, 2] and data.weights.tolist() == [3 / 6, 1 / 6, 2 / 6]
    for i, part in enumerate(PARTS):
        assert data.client(i)["y"].tolist() == list(part)
        assert data.client(i)["x"].tolist() == POOL["x"][part].tolist()
    assert data.examples["y"].tolist() == [4, 0, 2, 5, 1, 0] and "3 clients, 6 examples, 1 to 3 a client" in repr(data)


def test_clients_partition_and_pooled_examples_agree():
    data = fedax.FederatedData.from_partition(POOL, PARTS, [0.2, 0.5, 0.3])
    clients = [data.client(i) for i in range(3)]
    for other in (
        fedax.FederatedData.from_clients(clients, np.array([0.2, 0.5, 0.3])),
        fedax.FederatedData(data.examples, [3, 1, 2], (0.2, 0.5, 0.3)),
    ):
        assert other.weights.tolist() == data.weights.tolist() == [0.2, 0.5, 0.3]
        for i, client in enumerate(clients):
            assert {k: v.tolist() for k, v in other.client(i).items()} == {k: v.tolist() for k, v in client.items()}


def test_any_pytree_of_arrays_will_do_and_keeps_its_types():
    images = np.zeros((3, 2, 2, 1), np.uint8)
    data = fedax.FederatedData((images, [np.arange(3, dtype=np.int32)]), np.array([1, 2]))
    image, (label,) = data.client(1)
    assert image.dtype == np.uint8 and image.shape == (2, 2, 2, 1) and label.tolist() == [1, 2]
    assert fedax.FederatedData(np.arange(3.0), [1, 2]).client(0).tolist() == [0.0]


def test_saved_data_are_mapped_as_they_were(tmp_path):
    data = fedax.FederatedData.from_partition(POOL, PARTS, [0.2, 0.5, 0.3])
    data.save(tmp_path / "new" / "data")
    again = fedax.FederatedData.open(tmp_path / "new" / "data")
    assert again.sizes.tolist() == [3, 1, 2] and again.weights.tolist() == [0.2, 0.5, 0.3]
    assert list(again.examples) == ["x", "y"] and again.names is None and again.name(2) == "client 2"
    for name, leaf in data.examples.items():
        assert again.examples[name].dtype == leaf.dtype and again.examples[name].tolist() == leaf.tolist()
        assert not again.examples[name].flags.owndata and not again.examples[name].flags.writeable  # the file's
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["data"]  # nothing else is left
    uniform = again.with_weights(np.full(3, 1 / 3))
    assert uniform.weights.tolist() == [1 / 3] * 3 and again.weights.tolist() == [0.2, 0.5, 0.3]
    with pytest.raises(DataError, match="already"):
        data.save(tmp_path / "new" / "data")


def test_saved_data_keep_the_clients_that_take_no_part(tmp_path):
    parts = dict(zip("abc", PARTS, strict=True))
    train, _, test = fedax.data.split(
        fedax.FederatedData.from_partition(POOL | {"y": np.arange(6.0)}, parts), train=0.5, val=0, test=0.5, clients=[0]
    )
    train.save(tmp_path / "train")
    again = fedax.FederatedData.open(tmp_path / "train")
    for kept, was in zip((again, *again.unseen), (train, *train.unseen), strict=True):
        assert kept.names == was.names and kept.sizes.tolist() == was.sizes.tolist()
        assert {k: v.tolist() for k, v in kept.examples.items()} == {k: v.tolist() for k, v in was.examples.items()}
    task = fedax.tasks.linear_regression(2)
    runs = [fedax.simulate(fedax.create("ditto"), task, data, test=test, rounds=2) for data in (train, again)]
    assert runs[0].history["unseen_loss_personal"].tolist() == runs[1].history["unseen_loss_personal"].tolist()
    (tmp_path / "train" / "unseen" / "test" / "sizes.npy").unlink()
    with pytest.raises(DataError, match=r"unseen/test/sizes\.npy"):
        fedax.FederatedData.open(tmp_path / "train")
    with pytest.raises(DataError, match="unseen"):
        Site(train, lambda config: None, tmp_path / "site", train.names)


def test_clients_keep_their_names(tmp_path):
    parts = dict(zip(["St. Ann", "Böhm", "c"], PARTS, strict=True))
    data = fedax.FederatedData.from_partition(POOL, parts)
    assert data.names == ("St. Ann", "Böhm", "c") and data.with_weights(None).names == data.names
    data.save(tmp_path / "named")
    again = fedax.FederatedData.open(tmp_path / "named")
    assert again.names == data.names and again.name(1) == "Böhm"
    for text in ("{}", '["a"]', '["a", "a", "b"]', "[", '["a", 1, "b"]'):
        (tmp_path / "named" / "names.json").write_text(text)
        with pytest.raises(DataError, match=r"named/names\.json"):
            fedax.FederatedData.open(tmp_path / "named")
    data.save(tmp_path / "short")
    np.save(tmp_path / "short" / "weights.npy", np.ones(2))
    with pytest.raises(DataError, match="short: weights"):
        fedax.FederatedData.open(tmp_path / "short")


def test_what_cannot_be_saved_or_opened(tmp_path):
    with pytest.raises(DataError, match="dict of arrays"):
        fedax.FederatedData(np.arange(3.0), [1, 2]).save(tmp_path / "a")
    with pytest.raises(DataError, match="dict of arrays"):
        fedax.FederatedData({"../x": np.arange(3.0)}, [1, 2]).save(tmp_path / "a")
    with pytest.raises(DataError, match=r"\['x'\]: .*bfloat16; use .*float32"):
        fedax.FederatedData({"x": jnp.ones(3, jnp.bfloat16)}, [1, 2]).save(tmp_path / "a")
    with pytest.raises(DataError, match="no examples"):
        fedax.FederatedData.open(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        fedax.FederatedData(POOL, [6]).save(tmp_path / "file" / "below")
    fedax.FederatedData(POOL, [6]).save(tmp_path / "good")
    x = tmp_path / "good" / "examples" / "x.npy"
    whole = x.read_bytes()
    np.savez(tmp_path / "archive.npz", x=np.zeros((6, 2)))
    archive = (tmp_path / "archive.npz").read_bytes()
    other = (whole.replace(b"'<f8'", b"'|O8'"), whole.replace(b"(6, 2)", b"(5, 2)"), archive, archive[:4])
    for broken in (whole[:-1], whole[:20], b"", *other):
        x.write_bytes(broken)
        with pytest.raises(DataError, match="x"):
            fedax.FederatedData.open(tmp_path / "good")
    x.write_bytes(whole)
    (tmp_path / "good" / "sizes.npy").unlink()
    with pytest.raises(DataError, match=r"sizes\.npy"):
        fedax.FederatedData.open(tmp_path / "good")


def test_numbers_that_jax_would_change():
    """It computes in 32 bits: 1e39 would be an infinity, and 2^40 would be 0."""
    x, y = np.ones((4, 2)), np.zeros(4)
    x[2, 1], y[3] = 1e39, -1e40
    for examples, message in (
        ({"x": x, "y": np.zeros(4)}, r"client 1, .*'x'\], column 1, row 0 is 1e\+39"),
        ({"x": np.ones((4, 2)), "y": y}, r"client 1, .*'y'\], row 1 is -1e\+40"),
        ({"y": np.array([0, 2**40, 0, 0])}, r"client 0, .*'y'\], .* 1099511627776, beyond int32"),
        ({"y": np.array([0, 2**32, 0, 0], np.uint64)}, "beyond uint32"),
        ({"y": np.full(4, 1e-50)}, "all numbers are below .* float32"),
    ):
        with pytest.raises(DataError, match=message):
            data.FederatedData(examples, sizes=[2, 2])
        halves = [
            {name: part[:2] for name, part in examples.items()},
            {name: part[2:] for name, part in examples.items()},
        ]
        with pytest.raises(DataError, match=message):
            data.FederatedData.from_clients(halves)
        with jax.enable_x64(True):
            data.FederatedData(examples, sizes=[2, 2])
    data.FederatedData({"y": np.array([1e-50, 1.0])}, sizes=[2])
