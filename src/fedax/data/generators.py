"""Generators: federations and regressions whose optimum, or whose heterogeneity, is known."""

import numpy as np

from fedax.data.federated import FederatedData
from fedax.data.portable import exp, log, normal, orthonormal, product
from fedax.errors import ConfigError, DataError
from fedax.numbers import check_count, check_number, check_room


def quadratics(
    clients: int | None = None,
    dimension: int | None = None,
    *,
    mu: float = 0.1,
    L: float = 1.0,
    spread: float = 1.0,
    H: np.ndarray | None = None,
    e: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    seed: int = 0,
) -> FederatedData:
    """A federation of quadratics F_i(x) = ½ xᵀH_i x − e_iᵀx, for the task ``fedax.tasks.quadratic(dimension)``.

    The optimum is x* = (Σ p_i H_i)⁻¹ Σ p_i e_i. Either drawn: H_i = Q_i Λ_i Q_iᵀ with Q_i uniform over the orthogonal
    matrices, the eigenvalues in Λ_i log-uniform in [μ, L], e_i ~ N(0, spread²·I); or given as ``H`` and ``e``.
    ``mu=1.0, L=1.0, spread=0.1`` is the federation of FedNova's Figure 2.

    Args:
        clients: N.
        dimension: d.
        mu: μ > 0, the least curvature.
        L: L ≥ μ, the largest curvature.
        spread: ≥ 0, standard deviation of the entries of e_i.
        H: [N, d, d], symmetric positive semidefinite, in place of all the above.
        e: [N, d], together with ``H``.
        weights: [N] p_i that sum to one. Default: 1/N.
        seed: ≥ 0, of NumPy's generator.

    Returns:
        One example a client: ``{"H": [N, d, d], "e": [N, d]}`` in float64.

    Raises:
        ConfigError: numbers out of range, or more than the memory holds; not one of the pairs (clients, dimension) and
            (H, e).
        DataError: ``H`` and ``e`` of other shapes, an H_i that is not symmetric positive semidefinite, bad weights.

    Source:
        Wang et al. 2020 (FedNova), section 3 and supplement A.

    Example:
        >>> data = quadratics(H=np.array([[[1.0]], [[3.0]]]), e=np.array([[0.0], [4.0]]))
        >>> data.num_clients, data.client(1)["e"].tolist(), data.weights.tolist()
        (2, [[4.0]], [0.5, 0.5])
        >>> quadratics(clients=4, dimension=3).examples["H"].shape
        (4, 3, 3)
    """
    if clients is not None and dimension is not None and H is None and e is None:
        H, e = _draw_quadratics(clients, dimension, mu, L, spread, seed)
    elif clients is None and dimension is None and H is not None and e is not None:
        H, e = np.asarray(H, np.float64), np.asarray(e, np.float64)
        _check_quadratics(H, e)
    else:
        given = {"clients": clients, "dimension": dimension, "H": H, "e": e}
        names = [name for name, value in given.items() if value is not None]
        raise ConfigError("quadratics", names, "give clients and dimension, or H and e, and not both")
    return FederatedData({"H": H, "e": e}, np.ones(len(H), np.int64), weights)


