"""Methods whose mathematics is compression: identities, what is drawn, and how fast they are by their theorems."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.algorithms.compressed_scaffnew import Pattern
from fedax.algorithms.marina import WholeOrNot
from fedax.contract.compression import Message
from fedax.contract.compressors import Identity, RandomK, TopK
from fedax.contract.indices import shuffled
from fedax.contract.oracle import Oracle
from tests.references import compressed_family as com

from .. import long, mostly_long
from .bed import (
    BED,
    DATA,
    GRADS,
    LR,
    QUADRATIC,
    ROUNDS,
    X0,
    AnySteps,
    federation,
    noisy,
    path,
    programs_of,
    reference_path,
)
from .cases import Unbiased
from .test_identities import EQUAL, descent, differ, same

mean_gradient = lambda x: sum(p * g(x, 0, 0) for p, g in zip(BED.p, GRADS, strict=True))  # noqa: E731

# Identities.

UNCOMPRESSED = [(name, {"compress": Identity()}) for name in ("ef21", "diana", "marina", "dasha")]
MORE = [
    ("diana", {"compress": Identity(), "alpha": 0.3}),
    ("marina", {"compress": RandomK(0.25), "probability": 1.0}),
    ("dasha", {"compress": Identity(), "beta": 0.4, "alpha": 0.2}),
]


@pytest.mark.parametrize("name, hyper", mostly_long(UNCOMPRESSED + MORE, *UNCOMPRESSED, several=True), ids=str)
def test_without_compression_it_is_gradient_descent(name, hyper):
    expected = descent(mean_gradient, ROUNDS)
    same(path(fedax.create(name, lr=LR, **hyper), work=EQUAL), expected)


@long  # the references show it too
@pytest.mark.parametrize("name, hyper", [*UNCOMPRESSED, MORE[0], MORE[2]], ids=str)
def test_with_compression_it_is_not(name, hyper):
    compress = Unbiased(0.5) if name != "ef21" else TopK(0.5)
    differ(
        path(fedax.create(name, lr=LR, **hyper | {"compress": compress}), work=EQUAL), descent(mean_gradient, ROUNDS)
    )


def test_fedpaq_without_compression_is_fedavg_bit_for_bit():
    options = {"work": fedax.Steps([1, 5, 2, 4, 3]), "participation": fedax.Uniform(3)}
    plain = noisy(fedax.create("fedavg", lr=LR), **options)
    same(noisy(fedax.create("fedpaq", lr=LR, compress=Identity()), **options), plain, 0)


def test_fedpaq_is_fedavg_whose_uploads_are_compressed():
    """With a compressor that draws nothing; the wire's random numbers are others than the method's."""
    compressed = path(fedax.create("fedavg", lr=LR), compress=Unbiased(0.5))
    same(path(fedax.create("fedpaq", lr=LR, compress=Unbiased(0.5))), compressed, 0)


def test_how_fast_diana_and_whether_dasha_learns_before_round_0():
    """α is 1/(1 + ω) unless it is given, and a start at zero needs no warm-up."""
    given = {"compress": Unbiased(0.5)}
    x = fedax.Vector(jnp.zeros(4))
    assert fedax.create("diana", alpha=0.6, **given).follow(x) == 0.6
    assert fedax.create("diana", **given).follow(x) == 1 / 4
    assert fedax.create("dasha", warmup_batches=None, **given).warmup() == ()


@pytest.mark.parametrize("senders", [None, 7])
def test_compressed_scaffnew_that_compresses_nothing_is_scaffnew(senders):
    scaffnew = path(fedax.create("scaffnew", lr=LR, probability=0.08))
    same(path(fedax.create("compressed-scaffnew", lr=LR, probability=0.08, senders=senders)), scaffnew)
    differ(path(fedax.create("compressed-scaffnew", lr=LR, probability=0.08, senders=6)), scaffnew)


def test_locodl_without_compression_is_scaffnew_with_one_client_more():
    """The server's model is a client of weight 1/2, whose loss is g; the others' losses are F_i − g."""
    m = 0.5
    H = np.concatenate([BED.H - m * np.eye(4), m * np.eye(4)[None]])
    e = np.concatenate([BED.e, np.zeros((1, 4))])
    lifted = federation(H, e, np.append(BED.p / 2, 0.5))
    hyper = {"lr": LR, "probability": 0.3}
    locodl = path(fedax.create("locodl", **hyper, convexity=m, compress=Identity()), work=EQUAL)
    same(locodl, path(fedax.create("scaffnew", **hyper), data=lifted, work=AnySteps(3, clients=8)))
    differ(locodl, path(fedax.create("locodl", **hyper, compress=Identity()), work=EQUAL))


def test_how_far_models_of_locodl_move():
    """By default 1/(1 + ω/N) of the way: ω is 3, and there are seven clients."""
    hyper = {"lr": LR, "probability": 0.3, "compress": Unbiased(0.5)}
    moved, default = (path(fedax.create("locodl", **hyper, **more), work=EQUAL) for more in ({"rho": 0.7}, {}))
    same(default, moved)
    differ(path(fedax.create("locodl", **hyper, rho=0.25), work=EQUAL), moved)


# What is drawn.


class Drawn(fedax.Algorithm):
    """Notes in each round what its function of the oracle says."""

    read: Any = eqx.field(static=True)

    def init(self, x):
        return x

    def init_client(self, x):
        return jnp.zeros((ROUNDS, 4))

    def client(self, x, memory, oracle):
        return x, memory.at[oracle.round].set(self.read(oracle))

    def server(self, server, mean, round):
        return server


def drawn(read: Any) -> np.ndarray:
    """[R, N, 4] of a run on the test bed."""
    run = fedax.simulate(Drawn(read), QUADRATIC, DATA, rounds=ROUNDS, work=EQUAL, params=X0, evaluate_every=ROUNDS)
    return np.moveaxis(np.asarray(run.memory), 0, 1)


@pytest.mark.parametrize("senders", [2, 5])
def test_compressed_scaffnew_with_its_patterns(senders):
    pattern = Pattern(senders, 7)
    masks = drawn(lambda o: pattern.mask(shuffled(o.client, 7, o.round_key, max_size=7), 4).astype(float))
    hyper = {"lr": LR, "probability": 0.3}
    expected = reference_path(com.compressed_scaffnew, taus=3, masks=masks, **hyper)
    same(path(fedax.create("compressed-scaffnew", senders=senders, **hyper), work=EQUAL), expected)
    assert (masks.sum(axis=1) == senders).all() and len(np.unique(masks, axis=0)) == ROUNDS  # other ones each round


def test_marina_with_its_coins():
    coins = drawn(lambda o: jax.random.bernoulli(o.round_key, 0.4).astype(float))[:, :, 0]
    assert (coins == coins[:, :1]).all() and 0 < coins[1:, 0].sum() < ROUNDS - 1  # all clients share them
    method = fedax.create("marina", lr=LR, probability=0.4, compress=Unbiased(0.5))
    same(path(method, work=EQUAL), reference_path(com.marina, lr=LR, coins=coins[:, 0] > 0, compress=com.top_k(2)))


@pytest.mark.parametrize(
    "d, clients, senders", [(4, 7, 2), (50, 7, 3), (50, 7, 7), (3, 20, 2), (100, 2, 2), (1000, 3, 2)]
)
def test_patterns_share_out_the_coordinates(d, clients, senders):
    """Every coordinate has s senders, and no client sends more than one coordinate more than another."""
    pattern = Pattern(senders, clients)
    masks = np.asarray(jax.jit(jax.vmap(lambda column: pattern.mask(column, d)))(jnp.arange(clients)))
    template = np.zeros((d, clients), bool)  # row after row: the next s columns
    template.reshape(-1)[[k * clients + (senders * k + j) % clients for k in range(d) for j in range(senders)]] = True
    np.testing.assert_array_equal(masks, template.T)
    assert set(masks.sum(axis=1)) <= {senders * d // clients, -(-senders * d // clients)}


@functools.cache
def messages(name: str) -> list[np.ndarray]:
    """What a client's message says for three keys, of which the first two are the same."""
    method = fedax.create(name, lr=0.1, **{"compress": RandomK(0.5)} if name != "marina" else {"probability": 1e-9})
    x = fedax.Vector(jnp.ones(40))
    task = fedax.tasks.quadratic(40)

    @jax.jit
    def sent(key: Any) -> Any:
        oracle = Oracle(
            task, {"H": jnp.eye(40)[None], "e": jnp.arange(40.0)[None]}, offset=0, size=1, max_size=1, batch_size=None,
            epochs=False, steps=3, round=1, start=0, key=key, round_key=jax.random.key(5),
            client=jnp.int32(0), num_clients=3,
        )  # fmt: skip
        message, _ = method.client(method.download(method.init(x)), method.init_client(x), oracle)
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(message.decode())])

    return [np.asarray(sent(jax.random.key(seed))) for seed in (0, 0, 1)]


