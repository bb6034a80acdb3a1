"""Components by name: one spelling and one error wherever a name is given, in Python, in TOML and to the command."""

import inspect

import pytest

import fedax
from fedax.algorithms import METHODS
from fedax.algorithms.mime import BASES
from fedax.algorithms.server import SERVERS
from fedax.contract.compressors import COMPRESSORS
from fedax.contract.regularizers import REGULARIZERS, regularizer
from fedax.data import FEDERATIONS, PARTITIONS, SETS
from fedax.experiments import build, datasets, override
from fedax.experiments.defaults import comparison
from fedax.federation import PARTICIPATION, WORK
from fedax.registry import Registry, within
from fedax.tasks import TASKS
from fedax.wire import AVERAGES

ALL = [
    METHODS, BASES, SERVERS, REGULARIZERS, SETS, FEDERATIONS, PARTITIONS, WORK, PARTICIPATION, TASKS, AVERAGES,
    COMPRESSORS,
]  # fmt: skip
SHAPES = Registry("shape")
SHAPES.add("round-disc", lambda radius, colour="red": (radius, colour), "all points near one", aliases=("disc",))
SHAPES.add(
    "red_square", lambda side, colour: (side, colour), "four sides", fixed={"colour": "red"}, defaults={"side": 2}
)
SHAPES.add("point", lambda: (), "no size")


@pytest.mark.parametrize("registry", ALL, ids=lambda registry: registry.kind)
def test_every_name_is_found_in_any_spelling_and_has_a_line(registry):
    assert len(registry.available()) == len(list(registry)) >= 3
    for name, line in registry.available().items():
        assert line and "\n" not in line and "``" not in line
        for spelling in (name, name.upper(), name.replace("-", "_"), name.replace("_", "-").title()):
            assert spelling in registry and registry.get(spelling).name == name
        assert f"{name}x" not in registry
        for alias in registry.get(name).aliases:
            assert registry.get(alias.upper()).name == name
        assert set(registry.get(name).defaults) <= set(registry.get(name).arguments)
        assert not set(registry.get(name).fixed) & set(registry.get(name).arguments)
        assert set(registry.get(name).fixed) <= set(inspect.signature(registry.get(name).make).parameters)


@pytest.mark.parametrize("registry", ALL, ids=lambda registry: registry.kind)
def test_an_unknown_name_is_answered_with_the_nearest(registry):
    nearest = next(iter(registry))
    with pytest.raises(fedax.ConfigError, match=f"^{registry.kind} = '{nearest}q': .*'{nearest}'") as caught:
        registry.make(f"{nearest}q")
    assert all(name in str(caught.value) for name in registry)
    with pytest.raises(fedax.ConfigError, match=f"^{registry.kind} = 3: give a name: "):
        registry.get(3)


def test_arguments_defaults_and_what_is_fixed():
    assert SHAPES.make("DISC", radius=1) == (1, "red") and SHAPES.make("red-square") == (2, "red")
    assert SHAPES.get("red-square").arguments == {"side": 2}
    assert SHAPES.bind("Red-Square", {}) == ((2, "red"), {"name": "red_square", "side": 2})
    assert SHAPES.bind("disc", {"colour": None}, 3, key="kind") == ((3, None), {"kind": "round-disc", "colour": None})
    assert SHAPES.available()["round-disc"] == "all points near one [alias disc]"


@pytest.mark.parametrize(
    "name, given, section, message",
    [
        ("disc", {"radus": 1}, None, "argument of round-disc = 'radus': did you mean 'radius'?"),
        ("disc", {"radus": 1}, "data", "data.radus = 1: did you mean 'radius'?"),
        ("disc", {}, None, "radius = None: this is missing; round-disc takes radius, colour"),
        ("disc", {}, "data", "data.radius = None: this is missing"),
        ("red-square", {"colour": "blue"}, "data", "data.colour = 'blue': no such name. There are: side"),
        ("point", {"side": 3}, "data", "data.side = 3: there is nothing to set here"),
        ("dics", {}, "data", "data.name = 'dics': did you mean 'disc'?"),
    ],
)
def test_what_cannot_be(name, given, section, message):
    with pytest.raises(fedax.ConfigError) as caught:
        SHAPES.bind(name, given, section=section)
    assert str(caught.value).startswith(message)


def test_a_name_cannot_be_given_twice():
    own = Registry("shape")
    own.add("disc", lambda: 1, "round")
    for name, aliases in (("Disc", ()), ("circle", ("DISC",))):
        with pytest.raises(ValueError, match=r"there is a shape '(Disc|DISC)' already"):
            own.add(name, lambda: 2, "round", aliases=aliases)
    assert list(own) == ["disc"]


def test_what_making_raises_is_reported_as_a_setting_of_the_section():
    def refuse(error: Exception) -> None:
        raise error

    with pytest.raises(fedax.ConfigError, match=r"^data\.alpha = 0: give more"):
        within("data", lambda: refuse(fedax.ConfigError("alpha", 0, "give more")))
    with pytest.raises(fedax.DataError, match=r"^data: no examples"):
        within("data", lambda: refuse(fedax.DataError("no examples")))


def test_a_configuration_takes_any_spelling_and_writes_the_canonical_one():
    config = {
        "data": {"name": "Digits", "clients": 4, "partition": "Power_Law", "min_size": 20},
        "task": {"name": "Softmax-Regression"},
        "work": {"kind": "RANDOM_EPOCHS", "low": 1, "high": 2},
        "participation": {"kind": "Uniform_Normalized", "size": 2},
        "run": {"rounds": 1, "batch_size": 32, "aggregate": "Coordinate_Median"},
        "methods": [
            {"name": "FedAvgM", "lr": 0.1},
            {"name": "feddualavg", "regularizer": {"name": "L1_Ball", "radius": 1}},
        ],
    }
    experiment = build(config)
    written = experiment.config
    assert (written["data"]["name"], written["data"]["partition"]) == ("digits", "power-law")
    assert (written["task"]["name"], written["work"]["kind"]) == ("softmax_regression", "random-epochs")
    assert written["participation"]["kind"] == "uniform-normalized"
    assert experiment.options["aggregate"] == fedax.CoordinateMedian()
    assert experiment.methods["FedAvgM"].optimizer.server_momentum == 0.9 and written["methods"][0]["name"] == "FedAvgM"
    assert experiment.methods["feddualavg"].regularizer.radius == 1
    again = build(written)
    assert again.config == written and again.task is experiment.task


def test_other_doors_take_any_spelling_too():
    assert fedax.tasks.create("Softmax-Regression", features=2, classes=2) is fedax.tasks.softmax_regression(2, 2)
    assert fedax.data.load("DIGITS").name == "digits" and set(datasets()) == {*SETS, *FEDERATIONS}
    assert isinstance(regularizer({"name": "Non_Negative"}), fedax.NonNegative)
    assert isinstance(fedax.create("fedavg", server="SlowMo").optimizer, fedax.SlowMo)
    config = comparison("mnist", ["fedavg"])
    override(config, "data.partition=Column")
    assert "clients" not in config["data"]