def _draw_quadratics(
    clients: int, dimension: int, mu: float, L: float, spread: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    N, d = check_count("clients", clients), check_count("dimension", dimension)
    check_room(8 * N * (4 * d * d + 2 * d), clients=N, dimension=d)
    check_number("mu", mu, 0, open_low=True)
    check_number("L", L, mu)
    check_number("spread", spread, 0)
    generator = np.random.default_rng(check_count("seed", seed, 0))
    Q = orthonormal(normal(generator, (N, d, d)))
    low, high = log(mu), log(L)
    eigenvalues = exp(low + (high - low) * generator.random((N, d)))
    H = np.zeros((N, d, d))
    for k in range(d):
        column = np.sqrt(eigenvalues[:, k, None]) * Q[:, :, k]
        H += column[:, :, None] * column[:, None, :]
    return H, spread * normal(generator, (N, d))


def _check_quadratics(H: np.ndarray, e: np.ndarray) -> None:
    if H.ndim != 3 or H.shape[1:] != 2 * H.shape[2:] or e.shape != H.shape[:2] or not e.size:
        raise DataError(f"H, e: need shapes [N, d, d] and [N, d], got {H.shape} and {e.shape}")
    for i, Hi in enumerate(H):
        if not np.isfinite(Hi).all() or not np.allclose(Hi, Hi.T):
            raise DataError(f"H: H[{i}] is not a finite symmetric matrix; give (A + A.T) / 2")
        if (least := np.linalg.eigvalsh(Hi)[0]) < -1e-8 * np.abs(Hi).max():
            raise DataError(f"H: H[{i}] has the eigenvalue {least:.3g}, so F_i has no minimum; all must be at least 0")


def synthetic(alpha: float, beta: float, clients: int = 30, seed: int = 0) -> tuple[FederatedData, FederatedData]:
    """FedProx's Synthetic(α, β): softmax labels from a model of each client's own, on features of its own.

    Client i has n_i = ⌊LogNormal(4, 2)⌋ + 50 examples x ∈ R⁶⁰ of ten classes, y = argmax(W_iᵀx + b_i), with
    W_i, b_i ~ N(u_i, 1), u_i ~ N(0, α²); x ~ N(v_i, Σ), Σ = diag(j^−1.2), v_i ~ N(B_i, 1), B_i ~ N(0, β²).
    α and β are standard deviations, as in the published generator. β makes the features differ between clients. α was
    meant to make the models differ, but u_i adds the same to all ten scores: it does not change the labels.

    Args:
        alpha: ≥ 0.
        beta: ≥ 0.
        clients: N; the papers': 30.
        seed: ≥ 0, of NumPy's generator. The published generator has none, so its very numbers cannot be had.

    Returns:
        ``(train, test)``: nine tenths of each client's examples, and the held-out tenth of the same clients. Both hold
        ``{"x": float32 [n, 60], "y": int32 [n]}``.

    Raises:
        ConfigError: numbers out of range, or more clients than the memory holds.

    Source:
        Li et al. 2020 (FedProx), section 5.1, and its published generator; FedNova's Figure 5 has Synthetic(1, 1).

    Example:
        >>> train, test = synthetic(1.0, 1.0)
        >>> train.num_clients, train.examples["x"].shape[1], bool((train.sizes >= 45).all())
        (30, 60, True)
    """
    check_number("alpha", alpha, 0)
    check_number("beta", beta, 0)
    check_room(250_000 * check_count("clients", clients), clients=clients)  # some 450 examples each, twice
    generator = np.random.default_rng(check_count("seed", seed, 0))
    features, classes = 60, 10
    std = exp(-0.6 * log(np.arange(1.0, features + 1)))
    train, test = [], []
    for _ in range(clients):
        n = int(exp(4 + 2 * normal(generator))) + 50
        u, B = alpha * normal(generator), beta * normal(generator)
        W, b = u + normal(generator, (features, classes)), u + normal(generator, classes)
        x = B + normal(generator, features) + std * normal(generator, (n, features))
        y = np.argmax(product(x, W.T).T + b, axis=1)
        cut = int(0.9 * n)
        train.append({"x": x[:cut].astype(np.float32), "y": y[:cut].astype(np.int32)})
        test.append({"x": x[cut:].astype(np.float32), "y": y[cut:].astype(np.int32)})
    return FederatedData.from_clients(train), FederatedData.from_clients(test)


def sparse_regression(
    clients: int,
    features: int = 100,
    support: int = 10,
    examples: int = 50,
    spread: float = 0.3,
    noise: float = 0.1,
    seed: int = 0,
) -> FederatedData:
    """A federated lasso: linear models that agree on which few features matter, and about how much.

    y = xᵀw_i + noise, x ~ N(0, I); w_i = w* + spread · N(0, I) on all features, w* is ±1 on ``support`` of them and 0
    on the others. For the task ``fedax.tasks.linear_regression(features, bias=False)`` with an L1 penalty.

    Args:
        clients: N ≥ 1.
        features: d ≥ 1.
        support: features that matter, from 1 to d: the first ones.
        examples: of each client, ≥ 1.
        spread: ≥ 0, by how much the clients' models differ.
        noise: ≥ 0, standard deviation in y.
        seed: ≥ 0, of NumPy's generator.

    Returns:
        ``{"x": float32 [n, d], "y": float32 [n]}`` of each client.

    Raises:
        ConfigError: numbers out of range, or more than the memory holds.

    Source: after the federated lasso of Yuan et al. 2021, "Federated composite optimization".

    Example:
        >>> sparse_regression(clients=4, features=20, support=3).examples["x"].shape
        (200, 20)
    """
    N, d, m = (check_count(k, v) for k, v in (("clients", clients), ("features", features), ("examples", examples)))
    check_count("support", support)
    check_room(12 * N * (m * d + m + d), clients=N, features=d, examples=m)
    if support > features:
        raise ConfigError("support", support, f"give at most the number of features, {features}")
    check_number("spread", spread, 0)
    check_number("noise", noise, 0)
    generator = np.random.default_rng(check_count("seed", seed, 0))
    common = np.where(np.arange(features) < support, generator.choice([-1.0, 1.0], features), 0.0)
    models = common + spread * normal(generator, (clients, features))
    x = normal(generator, (clients, examples, features))
    y = product(x, models) + noise * normal(generator, (clients, examples))
    pooled = {"x": x.reshape(-1, features).astype(np.float32), "y": y.reshape(-1).astype(np.float32)}
    return FederatedData(pooled, np.full(clients, examples))


def linear_regression(features: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray, float]:
    """Labels y = xᵀw* + b* without noise, (w*, b*) ~ N(0, 1): a regression whose least loss is exactly 0.

    Every client's loss is then least at the same point, however the examples are dealt ("overparameterised").

    Args:
        features: [n, d], finite; e.g. ``load("w8a").train["x"]``.
        seed: ≥ 0, of NumPy's generator.

    Returns:
        ``(y, w, b)``: labels [n] in the dtype of ``features``, w* [d] and b* in float64.

    Raises:
        DataError: ``features`` are not a finite matrix of floating-point numbers.

    Source:
        FedAvg's linear speedup, section 5 and appendix I.3.

    Example:
        >>> x = np.eye(3)
        >>> y, w, b = linear_regression(x)
        >>> bool(np.allclose(y, w + b))
        True
    """
    x = np.asarray(features)
    if x.ndim != 2 or not x.size or not np.issubdtype(x.dtype, np.floating):
        raise DataError(f"features: need floating-point numbers [n, d], got an array of {x.dtype} {x.shape}")
    if not np.isfinite(x).all():
        raise DataError(f"features: example {np.argwhere(~np.isfinite(x))[0][0]} is not finite; clean the data first")
    generator = np.random.default_rng(check_count("seed", seed, 0))
    w, b = normal(generator, x.shape[1:]), float(normal(generator))
    return (product(x, w) + b).astype(x.dtype), w, b
