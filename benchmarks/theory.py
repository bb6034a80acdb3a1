"""The theory compared with runs: the figure of docs/theory.md and the tables of docs/results/theory.md.

    python benchmarks/theory.py figure-4 [--out docs/figures/fedprox-alpha.svg]
    python benchmarks/theory.py floors
    python benchmarks/theory.py fedmass

`figure-4` draws what FedProx's α = ημ trades (Wang et al. 2020, Figure 4). `floors` compares predicted fixed points
and the floor 2χ²κ² with runs on quadratics (Theorem 2, Lemma 4). `fedmass` counts the iterations of FedAvg and FedMaSS,
both with the rates of the theory, on least squares that one model fits (Qu et al. 2020, Theorems 6 and 7). All in
float64; a minute for `floors`, three for `fedmass`.
"""

import argparse
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np
from matplotlib.figure import Figure

import fedax
from fedax import theory
from fedax.contract.local import SGD
from fedax.errors import DivergedWarning
from fedax.figures.series import COLOURS

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "fedprox-alpha.svg"


def row(*cells: Any) -> None:
    print("| " + " | ".join("never" if cell == "inf" else str(cell) for cell in cells) + " |", flush=True)


def head(*names: str) -> None:
    row(*names)
    print("|---" * len(names) + "|")


# Figure 4: what FedProx's α trades


def draw_steps(deviation: float, seed: int = 0) -> np.ndarray:
    """30 clients' τ_i ~ N(20, deviation²), rounded, at least 1."""
    return np.maximum(np.rint(np.random.default_rng(seed).normal(20, deviation, 30)), 1).astype(int)


