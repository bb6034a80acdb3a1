"""Methods by name: what can be asked for, and the one clear error for what cannot."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

import fedax
from fedax.contract.algorithm import Pace
from fedax.contract.compressors import ErrorFeedback, Identity, RandomK, TopK
from fedax.contract.schedule import Stepwise, resolve

from .bed import path

METHODS = sorted(fedax.available())


def leaves(method: Any) -> tuple[Any, list[Any]]:
    return jax.tree.structure(method), jax.tree.leaves(method)


# Names.


def test_available_says_one_line_a_method_and_its_alias():
    lines = fedax.available()
    expected = ["fedavg", "fedprox", "fednova", "fednova-vr", "server-momentum", "slowmo", "fedadagrad", "fedadam"]
    assert {*expected, "fedyogi", "vrl-sgd"} <= set(lines)
    assert all(line and "\n" not in line for line in lines.values())
    assert "[alias fedavgm]" in lines["server-momentum"]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_made_by_its_name_in_any_spelling(name):
    assert isinstance(fedax.create(name), fedax.Algorithm)
    assert leaves(fedax.create(name.upper().replace("-", "_"))) == leaves(fedax.create(name))


def test_aliases():
    assert leaves(fedax.create("FedAvgM", server_momentum=0.3)) == leaves(
        fedax.create("server-momentum", server_momentum=0.3)
    )
    assert fedax.hyperparameters("fedavgm") == fedax.hyperparameters("server-momentum")


@pytest.mark.parametrize(
    "name, nearest", [("fedavgg", "fedavg"), ("FedNva", "fednova"), ("fed_prox", "fedprox"), ("fdavgm", "fedavgm")]
)
def test_an_unknown_method_is_answered_with_the_nearest(name, nearest):
    for ask in (fedax.create, fedax.hyperparameters):
        with pytest.raises(fedax.ConfigError, match=f"method = .*did you mean '{nearest}'") as caught:
            ask(name)
        assert all(method in str(caught.value) for method in METHODS)


def test_a_name_is_a_string():
    with pytest.raises(fedax.ConfigError, match="method = 3: give a name: ace, area, "):
        fedax.create(3)


# Hyper-parameters.


@pytest.mark.parametrize("name", METHODS)
def test_the_defaults_that_are_said_are_the_ones_that_are_used(name):
    defaults = {field: value for field, value in fedax.hyperparameters(name).items() if value is not None}
    assert defaults["lr"] == (0.001 if name.startswith("local-") else 0.05)
    assert leaves(fedax.create(name, **defaults)) == leaves(fedax.create(name))


VALID = {
    "lr": 0.01,
    "momentum": 0.3,
    "nesterov": True,
    "prox": 0.7,
    "decay": 0.6,
    "solver": fedax.SGD(0.02),
    "server": "adam",
    "server_lr": 0.4,
    "server_momentum": 0.2,
    "beta1": 0.3,
    "beta2": 0.4,
    "eps": 0.5,
    "h0": "warmup",
    "lam": 0.3,
    "tau_eff": 3.0,
    "beta": 0.3,
    "alpha": 0.3,
    "b": 0.2,
    "option": 1,
    "probability": 0.3,
    "skip": 0.4,
    "deliver": "mean",
    "form": "reparameterised",
    "warmup_batches": 4,
    "pick": "average",
    "period": 3,
    "prev": "local",
    "base": "adam",
    "ref": "current",
    "w": 9.0,
    "c": 0.7,
    "gradient": "momentum",
    "metric": "norm",
    "regularizer": fedax.L1(0.3),
    "correction": "joint",
    "lr2": 0.02,
    "sync": "both",
    "lag": True,
    "average_last": False,
    "compress": Identity(),
    "senders": 3,
    "rho": 0.4,
    "convexity": 0.2,
    "mixing": 0.3,
    "staleness": fedax.HingeStaleness(2.0, after=3),
    "threshold": 3,
    "shorten": "cap",
    "bias_correction": True,
    "every": 2,
    "spread": 0.2,
    "personal_lr": 0.02,
    "q": 0.4,
    "clusters": 4,
}


@pytest.mark.parametrize("name", METHODS)
def test_no_hyperparameter_is_ignored(name):
    """Each one changes the method, or is refused because this method's server, or base, does not have it."""
    default = leaves(fedax.create(name))
    for field in fedax.hyperparameters(name):
        given = {field: VALID[field]} | ({"momentum": 0.5} if field == "nesterov" else {})
        try:
            made = leaves(fedax.create(name, **given))
        except fedax.ConfigError as error:
            assert error.field == field and ("has only" in str(error) or "has no hyper-parameters" in str(error))
        else:
            assert made != default, field


