"""The methods by name. ``fedax.create(name, **hyper)`` makes one, ``fedax.available()`` lists them."""

import inspect
from collections.abc import Callable
from typing import Any

from fedax.algorithms.accelerated import FedMaSS, NesterovFedAvg
from fedax.algorithms.asynchronous import (
    ACE,
    AREA,
    CA2FL,
    FADAS,
    FedAsync,
    FedBuff,
    Ringleader,
    Ringmaster,
)
from fedax.algorithms.compressed_scaffnew import CompressedScaffnew
from fedax.algorithms.dasha import DASHA
from fedax.algorithms.diana import DIANA
from fedax.algorithms.ef21 import EF21
from fedax.algorithms.fedavg import FedAvg, Normalized, Weighted
from fedax.algorithms.fedda import FedDA, FedDADistributed
from fedax.algorithms.feddualavg import FedDualAvg
from fedax.algorithms.feddyn import FedDyn, FedPD
from fedax.algorithms.fedexp import FedExP
from fedax.algorithms.fedglomo import FedGLOMO
from fedax.algorithms.fednova_vr import FedNovaVR
from fedax.algorithms.fedpaq import FedPAQ
from fedax.algorithms.led import LED, Scaffnew
from fedax.algorithms.local_adaptive import LocalAdapt, LocalAMSGrad
from fedax.algorithms.locodl import LoCoDL
from fedax.algorithms.marina import MARINA
from fedax.algorithms.mime import BASES, Base, BaseAdam, BaseMomentum, BaseSGD, Mime, MimeMVR
from fedax.algorithms.momentum import (
    FedAvgWithMomentum,
    FedAvgWithMomentumVR,
    ScaffoldWithMomentum,
    ScaffoldWithMomentumVR,
)
from fedax.algorithms.parts import named_part
from fedax.algorithms.personal import IFCA, MRMTL, Ditto
from fedax.algorithms.qfedavg import QFedAvg
from fedax.algorithms.scaffold import Scaffold
from fedax.algorithms.server import (
    Adaptive,
    DelayedNesterov,
    Momentum,
    OptaxServer,
    Plain,
    ServerOptimizer,
    SlowMo,
    server_optimizer,
)
from fedax.algorithms.stem import STEM
from fedax.algorithms.storm import BVRLSGD, CELSGD, MBStorm
from fedax.algorithms.vrl_sgd import VRLSGD
from fedax.contract.algorithm import Algorithm
from fedax.contract.local import IN_SOLVER, SGD, LocalMethod, Optax, Solver, checked_solver
from fedax.contract.regularizers import regularizer as make_regularizer
from fedax.contract.schedule import PowerDecay, Schedule
from fedax.errors import CodeError, ConfigError, place_of
from fedax.numbers import check_number
from fedax.registry import Registry

_LR = 0.05  # FedNova's learning rate on CIFAR-10 without momentum (Wang et al. 2020, appendix I)


def _solver(solver: Any, **options: Any) -> Solver:
    if solver is None:
        constraint = options.pop("regularizer")
        return SGD(**options, regularizer=None if constraint is None else make_regularizer(constraint))
    for name, value in options.items():
        if value is not None and value is not False:
            raise ConfigError(name, value, IN_SOLVER)
    return checked_solver(solver)


def _fedavg(
    tau_eff: Any = None,
    lr: Any = _LR,
    momentum: Any = None,
    nesterov: bool = False,
    prox: Any = None,
    decay: Any = None,
    regularizer: Any = None,
    solver: Any = None,
    server: Any = "plain",
    server_lr: Any = None,
    server_momentum: Any = None,
    every: int | None = None,
    spread: Any = None,
    beta1: Any = None,
    beta2: Any = None,
    eps: Any = None,
    vr: bool = False,
) -> FedAvg | FedNovaVR:
    options = {"momentum": momentum, "nesterov": nesterov, "prox": prox, "decay": decay, "regularizer": regularizer}
    local = _solver(solver, lr=lr, **options)
    averaging = None if tau_eff is None else Normalized(tau_eff)
    hyper = {"server_lr": server_lr, "server_momentum": server_momentum, "every": every, "spread": spread}
    hyper |= {"beta1": beta1, "beta2": beta2, "eps": eps}
    return (FedNovaVR if vr else FedAvg)(local, averaging, server_optimizer(server, **hyper))


