"""Files: what all readers of files that are not trusted ask first, and names for new ones."""

import csv
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from fedax.errors import DataError


def regular(path: Path) -> int:
    """The size of a regular file in bytes.

    Raises:
        DataError: there is none, or it is a folder, a pipe or a device, which may have no end.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', error)})") from error
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path}: not a regular file, but a folder, pipe or device; give a file")
    return status.st_size


def cell(text: str) -> str:
    """A text for a CSV file that a spreadsheet does not take for a formula: ``'`` goes before it where it would.

    Example:
        >>> [cell(text) for text in ("=cmd()", "-1", "north", "'=a")]
        ["'=cmd()", '-1', 'north', "''=a"]
    """
    return f"'{text}" if _is_formula(text) else text


def text_of(cell: str) -> str:
    """The text that :func:`cell` was given.

    Example:
        >>> [text_of(each) for each in ("'=cmd()", "-1", "north", "'north'", "''=a")]
        ['=cmd()', '-1', 'north', "'north'", "'=a"]
    """
    return cell[1:] if cell.startswith("'") and _is_formula(cell) else cell


def quoting_of(texts: Iterable[str]) -> Literal[0, 1]:
    """What :mod:`csv` has to put into quotes: it leaves a carriage return bare, and other programs end a row there."""
    return csv.QUOTE_ALL if any("\r" in text for text in texts) else csv.QUOTE_MINIMAL


def _is_formula(text: str) -> bool:
    start = text.lstrip("'")
    if not start.startswith(("=", "+", "-", "@", "\t", "\r")):
        return False
    try:
        float(start)
    except ValueError:
        return True
    return start[0] in "\t\r"


def slug(label: str) -> str:
    """A label as a part of a file name.

    Example:
        >>> slug("FedProx μ=0.01 (2)")
        'FedProx-μ-0.01-2'
    """
    return re.sub(r"[^\w.]+", "-", label).strip("-.") or "run"
