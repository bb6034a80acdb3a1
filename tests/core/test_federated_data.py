"""FederatedData: what each client holds, however it was put together."""

import numpy as np

import fedax

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