@pytest.mark.parametrize("name", ["fedpaq", "diana", "marina", "dasha"])
def test_a_message_is_drawn_by_the_client_s_key(name):
    first, again, other = messages(name)
    np.testing.assert_array_equal(first, again)
    assert ((first != 0) != (other != 0)).sum() > 5


# Real wires.


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("column", range(5))
def test_a_column_of_a_pattern_in_bytes(column):
    pattern, x = Pattern(2, 5), fedax.Vector({"w": jnp.arange(1.0, 12.0), "b": jnp.array(-3.0)})
    message = pattern.message(jnp.int32(column), x)
    file = pattern.pack(message.parts, message.form)
    assert file.dtype == np.uint8 and len(file) == -(-message.bits // 8) == 4 + 4 * 5
    back = Message(pattern.unpack(file, message.form), pattern, message.form).decode()
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(message.decode()), strict=True):
        np.testing.assert_array_equal(a, b)
    for bad in (file[:-1], np.append(np.frombuffer(np.uint32(5).tobytes(), np.uint8), file[4:])):
        with pytest.raises(ValueError):
            pattern.unpack(bad, message.form)


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("whole", [True, False])
def test_a_message_of_marina_in_bytes(whole):
    how, x = WholeOrNot(RandomK(0.5), 0.25), fedax.Vector({"w": jnp.arange(1.0, 8.0), "b": jnp.array(-3.0)})
    message = how.message(jax.random.key(0), jnp.asarray(whole), x, 2 * x)
    file = how.pack(message.parts, message.form)
    assert len(file) == how.length(message.form) == 1 + 32
    assert message.bits == 8 + 0.25 * 256 + 0.75 * (64 + 128)
    back = Message(how.unpack(file, message.form), how, message.form).decode()
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(message.decode()), strict=True):
        np.testing.assert_array_equal(a, b)
    for bad in (file[:0], file[:-1], np.append(np.uint8(2), file[1:])):
        with pytest.raises(ValueError):
            how.unpack(bad, message.form)


