"""Regularisers: the step against a solver, a bisection in longer numbers, and the conditions of optimality."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from fedax import ConfigError, Vector
from fedax.contract.regularizers import L1, Box, ElasticNet, L1Ball, L2Ball, NonNegative, Simplex, Unconstrained

from .. import LAST_BITS

D, BATCH, S = 7, 24, 0.7
BALLS = [L1Ball(1.5), L2Ball(0.8), Simplex(1.3)]
NORM = {L1Ball: 1, L2Ball: 2, Simplex: 1}
ALL = [Unconstrained(), L1(0.9), ElasticNet(0.4, 1.1), *BALLS, Box(-0.3, 0.6), NonNegative()]
every = pytest.mark.parametrize("reg", ALL, ids=lambda reg: type(reg).__name__)


@pytest.fixture(autouse=True)
def longer_numbers():
    with jax.enable_x64(True):
        yield


batched = jax.jit(jax.vmap(lambda reg, u, h: reg.step(Vector(u), h, S).tree))
value = jax.jit(lambda reg, x: reg.value(x))


def solve(reg, u, h, dtype=np.float64):
    """All the problems at once, [BATCH, D], with one compilation per class and dtype."""
    regs = jax.tree.map(lambda number: jnp.full(BATCH, number, dtype), reg)
    return np.asarray(batched(regs, jnp.asarray(u, dtype), Vector(jnp.asarray(h, dtype))), np.float64)


def problems(decades, seed=0):
    """Points inside and outside of the sets, and weights 10^−decades … 10^decades; exact in float32."""
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(BATCH, D)) * 10 ** rng.uniform(-1, 2, size=(BATCH, 1))
    h = 10 ** rng.uniform(-decades, decades, size=(BATCH, D))
    u[0], u[1], u[2, :3], u[3], h[3:5] = 0, 0.1, 0, 2.5, 3
    return tuple(np.asarray(part, np.float32).astype(np.float64) for part in (u, h))


def penalties(reg):
    return (reg.l1, reg.l2) if isinstance(reg, ElasticNet) else (getattr(reg, "weight", 0), 0)


def objective(reg, x, u, h):
    l1, l2 = penalties(reg)
    return np.sum(S * (l1 * abs(x) + 0.5 * l2 * x**2) + 0.5 * h * (x - u) ** 2, axis=-1)


def bisected(gap, low, high):
    """The root of a decreasing function, in longer numbers than float64 has."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if gap(middle) > 0 else (low, middle)
    return (low + high) / 2


def by_bisection(reg, u, h):
    """The step of a ball or simplex from the root of ‖x(multiplier)‖ = radius."""
    u, h, radius, power = u.astype(np.longdouble), h.astype(np.longdouble), reg.radius, NORM[type(reg)]
    sign, size = (1, u) if isinstance(reg, Simplex) else (np.sign(u), abs(u))
    if not isinstance(reg, Simplex) and (size**power).sum() <= radius**power:
        return u

    def x(multiplier):
        if isinstance(reg, L2Ball):
            return h * size / (h + np.exp(multiplier))
        return np.maximum(size - multiplier / h, 0)

    low, high = (-60, 60) if isinstance(reg, L2Ball) else (np.min(h * (size - radius)), np.max(h * size))
    return sign * x(bisected(lambda m: (x(m) ** power).sum() - radius**power, np.longdouble(low), np.longdouble(high)))


def by_solver(reg, u, h):
    """The step by sequential quadratic programming on x = p − q with p, q ≥ 0."""
    l1, l2 = penalties(reg)

    def split(pq):
        x = pq[:D] - pq[D:]
        slope = h * (x - u) + S * l2 * x
        return S * l1 * (pq.sum() - abs(x).sum()) + objective(reg, x, u, h), np.r_[slope, -slope] + S * l1

    def room(pq):
        return reg.radius - pq.sum() if NORM[type(reg)] == 1 else reg.radius**2 - ((pq[:D] - pq[D:]) ** 2).sum()

    limits = [{"type": "eq" if isinstance(reg, Simplex) else "ineq", "fun": room}] if type(reg) in NORM else []
    high, low = (reg.high, -reg.low) if isinstance(reg, Box) else (None, None)
    bounds = [(0, high)] * D + [(0, 0 if isinstance(reg, NonNegative | Simplex) else low)] * D
    options = {"jac": True, "method": "SLSQP", "options": {"ftol": 1e-15, "maxiter": 500}}
    pq = optimize.minimize(split, np.full(2 * D, 0.1), bounds=bounds, constraints=limits, **options).x
    return pq[:D] - pq[D:]