def _mime(
    base: Any = "sgd",
    lr: Any = _LR,
    server_lr: Any = 1.0,
    momentum: Any = None,
    beta1: Any = None,
    beta2: Any = None,
    eps: Any = None,
    lite: bool = False,
    solver: Any = None,
) -> Mime:
    hyper = {"momentum": momentum, "beta1": beta1, "beta2": beta2, "eps": eps}
    return Mime(named_part(BASES, base, Base, hyper), lr, server_lr, lite, solver=solver)


def _rates(lr: Any, alpha: Any, w: Any, c: Any, solver: Any = None) -> tuple[Any, Any]:
    """η_t = lr/(w + t)^{1/3} and α_{t+1} = c η_t², where w and c are given; α is largest at t = 0, and at most 1."""
    if solver is not None:
        for name, value in (("w", w), ("c", c)):
            if value is not None:
                raise ConfigError(
                    name, value, "it makes a schedule of lr, which the solver has; give alpha as a schedule"
                )
        return lr, 0.1 if alpha is None else alpha
    check_number("lr", lr, 0, open_low=True)
    for name, value in (("w", w), ("c", c)):
        if value is not None:
            check_number(name, value, 0, open_low=True)
            if isinstance(lr, Schedule):
                raise ConfigError(name, value, "lr is a schedule already; give lr as a number, or alpha as a schedule")
    if c is None:
        alpha = 0.1 if alpha is None else alpha
    elif alpha is not None:
        raise ConfigError("alpha", alpha, "c gives it: α = c η²; leave out one of the two")
    else:
        largest = c * lr**2 / (1.0 if w is None else w ** (2 / 3))
        if isinstance(largest, float | int) and largest > 1:
            rule = "c lr²" if w is None else "c lr² / w^(2/3)"
            hint = f"alpha begins at {rule} = {largest:.4g}, and has to be at most 1"
            raise ConfigError("c", c, f"{hint}; with this lr give a c of at most {c / largest:.4g}")
        alpha = c * lr**2 if w is None else PowerDecay(c * lr**2, w, 2 / 3)
    return (lr if w is None else PowerDecay(lr, w, 1 / 3)), alpha


