"""What methods share: parts that may be given by name or as objects, and the warm-up at x^0."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx

from fedax.contract.algorithm import Change, Exchange, Round
from fedax.contract.compression import Compressor
from fedax.contract.compressors import compressor
from fedax.contract.hyper import HyperRule
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector
from fedax.errors import ConfigError
from fedax.registry import Registry

OTHERS = "what the others' gradients are"  # by which most methods correct a client's steps


class GradientState(NamedTuple):
    """Server state: the model, and the estimate g of the gradient: of EF21 and DASHA the mean of the clients' own."""

    x: Vector
    g: Vector


def part(field: str, value: Any, kind: type) -> Any:
    """``value``, if it is a part of this kind; else a ConfigError."""
    if not isinstance(value, kind):
        raise ConfigError(field, value, f"give a {kind.__name__} of fedax")
    return value


def named_part(registry: Registry, given: Any, kind: type, hyper: Mapping[str, Any]) -> Any:
    """The part that ``given`` names, with those of the hyper-parameters that are not ``None``; an object as it is.

    Raises:
        ConfigError: an unknown name, a hyper-parameter that the part does not have, or something else.
    """
    hyper = {name: value for name, value in hyper.items() if value is not None}
    if isinstance(given, str):
        component = registry.get(given)
        for name, value in hyper.items():
            if name not in component.arguments:
                has = f"only {', '.join(component.arguments)}" if component.arguments else "no hyper-parameters"
                raise ConfigError(name, value, f"the {registry.kind} {component.name!r} has {has}")
        return component.bind(hyper)[0]
    for name, value in hyper.items():
        raise ConfigError(name, value, f"the {registry.kind} is given as an object; set it there")
    if not isinstance(given, kind):
        raise ConfigError(registry.kind, given, f"give a name ({', '.join(registry)}), or a {kind.__name__} of fedax")
    return given


def unbiased(method: str, default: Compressor | None) -> Any:
    """Declare a compressor of a method that is unbiased, and remembers nothing itself.

    It may be given as a table; where it is ``None`` by default, that is no compression.
    """
    return _compressor(method, default, "an unbiased compressor", "fedax.RandomK(0.1)", lambda given: given.omega(2))


def contractive(method: str, default: Compressor | None) -> Any:
    """Declare a compressor of a method that is contractive; else as :func:`unbiased`."""
    return _compressor(method, default, "a contractive compressor", "fedax.TopK(0.1)", lambda given: given.alpha(2))


def _compressor(
    method: str, default: Compressor | None, kind: str, such: str, measure: Callable[[Compressor], Any]
) -> Any:
    def check(field: str, given: Compressor) -> None:
        if given.keeps:
            raise ConfigError("compress", given, f"{method} has a memory of its own; give the compressor in it alone")
        if measure(given) is None:
            raise ConfigError("compress", given, f"{method} needs {kind}, such as {such}")

    off = default is None
    read = lambda given: None if off and given is None else compressor(given)  # noqa: E731
    return eqx.field(default=default, converter=read, metadata={"rule": HyperRule(check, kind, off=off)})


def variance(compress: Compressor, d: int) -> Any:
    """ω of an unbiased compressor, for vectors of d numbers."""
    return compress.omega(d)


def first_gradients(
    batches: int | None, start: Callable[[Any, Vector, Vector], Any], *, remember: bool = False
) -> tuple[Exchange, ...]:
    """Every client sends the mean of B minibatch gradients at x^0; ``None``: no warm-up.

    Args:
        batches: B ≥ 1, or ``None``.
        start: ``(server, mean, sum) -> server``, the server's state with the clients' weighted mean gradient; ``sum``
            is Σ p_i g_i over the clients that were heard, of those that remember theirs: another vector where a guard
            leaves some out.
        remember: whether a client keeps its gradient as its memory, a control variate.
    """
    if batches is None:
        return ()

    def client(download: Vector, memory: Any, oracle: Oracle) -> tuple[Any, Any]:
        g = oracle.grad_batches(download, batches)
        return ((g, Change(g)), g) if remember else ((g, ()), memory)

    def server(server: Any, mean: Any, round: Round) -> Any:
        return start(server, *mean)

    return (Exchange(client, server, lambda server: server.x),)