def residual(reg, x, u, h):
    """How far x is from stationary, feasible and complementary, in units of x."""
    moved, support, sign, size = u - x, x != 0, np.sign(x), abs(u)
    if isinstance(reg, Box):
        wrong = np.where(moved > 0, x - reg.high, np.where(moved < 0, x - reg.low, 0))
        return np.max(abs(wrong)) + max(0, x.max() - reg.high, reg.low - x.min())
    theta, zeta = (S * penalty for penalty in penalties(reg))  # moved = (θ sign(x) + ζ x) / h on the support
    light = np.argmin(np.where(support, h, np.inf))  # there the multipliers are read most precisely
    infeasible = 0
    if isinstance(reg, Simplex | NonNegative):
        sign, size, infeasible = 1, u, max(0, -x.min())
    if isinstance(reg, L2Ball):
        zeta = h[light] * moved[light] / x[light] if support.any() else 0
    elif type(reg) in NORM:
        theta = h[light] * moved[light] * np.sign(x[light])
    if type(reg) in NORM:
        assert isinstance(reg, Simplex) or (theta >= 0 and zeta >= 0)
        excess = np.linalg.norm(x, NORM[type(reg)]) - reg.radius
        infeasible += abs(excess) if theta or zeta or isinstance(reg, Simplex) else max(0, excess)
    off = np.where(support, abs(moved - (theta * sign + zeta * x) / h), np.maximum(size - theta / h, 0))
    return infeasible + off.max()


@every
def test_as_a_generic_solver_says(reg):
    u, h = problems(0.5)
    u = 3 * u / (1 + abs(u).max(axis=1, keepdims=True))
    want = [by_solver(reg, *pair) for pair in zip(u[:5], h, strict=False)]
    np.testing.assert_allclose(solve(reg, u, h)[:5], want, atol=1e-6)


@pytest.mark.parametrize("reg", BALLS, ids=lambda reg: type(reg).__name__)
def test_as_bisection_says_with_weights_of_very_different_size(reg):
    u, h = problems(4)
    want = np.stack([by_bisection(reg, *pair) for pair in zip(u, h, strict=True)]).astype(np.float64)
    np.testing.assert_allclose(solve(reg, u, h), want, rtol=1e-12, atol=1e-13 * abs(u).max())


@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-13), (np.float32, LAST_BITS)], ids=["float64", "float32"])
@every
def test_the_conditions_of_optimality(reg, dtype, tolerance):
    near = jax.tree.map(lambda number: float(dtype(number)), reg)  # the numbers that the step sees
    for seed in range(3):
        u, h = problems(4, seed)
        for x, *problem in zip(solve(near, u, h, dtype), u, h, strict=True):
            assert residual(near, x, *problem) <= tolerance * (1 + abs(problem[0]).max())


@every
def test_no_point_of_the_set_is_better_and_they_all_stay(reg):
    rng = np.random.default_rng(1)
    others = rng.normal(size=(BATCH, D))
    if isinstance(reg, L1Ball | L2Ball):
        length = np.linalg.norm(others, NORM[type(reg)], axis=1, keepdims=True)
        others = reg.radius * rng.uniform(size=(BATCH, 1)) * others / length
    elif isinstance(reg, Box | NonNegative):
        others = np.clip(others, getattr(reg, "low", 0), getattr(reg, "high", None))
    elif isinstance(reg, Simplex):
        others = reg.radius * rng.dirichlet(np.full(D, 0.3), BATCH)
    u, h = problems(1)
    for x, *problem in zip(solve(reg, u, h), u, h, strict=True):
        for part in (1e-3, 0.1, 1.0):
            best = objective(reg, x, *problem)
            assert (objective(reg, x + part * (others - x), *problem) >= best - 1e-13 * (1 + best)).all()
    if penalties(reg) == (0, 0):
        np.testing.assert_allclose(solve(reg, others, h), others, 0, 1e-14 if isinstance(reg, Simplex) else 0)
        np.testing.assert_array_equal([value(reg, Vector(x)) for x in others], 0)


