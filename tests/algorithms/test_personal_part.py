"""Parts of a model that stay at each client: identities with any method for the rest, in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.contract.personal import PersonalPart
from fedax.engine.history import ended_worse
from fedax.errors import ConfigError

N, D, K = 4, 3, 2  # clients, leaves of φ and of h
RNG = np.random.default_rng(5)


def _hessians():
    a = RNG.normal(size=(N, D + K, D + K))
    return a @ a.transpose(0, 2, 1) / (D + K) + 0.5 * np.eye(D + K)


H, E = _hessians(), RNG.normal(size=(N, D + K))
P = np.array([0.1, 0.4, 0.3, 0.2])
DATA = fedax.FederatedData({"H": H, "e": E}, np.ones(N, int), P)
L = float(np.linalg.eigvalsh(H).max())
A, B, C = H[:, :D, :D], H[:, :D, D:], H[:, D:, D:]  # φφ, φh, hh
SCHUR = A - B @ np.linalg.inv(C) @ B.transpose(0, 2, 1)
S_E = E[:, :D] - np.einsum("nij,nj->ni", B @ np.linalg.inv(C), E[:, D:])


def _loss(params, batch, key):
    z = jnp.concatenate([params["body"], params["head"]])
    return 0.5 * jnp.einsum("i,bij,j->b", z, batch["H"], z) - batch["e"] @ z


TASK = fedax.Task(lambda key: {"body": jnp.zeros(D), "head": jnp.zeros(K)}, _loss)


def run(method, rounds, steps=3, **options):
    given = {"work": fedax.Steps(steps), "evaluate_every": rounds} | options
    return fedax.simulate(method, TASK, DATA, rounds=rounds, **given)


def part(inner, order="first", **hyper):
    return PersonalPart(inner, "head", order=order, **hyper)


def heads(phi):
    """The best h of each client at φ."""
    return np.stack([np.linalg.solve(C[i], E[i, D:] - B[i].T @ phi) for i in range(N)])


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_with_exact_heads_and_one_step_the_rest_is_the_method_on_schur_complements(name):
    lr = 0.2 / L
    found = run(part(fedax.create(name, lr=lr), lr=1 / L, steps=2000), 8, steps=1)
    task = fedax.tasks.quadratic(D)
    data = fedax.FederatedData({"H": SCHUR, "e": S_E}, np.ones(N, int), P)
    same = fedax.simulate(fedax.create(name, lr=lr), task, data, rounds=8, work=fedax.Steps(1))
    np.testing.assert_allclose(found.params["body"], same.params, atol=1e-12)


def test_several_steps_at_fixed_heads_end_where_first_says_and_not_where_together_does():
    lr, steps = 0.5 / L, 6
    q = np.stack([(np.eye(D) - np.linalg.matrix_power(np.eye(D) - lr * a, steps)) @ np.linalg.inv(a) for a in A])
    end = np.linalg.solve(np.einsum("n,nij,njk->ik", P, q, SCHUR), np.einsum("n,nij,nj->i", P, q, S_E))
    first = run(part(fedax.create("fedavg", lr=lr), lr=1 / L, steps=300), 400, steps=steps)
    np.testing.assert_allclose(first.params["body"], end, atol=1e-9)
    together = run(part(fedax.create("fedavg", lr=lr), order="together"), 4000, steps=steps)
    assert np.abs(together.params["body"] - end).max() > 1e-3


def test_together_is_local_training_of_all_of_which_the_head_stays():
    lr, steps = 0.3 / L, 4
    x, h = np.zeros(D), np.zeros((N, K))
    for _ in range(5):
        dx = np.zeros(D)
        for i in range(N):
            z = np.concatenate([x, h[i]])
            for _ in range(steps):
                z = z - lr * (H[i] @ z - E[i])
            dx, h[i] = dx + P[i] * (z[:D] - x), z[D:]
        x = x + dx
    found = run(part(fedax.create("fedavg", lr=lr), order="together"), 5, steps=steps)
    np.testing.assert_allclose(found.params["body"], x, atol=1e-12)
    for i in range(N):
        own = found.personal(i)
        np.testing.assert_allclose(own["body"], x, atol=1e-12)
        np.testing.assert_allclose(own["head"], h[i], atol=1e-12)


def test_the_head_is_not_sent_and_its_gradients_count():
    plain = fedax.simulate(fedax.create("fedavg"), TASK, DATA, rounds=2, work=fedax.Steps(3))
    first, together = (run(part(fedax.create("fedavg"), order=order), 2) for order in ("first", "together"))
    model = D * 8 * N
    for found in (first, together):
        assert found.history["bytes_up"][-1] == 2 * model < plain.history["bytes_up"][-1]
    assert first.history["gradients"][-1] == 2 * together.history["gradients"][-1] == 2 * plain.history["gradients"][-1]


@pytest.mark.parametrize("name", ["fednova", "mime", "fedavg-m", "stem"])
def test_any_method_takes_the_rest(name):
    found = run(part(fedax.create(name, lr=0.1 / L), lr=0.3 / L), 30)
    assert found.history["train_loss_personal"][-1] < found.history["train_loss"][-1]


def test_new_clients_train_their_head_alone():
    cohorts = fedax.Trace([[0, 1]] * 2)
    found = run(part(fedax.create("fedavg", lr=0.3 / L), lr=1 / L, steps=3000), 2, participation=cohorts)
    phi = np.asarray(found.params["body"])
    np.testing.assert_allclose(found.personal(3)["head"], heads(phi)[3], atol=1e-10)


def test_bad_parts_are_named():
    with pytest.raises(ConfigError, match=r"leaves = 'tail'.*body, head"):
        run(PersonalPart(fedax.create("fedavg"), "tail"), 1)
    with pytest.raises(ConfigError, match=r"leaves = 'haed'.*body, head"):
        run(PersonalPart(fedax.create("fedavg"), ["head", "haed"]), 1)
    with pytest.raises(ConfigError, match=r"leaves = '\*'.*nothing would be shared"):
        run(PersonalPart(fedax.create("fedavg"), "*"), 1)
    with pytest.raises(ConfigError, match=r"order = 'together'.*first"):
        run(part(fedax.create("scaffold"), order="together"), 1)
    with pytest.raises(ConfigError, match=r"leaves.*IFCA"):
        run(part(fedax.create("ifca")), 1)
    with pytest.raises(ConfigError, match=r"leaves.*learns a part"):
        fedax.simulate(part(fedax.create("fedavg")), fedax.tasks.partial(TASK, "body"), DATA, rounds=1)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedadam", "ifca"])
def test_fine_tuning_leaves_training_alone_and_ends_where_its_steps_lead(name):
    """The closed form of s steps from the newest shared model, at clients that took part or not."""
    inner, lr, steps = fedax.create(name, lr=0.2 / L), 0.5 / L, 7
    options = {"participation": fedax.Uniform(2), "seed": 3}
    if name == "ifca":  # has personal models of its own
        with pytest.raises(ConfigError, match=r"fine_tune.*IFCA") as caught:
            run(fedax.FineTuned(inner, lr=lr, steps=steps), 1, **options)
        assert caught.value.field == "fine_tune"
        return
    plain = run(inner, 1, **options)
    found = run(fedax.FineTuned(inner, lr=lr, steps=steps), 1, **options)
    x = np.concatenate([plain.params["body"], plain.params["head"]])
    for column, values in plain.history.items():
        if column not in {"seconds", "compile_seconds"}:
            np.testing.assert_array_equal(found.history[column], values, err_msg=column)
    losses = []
    for i in range(N):
        best = np.linalg.solve(H[i], E[i])
        v = best + np.linalg.matrix_power(np.eye(D + K) - lr * H[i], steps) @ (x - best)
        own = found.personal(i)
        np.testing.assert_allclose(np.concatenate([own["body"], own["head"]]), v, atol=1e-12)
        losses.append(0.5 * v @ H[i] @ v - E[i] @ v)
    assert found.history["train_loss_personal"][-1] == pytest.approx(P @ losses, abs=1e-12)
    assert "turn_age" not in found.history


def test_what_gives_clients_models_of_their_own_is_not_combined():
    tuned = fedax.FineTuned(fedax.create("fedavg", lr=0.1))
    for method, field in (
        (fedax.FineTuned(fedax.create("ditto")), "fine_tune"),
        (part(tuned), "personal"),
        (part(fedax.create("mr-mtl")), "personal"),
        (fedax.FineTuned(fedax.create("fedavg"), lr=-1.0), "lr"),
    ):
        with pytest.raises(ConfigError) as caught:
            run(method, 1)
        assert caught.value.field == field


def test_a_fine_tuned_model_that_is_not_finite_is_said():
    with pytest.warns(fedax.DivergedWarning, match="own models are not finite.*_personal"):
        found = run(fedax.FineTuned(fedax.create("fedavg", lr=0.1), lr=1e20, steps=30), 2)
    assert found.status == "worse" and np.isfinite(found.history["train_loss"]).all()


def test_a_fine_tuned_model_takes_no_turns_whatever_its_companions_take():
    """So one configuration has both, and gives the others as many steps."""
    tuned = fedax.FineTuned(fedax.create("fedavg", lr=0.1))
    one, other = (run(tuned, 2, **turns).history for turns in ({}, {"newcomer_turns": 3}))
    np.testing.assert_array_equal(one["train_loss_personal"], other["train_loss_personal"])


def test_a_run_that_fine_tunes_ends_worse_only_where_its_shared_model_does():
    """The shared model goes to the client with much curvature, from where the other, with little, finds back slowly."""
    data = fedax.FederatedData({"H": np.array([[[10.0]], [[0.5]]]), "e": np.array([[10.0], [0.0]])}, [1, 1])
    method = fedax.FineTuned(fedax.create("fedavg", lr=0.05), lr=0.15, steps=5)
    found = fedax.simulate(method, fedax.tasks.quadratic(1), data, rounds=40, work=fedax.Steps(1))
    own, shared = found.history["train_loss_personal"], found.history["train_loss"]
    assert ended_worse(own) and shared[-1] < shared[0] and found.status == "finished"
