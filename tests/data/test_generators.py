"""Generators: the laws that they claim, and the published draws of FedProx's data."""

import numpy as np
import pytest

from fedax import data
from fedax.errors import ConfigError, DataError


def test_drawn_quadratics_have_the_curvatures_asked_for():
    federation = data.quadratics(clients=50, dimension=6, mu=0.5, L=8.0, spread=2.0)
    H, e = federation.examples["H"], federation.examples["e"]
    assert H.shape == (50, 6, 6) and e.shape == (50, 6) and H.dtype == e.dtype == np.float64
    assert np.array_equal(H, H.transpose(0, 2, 1))
    eigenvalues = np.linalg.eigvalsh(H)
    assert eigenvalues.min() >= 0.5 - 1e-9 and eigenvalues.max() <= 8 + 1e-9
    assert np.median(eigenvalues) == pytest.approx(2.0, rel=0.25)  # the geometric middle: log-uniform
    assert e.std() == pytest.approx(2.0, rel=0.15)
    assert np.array_equal(federation.sizes, np.ones(50)) and np.allclose(federation.weights, 1 / 50)


def test_drawn_quadratics_prefer_no_direction():
    """H = QΛQᵀ with Q uniform: E H_ii = tr Λ/d, and E H_ij² = (d tr Λ² − (tr Λ)²)/(d(d−1)(d+2)) for i ≠ j."""
    n, d = 4000, 4
    H = data.quadratics(clients=n, dimension=d, mu=0.5, L=8.0).examples["H"]
    trace, square = np.trace(H, axis1=1, axis2=2), np.sum(H * H, axis=(1, 2))
    mean, apart = np.mean(trace) / d, np.mean((d * square - trace**2) / (d * (d - 1) * (d + 2)))
    np.testing.assert_allclose(H.mean(0), mean * np.eye(d), atol=5 * np.sqrt(square.mean() / n / d))
    np.testing.assert_allclose(np.mean(H * H, axis=0)[~np.eye(d, dtype=bool)], apart, rtol=0.2)


def test_quadratics_of_the_papers_figure_2_are_shifted_bowls():
    federation = data.quadratics(clients=30, dimension=4, mu=1.0, L=1.0, spread=0.1)
    assert np.allclose(federation.examples["H"], np.eye(4))
    assert federation.examples["e"].std() == pytest.approx(0.1, rel=0.3)
    again = data.quadratics(clients=30, dimension=4, mu=1.0, L=1.0, spread=0.1)
    other = data.quadratics(clients=30, dimension=4, mu=1.0, L=1.0, spread=0.1, seed=1)
    assert np.array_equal(federation.examples["e"], again.examples["e"])
    assert not np.allclose(federation.examples["e"], other.examples["e"])


def test_given_quadratics_are_kept():
    H, e = np.array([np.eye(2), np.diag([3.0, 0.0])]), np.array([[0.0, 1.0], [4.0, 0.0]])
    federation = data.quadratics(H=H, e=e, weights=np.array([0.25, 0.75]))
    assert np.array_equal(federation.client(1)["H"], H[1:]) and np.array_equal(federation.client(1)["e"], e[1:])
    assert federation.weights.tolist() == [0.25, 0.75]


def test_noiseless_regression_is_fitted_exactly_by_one_model_for_all_clients():
    federation = data.noiseless_regression(3, features="digits")
    x, y = federation.examples["x"], federation.examples["y"]
    design = np.column_stack([x, np.ones(len(x))]).astype(float)
    model, *_ = np.linalg.lstsq(design, y, rcond=None)
    assert np.abs(design @ model - y).max() < 1e-3 < 1 < y.std()
    assert sorted(federation.sizes) == [480, 481, 481]
    other = data.noiseless_regression(3, features="digits", seed=1)
    assert not np.allclose(other.examples["y"].mean(), y.mean(), rtol=1e-2)


