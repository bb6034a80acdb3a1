"""A compressor from a table of a configuration."""

from collections.abc import Mapping

from fedax.contract.compression import COMPRESSORS, Compressor
from fedax.contract.types import Unknown
from fedax.errors import ConfigError


def compressor(given: Unknown, field: str = "compress") -> Compressor:
    """A :class:`Compressor` as it is, or made from a table, as a configuration has it.

    Args:
        given: such as ``{"name": "top-k", "share": 0.1}``; the other keys are the compressor's arguments.
        field: what errors call it.

    Raises:
        ConfigError: an unknown name or key, a missing key, or something else.

    Example:
        >>> compressor({"name": "top-k", "share": 0.1})
        TopK(share=0.1)
    """
    if isinstance(given, Compressor):
        return given
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise ConfigError(field, given, "give a fedax Compressor, such as fedax.TopK(0.1), or {name = 'top-k', …}")
    table = dict(given)
    found: Compressor = COMPRESSORS.bind(table.pop("name"), table, section=field)[0]
    return found
