"""Reads workbooks of Excel: the cells of a sheet become the texts that they would be in a CSV file."""

import datetime
import itertools
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedax.data.cells import WIDE, column_name, instant, shown, text_of
from fedax.data.delimited import names_of, read_numbers, stored, unnamed
from fedax.data.formats import need, reading, room
from fedax.errors import DataError
from fedax.files import regular

ENDINGS = (".xlsx", ".xlsm")
_ZEROS = re.compile(r"0{2,}")  # a format of numbers, such as that of postal codes


def read_workbook(
    path: Path,
    decimal: str | None = None,
    as_written: Callable[[str], bool] = lambda name: False,
    drop: Sequence[str] = (),
) -> Any:
    """The first sheet of a workbook as a table of pandas; its first row that is not empty names the columns.

    Needs openpyxl: ``pip install 'fedax[excel]'``. Rows and columns without any value are left aside.

    Args:
        path: an .xlsx file.
        decimal, as_written, drop: as of :func:`fedax.data.delimited.read_csv`; numbers of Excel need none.

    Returns:
        The table; its ``attrs["written"]`` says which sheet it is, if there are several.

    Raises:
        DataError: another kind of file; no rows; a column without a name; a formula whose value is not in the file;
            numbers written as text that can be read in two ways.
    """
    import pandas
    import pyarrow

    openpyxl = need("openpyxl", "excel", "reading Excel")
    _check(path)
    with reading(path, "an Excel workbook"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forms and styles that openpyxl does not keep
        with path.open("rb") as file, path.open("rb") as beside:
            values = openpyxl.load_workbook(file, read_only=True, data_only=True)
            sheets = [sheet for sheet in values.worksheets if sheet.sheet_state == "visible"]
            if not sheets:
                raise DataError(f"{path}: no visible sheet is in it")
            title = sheets[0].title
            formulas = openpyxl.load_workbook(beside, read_only=True)[title] if _has_formulas(path) else None
            rows = [row for row in _rows(path, sheets[0], formulas) if any(text for text, _ in row)]
    if len(rows) < 2:
        raise DataError(f"{path}: sheet {shown(title)} has no rows below the names of columns; leave it out")
    columns = list(itertools.zip_longest(*rows, fillvalue=("", False)))
    kept = [column for column in columns if any(text for text, _ in column)]
    notes = [f"the first of {len(sheets)} sheets, {shown(title)}"] if len(sheets) > 1 else []
    for column in [column for column in kept if not column[0][0]]:
        try:
            notes.append(unnamed(path, columns.index(column), [text for text, _ in column[1:]]))
        except DataError as error:
            hint = f"in sheet {shown(title)} remove titles and merged cells above the table"
            raise DataError(f"{error}; {hint}") from None
        kept.remove(column)
    names = names_of(path, [column[0][0] for column in kept])
    exact = {*filter(as_written, names)}
    written = {
        name: pandas.Series([text if is_text and text else None for text, is_text in column[1:]], dtype=object)
        for name, column in zip(names, kept, strict=True)
    }
    vote = read_numbers(path, written, exact.union(map(column_name, drop)), decimal)
    read = {}
    for name, column in zip(names, kept, strict=True):
        merged = [
            (new if is_text else text) or None
            for (text, is_text), new in zip(column[1:], written[name].astype(object), strict=True)
        ]
        cells = pyarrow.array(merged, pyarrow.string(), from_pandas=True)
        read[name] = cells.to_pandas() if name in exact else stored(cells)
    table = pandas.DataFrame(read)
    table.attrs["written"] = ", ".join([*notes, *([f"decimals with {vote}"] if vote != "'.'" else [])])
    return table


def _check(path: Path) -> None:
    """Whether it is a packed file of a usual size."""
    size = regular(path)
    with path.open("rb") as file:
        begin = file.read(4)
    if begin == b"\xd0\xcf\x11\xe0":
        raise DataError(f"{path}: an old workbook, or one with a password; save it as .xlsx without one")
    with reading(path, "an Excel workbook"), zipfile.ZipFile(path) as archive:
        if sum(each.file_size for each in archive.infolist()) > room(size):
            raise DataError(f"{path}: unpacks to more than {room(size)} bytes, too many for its size")


def _has_formulas(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        sheets = [each for each in archive.infolist() if each.filename.startswith("xl/worksheets/")]
        return any(b"<f>" in content or b"<f " in content for content in map(archive.read, sheets))


def _rows(path: Path, sheet: Any, formulas: Any) -> Iterator[list[tuple[str, bool]]]:
    """The text of each cell, and whether it is text in the workbook, too."""
    for each in (sheet, formulas):
        if each is not None:
            each.reset_dimensions()  # files may declare others than they have
    beside: Iterable[Any] = itertools.repeat(()) if formulas is None else formulas.iter_rows()
    for row, written in zip(sheet.iter_rows(), beside, strict=False):
        if len(row) > WIDE:
            raise DataError(f"{path}: {len(row)} columns; at most {WIDE} are taken")
        for cell, formula in zip(row, written, strict=False):
            if cell.value is None and formula.data_type == "f" and cell.data_type != "str":
                what = f"cell {formula.coordinate} is a formula, and its value is not in the file"
                raise DataError(f"{path}: {what}; open it in Excel and save it")
        yield [_text(cell) for cell in row]


def _text(cell: Any) -> tuple[str, bool]:
    value = cell.value
    if value is None or isinstance(value, str):
        return (value or "").strip(), True
    if isinstance(value, bool):
        return str(value), False
    if isinstance(value, float):
        return text_of(value), False
    if isinstance(value, int):
        code = _ZEROS.fullmatch(cell.number_format or "") and value >= 0
        return text_of(value).zfill(len(cell.number_format) if code else 0), False
    if isinstance(value, datetime.date):
        return instant(value), False
    return str(value), False