def test_defaults_of_the_papers():
    assert fedax.hyperparameters("fedprox")["prox"] == fedax.create("fedprox").solver.prox == 0.005
    assert fedax.create("fedasync").mixing == 0.6 and fedax.create("fedasync").prox == 0.005
    for name in ("fedasync", "fedbuff"):
        assert fedax.create(name).pace() == Pace(fedax.PolynomialStaleness(0.5))
        assert fedax.create(name, staleness=None).pace() == fedax.create("fadas").pace() == Pace()
    assert fedax.create("ringmaster", threshold=5).pace() == Pace(max_staleness=4)  # R = 5: 5 is too late
    assert fedax.create("ringleader").pace() == Pace(buffer=1)
    assert (fedax.create("fadas").threshold, fedax.create("fadas").beta2) == (1, 0.99)
    assert fedax.create("fedprox", solver=fedax.SGD(0.1)).solver.prox is None
    assert fedax.create("fedavg").solver.momentum is None and fedax.create("fedavg").optimizer.server_lr == 1.0
    assert fedax.create("slowmo").optimizer.server_momentum == 0.9
    assert fedax.create("fedadagrad").optimizer.beta1 == 0.0 and fedax.create("fedadam").optimizer.beta1 == 0.9
    assert fedax.create("fedadam").optimizer.beta2 == 0.99 and fedax.create("fedyogi").optimizer.eps == 0.001
    assert fedax.create("fednova").averaging.rule == fedax.create("fednova-vr").averaging.rule == "default"


@pytest.mark.parametrize(
    "name, field, nearest",
    [
        ("fedavg", "momentun", "momentum"),
        ("fedprox", "proxx", "prox"),
        ("fednova", "taueff", "tau_eff"),
        ("fednova-vr", "decy", "decay"),
        ("slowmo", "servermomentum", "server_momentum"),
        ("fedadam", "beta_1", "beta1"),
    ],
)
def test_an_unknown_hyperparameter_is_answered_with_the_nearest(name, field, nearest):
    with pytest.raises(fedax.ConfigError, match=f"{name} = '{field}': did you mean '{nearest}'"):
        fedax.create(name, **{field: 0.5})


@pytest.mark.parametrize("name, field", [("fedavg", "tau_eff"), ("slowmo", "server"), ("vrl-sgd", "momentum")])
def test_a_hyperparameter_of_another_method_is_unknown(name, field):
    assert field not in fedax.hyperparameters(name)
    with pytest.raises(fedax.ConfigError, match=f"argument of {name} = '{field}'"):
        fedax.create(name, **{field: 0.5})