def _with_rates(method: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    """What makes a method by its own arguments, and by ``w`` and ``c`` of :func:`_rates`."""

    def make(lr: Any = _LR, alpha: Any = None, w: Any = None, c: Any = None, **hyper: Any) -> Algorithm:
        return method(*_rates(lr, alpha, w, c, hyper.get("solver")), **hyper)

    rates = [*inspect.signature(make).parameters.values()][:-1]
    others = [each for name, each in inspect.signature(method).parameters.items() if name not in ("lr", "alpha")]
    made: Any = make
    made.__signature__ = inspect.Signature([*rates, *others])
    return make


_fedda = _with_rates(FedDA)
_mime_mvr = _with_rates(MimeMVR)

_WEIGHTED = {"tau_eff": None, "vr": False}
_NORMALIZED = {"regularizer": None, "vr": False}
_BY_DEFAULT = {"tau_eff": "default"}


def _check_method(field: str, made: Any) -> None:
    if not (isinstance(made, type) and issubclass(made, Algorithm)):
        what = f"is {type(made).__name__}" if not isinstance(made, type) else f"is the class {made.__name__}"
        hint = "a method is a class that is a fedax.Algorithm; in a configuration also a function that makes one"
        raise CodeError(field, what, hint, place_of(made))


METHODS = Registry("method", "fedax.methods", _check_method)
METHODS.add(
    "fedavg", _fedavg, "weighted mean of local updates; biased where clients take unequal steps", fixed=_WEIGHTED
)
METHODS.add(
    "fedprox",
    _fedavg,
    "FedAvg with a proximal pull in every local step: less of the bias, slower",
    defaults={"prox": 0.005},
    fixed=_WEIGHTED,
)
METHODS.add(
    "fednova",
    _fedavg,
    "normalised averaging: the right objective under unequal local steps",
    defaults=_BY_DEFAULT,
    fixed=_NORMALIZED,
)
METHODS.add(
    "fednova-vr",
    _fedavg,
    "FedNova with cross-client variance reduction: the exact optimum, client memory",
    defaults=_BY_DEFAULT,
    fixed=_NORMALIZED | {"vr": True},
)
METHODS.add(
    "server-momentum",
    _fedavg,
    "FedAvgM: momentum at the server only (FedAvg-M is another method: fedavg-m)",
    aliases=("fedavgm",),
    fixed=_WEIGHTED | {"server": "momentum"},
)
METHODS.add(
    "slowmo", _fedavg, "slow momentum at the server, in units of gradients", fixed=_WEIGHTED | {"server": "slowmo"}
)
METHODS.add(
    "fedadagrad",
    _fedavg,
    "Adagrad at the server",
    defaults={"beta1": 0.0, "server_lr": 0.01},
    fixed=_WEIGHTED | {"server": "adagrad"},
)
METHODS.add("fedadam", _fedavg, "Adam at the server, as published", fixed=_WEIGHTED | {"server": "adam"})
METHODS.add("fedyogi", _fedavg, "Yogi at the server, as published", fixed=_WEIGHTED | {"server": "yogi"})
METHODS.add("fedexp", FedExP, "FedAvg with a longer server step, the more the clients' updates differ")
METHODS.add("scaffold", Scaffold, "control variates at the clients: the exact optimum, also with sampled cohorts")
METHODS.add(
    "vrl-sgd",
    VRLSGD,
    "local SGD with a correction at each client: exact under equal steps, all clients",
    fixed={"server_lr": 1.0, "compress": None},
)
METHODS.add("fedgate", VRLSGD, "VRL-SGD with a server learning rate; with compression FedCOMGATE")
METHODS.add("led", LED, "local exact diffusion: a dual variable at each client, all clients")
METHODS.add("scaffnew", Scaffnew, "ProxSkip: communicates by the toss of a shared coin, all clients")
METHODS.add("fedpaq", FedPAQ, "FedAvg with quantised updates, in cohorts: local steps, nothing kept by clients")
METHODS.add(
    "compressed-scaffnew",
    CompressedScaffnew,
    "Scaffnew in which each client sends a part of the model, by a pattern that all share, all clients",
)
METHODS.add("locodl", LoCoDL, "local steps with any unbiased compression: the exact optimum, all clients")
METHODS.add("ef21", EF21, "no local steps: top-k and other contractive compression of gradients, all clients")
METHODS.add("diana", DIANA, "no local steps: unbiased compression of gradients, its noise dies out, all clients")
METHODS.add("marina", MARINA, "no local steps: unbiased compression, whole gradients now and then, all clients")
METHODS.add("dasha", DASHA, "no local steps: unbiased compression, never whole gradients again, all clients")
METHODS.add("feddyn", FedDyn, "dynamic regularisation: the exact optimum whatever the local work, client memory")
METHODS.add("fedpd", FedPD, "primal-dual steps at each client, communication that may be skipped, all clients")
METHODS.add(
    "fedavg-m",
    FedAvgWithMomentum,
    "FedCM: momentum inside of every local step (FedAvgM is another method: server-momentum)",
    aliases=("fedcm",),
)
METHODS.add("fedavg-m-vr", FedAvgWithMomentumVR, "FedAvg-M with recursive variance reduction: two gradients a step")
METHODS.add("scaffold-m", ScaffoldWithMomentum, "SCAFFOLD with momentum inside of every local step")
METHODS.add(
    "scaffold-m-vr", ScaffoldWithMomentumVR, "SCAFFOLD-M with recursive variance reduction: two gradients a step"
)
METHODS.add("mb-storm", MBStorm, "no local steps: STORM on the cohort's minibatches as one large batch")
METHODS.add("ce-lsgd", CELSGD, "MB-STORM's gradient, then variance-reduced local steps at one client")
METHODS.add("bvr-l-sgd", BVRLSGD, "periodic full gradients, then variance-reduced local steps at one client")
METHODS.add("stem", _with_rates(STEM), "recursive variance reduction with averaged directions, rates by step")
METHODS.add("fedglomo", FedGLOMO, "recursive variance reduction between rounds and between local steps")
METHODS.add(
    "mime",
    _mime,
    "corrected local steps, no client memory; base: plain SGD, or frozen momentum or Adam",
    fixed={"lite": False},
)
METHODS.add("mimelite", _mime, "Mime without the correction: cheaper, keeps a bias of drift", fixed={"lite": True})
METHODS.add("mime-mvr", _mime_mvr, "Mime with momentum-based variance reduction", fixed={"lite": False})
METHODS.add("mimelite-mvr", _mime_mvr, "MimeLite with momentum-based variance reduction", fixed={"lite": True})
METHODS.add("nesterov-fedavg", NesterovFedAvg, "Nesterov's momentum in the local steps")
METHODS.add("fedmass", FedMaSS, "Nesterov's momentum with a compensating step, for overparameterised problems")
METHODS.add("fedda", _fedda, "adaptive local steps as restarted dual averaging; fields choose the four variants")
METHODS.add(
    "fedda-mvr",
    _fedda,
    "FedDA-1-1: momentum variance reduction and a metric by coordinate",
    fixed={"gradient": "mvr", "metric": "coordinate"},
)
METHODS.add(
    "fedda-distributed", _with_rates(FedDADistributed), "FedDA without local steps: clients send gradients only"
)
METHODS.add("feddualavg", FedDualAvg, "dual averaging: keeps the zeros and the constraints of a regulariser")
METHODS.add("fedasync", FedAsync, "asynchronous: the server's model is mixed with each client's")
METHODS.add("fedbuff", FedBuff, "asynchronous: FedAvg's updates, some at a time, late ones for less")
METHODS.add("ca2fl", CA2FL, "asynchronous: clients that are not heard count by their last updates, client memory")
METHODS.add("ace", ACE, "asynchronous: no local steps, the mean of all clients' last gradients, client memory")
METHODS.add("area", AREA, "asynchronous: the model is the mean of all clients' last models, client memory")
METHODS.add("fadas", FADAS, "asynchronous: AMSGrad at the server, with shorter steps where answers are late")
METHODS.add("ringmaster", Ringmaster, "asynchronous: no local steps, gradients that are too late are thrown away")
METHODS.add("ringleader", Ringleader, "asynchronous: no local steps, a table of each client's gradients, all clients")
METHODS.add(
    "delayed-nesterov",
    _fedavg,
    "asynchronous: Nesterov's momentum at the server, which moves at every N-th step",
    fixed=_WEIGHTED | {"server": "delayed-nesterov"},
)
METHODS.add("ditto", Ditto, "a model for each client, pulled to that of FedAvg")
METHODS.add("mr-mtl", MRMTL, "a model for each client, pulled to the mean of all of them")
METHODS.add("ifca", IFCA, "several models: each client trains the one that fits its data best")
METHODS.add("q-fedavg", QFedAvg, "clients with a greater loss count for more")
METHODS.add("local-adapt", LocalAdapt, "Adam at the clients, begun anew each round, and Adam at the server")
METHODS.add("local-amsgrad", LocalAMSGrad, "Adam at the clients with one second moment shared by all, client memory")

_NO_STEPS = "its clients take no local steps; lr is the server's"
_DUAL = "its steps are dual averaging: z is the sum of η_t ν_t, ψ weighs as much as the η_t, and the metric is adaptive"
_WHY_NO_SOLVER = {  # what of it needs plain SGD, and what to take
    "led": "its dual λ is a sum of models, outside of the rate: y − η g − b λ; use scaffnew, where it is one of "
    "gradients, with probability = b",
    "locodl": "its control variates are compressed differences of models over γ, from one that the server gets to by "
    "the same steps; use scaffnew or compressed-scaffnew",
    "fedmass": "its η₂ g takes a part of the step η₁ g back, which has to be one of plain SGD; use nesterov-fedavg",
    "fedda": _DUAL,
    "fedda-mvr": _DUAL,
    "feddualavg": "its steps are in the dual space, where ψ weighs as much as the sum of all η; use fedavg with "
    "solver=SGD(…, regularizer=…)",
    "local-adapt": "its local solver is Adam, whose scales Σ a correct the updates; use fedadam",
    "local-amsgrad": "its local solver is AMSGrad with one v̂ for all clients; use fedadam",
} | dict.fromkeys(
    ("ef21", "diana", "marina", "dasha", "mb-storm", "fedda-distributed", "ace", "ringmaster", "ringleader"), _NO_STEPS
)
METHODS.refuse("solver", _WHY_NO_SOLVER)


def available() -> dict[str, str]:
    """All methods: name -> one line. Aliases are accepted by :func:`create` and said here in the line.

    Example:
        >>> "fednova" in available()
        True
    """
    return METHODS.available()


def hyperparameters(name: str) -> dict[str, Any]:
    """The hyper-parameters that :func:`create` takes for this method, with their defaults (``None``: off or derived).

    Example:
        >>> hyperparameters("fedprox")["prox"]
        0.005
    """
    return METHODS.get(name).arguments


def create(name: str, **hyper: Any) -> Algorithm:
    """A method by its registered name.

    Args:
        name: one of :func:`available`, or an alias; case and ``_`` for ``-`` do not matter.
        **hyper: the method's hyper-parameters; numbers or schedules:

            ============  ==========================================================================
            lr            η > 0, local learning rate; 0.05
            momentum      ρ in [0, 1) of the local solver; off
            nesterov      Nesterov's form of that momentum; off
            prox          μ ≥ 0 of the proximal solver; off, 0.005 in fedprox
            decay         δ in (0, 1], factor of lr a local step; off
            solver        a :class:`fedax.Solver` that takes the local steps: in the FedAvg family instead of the
                          five above, else of lr; other methods say why they take none
            tau_eff       FedNova: ``"default"``, ``"ptau"``, ``"mean"`` or a number > 0
            server        the server optimizer: ``"plain"``, ``"momentum"``, ``"slowmo"``,
                          ``"delayed-nesterov"``, ``"adagrad"``, ``"adam"``, ``"yogi"``, a ServerOptimizer or an
                          optax transformation
            server_lr     multiplies the mean update, 1; delayed-nesterov 0.7; adaptive servers: their learning
                          rate, 0.01, and 0.001 in fadas
            server_momentum  β in [0, 1) of the momentum servers; 0.9
            every, spread  delayed-nesterov: the momentum moves at every N-th step, 4; share spread, 0
            beta1, beta2, eps  of the adaptive servers and of Mime's Adam; 0.9 (adagrad 0), 0.99, 0.001
            staleness     fedasync, fedbuff: how much late answers count; ``fedax.PolynomialStaleness(0.5)``
            beta          β in (0, 1] of the methods with momentum inside of the local steps, MB-STORM, CE-LSGD and
                          FedGLOMO: weight of the new gradient; 0.1
            alpha         STEM, FedDA, MimeMVR: weight of the new gradient; FedDyn, FedPD: strength of the
                          regulariser; 0.1
            w, c          STEM, FedDA, MimeMVR: η_t = lr/(w + t)^{1/3} and α_{t+1} = c η_t² at global step t, in the
                          place of a constant lr and of alpha
            h0, lam       FedDA: start of the metric, H_0 = (h0 + ε) I, or ``"warmup"``, 0; λ of the proximal term, 1
            regularizer   FedDA, FedDualAvg: ψ and X; in the FedAvg family a proximal step after each local step
            ============  ==========================================================================

            All others, with their ranges, are in the docstring of the method's class (``type(create(name))``).

    Raises:
        ConfigError: unknown method or hyper-parameter (with the nearest name), or a value out of range.

    Example:
        >>> create("fedprox", lr=0.1, prox=1.0).solver.prox
        1.0
    """
    if METHODS.get(name).make is _fedavg and hyper.get("solver") is not None:  # it has these itself
        hyper = dict.fromkeys(("lr", "prox")) | hyper
    method: Algorithm = METHODS.make(name, **hyper)
    if isinstance(method, LocalMethod) and method.solver is not None and hyper.get("lr") is not None:
        raise ConfigError("lr", hyper["lr"], IN_SOLVER)
    method.validate()
    return method