def test_more_senders_than_clients():
    with pytest.raises(fedax.ConfigError, match=r"senders = 8: .*at most as many"):
        path(fedax.create("compressed-scaffnew", senders=8), work=EQUAL)


# The theorems' rates, with their step sizes, on quadratics of known L and μ; p_i = 1/N as they have it.

N, D = 8, 6
UNIFORM = fedax.data.quadratics(clients=N, dimension=D, mu=0.2, L=1.0, seed=3)
H, E = (np.asarray(UNIFORM.examples[name], np.float64) for name in ("H", "e"))
OPTIMUM = np.linalg.solve(H.mean(axis=0), E.mean(axis=0))
AT_OPTIMUM = H @ OPTIMUM - E  # [N, d] ∇f_i(x*)
L_I = np.linalg.eigvalsh(H)[:, -1]
MU, L = np.linalg.eigvalsh(H)[:, 0].min(), L_I.max()  # of each client
MU_F, L_F = np.linalg.eigvalsh(H.mean(axis=0))[[0, -1]]  # of the mean
START = np.full(D, 3.0)
GAMMA = float(2 / (L + MU))  # of local steps
TASK = fedax.tasks.quadratic(D)
SEEDS = 20


def runs(method: fedax.Algorithm, rounds: int, seeds: int = SEEDS, work: Any = 1) -> list[Any]:
    """Of each seed server state, memory and local steps, in float64."""
    work = fedax.Steps(work) if isinstance(work, int) else work
    trees = lambda tree: [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]  # noqa: E731
    results = []
    for seed in range(seeds):
        programs = programs_of(method, TASK, UNIFORM, rounds, START, work, seed=seed)
        state, done = programs.advance(programs.prepare()[0], 0, rounds)
        results.append((trees(state.server), trees(state.memory), int(done.local_steps)))
    return results


def square(vectors: np.ndarray) -> float:
    return float((vectors**2).sum())


def rounds(factor: float, p: float = 1.0) -> int:
    """In which a potential that shrinks by a factor in each step, p of which are rounds, becomes a millionth."""
    return int(np.ceil(p * np.log(1e-6) / np.log(factor)))


def held(potentials: list[float], start: float, factors: list[float]) -> None:
    """A potential shrinks by its factor on average, to what is no rounding error."""
    assert np.mean([value / factor for value, factor in zip(potentials, factors, strict=True)]) <= start
    assert max(factors) < 1e-4 and min(potentials) > 1e-25 * start