@pytest.mark.parametrize(
    "name, field, value",
    [
        ("fedavg", "lr", 0.0),
        ("fedavg", "lr", -0.1),
        ("fedavg", "lr", float("nan")),
        ("fedavg", "lr", float("inf")),
        ("fedavg", "lr", "0.1"),
        ("fedavg", "lr", True),
        ("fedavg", "lr", np.array([0.1, -0.1])),
        ("vrl-sgd", "lr", 0.0),
        ("fednova-vr", "lr", 0.0),
        ("fednova", "momentum", 1.0),
        ("fednova-vr", "momentum", -0.1),
        ("fedprox", "prox", -1.0),
        ("fedprox", "prox", 21.0),  # lr · prox = 1.05
        ("fedavg", "decay", 0.0),
        ("fedavg", "decay", 1.1),
        ("fedavg", "server_lr", 0.0),
        ("slowmo", "server_lr", -1.0),
        ("server-momentum", "server_momentum", 1.0),
        ("slowmo", "server_momentum", -0.5),
        ("fedadam", "beta1", 1.0),
        ("fedyogi", "beta2", 1.0),
        ("fedadagrad", "eps", 0.0),
        ("fedadagrad", "server_lr", 0.0),
        ("fednova", "tau_eff", 0.0),
        ("fednova-vr", "tau_eff", -2),
        ("fednova-vr", "server_lr", 0.0),
        ("fednova", "tau_eff", True),
        *(
            (name, field, value)
            for name in ("scaffold", "fedgate", "fedavg-m", "mime")
            for field, value in (("lr", -1.0), ("server_lr", 0.0))
        ),
        *(
            (name, "beta", value)
            for name in ("fedavg-m", "fedavg-m-vr", "scaffold-m", "scaffold-m-vr", "mb-storm", "ce-lsgd", "fedglomo")
            for value in (0.0, 1.1)
        ),
        *((name, "alpha", value) for name in ("stem", "mime-mvr") for value in (0.0, 1.1)),
        *((name, "alpha", value) for name in ("feddyn", "fedpd") for value in (0.0, 21.0)),  # lr · alpha = 1.05
        *(
            (name, "warmup_batches", value)
            for name in ("scaffold", "scaffold-m", "mb-storm", "stem")
            for value in (0, 1.5)
        ),
        ("scaffold", "option", 3),
        ("scaffold", "option", True),
        ("led", "b", 0.0),
        ("scaffnew", "probability", 1.5),
        *((name, "probability", 0.0) for name in ("compressed-scaffnew", "locodl", "marina")),
        ("compressed-scaffnew", "senders", 1),
        *((name, "alpha", 1.1) for name in ("diana", "dasha")),
        ("dasha", "beta", 0.0),
        ("dasha", "warmup_batches", 0),
        ("locodl", "rho", 1.1),
        ("locodl", "convexity", -0.1),
        ("ef21", "compress", RandomK(0.1)),
        *((name, "compress", TopK(0.1)) for name in ("fedpaq", "diana", "marina", "dasha", "locodl")),
        *(
            (name, "compress", ErrorFeedback(TopK(0.1)))
            for name in ("fedpaq", "ef21", "diana", "marina", "dasha", "locodl")
        ),
        *((name, "compress", value) for name in ("ef21", "marina") for value in (0.1, "top-k")),
        ("fedpd", "skip", 1.0),
        ("feddyn", "deliver", "both"),
        ("fedavg-m", "form", "reparametrized"),
        ("ce-lsgd", "pick", "best"),
        ("bvr-l-sgd", "period", 0),
        ("stem", "prev", "last"),
        ("stem", "lr", 0.0),
        *((name, "alpha", value) for name in ("fedda", "fedda-mvr", "fedda-distributed") for value in (0.0, 1.1)),
        *(
            ("fedda", field, value)
            for field, value in (
                ("lr", 0.0),
                ("b", 1.1),
                ("eps", 0.0),
                ("h0", -0.1),
                ("h0", "warm-up"),
                ("h0", fedax.PowerDecay(1.0)),
                ("lam", 0.0),
                ("gradient", "sgd"),
                ("metric", "l2"),
                ("warmup_batches", 0),
                ("w", 0.0),
                ("c", 0.0),
                ("c", "1"),
            )
        ),
        *(
            (name, field, value)
            for name in ("nesterov-fedavg", "fedmass")
            for field, value in (("lr", 0.0), ("momentum", 1.0), ("sync", "none"))
        ),
        ("fedmass", "lr2", -0.1),
        ("feddualavg", "lr", 0.0),
        ("feddualavg", "server_lr", 0.0),
        ("local-adapt", "correction", "both"),
        ("local-adapt", "beta1", 1.0),
        ("local-amsgrad", "lag", 1),
        ("local-amsgrad", "eps", 0.0),
        ("fedasync", "mixing", 1.1),
        ("fedasync", "prox", 21.0),  # lr · prox = 1.05
        *((name, "staleness", 0.5) for name in ("fedasync", "fedbuff")),
        *((name, "server_lr", 0.0) for name in ("fedbuff", "ca2fl", "fadas", "delayed-nesterov")),
        ("fadas", "beta1", 1.0),
        ("fadas", "threshold", 0),
        ("fadas", "shorten", "min"),
        ("ringmaster", "threshold", 0),
        ("delayed-nesterov", "every", 0),
        ("delayed-nesterov", "spread", 1.1),
        ("mime", "base", "adamw"),
        ("mime-mvr", "ref", "old"),
        ("mimelite", "base", 3),
    ],
)
def test_values_out_of_range(name, field, value):
    with pytest.raises(fedax.ConfigError) as caught:
        fedax.create(name, **{field: value})
    assert caught.value.field == field


