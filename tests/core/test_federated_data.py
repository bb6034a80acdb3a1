"""FederatedData: what each client holds, however it was put together."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.errors import DataError

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
    assert list(again.examples) == ["x", "y"]
    for name, leaf in data.examples.items():
        assert again.examples[name].dtype == leaf.dtype and again.examples[name].tolist() == leaf.tolist()
        assert not again.examples[name].flags.owndata and not again.examples[name].flags.writeable  # the file's
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["data"]  # nothing else is left
    uniform = again.with_weights(np.full(3, 1 / 3))
    assert uniform.weights.tolist() == [1 / 3] * 3 and again.weights.tolist() == [0.2, 0.5, 0.3]
    with pytest.raises(DataError, match="already"):
        data.save(tmp_path / "new" / "data")


def test_what_cannot_be_saved_or_opened(tmp_path):
    with pytest.raises(DataError, match="dict of arrays"):
        fedax.FederatedData(np.arange(3.0), [1, 2]).save(tmp_path / "a")
    with pytest.raises(DataError, match="dict of arrays"):
        fedax.FederatedData({"../x": np.arange(3.0)}, [1, 2]).save(tmp_path / "a")
    with pytest.raises(DataError, match=r"examples\['x'\]: .*bfloat16; use .astype\(np.float32\)"):
        fedax.FederatedData({"x": jnp.ones(3, jnp.bfloat16)}, [1, 2]).save(tmp_path / "a")
    with pytest.raises(DataError, match="no examples"):
        fedax.FederatedData.open(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        fedax.FederatedData(POOL, [6]).save(tmp_path / "file" / "below")
    fedax.FederatedData(POOL, [6]).save(tmp_path / "good")
    x = tmp_path / "good" / "examples" / "x.npy"
    whole = x.read_bytes()
    for broken in (whole[:-1], whole[:20], b"", whole.replace(b"'<f8'", b"'|O8'"), whole.replace(b"(6, 2)", b"(5, 2)")):
        x.write_bytes(broken)
        with pytest.raises(DataError, match="x"):
            fedax.FederatedData.open(tmp_path / "good")
    x.write_bytes(whole)
    (tmp_path / "good" / "sizes.npy").unlink()
    with pytest.raises(DataError, match=r"sizes\.npy"):
        fedax.FederatedData.open(tmp_path / "good")
