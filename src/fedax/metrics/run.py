"""What only a run measures: of the model and the training objective, or of each client."""

from dataclasses import dataclass

from fedax.metrics.base import Direction, name_of
from fedax.numbers import check_number


class RunMetric:
    """A measure of a run that is not one number of held-out examples; it goes where metrics go.

    Attributes:
        better: ``"higher"`` or ``"lower"``; ``None``: neither.

    Example:
        >>> isinstance(GradNorm(), RunMetric), GradNorm().better
        (True, 'lower')
    """

    better: Direction | None = None
    kind = None

    @property
    def name(self) -> str:
        """The name under which :func:`fedax.metrics.create` makes it."""
        return name_of(type(self))


@dataclass(frozen=True)
class GradNorm(RunMetric):
    """Squared norm of the objective's gradient, ‖∇F(x)‖², in the column ``grad_norm_sq``.

    It costs a gradient over all training data at each evaluation.

    Example:
        >>> import fedax
        >>> task = fedax.tasks.quadratic(1).with_metrics(grad_norm=GradNorm())
        >>> data = fedax.data.quadratics(clients=2, dimension=1)
        >>> "grad_norm_sq" in fedax.simulate(fedax.create("fedavg", lr=0.1), task, data, rounds=1).history
        True
    """

    better = "lower"


@dataclass(frozen=True)
class Density(RunMetric):
    """Share of the parameters whose size is above a threshold, in the column ``density``.

    Args:
        threshold: ≥ 0; with 0 all count that are not exactly 0.

    Raises:
        ConfigError: a threshold below 0, or no number.

    Example:
        >>> Density(0.01)
        Density(threshold=0.01)
    """

    threshold: float = 0.0

    def __post_init__(self) -> None:
        check_number("density.threshold", self.threshold, 0)


@dataclass(frozen=True)
class PerClient(RunMetric):
    """Loss and metrics of each client, as lists ``test_<metric>_per_client``, of held-out data given by client.

    At most 10,000 clients; :func:`fedax.evaluate` makes a table of them for one model.

    Example:
        >>> PerClient().name
        'per_client'
    """
