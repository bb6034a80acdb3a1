"""Writes the TOML of a run folder: the part of the format that a configuration needs."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any


def dumps(config: Mapping[str, Any]) -> str:
    """A configuration as TOML: plain values first, then its tables, then its lists of tables.

    ``None`` is left out, for TOML has no word for it.

    Example:
        >>> print(dumps({"name": "digits", "run": {"rounds": 3, "lr": {"at": {"2": 0.5}}}, "methods": [{"name": "x"}]}))
        name = "digits"
        <BLANKLINE>
        [run]
        rounds = 3
        lr = {at = {2 = 0.5}}
        <BLANKLINE>
        [[methods]]
        name = "x"
        <BLANKLINE>
    """
    plain = {k: v for k, v in config.items() if not _is_table(v) and not _is_tables(v)}
    parts = [_body(plain)] if plain else []
    parts += [f"[{_key(k)}]\n{_body(v)}" for k, v in config.items() if _is_table(v)]
    parts += [f"[[{_key(k)}]]\n{_body(row)}" for k, v in config.items() if _is_tables(v) for row in v]
    return "\n".join(parts)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_table(v) for v in value)


def _body(table: Mapping[str, Any]) -> str:
    return "".join(f"{_key(k)} = {_value(v)}\n" for k, v in table.items() if v is not None)


def _key(key: Any) -> str:
    return str(key) if re.fullmatch(r"[A-Za-z0-9_-]+", str(key)) else _string(str(key))


def _string(text: str) -> str:
    # JSON's escapes are TOML's too; only the control character DEL needs one that JSON leaves out.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(v) for v in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None) + "}"
    raise TypeError(f"no TOML for {value!r}")