def figure_4(out: Path) -> None:
    """χ², τ̄/τ_eff and A against α, for both readings of N(20, 20)."""
    matplotlib.rcParams.update({"svg.hashsalt": "fedax", "font.size": 9})
    alphas = np.concatenate([np.linspace(0, 0.1, 51), np.linspace(0.11, 1, 90)])
    figure = Figure(figsize=(9.0, 2.9), layout="constrained")
    panels = (
        ("weight bias, $\\chi^2$", "chi2", COLOURS[0]),
        ("slowdown, $\\bar{\\tau} / \\tau_{\\mathrm{eff}}$", "slowdown", COLOURS[1]),
        ("relative variance, $A$", "A", COLOURS[2]),
    )
    for axes, (title, name, colour) in zip(figure.subplots(1, 3), panels, strict=True):
        for deviation, line, label in ((20**0.5, "-", "variance 20"), (20, "--", "deviation 20")):
            steps = draw_steps(deviation)
            values = [getattr(theory.fedprox_rule(steps, alpha), name) for alpha in alphas]
            axes.plot(alphas, values, line, color=colour, label=label)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("α = ημ")
        axes.set_xlim(0, 1)
        axes.set_ylim(bottom=0)
        if name == "chi2":  # the readings differ fifty times
            axes.set_yscale("log")
            axes.set_ylim(1e-5, 10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e9ed", linewidth=0.8)
        axes.legend(frameon=False, loc="best")
    some = (0.0, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
    head("α", *some)
    for deviation in (20**0.5, 20):
        rules = [theory.fedprox_rule(draw_steps(deviation), alpha) for alpha in some]
        for title, name, _ in panels:
            row(f"{title}, deviation {deviation:.3g}", *(f"{getattr(rule, name):.3g}" for rule in rules))
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None, facecolor="white")
    print(f"wrote {out}, {out.stat().st_size / 1000:.0f} kB")


# The floor of inconsistent weights


def dissimilarity(H: np.ndarray, e: np.ndarray, w: np.ndarray, factor: float) -> float:
    """The least κ² with Σ w_i‖∇F_i‖² ≤ β²‖Σ w_i∇F_i‖² + κ² everywhere, F_i = ½xᵀH_i x − e_iᵀx; ∞ where there is none.

    The difference of both sides is −xᵀPx + 2bᵀx + c, which is bounded where P ⪰ 0 and b is in its range.
    """
    mean, centre = np.einsum("i,ijk->jk", w, H), w @ e
    P = factor * mean @ mean - np.einsum("i,ijk,ikl->jl", w, H, H)
    b = factor * mean @ centre - np.einsum("i,ijk,ik->j", w, H, e)
    values, vectors = np.linalg.eigh(P)
    b, small = vectors.T @ b, 1e-12 * np.linalg.norm(mean) ** 2
    flat = np.abs(values) <= small
    if values.min() < -small or np.abs(b[flat]).max(initial=0.0) > 1e-9 * np.abs(e).max():
        return np.inf
    constant = w @ np.sum(e**2, axis=1) - factor * centre @ centre
    return float(constant + np.sum(b[~flat] ** 2 / values[~flat]))


def least_bound(H: np.ndarray, e: np.ndarray, rule: theory.UpdateRule, x: np.ndarray) -> tuple[float, ...]:
    """Theorem 2's bound on ‖∇F(x)‖² with the best of all valid (β², κ²), and its β², κ² and floor."""
    w = rule.weights
    mean = np.linalg.inv(np.einsum("i,ijk->jk", w, H))
    least = max(1.0, np.linalg.eigvalsh(mean @ np.einsum("i,ijk,ikl->jl", w, H, H) @ mean).max())
    surrogate = np.sum((np.einsum("i,ijk->jk", w, H) @ x - w @ e) ** 2)
    results = []
    for factor in [least, *(least + np.geomspace(1e-3, 1e3, 241))]:
        kappa2 = dissimilarity(H, e, w, factor)
        if np.isfinite(kappa2):
            kappa2 = max(kappa2, 0.0)  # rounding, where all clients are alike
            bound = theory.objective_bound(rule.chi2, surrogate, dissimilarity=kappa2, dissimilarity_factor=factor)
            results.append((sum(bound), factor, kappa2, bound.floor))
    return min(results)


SEVERAL, ONE = ((0.05, 8, 12), (0.05, 1, 46), (0.005, 1, 46)), ((0.05, 1, 46),)  # η and the ends of τ_i
CLIENTS = (  # eigenvalues of H_i, standard deviation of e_i
    ("1; 1", {"mu": 1.0}, SEVERAL),
    ("0.1…1; 1", {"mu": 0.1}, SEVERAL),
    ("0.1…1; 0.1", {"mu": 0.1, "spread": 0.1}, ONE),
)
PROX = 2.0


def methods(lr: float, steps: np.ndarray) -> Iterator[tuple[str, fedax.Algorithm, SGD, theory.UpdateRule]]:
    """Name, method, its solver and its rule."""
    for name, solver, normalized in (
        ("FedAvg", SGD(lr), False),
        (f"FedProx, μ = {PROX:g}", SGD(lr, prox=PROX), False),
        ("FedNova", SGD(lr), True),
    ):
        method = fedax.create("fednova", lr=lr) if normalized else fedax.FedAvg(solver)
        vectors = [theory.accumulation_vector(solver, int(t)) for t in steps]
        yield name, method, solver, theory.update_rule(vectors, normalized=normalized)


def floors(rounds: int = 20_000) -> None:
    """Predicted fixed points and floors, beside runs."""
    print("\nTen quadratics in five dimensions, full gradients, all clients\n")
    head(
        *("λ(H_i); e_i", "τ_i", "η", "method", "χ²", "‖x̃ − x*‖", "run to x̃", "run to x*", "‖∇F‖² of the run"),
        *("bound", "2χ²κ²", "β²", "κ²"),
    )
    task = fedax.tasks.quadratic(5)
    for clients, given, runs in CLIENTS:
        data = fedax.data.quadratics(10, 5, **given)
        H, e = np.asarray(data.examples["H"]), np.asarray(data.examples["e"])
        optimum = theory.weighted_optimum(H, e)
        for lr, low, high in runs:
            steps = np.rint(np.linspace(low, high, 10)).astype(int)
            work = fedax.Steps(steps.tolist())
            for name, method, solver, rule in methods(lr, steps):
                point = theory.fixed_point(H, e, solver, steps, normalized=name == "FedNova")
                run = fedax.simulate(method, task, data, rounds=rounds, work=work, evaluate_every=rounds)
                x = np.asarray(run.params)
                gradient = np.sum((H.mean(axis=0) @ x - e.mean(axis=0)) ** 2)
                bound, factor, kappa2, floor = least_bound(H, e, rule, x)
                row(
                    *(clients, f"{low}…{high}", lr, name, f"{rule.chi2:.3g}", f"{np.linalg.norm(point - optimum):.4g}"),
                    *(f"{np.linalg.norm(x - point):.0e}", f"{np.linalg.norm(x - optimum):.4g}", f"{gradient:.3g}"),
                    *(f"{bound:.3g}", f"{floor:.3g}"),
                    *((f"{factor:.3g}", f"{kappa2:.3g}") if rule.chi2 else ("any", "any")),
                )
    print("\nLemma 4: F_{1,2} = ½(x ∓ 3)², τ = (2, 6), FedAvg\n")
    head("η", "limit of the run", "‖∇F‖² of the run", "χ²κ²", "2χ²κ²")
    example = theory.lower_bound_example(3.0, (2, 6))
    data = fedax.data.quadratics(H=np.ones((2, 1, 1)), e=np.array([[3.0], [-3.0]]))
    for lr in (0.1, 0.01, 0.001):
        method, task = fedax.create("fedavg", lr=lr), fedax.tasks.quadratic(1)
        run = fedax.simulate(method, task, data, rounds=10_000, work=fedax.Steps([2, 6]))
        x, tight = float(run.params[0]), example.chi2 * example.dissimilarity
        row(lr, f"{x:.6g}", f"{x * x:.6g}", f"{tight:.6g}", f"{2 * tight:.6g}")


# FedMaSS and FedAvg with the rates of the theory


def interpolation(features: Sequence[np.ndarray], seed: int = 1) -> tuple[fedax.FederatedData, theory.ConditionNumbers]:
    """Least squares with labels ξᵀw*, w* ~ N(0, I), and its condition numbers; the task's loss has no ½, hence √2."""
    x = np.concatenate(features)
    y = x @ np.random.default_rng(seed).normal(size=x.shape[1])
    data = fedax.FederatedData({"x": x, "y": y}, [len(f) for f in features])
    return data, theory.condition_numbers([np.sqrt(2) * f for f in features])


def gaussian(clients: int, samples: int, dimension: int, end: float) -> list[np.ndarray]:
    """Normal features, the eigenvalues of their covariance falling from 1 to ``end`` in equal ratios."""
    scales = np.geomspace(1, end, dimension) ** 0.5
    return list(np.random.default_rng(0).normal(size=(clients, samples, dimension)) * scales)


def fedmass(p: theory.FedMaSSRates, sync: str = "both") -> fedax.Algorithm:
    return fedax.create("fedmass", lr=p.eta_1, lr2=p.eta_2, momentum=p.gamma, sync=sync)


def iterations(
    method: fedax.Algorithm, data: fedax.FederatedData, *, most: int, period: int = 1, seeds: int = 3
) -> float:
    """Iterations until F(w̄) ≤ 1e-6 F(0), single samples: the mean over seeds, looked for most/400 apart; else ∞."""
    features = data.examples["x"].shape[1]
    task, rounds, results = (
        TASKS.setdefault(features, fedax.tasks.linear_regression(features, bias=False)),
        most // period,
        [],
    )
    for seed in range(seeds):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergedWarning)
            run = fedax.simulate(
                method, task, data, rounds=rounds, work=fedax.Steps(period), batch_size=1, seed=seed,
                evaluate_every=max(1, rounds // 400),
            )  # fmt: skip
        loss = run.history["train_loss"]
        done = np.flatnonzero(loss <= 1e-6 * loss[0])
        results.append(run.history["round"][done[0]] * period if done.size else np.inf)
    return float(np.mean(results))


TASKS: dict[int, Any] = {}
CASES = (
    ("1 client, 20 orthonormal in R²⁰", lambda: [np.eye(20)]),
    ("1 client, 40 in R⁸, to 1/20", lambda: gaussian(1, 40, 8, 1 / 20)),
    ("1 client, 40 in R⁸, to 1/200", lambda: gaussian(1, 40, 8, 1 / 200)),
    ("1 client, 40 in R⁸, to 1/2000", lambda: gaussian(1, 40, 8, 1 / 2000)),
    ("1 client, 20 in R⁶⁰, to 1/200", lambda: gaussian(1, 20, 60, 1 / 200)),
    ("4 clients, 40 each in R⁸, to 1/200", lambda: gaussian(4, 40, 8, 1 / 200)),
    ("4 clients, 10 each in R⁶⁰, to 1/200", lambda: gaussian(4, 10, 60, 1 / 200)),
)


def accelerations() -> None:
    """Both methods with the rates of the theory; and FedAvg with the best of several, FedMaSS without η₂."""
    print("\nIterations until F ≤ 1e-6 F(0), E = 1, single samples\n")
    head(
        *("data", "κ̃", "κ₁", "√(κ₁/κ̃)", "FedAvg", "FedMaSS, proof", "ratio", "FedMaSS, theorem", "ratio"),
        *("proof, η₂ = 0", "FedAvg, best rate", "its ratio"),
    )
    for name, features in CASES:
        data, c = interpolation(features())
        kappa_1 = c.sample_smoothness / c.lambda_min
        lr, most = theory.least_squares_lr(c).lr, int(30 * max(kappa_1, 30))
        slow = iterations(fedax.create("fedavg", lr=lr), data, most=most)
        tuned = (2, 3, 4, 6, 8, 12)
        best, times = min((iterations(fedax.create("fedavg", lr=k * lr), data, most=int(slow)), k) for k in tuned)
        proof, theorem = theory.fedmass_parameters(c), theory.fedmass_parameters(c, form="theorem")
        forms, most = (proof, theorem, proof._replace(eta_2=0.0)), int(60 * max(np.sqrt(kappa_1 * c.kappa_tilde), 30))
        fast, other, plain = (iterations(fedmass(p), data, most=most) for p in forms)
        row(
            *(
                name,
                f"{c.kappa_tilde:.3g}",
                f"{kappa_1:,.0f}",
                f"{np.sqrt(kappa_1 / c.kappa_tilde):.1f}",
                f"{slow:,.0f}",
            ),
            *(f"{fast:,.0f}", f"{slow / fast:.1f}", f"{other:,.0f}", f"{slow / other:.1f}"),
            *(f"{plain:,.0f}", f"{best:,.0f} ({times}×)", f"{best / fast:.1f}"),
        )
    name, features = CASES[5]
    data, c = interpolation(features())
    print(f"\n{name}: E local steps, rates of the theory with scale 1\n")
    syncs = ("both", "restart", "paper")
    head("E", "FedAvg", *(f"FedMaSS, {sync}" for sync in syncs), "ratio, both")
    for period in (1, 5, 20):
        lr, p = theory.least_squares_lr(c, period=period).lr, theory.fedmass_parameters(c, period=period)
        slow = iterations(fedax.create("fedavg", lr=lr), data, most=6000 * period, period=period)
        fast = [iterations(fedmass(p, sync), data, most=4000 * period, period=period) for sync in syncs]
        row(period, f"{slow:,.0f}", *(f"{n:,.0f}" for n in fast), f"{slow / fast[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("figure-4", "floors", "fedmass"))
    parser.add_argument("--out", type=Path, default=FIGURE, help="of the figure: .svg, .png or .pdf")
    given = parser.parse_args()
    with jax.enable_x64(True):
        {"figure-4": lambda: figure_4(given.out), "floors": floors, "fedmass": accelerations}[given.what]()


if __name__ == "__main__":
    main()
