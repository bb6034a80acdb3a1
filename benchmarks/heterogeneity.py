"""The gain of momentum with heterogeneous clients: at a fixed local rate, and with the parameters of the theorems.

    python benchmarks/heterogeneity.py

Ten quadratics whose optima are moved 1, 10 and 100 apart while the optimum of their mean stays where it is; full
gradients, all clients, float64. Prints the two tables of docs/results/momentum.md.
"""

import jax
import numpy as np

import fedax

N, D, K, LR, BETA = 10, 5, 10, 0.05, 0.2
DISTANCES = (1.0, 10.0, 100.0)
METHODS = ("fedavg", "fedavg-m", "fedavg-m-vr", "scaffold", "scaffold-m", "scaffold-m-vr")
THEORY = {
    "fedavg-m": fedax.theory.fedavg_m_parameters,
    "fedavg-m-vr": fedax.theory.fedavg_m_vr_parameters,
    "scaffold-m": fedax.theory.scaffold_m_parameters,
    "scaffold-m-vr": fedax.theory.scaffold_m_vr_parameters,
}
TASK = fedax.tasks.quadratic(D).with_metrics(grad_norm=fedax.metrics.GradNorm())


def problem(distance: float) -> tuple[fedax.FederatedData, np.ndarray, np.ndarray]:
    """F_i(x) = ½xᵀH_i x − e_iᵀx with eigenvalues of H_i from 0.2 to 1 and Σe_i = 0, so that F has its optimum at 0."""
    rng = np.random.default_rng(0)
    bases = [np.linalg.qr(rng.normal(size=(D, D)))[0] for _ in range(N)]
    H = np.stack([q @ np.diag(rng.permutation(np.linspace(0.2, 1.0, D))) @ q.T for q in bases])
    e = rng.normal(size=(N, D))
    e = e - e.mean(axis=0)
    optima = np.linalg.solve(H, e[..., None])[..., 0]
    e = e * distance / np.linalg.norm(optima[:, None] - optima, axis=-1).max()
    return fedax.FederatedData({"H": H, "e": e}, np.ones(N, int)), H, e


def stall(H: np.ndarray, e: np.ndarray, lr: float) -> float:
    """How far from the optimum FedAvg ends (Wang et al. 2020, eq. 26)."""
    powers = [np.linalg.matrix_power(np.eye(D) - lr * h, K) for h in H]
    Q = [(np.eye(D) - power) @ np.linalg.inv(h) for power, h in zip(powers, H, strict=True)]
    x = np.linalg.solve(sum(q @ h for q, h in zip(Q, H, strict=True)), sum(q @ v for q, v in zip(Q, e, strict=True)))
    return float(np.linalg.norm(x))


def run(name: str, data: fedax.FederatedData, rounds: int, **hyper: float) -> fedax.Run:
    x0 = np.full(D, 1 / np.sqrt(D))
    method = fedax.create(name, **hyper)
    return fedax.simulate(method, TASK, data, rounds=rounds, work=fedax.Steps(K), params=x0, evaluate_every=1)


def fixed() -> None:
    print(f"\nDistance from the optimum after 2,000 rounds; lr {LR}, beta {BETA}, K {K}\n")
    print("| optima apart | predicted: FedAvg, FedAvg-M | " + " | ".join(METHODS) + " |")
    print("|---" * (len(METHODS) + 2) + "|")
    for distance in DISTANCES:
        data, H, e = problem(distance)
        row = [f"{distance:g}", f"{stall(H, e, LR):.5g}, {stall(H, e, BETA * LR):.5g}"]
        for name in METHODS:
            hyper = {"lr": LR} if name in ("fedavg", "scaffold") else {"lr": LR, "beta": BETA}
            row.append(f"{np.linalg.norm(run(name, data, 2000, **hyper).params):.5g}")
        print("| " + " | ".join(row) + " |", flush=True)


def theory() -> None:
    print("\nR · mean of ‖∇F(x^r)‖² / (LΔ): at the fixed rate, and with the parameters of eq. 5, 8, 9, 11\n")
    print("| optima apart | R | fedavg, fixed | fedavg-m, fixed | " + " | ".join(THEORY) + " |")
    print("|---" * (len(THEORY) + 4) + "|")
    for distance in DISTANCES:
        data, H, e = problem(distance)
        x0 = np.full(D, 1 / np.sqrt(D))
        gap = 0.5 * x0 @ H.mean(axis=0) @ x0
        gradients = np.mean(np.sum((H @ x0 - e) ** 2, axis=1))
        for rounds in (100, 1000, 5000):
            row = [f"{distance:g}", f"{rounds:,}"]
            runs = [("fedavg", {"lr": LR}), ("fedavg-m", {"lr": LR, "beta": BETA})]
            for name, prescribe in THEORY.items():
                given = {"smoothness": 1.0, "variance": 0.0, "gap": gap, "clients": N, "steps": K, "rounds": rounds}
                given |= {"cohort": N} if "scaffold" in name else {}
                given |= {} if name == "scaffold-m-vr" else {"gradient_norm": gradients}
                p = prescribe(**given)
                runs.append((name, {"lr": p.lr, "server_lr": p.server_lr, "beta": p.beta}))
            for name, hyper in runs:
                squares = run(name, data, rounds, **hyper).history["grad_norm_sq"][:-1]
                row.append(f"{rounds * np.mean(squares) / gap:.3g}")
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    with jax.enable_x64(True):
        fixed()
        theory()
