"""A call of a public function that lacks an argument says which, and what to give."""

import inspect
import types

import pytest

import fedax

MODULES = (fedax, fedax.data, fedax.tasks, fedax.metrics)
FOR_METHODS = {"local_steps", "zeros_like"}  # called with what fedax hands them


def public():
    for module in MODULES:
        for name in module.__all__:
            function = getattr(module, name)
            plain = isinstance(function, types.FunctionType) or type(function).__name__ == "Factory"
            if plain and name not in FOR_METHODS:
                fields = inspect.signature(function).parameters.values()
                several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
                due = [each for each in fields if each.default is each.empty and each.kind not in several]
                if due:
                    yield pytest.param(function, [each.name for each in due], id=f"{module.__name__}.{name}")


@pytest.mark.parametrize(("function", "due"), [*public()])
def test_what_is_missing_is_named(function, due):
    call = f"{function.__name__}\\({', '.join(due)}\\)"
    for number, name in enumerate(due):
        with pytest.raises(fedax.ConfigError, match=rf"^{name} = None: this is missing; give {call}"):
            function(**dict.fromkeys(due[:number]))


def test_what_the_docstring_says_is_said():
    with pytest.raises(fedax.ConfigError, match=r"from_torch\(module, example\): one batch"):
        fedax.tasks.from_torch(object())
    with pytest.raises(fedax.ConfigError, match=r"rounds = None: .*simulate\(.*, rounds\): "):
        fedax.simulate(None, None, None)
    with pytest.raises(fedax.ConfigError, match=r"dirichlet\(labels, clients, alpha\): α > 0"):
        fedax.data.dirichlet([0, 1], 2)


def test_other_mistakes_stay_what_they_are():
    with pytest.raises(TypeError, match="unexpected keyword argument 'colums'"):
        fedax.data.from_csv(colums={})
    with pytest.raises(TypeError, match="unexpected keyword argument 'feature'"):
        fedax.tasks.mlp(4, 3, feature=3)

    def fails(key):
        raise TypeError("of the user's own")

    with pytest.raises(fedax.FedaxError, match="of the user's own"):
        fedax.evaluate(fedax.Task(fails, fails), {}, fedax.data.quadratics(2, 2))
