"""Reads and writes TOML: the part of the format that a configuration needs."""

import re
import tomllib
from collections.abc import Mapping
from typing import Any

import tomli_w

_LONGEST = 1 << 24  # bytes; lists in a configuration may have a number for each client or round
_DEPTH = 16
# Python's parser takes quadratic time for a dotted key, and a kilobyte for each table and key.
_PART = rb"""(?:[\w-]++|"(?:[^"\\\n]++|\\.)*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rb"(?:^|[{,])[ \t]*+\[{0,2}[ \t]*+(?:" + _PART + rb"\.[ \t]*+){16}", re.MULTILINE)
_TABLE = re.compile(rb"^[ \t]*+\[.*\][ \t]*+(?:#.*)?$", re.MULTILINE)
_LONG_WORD = re.compile(rb"[\w+-]{1000}")  # parsing it as a number takes 150 times its length
_MOST_KEYS = 10_000


def loads(content: bytes) -> dict[str, Any]:
    """Parse a TOML text in time and memory linear in its length; dates and integers above 64 bits are refused.

    Raises:
        ValueError: no such TOML; or it is too long, nested too deep, or has too many keys.

    Example:
        >>> loads(b"a = [1, 2.5]")
        {'a': [1, 2.5]}
    """
    if len(content) > _LONGEST:
        raise ValueError(f"{len(content)} bytes; a configuration has at most {_LONGEST}")
    # Each part of a table's name takes a kilobyte, too.
    tables = sum(1 + header.count(b".") for header in _TABLE.findall(content))
    keys = content.count(b"=") + content.count(b"{") + tables
    if keys > _MOST_KEYS or content.count(b"[") > _MOST_KEYS + len(content) // 16:
        raise ValueError(f"too many tables, keys or lists for a configuration; it has at most {_MOST_KEYS} keys")
    if _LONG_KEY.search(content):
        raise ValueError("a key with more than 16 parts")
    if _LONG_WORD.search(content):
        raise ValueError("a word or number of more than 1000 characters")
    try:
        config = tomllib.loads(content.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("nested too deep") from None
    check_plain(config)
    return config


def check_plain(content: Any) -> None:
    """Check that a value consists of texts, truth values, 64-bit numbers, and tables and lists of limited depth.

    Raises:
        ValueError: it has other parts.
    """
    level = [content]
    for _ in range(_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict | list):
                inner.extend(value.values() if isinstance(value, dict) else value)
            elif not isinstance(value, str | int | float | None):
                raise ValueError(f"{value} is a date or time, which no setting is")
            elif type(value) is int and not -(2**63) <= value < 2**63:
                raise ValueError("a whole number of more than 64 bits")
        if not inner:
            return
        level = inner
    raise ValueError("nested too deep")


def dumps(config: Mapping[str, Any]) -> str:
    """A configuration as TOML. ``None`` is left out, for TOML has no word for it.

    Example:
        >>> print(dumps({"name": "digits", "run": {"rounds": 3, "seeds": None}, "methods": [{"name": "x", "lr": 0.1}]}))
        name = "digits"
        methods = [
            { name = "x", lr = 0.1 },
        ]
        <BLANKLINE>
        [run]
        rounds = 3
        <BLANKLINE>
    """
    return tomli_w.dumps(_without_none(config))


def _without_none(value: Any) -> Any:
    """``value`` without ``None``, its keys as texts."""
    if isinstance(value, Mapping):
        return {str(key): _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
