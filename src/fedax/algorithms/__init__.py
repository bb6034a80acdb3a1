"""The methods by name. ``fedax.create(name, **hyper)`` makes one, ``fedax.available()`` lists them."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from fedax.algorithms.accelerated import FedMaSS, NesterovFedAvg
from fedax.algorithms.fedavg import FedAvg, Normalized, Weighted
from fedax.algorithms.fedda import FedDA, FedDADistributed
from fedax.algorithms.feddualavg import FedDualAvg
from fedax.algorithms.feddyn import FedDyn, FedPD
from fedax.algorithms.fedglomo import FedGLOMO
from fedax.algorithms.fednova_vr import FedNovaVR
from fedax.algorithms.led import LED, Scaffnew
from fedax.algorithms.local_adaptive import LocalAdapt, LocalAMSGrad
from fedax.algorithms.mime import Base, BaseAdam, BaseMomentum, BaseSGD, Mime, MimeMVR, base_optimizer
from fedax.algorithms.momentum import (
    FedAvgWithMomentum,
    FedAvgWithMomentumVR,
    ScaffoldWithMomentum,
    ScaffoldWithMomentumVR,
)
from fedax.algorithms.scaffold import Scaffold
from fedax.algorithms.server import Adaptive, Momentum, OptaxServer, Plain, ServerOptimizer, SlowMo, server_optimizer
from fedax.algorithms.stem import STEM
from fedax.algorithms.storm import BVRLSGD, CELSGD, MBStorm
from fedax.algorithms.vrl_sgd import VRLSGD
from fedax.contract.algorithm import Algorithm
from fedax.contract.local import SGD, Optax, Solver
from fedax.contract.regularizers import regularizer as make_regularizer
from fedax.contract.schedule import PowerDecay, Schedule
from fedax.errors import ConfigError, unknown
from fedax.numbers import check_number

__all__ = [
    "BVRLSGD",
    "CELSGD",
    "LED",
    "SGD",
    "STEM",
    "VRLSGD",
    "Adaptive",
    "Base",
    "BaseAdam",
    "BaseMomentum",
    "BaseSGD",
    "FedAvg",
    "FedAvgWithMomentum",
    "FedAvgWithMomentumVR",
    "FedDA",
    "FedDADistributed",
    "FedDualAvg",
    "FedDyn",
    "FedGLOMO",
    "FedMaSS",
    "FedNovaVR",
    "FedPD",
    "LocalAMSGrad",
    "LocalAdapt",
    "MBStorm",
    "Mime",
    "MimeMVR",
    "Momentum",
    "NesterovFedAvg",
    "Normalized",
    "Optax",
    "OptaxServer",
    "Plain",
    "Scaffnew",
    "Scaffold",
    "ScaffoldWithMomentum",
    "ScaffoldWithMomentumVR",
    "ServerOptimizer",
    "SlowMo",
    "Weighted",
    "available",
    "create",
    "hyperparameters",
]

_LR = 0.05  # FedNova's learning rate on CIFAR-10 without momentum (Wang et al. 2020, appendix I)


def _solver(
    solver: Solver | None = None,
    lr: Any = None,
    momentum: Any = None,
    nesterov: bool = False,
    prox: Any = None,
    decay: Any = None,
    regularizer: Any = None,
) -> Solver:
    if solver is None:
        constraint = None if regularizer is None else make_regularizer(regularizer)
        return SGD(_LR if lr is None else lr, momentum, nesterov, prox, decay, constraint)
    given = {"lr": lr, "momentum": momentum, "nesterov": nesterov or None, "prox": prox, "decay": decay}
    given["regularizer"] = regularizer
    for name, value in given.items():
        if value is not None:
            raise ConfigError(name, value, "the solver is given as an object; set it there")
    if not isinstance(solver, Solver):
        raise ConfigError("solver", solver, "give a fedax Solver: SGD(...), or Optax(transformation)")
    return solver


def _fedavg(
    averaging: Any = None,
    lr: Any = None,
    momentum: Any = None,
    nesterov: bool = False,
    prox: Any = None,
    decay: Any = None,
    regularizer: Any = None,
    solver: Any = None,
    server: Any = "plain",
    server_lr: Any = None,
    server_momentum: Any = None,
    beta1: Any = None,
    beta2: Any = None,
    eps: Any = None,
) -> FedAvg:
    local = _solver(solver, lr, momentum, nesterov, prox, decay, regularizer)
    hyper = {"server_lr": server_lr, "server_momentum": server_momentum, "beta1": beta1, "beta2": beta2, "eps": eps}
    return FedAvg(local, averaging, server_optimizer(server, **hyper))


def _fednova(tau_eff: Any = "default", **hyper: Any) -> FedAvg:
    return _fedavg(Normalized(tau_eff), **hyper)


def _fednova_vr(tau_eff: Any = "default", **hyper: Any) -> FedNovaVR:
    parts = _fednova(tau_eff, **hyper)
    return FedNovaVR(parts.solver, Normalized(tau_eff), parts.optimizer)


def _mime(
    base: Any = "sgd",
    lr: Any = _LR,
    server_lr: Any = 1.0,
    momentum: Any = None,
    beta1: Any = None,
    beta2: Any = None,
    eps: Any = None,
    lite: bool = False,
) -> Mime:
    return Mime(base_optimizer(base, momentum=momentum, beta1=beta1, beta2=beta2, eps=eps), lr, server_lr, lite)


def _rates(lr: Any, alpha: Any, w: Any, c: Any) -> tuple[Any, Any]:
    """η_t = lr/(w + t)^{1/3} and α_{t+1} = c η_t², where w and c are given."""
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
        alpha = c * lr**2 if w is None else PowerDecay(c * lr**2, w, 2 / 3)
    return (lr if w is None else PowerDecay(lr, w, 1 / 3)), alpha


def _stem(
    lr: Any = _LR,
    alpha: Any = None,
    w: Any = None,
    c: Any = None,
    prev: str = "averaged",
    warmup_batches: int | None = 1,
) -> STEM:
    return STEM(*_rates(lr, alpha, w, c), prev, warmup_batches)


def _fedda(
    lr: Any = _LR,
    alpha: Any = None,
    w: Any = None,
    c: Any = None,
    gradient: str = "mvr",
    metric: str = "coordinate",
    b: Any = 0.999,
    eps: Any = 0.01,
    h0: Any = 0.0,
    lam: Any = 1.0,
    regularizer: Any = None,
    warmup_batches: int | None = 1,
    distributed: bool = False,
) -> FedDA | FedDADistributed:
    method = FedDADistributed if distributed else FedDA
    psi = make_regularizer(regularizer)
    return method(*_rates(lr, alpha, w, c), gradient, metric, b, eps, h0, lam, psi, warmup_batches)


def _mime_mvr(
    lr: Any = _LR,
    alpha: Any = None,
    w: Any = None,
    c: Any = None,
    server_lr: Any = 1.0,
    ref: str = "previous",
    lite: bool = False,
) -> MimeMVR:
    return MimeMVR(*_rates(lr, alpha, w, c), server_lr, ref, lite)


def _feddualavg(lr: Any = _LR, server_lr: Any = 1.0, regularizer: Any = None) -> FedDualAvg:
    return FedDualAvg(lr, server_lr, make_regularizer(regularizer))


class _Entry(NamedTuple):
    summary: str
    build: Callable[..., Algorithm]
    defaults: dict[str, Any] = {}  # noqa: RUF012  (never changed)
    fixed: tuple[str, ...] = ()


_METHODS = {
    "fedavg": _Entry("weighted mean of local updates; biased where clients take unequal steps", _fedavg),
    "fedprox": _Entry(
        "FedAvg with a proximal pull in every local step: less of the bias, slower", _fedavg, {"prox": 0.005}
    ),
    "fednova": _Entry(
        "normalised averaging: the right objective under unequal local steps", _fednova, fixed=("regularizer",)
    ),
    "fednova-vr": _Entry(
        "FedNova with cross-client variance reduction: the exact optimum, client memory",
        _fednova_vr,
        fixed=("regularizer",),
    ),
    "server-momentum": _Entry(
        "FedAvgM: momentum at the server only (FedAvg-M is another method: fedavg-m)",
        _fedavg,
        {"server": "momentum"},
        ("server",),
    ),
    "slowmo": _Entry("slow momentum at the server, in units of gradients", _fedavg, {"server": "slowmo"}, ("server",)),
    "fedadagrad": _Entry(
        "Adagrad at the server", _fedavg, {"server": "adagrad", "beta1": 0.0, "server_lr": 0.01}, ("server",)
    ),
    "fedadam": _Entry("Adam at the server, as published", _fedavg, {"server": "adam"}, ("server",)),
    "fedyogi": _Entry("Yogi at the server, as published", _fedavg, {"server": "yogi"}, ("server",)),
    "scaffold": _Entry("control variates at the clients: the exact optimum, also with sampled cohorts", Scaffold),
    "vrl-sgd": _Entry(
        "local SGD with a correction at each client: exact under equal steps, all clients",
        VRLSGD,
        fixed=("server_lr",),
    ),
    "fedgate": _Entry("VRL-SGD with a server learning rate (FedGATE without compression)", VRLSGD),
    "led": _Entry("local exact diffusion: a dual variable at each client, all clients", LED),
    "scaffnew": _Entry("ProxSkip: communicates by the toss of a shared coin, all clients", Scaffnew),
    "feddyn": _Entry("dynamic regularisation: the exact optimum whatever the local work, client memory", FedDyn),
    "fedpd": _Entry("primal-dual steps at each client, communication that may be skipped, all clients", FedPD),
    "fedavg-m": _Entry(
        "FedCM: momentum inside of every local step (FedAvgM is another method: server-momentum)", FedAvgWithMomentum
    ),
    "fedavg-m-vr": _Entry("FedAvg-M with recursive variance reduction: two gradients a step", FedAvgWithMomentumVR),
    "scaffold-m": _Entry("SCAFFOLD with momentum inside of every local step", ScaffoldWithMomentum),
    "scaffold-m-vr": _Entry(
        "SCAFFOLD-M with recursive variance reduction: two gradients a step", ScaffoldWithMomentumVR
    ),
    "mb-storm": _Entry("no local steps: STORM on the cohort's minibatches as one large batch", MBStorm),
    "ce-lsgd": _Entry("MB-STORM's gradient, then variance-reduced local steps at one client", CELSGD),
    "bvr-l-sgd": _Entry("periodic full gradients, then variance-reduced local steps at one client", BVRLSGD),
    "stem": _Entry("recursive variance reduction with averaged directions, rates by step", _stem),
    "fedglomo": _Entry("recursive variance reduction between rounds and between local steps", FedGLOMO),
    "mime": _Entry(
        "a central optimizer's frozen statistics in corrected local steps, no client memory", _mime, fixed=("lite",)
    ),
    "mimelite": _Entry("Mime without the correction: cheaper, keeps a bias of drift", _mime, {"lite": True}, ("lite",)),
    "mime-mvr": _Entry("Mime with momentum-based variance reduction", _mime_mvr, fixed=("lite",)),
    "mimelite-mvr": _Entry("MimeLite with momentum-based variance reduction", _mime_mvr, {"lite": True}, ("lite",)),
    "nesterov-fedavg": _Entry("Nesterov's momentum in the local steps", NesterovFedAvg),
    "fedmass": _Entry("Nesterov's momentum with a compensating step, for overparameterised problems", FedMaSS),
    "fedda": _Entry(
        "adaptive local steps as restarted dual averaging; fields choose the four variants",
        _fedda,
        fixed=("distributed",),
    ),
    "fedda-mvr": _Entry(
        "FedDA-1-1: momentum variance reduction and a metric by coordinate",
        _fedda,
        {"gradient": "mvr", "metric": "coordinate"},
        ("gradient", "metric", "distributed"),
    ),
    "fedda-distributed": _Entry(
        "FedDA without local steps: clients send gradients only", _fedda, {"distributed": True}, ("distributed",)
    ),
    "feddualavg": _Entry("dual averaging: keeps the zeros and the constraints of a regulariser", _feddualavg),
    "local-adapt": _Entry("Adam at the clients, begun anew each round, and Adam at the server", LocalAdapt),
    "local-amsgrad": _Entry("Adam at the clients with one second moment shared by all, client memory", LocalAMSGrad),
}

_ALIASES = {"fedavgm": "server-momentum", "fedcm": "fedavg-m"}


def available() -> dict[str, str]:
    """All methods: name -> one line. Aliases are accepted by :func:`create` and said here in the line.

    Example:
        >>> "fednova" in available()
        True
    """
    lines = {name: entry.summary for name, entry in _METHODS.items()}
    for alias, name in _ALIASES.items():
        lines[name] += f" [alias {alias}]"
    return lines


def hyperparameters(name: str) -> dict[str, Any]:
    """The hyper-parameters that :func:`create` takes for this method, with their defaults (``None``: off or derived).

    Example:
        >>> hyperparameters("fedprox")["prox"]
        0.005
    """
    entry = _METHODS[_canonical(name)]
    found: dict[str, Any] = {}
    for parameter in inspect.signature(entry.build).parameters.values():
        passed_on = parameter.kind is parameter.VAR_KEYWORD
        found |= _defaults(_fedavg) if passed_on else {parameter.name: parameter.default}
    hidden = (*entry.fixed, "averaging")
    found |= {"lr": found["lr"] or _LR}
    return {n: value for n, value in (found | entry.defaults).items() if n not in hidden}


def _defaults(build: Callable[..., Any]) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(build).parameters.items()}


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
            solver        a :class:`fedax.Solver` in the place of the five above
            tau_eff       FedNova: ``"default"``, ``"ptau"``, ``"mean"`` or a number > 0
            server        the server optimizer: ``"plain"``, ``"momentum"``, ``"slowmo"``, ``"adagrad"``,
                          ``"adam"``, ``"yogi"``, a ServerOptimizer or an optax transformation
            server_lr     multiplies the mean update, 1; adaptive servers: their learning rate, 0.01
            server_momentum  β in [0, 1) of the momentum servers; 0.9
            beta1, beta2, eps  of the adaptive servers and of Mime's Adam; 0.9 (adagrad 0), 0.99, 0.001
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
    key = _canonical(name)
    entry = _METHODS[key]
    known = hyperparameters(key)
    for given in hyper:
        if given not in known:
            raise unknown(f"hyper-parameter of {key}", given, known)
    defaults = dict(entry.defaults)
    if "solver" in hyper:
        defaults.pop("prox", None)
    method = entry.build(**(defaults | hyper))
    method.validate()
    return method


def _canonical(name: str) -> str:
    if not isinstance(name, str):
        raise ConfigError("method", name, "give a method's name")
    key = name.lower().replace("_", "-")
    key = _ALIASES.get(key, key)
    if key not in _METHODS:
        raise unknown("method", name, (*_METHODS, *_ALIASES))
    return key