def test_sparse_regression_has_models_around_a_sparse_one():
    federation = data.sparse_regression(clients=40, features=12, support=3, examples=60, spread=0.2, noise=0.05)
    assert federation.num_clients == 40 and set(federation.sizes) == {60}
    fits = np.stack(
        [np.linalg.lstsq(federation.client(i)["x"], federation.client(i)["y"], rcond=None)[0] for i in range(40)]
    )
    mean, spread = fits.mean(axis=0), fits.std(axis=0)
    np.testing.assert_allclose(np.abs(mean), [1] * 3 + [0] * 9, atol=4 * 0.2 / 40**0.5)
    assert spread.mean() == pytest.approx(0.2, rel=0.15)
    again = data.sparse_regression(clients=40, features=12, support=3, examples=60, spread=0.2, noise=0.05)
    assert np.array_equal(again.examples["y"], federation.examples["y"])
    for field, value in (("clients", 0), ("support", 13), ("spread", -1.0), ("noise", "0"), ("examples", 1.5)):
        with pytest.raises(ConfigError, match=field):
            data.sparse_regression(**{"clients": 4, "features": 12, field: value})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ConfigError, "clients and dimension, or H and e"),
        ({"clients": 3}, ConfigError, "clients and dimension, or H and e"),
        ({"H": np.ones((1, 1, 1))}, ConfigError, "clients and dimension, or H and e"),
        ({"clients": 1, "H": np.ones((1, 1, 1)), "e": np.ones((1, 1))}, ConfigError, "and not both"),
        ({"clients": 3, "dimension": 2, "mu": 0.0}, ConfigError, "mu = 0"),
        ({"clients": 3, "dimension": 2, "mu": 2.0}, ConfigError, "L = 1"),
        ({"clients": 3, "dimension": 2, "spread": -1.0}, ConfigError, "spread = -1"),
        ({"H": np.ones((2, 3, 2)), "e": np.ones((2, 3))}, DataError, "shapes"),
        ({"H": np.ones((2, 3, 3)), "e": np.ones((3, 3))}, DataError, "shapes"),
        ({"H": np.array([[[1.0, 2.0], [0.0, 1.0]]]), "e": np.ones((1, 2))}, DataError, r"H\[0\] is not .* symmetric"),
        ({"H": np.array([[[np.nan]]]), "e": np.ones((1, 1))}, DataError, r"H\[0\] is not a finite"),
        ({"H": np.array([[[1.0]], [[-2.0]]]), "e": np.ones((2, 1))}, DataError, r"H\[1\] has the eigenvalue -2"),
        ({"H": np.ones((1, 1, 1)), "e": np.ones((1, 1)), "weights": np.array([2.0])}, DataError, "weights"),
    ],
)
def test_bad_quadratics(arguments, error, message):
    with pytest.raises(error, match=message):
        data.quadratics(**arguments)


def synthetic_statistics(x, y, user):
    """Properties that can be checked without the clients' models."""
    rows = [x[user == u] for u in np.unique(user)]
    noise = np.arange(1, 61) ** -1.2
    centred = np.concatenate([(r - r.mean(axis=0)) * np.sqrt(len(r) / (len(r) - 1)) for r in rows])
    means = np.array([r.mean(axis=0) for r in rows])
    most_common = [np.bincount(y[user == u]).max() / (user == u).sum() for u in np.unique(user)]
    return {
        "noise over j^-1.2": (centred**2 / noise).mean(),
        "spread of a client's means": means[:, 40:].std(axis=1).mean(),  # where there is least noise
        "spread of all means": means.std(),
        "share of the most common label": np.mean(most_common),
        "median size": np.median([len(r) for r in rows]),
    }