def test_largest_pull_is_said():
    with pytest.raises(fedax.ConfigError, match=r"prox = 11.0: .*at most 10 here"):
        fedax.create("fedprox", lr=0.1, prox=11.0)
    assert fedax.create("fedprox", lr=0.1, prox=10.0).solver.prox == 10.0


@pytest.mark.parametrize(
    "hyper, message",
    [
        ({"nesterov": True}, "nesterov = True: give a momentum too"),
        ({"solver": fedax.SGD(0.1), "lr": 0.1}, "lr = 0.1: the solver is given as an object"),
        ({"solver": fedax.SGD(0.1), "momentum": 0.0}, "momentum = 0.0: the solver is .*an object"),
        ({"solver": fedax.SGD(0.1), "nesterov": True}, "nesterov = True: the solver is .*an object"),
        ({"solver": optax.sgd(0.1)}, "solver = .*give a fedax Solver"),
        ({"solver": "sgd"}, "solver = 'sgd': give a fedax Solver"),
        ({"server": "adm"}, "server = 'adm': did you mean 'adam'"),
        ({"server": 3}, "server = 3: give a name"),
        ({"server": fedax.Momentum(0.9), "server_lr": 0.5}, "server_lr = 0.5: the server is .*an object"),
        ({"server": fedax.Momentum(1.0)}, r"server_momentum = 1.0: .*\[0, 1\)"),
        ({"server": fedax.Adaptive("adamw")}, "kind = 'adamw': did you mean 'adam'"),
        (
            {"server": "momentum", "beta1": 0.9},
            "beta1 = 0.9: .*'momentum' has only",
        ),
        ({"server_momentum": 0.9}, "server_momentum = 0.9: .*'plain' has only"),
    ],
)
def test_combinations_that_cannot_be(hyper, message):
    with pytest.raises(fedax.ConfigError, match=message):
        fedax.create("fedavg", **hyper)


@pytest.mark.parametrize("method", ["fednova", "fednova-vr"])
def test_tau_eff_by_a_wrong_name(method):
    with pytest.raises(fedax.ConfigError, match="tau_eff = 'defualt': did you mean 'default'"):
        fedax.create(method, tau_eff="defualt")


def test_parts_as_objects():
    method = fedax.create("fednova", solver=fedax.SGD(0.1, momentum=0.5), server=fedax.SlowMo(0.7))
    assert (method.solver.momentum, method.optimizer.server_momentum) == (0.5, 0.7)
    assert isinstance(fedax.create("fedavg", server=optax.adam(0.1)).optimizer, fedax.OptaxServer)
    assert leaves(fedax.FedAvg(fedax.SGD(0.05))) == leaves(fedax.create("fedavg"))
    assert leaves(fedax.FedNovaVR(fedax.SGD(0.05))) == leaves(fedax.create("fednova-vr"))


@pytest.mark.parametrize("name", METHODS)
def test_schedules_are_taken_for_numbers(name):
    """In round 5, or at step 5, a method with a schedule is the method with the schedule's value, for every number."""
    tried = set()
    for field in fedax.hyperparameters(name):
        value = VALID[field]
        if not isinstance(value, float) or field in ("w", "c"):  # these two are the numbers of a schedule
            continue
        try:
            constant = fedax.create(name, **{field: value / 2})
        except fedax.ConfigError as error:
            assert "has only" in str(error) or "has no hyper-parameters" in str(error)  # of another server or base
            continue
        method = fedax.create(name, **{field: fedax.Piecewise(value, {3: 0.5})})
        method.validate()
        now, before = (
            jax.tree.map(
                lambda node, r=r: node(r) if isinstance(node, Stepwise) else node,
                resolve(method, r),
                is_leaf=lambda node: isinstance(node, Stepwise),
            )
            for r in (5, 0)
        )
        wanted = jax.tree.leaves(constant)
        np.testing.assert_allclose(jax.tree.leaves(now), wanted, rtol=1e-6)
        assert not np.allclose(jax.tree.leaves(before), wanted, rtol=1e-3)
        tried.add(field)
    assert "lr" in tried and ("server_lr" in tried) == ("server_lr" in fedax.hyperparameters(name))


@pytest.mark.parametrize(
    "name, called",
    [("vrl-sgd", "VRL-SGD"), ("nesterov-fedavg", "Nesterov FedAvg with sync='paper'"), ("fedpd", "FedPD")],
)
def test_a_refusal_has_the_name_that_the_paper_has(name, called):
    with pytest.raises(fedax.ConfigError, match=f"3 of 7 clients': {called} is .*use Full"):
        path(fedax.create(name), participation=fedax.Uniform(3), work=fedax.Steps(2))


