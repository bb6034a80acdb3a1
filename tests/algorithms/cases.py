"""Every registered method beside its NumPy reference; a new method adds its cases here."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import fedax
from fedax.contract.compression import Compressor
from fedax.contract.compressors import TopK
from tests.references import accelerated_family as acc
from tests.references import asynchronous_family as asy
from tests.references import compressed_family as com
from tests.references import dual_family as dual
from tests.references import fedavg_family as fed
from tests.references import momentum_family as mom
from tests.references import personal_family as own
from tests.references import recursive_family as rec


class Cost(NamedTuple):
    """The cost of one client in one round: models down and up, further numbers down and up, gradients a local step,
    passes over its data, loops over its local steps, minibatches of the warm-up (−1: a pass over the data), the bytes
    of an upload of four numbers if it is compressed, and forward passes over its data."""

    down: int
    up: int
    numbers_down: int = 0
    numbers_up: int = 0
    gradients: int = 1
    passes: int = 0
    loops: int = 1
    warmup: int = 0
    message: int | None = None
    losses: int = 0


class Case(NamedTuple):
    """A method by its registered name, and the reference with the same hyper-parameters.

    Attributes:
        hyper: hyper-parameters of both; ``own``: of :func:`fedax.create` only; ``theirs``: of the reference only.
        cost: of a round.
        partial: whether it is defined for cohorts.
        steps: the number of local steps, where the method needs them to be equal.
        variant: of another case, from which it differs so little that only full participation is tried.
        long: a variant of which cheaper tests hold the difference; it is long.
    """

    method: str
    reference: Callable[..., fed.Reference]
    hyper: dict[str, Any] = {}  # noqa: RUF012  (never changed)
    own: dict[str, Any] = {}  # noqa: RUF012
    theirs: dict[str, Any] = {}  # noqa: RUF012
    cost: Cost | None = None
    partial: bool = True
    steps: int | None = None
    variant: bool = False
    long: bool = False

    def start(self, x: np.ndarray) -> np.ndarray:
        """Where the method begins: dual averaging projects onto X."""
        regularizer = self.theirs.get("regularizer")
        projects = regularizer is not None and self.method.startswith("fedda")
        return regularizer.step(x, np.ones_like(x), 0.0) if projects else x

    @property
    def picks(self) -> bool:
        """Whether a single client, drawn at random, runs the last exchange."""
        return self.hyper.get("pick") == "random"


class Unbiased(Compressor):
    """Top-k that calls itself unbiased, so that every method takes it: it draws nothing."""

    share: float

    def compress(self, key, x):
        return TopK(self.share).compress(key, x)

    def bits(self, form):
        return TopK(self.share).bits(form)

    def omega(self, d):
        return 3.0


_HALF = {"own": {"compress": Unbiased(0.5)}, "theirs": {"compress": com.top_k(2)}, "partial": False}
_GRADIENT = {"gradients": 1, "loops": 0, "message": 17}  # two numbers and their places
_PASS = {"gradients": 0, "passes": 1, "loops": 0}

SOLVERS = {
    "sgd": {},
    "momentum": {"momentum": 0.6},
    "nesterov": {"momentum": 0.6, "nesterov": True},
    "prox": {"prox": 2.0},
    "decay": {"decay": 0.8},
    "all": {"momentum": 0.5, "nesterov": True, "prox": 1.0, "decay": 0.9},
}
_MOMENTUM = {"server_momentum": 0.7, "server_lr": 0.8}
_ADAPTIVE = {"server_lr": 0.3, "beta1": 0.5, "beta2": 0.9, "eps": 0.1}
_BETA = {"beta": 0.3, "server_lr": 0.8}
_FORM = {"form": "reparameterised"}
_WARM = {"warmup_batches": 2}
_DA = {"alpha": 0.3, "b": 0.9, "eps": 0.3, "h0": 0.2, "lam": 0.8} | _WARM
_ADAM = {"beta1": 0.5, "beta2": 0.9, "eps": 0.5}
_LOCAL_ADAM = _ADAM | {"server_lr": 0.3}
_REGULARIZERS = {  # as an object of fedax, and as one of the references
    "l1": (fedax.L1(0.2), dual.L1(0.2)),
    "elastic-net": (fedax.ElasticNet(0.1, 0.3), dual.ElasticNet(0.1, 0.3)),
    "box": (fedax.Box(-0.2, 0.4), dual.Box(-0.2, 0.4)),
    "l1-ball": (fedax.L1Ball(0.8), dual.L1Ball(0.8)),
    "l2-ball": (fedax.L2Ball(0.5), dual.L2Ball(0.5)),
    "simplex": (fedax.Simplex(1.0), dual.Simplex(1.0)),
}
_MIME_BASES = {"sgd": {}, "momentum": {"momentum": 0.7}, "adam": {"beta1": 0.5, "beta2": 0.9, "eps": 0.5}}


def _solvers(method: str, reference: Callable[..., fed.Reference], cost: Cost, **hyper: Any) -> dict[str, Case]:
    return {
        f"{method}-{name}": Case(method, reference, solver | hyper, cost=cost, variant=name not in ("sgd", "all"))
        for name, solver in SOLVERS.items()
    }


def _regularized(method: str, reference: Callable[..., fed.Reference], hyper: Any, kind: str, **others: Any) -> Case:
    ours, theirs = _REGULARIZERS[kind]
    return Case(method, reference, hyper, {"regularizer": ours}, {"regularizer": theirs}, **others)


def _mime(name: str, base: str, models: int) -> Case:
    """``models``: of the base's statistics."""
    lite = name == "mimelite"
    cost = Cost(1 + models, 2, passes=1) if lite else Cost(2 + models, 2, gradients=2, passes=1)
    hyper = {"base": base, "server_lr": 0.8} | _MIME_BASES[base]
    return Case(name, functools.partial(rec.mime, lite=lite), hyper, cost=cost, variant=base == "sgd")