@every
def test_pytrees_numbers_under_vmap_scalar_metrics_and_dtypes(reg):
    u = np.asarray(problems(0)[0], np.float32)
    metrics, scales = np.geomspace(1e-3, 10, BATCH), np.linspace(0.5, 2, BATCH)
    regs = jax.tree.map(lambda number: number * scales, reg)  # float64, as the metrics are
    tree = {"w": jnp.asarray(u[:, :6].reshape(BATCH, 3, 2)), "b": jnp.asarray(u[:, 6])}
    got = jax.tree.map(np.asarray, batched(regs, tree, metrics))
    alone = jax.jit(lambda u: reg.step(Vector(u), metrics[7], S).tree)(jax.tree.map(lambda leaf: leaf[7], tree))
    assert got["w"].dtype == got["b"].dtype == alone["w"].dtype == np.float32 and alone["b"].shape == ()
    together = np.concatenate([got["w"].reshape(BATCH, 6), got["b"][:, None]], axis=1)
    for i in (5, 6):
        near = jax.tree.map(lambda number, i=i: number[i], regs)
        want = solve(near, u, np.full((BATCH, D), metrics[i]), np.float32)[i]
        np.testing.assert_allclose(together[i], want, rtol=LAST_BITS, atol=LAST_BITS)
    want = solve(reg, u, np.full((BATCH, D), metrics[7]), np.float32)[7]
    np.testing.assert_allclose(np.r_[alone["w"].ravel(), alone["b"]], want, rtol=LAST_BITS, atol=LAST_BITS)
    mixed = jax.eval_shape(reg.step, Vector({"a": jnp.ones(2, jnp.float32), "b": jnp.asarray(4.0)}), 2, 1).tree
    assert (mixed["a"].dtype, mixed["b"].dtype) == (np.float32, np.float64)


def test_euclidean_maps_limits_ties_and_single_components():
    u, h = problems(2)
    for reg in BALLS:
        np.testing.assert_allclose(solve(reg, u, 0 * h + 1e-5), solve(reg, u, 0 * h + 300), rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(solve(ElasticNet(0.9, 0.0), u, h), solve(L1(0.9), u, h))
    for reg in (L1(0.0), L1Ball(1e300), L2Ball(1e300), Box(-1e300, 1e300)):
        np.testing.assert_array_equal(solve(reg, u, h), u)
    far = np.tile([3e8, 3e8, -7, 0, 0, 0, 0], (BATCH, 1))  # equal, and much larger than the radius
    for reg, part in [(L1Ball(2.0), 1), (L2Ball(2.0), 2**0.5), (Simplex(2.0), 1)]:
        np.testing.assert_allclose(solve(reg, far, 0 * far + 5, np.float32)[0], part * (far[0] > 0), atol=1e-6)
        one = batched(jax.tree.map(lambda number: jnp.full(1, number), reg), jnp.array([3.0]), jnp.array([0.1]))
        np.testing.assert_allclose(one, [2], rtol=1e-14)


def test_values():
    x = Vector(jnp.array([0.5, -0.25, 0.75, 0, 0, 0, 0]))
    for reg, want in [(L1(2.0), 3), (ElasticNet(2.0, 4.0), 4.75), (Unconstrained(), 0), (NonNegative(), np.inf)]:
        assert value(reg, x) == want
    for reg in (L1Ball(1.5), L2Ball(0.875**0.5), Box(-0.25, 0.75)):
        assert (value(reg, x), value(jax.tree.map(lambda number: 0.999 * number, reg), x)) == (0, np.inf)
    for reg, want in [(NonNegative(), 0), (Simplex(0.875), 0), (Simplex(0.876), np.inf)]:
        assert value(reg, x**2) == want


@pytest.mark.parametrize("field, bad", [
    ("weight", (L1, -1.0)), ("l1", (ElasticNet, -0.1, 1.0)), ("l2", (ElasticNet, 0.1, np.nan)),
    ("radius", (L1Ball, 0.0)), ("radius", (L2Ball, -1)), ("radius", (Simplex, "1")), ("low", (Box, np.inf, 1.0)),
    ("high", (Box, 1.0, 0.5)),
])  # fmt: skip
def test_bad_numbers_are_named_and_good_ones_pass(field, bad):
    with pytest.raises(ConfigError, match=f"{field} = "):
        bad[0](*bad[1:])
    for reg in ALL:
        reg.validate()
        jax.eval_shape(lambda reg: reg.validate(), reg)
