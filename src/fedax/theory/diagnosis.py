"""What a diagnosis finds."""

import dataclasses

import numpy as np

from fedax.theory.measure import Point


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The result of :func:`fedax.theory.diagnose`.

    Attributes:
        method: its name in the advice.
        clients: N.
        steps: the fewest and the most local steps of a client in a round.
        points: one :class:`~fedax.theory.measure.Point` a model.
        smoothness: L, the largest over the points.
        clients_seen: the number of clients whose curvature was measured.
        constant: κ² for β² = 1, the largest Σ w_i‖∇F_i − ∇F̃‖² of the points.
        line: another β² and κ² that fit the points, those of :func:`~fedax.theory.measure.dissimilarity_line`.
        weights: [N] w of the surrogate Σ w_i F_i that the method minimises for small η; ``None``: not known.
        arrivals: [N] the weights q of the clients' answers in the long run; ``None``: the server waits for all clients.
        chi2, chi2_range: χ²(p‖w); the lowest and the highest of single rounds, where work is random.
        floor: 2χ²κ² with the κ² of the last point, for which ‖∇F‖² ≤ 2‖∇F̃‖² + 2χ²κ² holds with β² = 1: what stays
            of the bound however long the run, if clients remain as unlike.
        lr: η in round 0.
        max_lr: the largest η of Theorems 1 to 3, with the β² of ``line``; ``None`` where they do not cover the method.
        loosest_lr: the same with β² = 1, the loosest case.
        weight_square: E(Σω)² of the cohorts' weights, 1 where they always add up to one.
        gained: what training gains, to which costs are compared: F of the first model less that of the last, and what
            is left there.
        losses: [points, N] F_i.
        verdict: two sentences: what to take and why, and what comes next, or what it costs.
        take: the method that it says to take instead; empty: to stay with this one.
        advice: the reasons, with figures: on the objective, on drift, on noise, on clients that do not follow and rare
            classes, on η.
        unknown: what these figures cannot tell.

    Example:
        >>> import fedax
        >>> data, task = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)
        >>> fedax.theory.diagnose(fedax.create("fedavg", lr=0.1), task, data).clients
        3
    """

    method: str
    clients: int
    steps: tuple[int, int]
    points: tuple[Point, ...]
    smoothness: float
    clients_seen: int
    constant: float
    line: tuple[float, float]
    weights: np.ndarray | None
    chi2: float | None
    chi2_range: tuple[float, float] | None
    floor: float | None
    lr: float
    max_lr: float | None
    loosest_lr: float | None
    weight_square: float
    gained: float
    losses: np.ndarray | None = None
    arrivals: np.ndarray | None = None
    verdict: str = ""
    take: str = ""
    advice: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