def _mime_mvr(name: str, ref: str) -> Case:
    lite = name == "mimelite-mvr"
    cost = Cost(3 if lite else 4, 3, gradients=2 if lite else 3, passes=2, warmup=-1)
    hyper = {"alpha": 0.3, "ref": ref, "server_lr": 0.8}
    return Case(name, functools.partial(rec.mime_mvr, lite=lite), hyper, cost=cost, variant=ref == "current")


_PLAIN, _NORMALISED, _NO_STEPS = Cost(1, 1), Cost(1, 1, numbers_up=1), Cost(1, 1, loops=0)
_VR, _NOVA_VR = Cost(2, 1, numbers_down=1, gradients=2, warmup=2), Cost(2, 1, numbers_up=1)
_FEDDA = Cost(3, 2, numbers_up=2, gradients=2, warmup=2)
_ALL = {"partial": False}

CASES = {
    **_solvers("fedavg", fed.fedavg, _PLAIN, server_lr=0.9),
    **_solvers("fednova", fed.fednova, _NORMALISED),
    "fedprox": Case("fedprox", fed.fedavg, {"prox": 3.0}, cost=_PLAIN),
    "fednova-ptau": Case("fednova", fed.fednova, {"tau_eff": "ptau", "prox": 2.0}, variant=True),
    "fednova-mean": Case("fednova", fed.fednova, {"tau_eff": "mean", "prox": 2.0}, cost=_PLAIN),
    "fednova-number": Case("fednova", fed.fednova, {"tau_eff": 2.5, "prox": 2.0, "server_lr": 0.8}, variant=True),
    "fednova-vr": Case("fednova-vr", fed.fednova_vr, cost=_NOVA_VR),
    "fednova-vr-momentum": Case("fednova-vr", fed.fednova_vr, {"momentum": 0.6}, variant=True),
    "fednova-vr-all": Case(
        "fednova-vr", fed.fednova_vr, SOLVERS["all"] | {"tau_eff": "ptau", "server_lr": 0.9}, cost=Cost(2, 1)
    ),
    "server-momentum": Case("server-momentum", fed.fedavgm, _MOMENTUM, cost=_PLAIN),
    "slowmo": Case("slowmo", fed.slowmo, _MOMENTUM, cost=_PLAIN),
    "fedadagrad": Case("fedadagrad", fed.fedadagrad, {"server_lr": 0.3, "beta1": 0.2, "eps": 0.1}, cost=_PLAIN),
    "fedadam": Case("fedadam", fed.fedadam, _ADAPTIVE, cost=_PLAIN),
    "fedyogi": Case("fedyogi", fed.fedyogi, _ADAPTIVE, cost=_PLAIN),
    "fednova-server-momentum": Case(
        "fednova", fed.fednova_server_momentum, _MOMENTUM, {"server": "slowmo"}, variant=True
    ),
    "fednova-hybrid": Case(
        "fednova",
        fed.fednova_server_momentum,
        _MOMENTUM | {"momentum": 0.6},
        {"server": "slowmo"},
        cost=_NORMALISED,
    ),
    "fednova-fedavgm": Case(
        "fednova", fed.fedavgm, _MOMENTUM | {"tau_eff": "default"}, {"server": "momentum"}, variant=True
    ),
    "fednova-adam": Case("fednova", fed.fedadam, _ADAPTIVE | {"tau_eff": "default"}, {"server": "adam"}, variant=True),
    "fedexp": Case("fedexp", fed.fedexp, {"eps": 1e-3}, cost=_NORMALISED),
    "fedexp-last-model": Case("fedexp", fed.fedexp, {"eps": 0.1, "average_last": False}, variant=True),
    "scaffold": Case("scaffold", mom.scaffold, {"server_lr": 0.8}, cost=Cost(2, 2)),
    "scaffold-option-1": Case("scaffold", mom.scaffold, {"option": 1}, cost=Cost(2, 2, passes=1)),
    "scaffold-warm-up": Case("scaffold", mom.scaffold, {"warmup_batches": 3}, cost=Cost(2, 2, warmup=3)),
    "vrl-sgd": Case("vrl-sgd", mom.fedgate, cost=_PLAIN, **_ALL),
    "fedgate": Case("fedgate", mom.fedgate, {"server_lr": 0.7}, cost=_PLAIN, **_ALL),
    "fedgate-compressed": Case("fedgate", com.fedcomgate, {"server_lr": 0.7}, cost=Cost(1, 1, message=17), **_HALF),
    "led": Case("led", mom.led, {"b": 0.05}, cost=_PLAIN, **_ALL),
    "scaffnew": Case("scaffnew", mom.scaffnew, {"probability": 0.08}, cost=_PLAIN, **_ALL),
    "fedpaq": Case("fedpaq", com.fedpaq, cost=Cost(1, 1, message=17), **_HALF | {"partial": True}),
    "compressed-scaffnew": Case(
        "compressed-scaffnew",
        com.compressed_scaffnew,
        {"probability": 0.08, "senders": None},
        cost=Cost(1, 1, message=36),
        **_ALL,
    ),
    "locodl": Case(
        "locodl",
        com.locodl,
        {"probability": 0.08, "rho": 0.7, "convexity": 0.1},
        cost=Cost(2, 1, message=17),
        steps=5,
        **_HALF | {"theirs": {"compress": com.top_k(2), "omega": 3.0}},
    ),
    "ef21": Case("ef21", com.ef21, cost=Cost(1, 1, **_GRADIENT), **_HALF | {"own": {"compress": TopK(0.5)}}),
    "diana": Case(
        "diana",
        com.diana,
        cost=Cost(1, 1, **_GRADIENT),
        **_HALF | {"theirs": {"compress": com.top_k(2), "alpha": 1 / 4}},
    ),
    "diana-alpha": Case("diana", com.diana, {"alpha": 0.6}, variant=True, long=True, **_HALF),
    "marina": Case(
        "marina",
        com.marina,
        {"probability": 1e-9},
        cost=Cost(1, 1, **_PASS, message=18),
        **_HALF | {"theirs": {"compress": com.top_k(2), "coins": [False] * 9}},
    ),
    "dasha": Case(
        "dasha",
        com.dasha,
        cost=Cost(1, 1, **_PASS, warmup=1, message=17),
        **_HALF | {"theirs": {"compress": com.top_k(2), "alpha": 1 / 7}},
    ),
    "dasha-mvr": Case(
        "dasha",
        com.dasha,
        {"alpha": 0.4, "beta": 0.3} | _WARM,
        cost=Cost(1, 1, **_GRADIENT | {"gradients": 2}, warmup=2),
        **_HALF,
    ),
    "dasha-from-zero": Case(
        "dasha", com.dasha, {"alpha": 0.4, "warmup_batches": None}, variant=True, long=True, **_HALF
    ),
    "ditto": Case("ditto", own.ditto, {"personal_lr": 0.03, "lam": 0.4}, cost=Cost(1, 1, gradients=2)),
    "mr-mtl": Case("mr-mtl", own.mr_mtl, {"lam": 0.4}, cost=_PLAIN),
    "ifca": Case("ifca", own.ifca, {"clusters": 1}, cost=Cost(1, 1, numbers_up=1)),
    "q-fedavg": Case("q-fedavg", own.q_fedavg, {"q": 0.7}, cost=Cost(1, 1, numbers_up=1, losses=1)),
    "feddyn": Case("feddyn", mom.feddyn, {"alpha": 2.0}, cost=_PLAIN),
    "fedpd": Case("fedpd", mom.fedpd, {"alpha": 2.0}, cost=_PLAIN, **_ALL),
    "fedavg-m": Case("fedavg-m", mom.fedavg_m, _BETA, cost=Cost(2, 1)),
    "fedavg-m-reparameterised": Case("fedavg-m", mom.fedavg_m, _BETA | _FORM, variant=True),
    "fedavg-m-vr": Case("fedavg-m-vr", mom.fedavg_m_vr, _BETA | _WARM, cost=_VR),
    "scaffold-m": Case("scaffold-m", mom.scaffold_m, _BETA | _WARM, cost=Cost(3, 2, warmup=2)),
    "scaffold-m-from-zero": Case("scaffold-m", mom.scaffold_m, _BETA | {"warmup_batches": None}, variant=True),
    "scaffold-m-reparameterised": Case("scaffold-m", mom.scaffold_m, _BETA | _WARM | _FORM, variant=True),
    "scaffold-m-vr": Case("scaffold-m-vr", mom.scaffold_m_vr, _BETA | _WARM, cost=_VR._replace(down=3, up=2)),
    "mb-storm": Case("mb-storm", rec.mb_storm, {"beta": 0.3} | _WARM, cost=Cost(2, 1, gradients=2, loops=0, warmup=2)),
    "ce-lsgd": Case(
        "ce-lsgd",
        rec.ce_lsgd,
        {"beta": 0.3, "pick": "random"} | _WARM,
        cost=Cost(2, 1, gradients=2, loops=0, warmup=2),
    ),
    "ce-lsgd-average": Case(
        "ce-lsgd", rec.ce_lsgd, {"beta": 0.3, "pick": "average"} | _WARM, cost=Cost(3, 2, gradients=4, warmup=2)
    ),
    "bvr-l-sgd": Case(
        "bvr-l-sgd", rec.bvr_l_sgd, {"period": 2, "pick": "random"}, cost=Cost(2, 1, gradients=2, loops=0)
    ),
    "bvr-l-sgd-average": Case("bvr-l-sgd", rec.bvr_l_sgd, {"period": None, "pick": "average"}, variant=True),
    "stem": Case("stem", rec.stem, {"alpha": 0.4} | _WARM, cost=Cost(2, 2, gradients=2, warmup=2), steps=5),
    "stem-schedule": Case(
        "stem", rec.stem, {"alpha": fedax.PowerDecay(0.9, 1.0, 2 / 3)} | _WARM, steps=5, variant=True
    ),
    "stem-local": Case(
        "stem",
        rec.stem,
        {"alpha": 0.4, "prev": "local"} | _WARM,
        cost=Cost(2, 2, gradients=2, warmup=2),
        steps=5,
        **_ALL,
    ),
    "fedglomo": Case("fedglomo", rec.fedglomo, {"beta": 0.3}, cost=Cost(2, 1, gradients=4, passes=2, loops=2)),
    "fedglomo-compressed": Case(
        "fedglomo",
        com.fedglomo,
        {"beta": 0.3},
        cost=Cost(2, 2, gradients=4, passes=2, loops=2, message=34),
        steps=5,
        **_HALF | {"partial": True},
    ),
    **{
        f"{name}-{base}": _mime(name, base, models)
        for name in ("mime", "mimelite")
        for models, base in enumerate(_MIME_BASES)
    },
    **{
        f"{name}-{ref}": _mime_mvr(name, ref)
        for name in ("mime-mvr", "mimelite-mvr")
        for ref in ("previous", "current")
    },
    **{
        f"nesterov-{sync}": Case(
            "nesterov-fedavg",
            acc.nesterov_fedavg,
            {"momentum": 0.4, "sync": sync},
            cost=Cost(2, 2) if sync == "both" else _PLAIN,
            partial=sync != "paper",
            steps=5,
            variant=sync == "restart",
        )
        for sync in ("paper", "both", "restart")
    },
    **{
        f"fedmass-{sync}": Case(
            "fedmass",
            acc.fedmass,
            {"momentum": 0.4, "lr2": 0.01, "sync": sync},
            cost=Cost(2, 2) if sync == "both" else _PLAIN,
            partial=sync != "paper",
            steps=5,
            variant=sync == "restart",
        )
        for sync in ("paper", "both", "restart")
    },
    "fedda-mvr-norm": Case("fedda", dual.fedda, _DA | {"metric": "norm", "h0": "warmup"}, steps=5, variant=True),
    "fedda-momentum-coordinate": Case(
        "fedda", dual.fedda, _DA | {"gradient": "momentum", "h0": "warmup"}, steps=5, variant=True
    ),
    "fedda-momentum-norm": Case(
        "fedda",
        dual.fedda,
        _DA | {"gradient": "momentum", "metric": "norm"},
        cost=Cost(2, 2, 1, 2, warmup=2),
        steps=5,
    ),
    "fedda-mvr": Case("fedda-mvr", dual.fedda, _DA, cost=_FEDDA, steps=5),
    **{
        f"fedda-mvr-{kind}": _regularized(
            "fedda-mvr", dual.fedda, _DA, kind, steps=5, cost=_FEDDA, variant=kind != "l1"
        )
        for kind in _REGULARIZERS
    },
    "fedda-distributed": Case(
        "fedda-distributed",
        dual.fedda_distributed,
        _DA,
        cost=Cost(2, 1, gradients=2, loops=0, warmup=2),
        steps=1,
    ),
    "fedda-distributed-norm-l1-ball": _regularized(
        "fedda-distributed",
        dual.fedda_distributed,
        _DA | {"gradient": "momentum", "metric": "norm", "h0": "warmup"},
        "l1-ball",
        cost=Cost(1, 1, loops=0, warmup=2),
        steps=1,
    ),
    "feddualavg": Case("feddualavg", dual.feddualavg, {"server_lr": 0.8}, variant=True),
    "feddualavg-l1": _regularized("feddualavg", dual.feddualavg, {"server_lr": 0.8}, "l1", cost=Cost(1, 1, 1, 1)),
    "fedavg-l1": _regularized("fedavg", dual.proximal_fedavg, {"server_lr": 0.8}, "l1", variant=True),
    "fedasync": Case("fedasync", asy.fedasync, {"mixing": 0.7, "prox": 2.0}, cost=_PLAIN),
    "fedbuff": Case("fedbuff", asy.fedbuff, {"server_lr": 0.8}, cost=_PLAIN),
    "ca2fl": Case("ca2fl", asy.ca2fl, {"server_lr": 0.8}, cost=_PLAIN),
    "ace": Case("ace", asy.ace, cost=_NO_STEPS),
    "area": Case("area", asy.area, cost=_PLAIN),
    "fadas": Case("fadas", asy.fadas, _ADAPTIVE, cost=_PLAIN),
    "fadas-bias-correction": Case("fadas", asy.fadas, _ADAPTIVE | {"bias_correction": True}, variant=True),
    "ringmaster": Case("ringmaster", asy.ringmaster, own={"threshold": 3}, cost=_NO_STEPS),
    "ringleader": Case("ringleader", asy.ringleader, cost=_NO_STEPS, **_ALL),
    "delayed-nesterov": Case(
        "delayed-nesterov", asy.delayed_nesterov, _MOMENTUM | {"every": 2, "spread": 0.4}, cost=_PLAIN
    ),
    "local-adapt": Case("local-adapt", dual.local_adapt, _LOCAL_ADAM, cost=_PLAIN),
    "local-adapt-local": Case("local-adapt", dual.local_adapt, _LOCAL_ADAM | {"correction": "local"}, variant=True),
    "local-adapt-joint": Case("local-adapt", dual.local_adapt, _LOCAL_ADAM | {"correction": "joint"}, cost=Cost(1, 2)),
    "local-amsgrad": Case("local-amsgrad", dual.local_amsgrad, _ADAM, cost=Cost(2, 3), steps=5),
    "local-amsgrad-lag": Case("local-amsgrad", dual.local_amsgrad, _ADAM | {"lag": True}, cost=Cost(2, 2), steps=5),
}