@pytest.mark.parametrize(
    "name, field, hint",
    [
        ("led", "b", "1/max"),
        *((name, "probability", "1/max") for name in ("scaffnew", "compressed-scaffnew", "locodl")),
        *((name, "work", "Steps") for name in METHODS if fedax.create(name).traits().steps == "equal"),
    ],
)
def test_unequal_steps_that_a_method_cannot_use(name, field, hint):
    with pytest.raises(fedax.ConfigError, match=f"{field} = 'unequal local steps': .*{hint}"):
        path(fedax.create(name))


def test_bases_of_mime():
    assert fedax.create("mime", base="momentum", momentum=0.7).base.momentum == 0.7
    assert fedax.create("mimelite", base="adam", beta2=0.5).base.beta2 == 0.5 and fedax.create("mimelite").lite
    own = fedax.algorithms.BaseMomentum(0.6)
    assert fedax.create("mime", base=own).base is own
    for hyper, message in (
        ({"momentum": 0.5}, "momentum = 0.5: .*'sgd' has no"),
        ({"base": "adam", "momentum": 0.5}, "momentum = 0.5: .*'adam' has only"),
        ({"base": own, "momentum": 0.5}, "momentum = 0.5: the base is .*an object"),
        ({"base": "momentum", "momentum": 1.0}, r"momentum = 1.0: give a number in \[0, 1\)"),
        ({"lite": True}, "argument of mime = 'lite'"),
    ):
        with pytest.raises(fedax.ConfigError, match=message):
            fedax.create("mime", **hyper)


@pytest.mark.parametrize("name", [name for name in METHODS if "w" in fedax.hyperparameters(name)])
def test_rates_by_w_and_c(name):
    """η_t = lr/(w + t)^{1/3} and α_{t+1} = c η_t²."""
    method = fedax.create(name, lr=0.1, w=100.0, c=2000.0)
    for t in (0, 7, 1000):
        eta = 0.1 / (100.0 + t) ** (1 / 3)
        np.testing.assert_allclose([method.lr(t), method.alpha(t)], [eta, 2000.0 * eta**2], rtol=1e-6)
    constant = fedax.create(name, lr=0.1, c=20.0)
    np.testing.assert_allclose(jax.tree.leaves((constant.lr, constant.alpha)), [0.1, 0.2], rtol=1e-6)
    decaying = fedax.PowerDecay(0.1)
    for hyper, field in (({"lr": decaying, "w": 1.0}, "w"), ({"lr": decaying, "c": 1.0}, "c")):
        with pytest.raises(fedax.ConfigError) as caught:
            fedax.create(name, **hyper)
        assert caught.value.field == field
    with pytest.raises(fedax.ConfigError, match=r"alpha = 0\.5: c gives it"):
        fedax.create(name, alpha=0.5, c=1.0)


@pytest.mark.parametrize("name", [name for name in METHODS if "w" in fedax.hyperparameters(name)])
def test_alpha_is_refused_by_its_largest_value_however_it_is_given(name):
    message = r"c = 2000\.0: alpha .* 8\.355.*most 239\.4"
    with pytest.raises(fedax.ConfigError, match=message):
        fedax.create(name, lr=0.3, w=100.0, c=2000.0)
    with pytest.raises(fedax.ConfigError, match=r"c = 30\.0: alpha begins at c lr² = 2\.7"):
        fedax.create(name, lr=0.3, c=30.0)
    fedax.create(name, lr=0.3, w=100.0, c=239.3)
    for alpha, reached in ((fedax.PowerDecay(3.0, 2.0, 1.0), "1.5"), (fedax.Piecewise(0.5, {4: 3.0}), "1.5")):
        with pytest.raises(fedax.ConfigError, match=rf"alpha = .*reaches {reached}; give .*\(0, 1\]"):
            fedax.create(name, alpha=alpha)
    fedax.create(name, alpha=fedax.PowerDecay(3.0, 2.0, 1.0, cap=1.0))


def test_the_two_kinds_of_momentum_name_each_other():
    lines = fedax.available()
    assert "fedavg-m" in lines["server-momentum"] and "FedAvg-M" in lines["server-momentum"]
    assert "server-momentum" in lines["fedavg-m"] and "fedcm" in lines["fedavg-m"]
