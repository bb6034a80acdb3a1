"""An option is declared once; what is made of the declaration agrees with it."""

import dataclasses
import inspect
import re

import pytest

import fedax
from fedax.engine.declared import check_kinds, declared, docs_of, takes, value_of
from fedax.engine.make import make_job
from fedax.engine.options import OF_WIRE, OPTIONS, CommonOptions, Options
from fedax.experiments import build
from fedax.experiments.config import codec
from fedax.experiments.config.sections import ExperimentSection, check
from fedax.sites.protocol.train import train
from fedax.wire.wire import Wire

FIELDS = [field.name for field in dataclasses.fields(CommonOptions)]
TAKING = [fedax.simulate, fedax.sweep, fedax.compare, fedax.arrivals, train, make_job]
DATA, TASK, METHOD = fedax.data.quadratics(clients=4, dimension=2), fedax.tasks.quadratic(2), fedax.create("fedavg")
# Of each option that a configuration has a value that is not its default.
GIVEN = {
    "rounds": 3,
    "work": fedax.Steps(2),
    "batch_size": 1,
    "participation": fedax.Uniform(2),
    "evaluate_every": 2,
    "clock": fedax.Clock(step=2.0),
    "pace": fedax.Async(2),
    "until": fedax.Patience("train_loss", 2),
    "min_heard": 0.5,
    "newcomer_turns": 2,
    "train_loss": "none",
    "guard": fedax.Guard(10.0),
    "aggregate": fedax.TrimmedMean(0.2),
    "faults": fedax.Faults([1], sends=2.0),
    "privacy": fedax.DP(1.0, 1.0, 0.01),
    "compress": {"up": fedax.TopK(0.5)},
    "secure": fedax.SecureSum(1.0),
    "place.chunk_size": 2,
    "place.precision": "float32",
}


def options(name, **more):
    given = {"rounds": 3, **more}
    if name.startswith("place."):
        return given | {"place": fedax.Place(**{name.removeprefix("place."): GIVEN[name]})}
    return given | {name: GIVEN[name]}


@pytest.mark.parametrize("function", TAKING, ids=lambda function: function.__name__)
def test_functions_have_all_options_with_their_docs(function):
    fields = inspect.signature(function).parameters
    names = [*FIELDS, *(["seed"] if function not in (fedax.sweep, fedax.compare) else [])]
    assert [name for name in fields if name in names] == names
    for name, field in fields.items():
        meaning = re.search(rf"^    {name}: (\S)", function.__doc__, re.MULTILINE)
        assert meaning, name
        if name in ("work", "guard", "compress"):
            assert field.default is None and field.kind is field.KEYWORD_ONLY
    assert ("seed" in fields) == ("seed" in names)


def test_each_option_is_declared_with_its_docs_and_its_setting_is_its_own():
    assert [*declared(CommonOptions)] == [name for name in OPTIONS if name != "seed"]
    assert [*FIELDS, "seed"] == [*docs_of(Options)]
    assert {*FIELDS, "seed"} - {name for name in OPTIONS if "." not in name} == {"val", "test", "params"}
    settings = [each.option.setting for each in OPTIONS.values() if each.option.setting]
    assert len({*settings}) == len(settings) and {*GIVEN} == {name for name, each in OPTIONS.items() if each.path}
    stages = {field.name for field in dataclasses.fields(Wire)}
    assert {*OF_WIRE} - {"compress"} <= stages


@pytest.mark.parametrize("name", GIVEN)
def test_a_setting_is_written_and_read_again(name):
    written = codec.written_options(Options(**options(name)))
    config = {"data": {"name": "quadratics"}, "methods": [{"name": "fedavg"}], **written}
    read = codec.options_of(check(config).model_dump(exclude_none=True) | {"data": {}, "methods": []})
    again, each = Options(**read), OPTIONS[name]
    assert each.within(written) is not None and each.within(codec.written_options(again)) == each.within(written)
    assert name == "compress" or repr(value_of(again, name)) == repr(GIVEN[name])
    assert each.path[0] in ExperimentSection.model_fields


@pytest.mark.parametrize("name", [name for name, each in OPTIONS.items() if each.option.hint])
def test_a_value_of_another_type_is_refused_with_the_hint(name):
    with pytest.raises(fedax.ConfigError) as error:
        check_kinds(Options(**{"rounds": 3, name: object()}))
    assert error.value.field == name and error.value.hint == OPTIONS[name].option.hint


def test_what_is_part_of_the_identity_is_told_in_plain_texts():
    def settings(**given):
        return make_job(METHOD, TASK, DATA, **{"rounds": 3} | given).settings()

    usual = settings()
    assert (usual["batch_size"], usual["seed"]) == ("None", "0") and "precision" not in usual
    assert not {"clock", "chunk_size", "place", *OF_WIRE, "compress.up"} & usual.keys()
    found = settings(batch_size=1, seed=7, place=fedax.Place(precision="float32", chunk_size=1), secure=GIVEN["secure"])
    assert {name: found[name] for name in ("batch_size", "seed", "precision", "secure", "secure.clip")} == {
        "batch_size": "1", "seed": "7", "precision": "float32", "secure": "SecureSum", "secure.clip": "1.0",
    }  # fmt: skip
    assert settings(clock=GIVEN["clock"])["clock.step"] == "2.0"


def test_nodes_are_told_of_the_wire_and_of_what_else_they_do():
    config = {
        "data": {"name": "quadratics", "clients": 4, "dimension": 2},
        "run": {"rounds": 3, "batch_size": 1, "chunk_size": 2, "precision": "float32", "guard": True},
        "methods": [{"name": "fedavg", "lr": 0.1}],
    }
    experiment = build(config)
    told = {"rounds": 3, "batch_size": 1, "precision": "float32"}
    assert experiment.problem("fedavg")["run"] == told | {"guard": True}
    alone = experiment.problem_alone(0.1, 7)
    assert alone["run"] == told | {"rounds": 7, "evaluate_every": 7} and alone["work"] == {
        "kind": "epochs",
        "epochs": 1,
    }
    for problem in (experiment.problem("fedavg"), alone):
        assert {"task", "method", "run", "work"} <= problem.keys() <= {"task", "method", "run", "work", "participation"}


def test_a_wrong_call_says_what_is_wrong():
    with pytest.raises(TypeError, match=r"simulate\(\): .*keyword argument 'secur'"):
        fedax.simulate(METHOD, TASK, DATA, rounds=3, secur=None)
    with pytest.raises(TypeError, match=r"sweep\(\): missing .*'rounds'"):
        fedax.sweep(lambda: METHOD, [{}], TASK, DATA)
    with pytest.raises(fedax.ConfigError, match=r"seed = 3: sweep has .*seeds="):
        fedax.sweep(lambda: METHOD, [{}], TASK, DATA, rounds=3, seed=3)


def test_an_argument_of_a_class_of_ones_own():
    @dataclasses.dataclass(frozen=True)
    class Given(CommonOptions):
        """Arguments.

        Args:
            what: what it is.
            rounds: that are to be acted.
        """

        what: str

    @takes(Given)
    def act(given):
        """Act."""
        return given.what, given.keywords

    what, keywords = act("this", rounds=2)
    assert what == "this" and [*keywords] == FIELDS and keywords["rounds"] == 2
    assert act.__doc__.startswith("Act.\n\nArgs:\n    what: what it is.\n    rounds: that are to be acted.\n")