def test_synthetic_has_the_law_of_the_published_data(data_folder):
    """The published held-out tenths differ from the mean of ours by no more than three of our standard deviations.

    These were measured over 100 seeds; that of the spread of all means grows with β.
    """
    names = ("synthetic_0_0", "synthetic_05_05", "synthetic_1_1")
    with np.load(data_folder / "fedprox_synthetic_test.npz", allow_pickle=False) as file:
        published = [synthetic_statistics(*(file[f"{name}_{key}"] for key in ("x", "y", "user"))) for name in names]
    for level, theirs in zip((0.0, 0.5, 1.0), published, strict=True):
        tests = [data.synthetic(level, level, seed=seed)[1] for seed in range(5)]
        ours = [
            synthetic_statistics(test.examples["x"], test.examples["y"], np.repeat(np.arange(30), test.sizes))
            for test in tests
        ]
        for (key, value), std in zip(theirs.items(), (0.006, 0.035, 0.02 + 0.09 * level, 0.034, 2.7), strict=True):
            assert value == pytest.approx(np.mean([each[key] for each in ours]), abs=3 * std), (level, key)


def test_synthetic_follows_its_formula():
    train, test = data.synthetic(1.0, 2.0, clients=250)
    sizes = train.sizes + test.sizes
    assert np.array_equal(train.sizes, (0.9 * sizes).astype(int)) and sizes.min() >= 50
    assert np.mean(sizes - 50 >= 54) == pytest.approx(0.5, abs=0.1)  # e⁴ = 54.6 is the median of LogNormal(4, 2)
    assert np.log(sizes - 50 + 0.5).std() == pytest.approx(2.0, rel=0.15)
    assert np.allclose(train.weights, train.sizes / train.sizes.sum())
    means = np.array([train.client(i)["x"].mean(axis=0) for i in range(250)])
    assert means.mean(axis=1).std() == pytest.approx(2.0, rel=0.15)  # B_i ~ N(0, β²)
    assert (means - means.mean(axis=1, keepdims=True)).std() == pytest.approx(1.0, rel=0.05)  # v_i ~ N(B_i, 1)
    x = train.client(int(sizes.argmax()))["x"]
    assert np.allclose(x.var(axis=0), np.arange(1, 61) ** -1.2, rtol=0.15)
    assert x.dtype == np.float32 and train.examples["y"].dtype == np.int32
    assert set(train.examples["y"]) == set(range(10))


def test_alpha_of_synthetic_does_not_reach_the_labels():
    """u_i adds the same to every score, so only rounding could tell α = 0 from α = 1."""
    none, one = data.synthetic(0.0, 1.0)[0], data.synthetic(1.0, 1.0)[0]
    assert np.array_equal(none.examples["x"], one.examples["x"])
    assert np.mean(none.examples["y"] == one.examples["y"]) > 0.999


def test_synthetic_is_a_function_of_its_seed():
    one, again, other = (data.synthetic(1.0, 1.0, clients=2, seed=seed)[0] for seed in (0, 0, 1))
    assert np.array_equal(one.examples["x"], again.examples["x"])
    assert one.sizes.tolist() != other.sizes.tolist()
    for arguments in ((-1.0, 1.0), (1.0, float("inf"))):
        with pytest.raises(ConfigError, match=r"alpha = -1|beta = inf"):
            data.synthetic(*arguments)


def test_linear_regression_has_loss_zero_at_its_own_point():
    x = np.random.default_rng(0).standard_normal((500, 40)).astype(np.float32)
    y, w, b = data.linear_regression(x)
    assert y.dtype == np.float32 and w.shape == (40,)
    assert np.allclose(x.astype(np.float64) @ w + b, y, atol=1e-5)
    draws = np.array([[*w, b] for _, w, b in (data.linear_regression(x[:1], seed) for seed in range(100))])
    assert draws.mean() == pytest.approx(0, abs=0.05) and draws.std() == pytest.approx(1, abs=0.05)
    assert draws[:, -1].std() == pytest.approx(1, abs=0.25)
    for bad in (np.ones(3), np.ones((2, 2), np.int64), np.array([[np.inf]])):
        with pytest.raises(DataError, match="features: "):
            data.linear_regression(bad)
