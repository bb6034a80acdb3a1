"""Checks that every method of fedax passes, and the user's own methods should; run on small problems."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax

from fedax.conformance.clients import (
    check_chunks,
    check_cohorts,
    check_identical_clients,
    check_origin,
    check_places,
    check_relabelling,
    check_splitting,
    check_unequal_steps,
    check_weight_zero,
)
from fedax.conformance.code import (
    check_descent,
    check_determinism,
    check_fields,
    check_no_hidden_state,
    check_structure,
    check_types,
    python_state,
)
from fedax.conformance.problem import Fails, NotPromised, TestProblem
from fedax.conformance.reference import Reference, check_reference
from fedax.conformance.runs import check_costs, check_drift, check_memory, check_optimum, check_resume, check_sweep
from fedax.contract.algorithm import Algorithm
from fedax.errors import CodeError, ConfigError, FedaxError, unknown
from fedax.tasks.task import Task


class Check(NamedTuple):
    """The result of one check.

    Attributes:
        name: of the check.
        promise: what has to hold.
        status: ``"holds"``, ``"does not hold"``, or ``"not promised"``.
        found: the numbers, and what to do.
    """

    name: str
    promise: str
    status: str
    found: str


class Conformance:
    """The result of :func:`check`.

    Attributes:
        method: its repr.
        checks: in the order in which they were made.
    """

    def __init__(self, method: str, checks: Sequence[Check]):
        self.method, self.checks = method, tuple(checks)

    @property
    def passed(self) -> bool:
        """Whether all checks hold that the method promises to pass."""
        return not self.failed

    @property
    def failed(self) -> list[str]:
        """The names of the checks that do not hold."""
        return [check.name for check in self.checks if check.status == "does not hold"]

    @property
    def table(self) -> list[dict[str, str]]:
        """A row for each check, for instance for ``pandas.DataFrame``."""
        return [check._asdict() for check in self.checks]

    def __getitem__(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)

    def __repr__(self) -> str:
        marks = {"holds": "holds", "does not hold": "FAILS", "not promised": "  -  "}
        width = max(len(check.name) for check in self.checks)
        lines = [f"{marks[check.status]}  {check.name:{width}}  {check.promise}" for check in self.checks]
        for k, check in enumerate(self.checks):
            lines[k] += f"\n{'':{width + 9}}{check.found}" if check.found else ""
        end = f"{len(self.failed)} of {len(self.checks)} do not hold: {', '.join(self.failed)}"
        return "\n".join([self.method, *lines, "everything holds" if self.passed else end])


def check(
    algorithm: Algorithm,
    only: Sequence[str] | None = None,
    watch: Callable[[str], None] | None = None,
    *,
    task: Task | None = None,
    reference: Reference | None = None,
) -> Conformance:
    """Check that a method has the properties that all methods of fedax have.

    Clients can be reordered and split, and a client of weight zero changes nothing; chunks, places and an interruption
    do not change the result; the method has no state besides the server's and the clients'; its costs are counted; and
    its hyper-parameters have an effect. Properties that a method does not promise are reported as such.

    Args:
        algorithm: the method, with hyper-parameters for a problem of smoothness 1.
        only: the names of the checks to make; default: all.
        watch: called with the name of each check before it is made.
        task: what is trained in place of least squares, for methods that ask for other outputs; it is given x, [n, 3],
            and y, [n], classes if its kind is classification, else real.
        reference: one round by the paper in NumPy, for all clients at once: ``reference(method, clients, x, *kept)``
            returns x, or x and what is kept, which has defaults: its values at the start. See
            :class:`fedax.conformance.reference.Clients`.

    Returns:
        :class:`Conformance`; ``passed`` says whether everything holds.

    Raises:
        ConfigError: no method, or hyper-parameters out of range; a task that does not fit.

    Example:
        >>> import fedax
        >>> fedax.check(fedax.create("fedavg", lr=0.1), only=["descent", "relabelling"])
        FedAvg(solver=SGD(lr=0.1), averaging=Weighted(), server=Plain())
        holds  descent      it runs, lowers a quadratic, and stays finite
                            objective 1.82 → 0.3789 in 30 rounds
        holds  relabelling  the order of the clients does not matter
                            clients in another order: models ... of their way apart
        everything holds
    """
    if not isinstance(algorithm, Algorithm):
        raise ConfigError("algorithm", algorithm, "give a method: an object of a class that is a fedax.Algorithm")
    algorithm.validate()
    names = list(_CHECKS) if only is None else list(only)
    for name in names:
        if name not in _CHECKS:
            raise unknown("only", name, _CHECKS)
    before = python_state(algorithm)
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = TestProblem(algorithm, task, reference)
        checks = list(_run_checks(problem, before, names, watch or (lambda name: None)))
    return Conformance(repr(algorithm), checks)


def _run_checks(
    problem: TestProblem, before: dict[str, str], names: Sequence[str], watch: Callable[[str], None]
) -> Iterator[Check]:
    for number, name in enumerate(names):
        promise, trial = _CHECKS[name]
        watch(name)
        try:
            text = trial(problem, before) if trial is check_no_hidden_state else trial(problem)
            yield Check(name, promise, "holds", text)
        except NotPromised as error:
            yield Check(name, promise, "not promised", str(error))
        except Fails as error:
            yield Check(name, promise, "does not hold", str(error))
        except FedaxError as error:
            of_outputs = isinstance(error, CodeError) and error.field == "loss" and not problem.own_task
            hint = "; outputs are one number an example here: for others give task=" if of_outputs else ""
            yield Check(name, promise, "does not hold", f"{error}{hint}")
            if number == 0:
                return
        except Exception as error:
            first = str(error).strip().partition("\n")[0][:300]
            yield Check(name, promise, "does not hold", f"it raised {type(error).__name__}: {first}")
            if number == 0:
                return


_CHECKS: dict[str, tuple[str, Callable[..., str]]] = {
    "descent": ("it runs, lowers a quadratic, and stays finite", check_descent),
    "reference": ("its rounds are those of the reference", check_reference),
    "model": ("model() has the structure of the task's parameters", check_structure),
    "types": ("neither type nor structure of what is sent and kept change", check_types),
    "determinism": ("one seed, one result", check_determinism),
    "relabelling": ("the order of the clients does not matter", check_relabelling),
    "splitting": ("a client counts as two of half its weight", check_splitting),
    "weight zero": ("a client of weight zero changes nothing", check_weight_zero),
    "unequal steps": ("it takes as many local steps as it is told", check_unequal_steps),
    "origin": ("where zero is does not matter", check_origin),
    "identical clients": ("clients with the same data behave as one", check_identical_clients),
    "chunks": ("how many clients run side by side does not matter", check_chunks),
    "places": ("where data and memory are does not matter", check_places),
    "cohorts": ("partial participation works, or is refused", check_cohorts),
    "resume": ("a run that was stopped goes on bit-identically", check_resume),
    "sweep": ("a point of a sweep is its single run", check_sweep),
    "memory": ("what clients keep changes as they say", check_memory),
    "costs": ("gradients are counted as they are computed", check_costs),
    "optimum": ("it ends at the optimum of F where it says so", check_optimum),
    "drift": ("half the rate, half the distance to the optimum of F", check_drift),
    "fields": ("every hyper-parameter does something", check_fields),
    "no hidden state": ("nothing is kept in Python", check_no_hidden_state),
}