@pytest.mark.parametrize("share", [0.16, 0.5])
def test_ef21_contracts_as_theorem_2_says(share):
    """f(x) − f* + (γ/θ) G shrinks by 1 − γμ: nothing is drawn, so that it does in each run."""
    alpha = TopK(share).alpha(D)
    theta = 1 - np.sqrt(1 - alpha)
    beta, size = (1 - alpha) / theta, np.sqrt((L_I**2).mean())
    lr = float(min(1 / (L_F + size * np.sqrt(2 * beta / theta)), theta / (2 * MU_F)))

    def potential(after: int) -> float:
        (((x, g), (g_i,), _),) = runs(fedax.create("ef21", lr=lr, compress=TopK(share)), after, seeds=1)
        x = x + lr * g  # where the last gradients were taken
        estimates = square(g_i - (H @ x - E)) / N
        return (x - OPTIMUM) @ H.mean(axis=0) @ (x - OPTIMUM) / 2 + lr / theta * estimates

    factor = 1 - lr * MU_F
    held([potential(1 + rounds(factor))], potential(1), [factor ** rounds(factor)])


def test_diana_contracts_as_its_theorem_says():
    """‖x − x*‖² + (4ω/(αN)) γ² σ² shrinks by max(1 − γμ, 1 − α/2), σ² = mean ‖h_i − ∇f_i(x*)‖²."""
    omega = RandomK(0.5).omega(D)
    alpha, lr = 1 / (1 + omega), 1 / ((1 + 6 * omega / N) * L)

    def potential(x: np.ndarray, h: np.ndarray) -> float:
        return square(x - OPTIMUM) + 4 * omega / (alpha * N) * lr**2 * square(h - AT_OPTIMUM) / N

    factor = max(1 - lr * MU_F, 1 - alpha / 2)
    result = runs(fedax.create("diana", lr=lr, compress=RandomK(0.5)), rounds(factor))
    ends = [potential(x, h_i) for (x, h), (h_i,), _ in result]
    held(ends, potential(START, np.zeros((N, D))), [factor ** rounds(factor)] * SEEDS)


@pytest.mark.parametrize("senders", [2, 5])
def test_compressed_scaffnew_contracts_as_its_theorem_says(senders):
    """Σ ‖x_i − x*‖²/γ + c Σ ‖h_i − h_i*‖², c = γ (N−1)/(p² η (s−1)), shrinks by
    max((1 − γμ)², (1 − γL)², 1 − γ/c) in each step, of which there are as many as the coin says."""
    eta, apart = N * (senders - 1) / (senders * (N - 1)), (1 - GAMMA * MU) ** 2
    p = 0.4
    c = GAMMA * (N - 1) / (p**2 * eta * (senders - 1))

    def potential(x: np.ndarray, h: np.ndarray) -> float:
        return N * square(x - OPTIMUM) / GAMMA + c * square(h - AT_OPTIMUM)

    method = fedax.create("compressed-scaffnew", lr=GAMMA, probability=p, senders=senders)
    factor = max(apart, (1 - GAMMA * L) ** 2, 1 - GAMMA / c)
    result = runs(method, rounds(factor, p), work=fedax.GeometricSteps(1 / p))
    ends = [potential(x, h) for (x,), (h,), _ in result]
    held(ends, potential(START, np.zeros((N, D))), [factor ** (steps / N) for _, _, steps in result])


def test_locodl_contracts_as_its_theorem_says():
    """(Σ ‖x_i − x*‖² + N ‖y − x*‖²)/γ + c (Σ ‖u_i − u_i*‖² + N ‖v − v*‖²), c = γ (1 + 2ω)/(p² χ), shrinks by
    max((1 − γμ)², (1 − γL)², 1 − γ/c) in each step; half of the strong convexity is the server's."""
    omega, m = RandomK(0.5).omega(D), MU / 2
    gamma, rho = GAMMA, 1 / (1 + omega / N)
    apart = (1 - gamma * m) ** 2
    p = 0.4
    c = gamma * (1 + 2 * omega) / (p**2 * rho)

    def potential(x: np.ndarray, y: np.ndarray, u: np.ndarray, v: np.ndarray) -> float:
        models = square(x - OPTIMUM) + N * square(y - OPTIMUM)
        duals = square(u - (AT_OPTIMUM - m * OPTIMUM)) + N * square(v - m * OPTIMUM)
        return models / gamma + c * duals

    method = fedax.create("locodl", lr=gamma, probability=p, convexity=m, compress=RandomK(0.5))
    factor = max(apart, (1 - gamma * (L - m)) ** 2, 1 - gamma / c)
    result = runs(method, rounds(factor, p), work=fedax.GeometricSteps(1 / p))
    ends = [potential(y + x, y, v + u, v) for (y, v), (x, u), _ in result]
    start = potential(np.tile(START, (N, 1)), START, np.zeros((N, D)), np.zeros(D))
    held(ends, start, [factor ** (steps / N) for _, _, steps in result])
