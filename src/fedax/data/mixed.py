"""A column of pandas for many numbers and a few words: 12 bytes a cell, where a text of its own takes 60."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pandas.api import extensions, indexers


class Type(extensions.ExtensionDtype):
    """Of a column with numbers and words."""

    name, type, kind, na_value = "numbers and words", object, "O", np.nan

    @classmethod
    def construct_array_type(cls) -> Any:
        return NumbersAndWords


class NumbersAndWords(extensions.ExtensionArray):
    """Numbers, and words where there is none.

    Args:
        numbers: float64 [n], NaN where a cell is a word or missing.
        codes: int32 [n] which of the words a cell is, or −1.
        words: different texts, none of which is a number.

    Example:
        >>> import pandas
        >>> column = pandas.Series(NumbersAndWords([1.5, np.nan, np.nan], [-1, 0, -1], ["NA"]))
        >>> column.tolist(), column.isna().tolist()
        ([1.5, 'NA', nan], [False, False, True])
    """

    def __init__(self, numbers: Any, codes: Any, words: Sequence[str]):
        self.numbers, self.codes, self.words = np.asarray(numbers, float), np.asarray(codes, np.int32), list(words)

    @classmethod
    def of(cls, column: Any) -> "NumbersAndWords":
        """Of a column of these, or of numbers."""
        if isinstance(column.array, cls):
            return column.array
        return cls(column.to_numpy(float), np.full(len(column), -1), [])

    @classmethod
    def _from_sequence(cls, scalars: Iterable[Any], *, dtype: Any = None, copy: bool = False) -> "NumbersAndWords":
        found: dict[str, int] = {}
        values = list(scalars)
        codes = [found.setdefault(each, len(found)) if isinstance(each, str) else -1 for each in values]
        return cls([np.nan if isinstance(each, str) else each for each in values], codes, list(found))

    @classmethod
    def _concat_same_type(cls, parts: Sequence["NumbersAndWords"]) -> "NumbersAndWords":
        found: dict[str, int] = {}
        codes = []
        for part in parts:
            at = [found.setdefault(word, len(found)) for word in part.words]
            codes.append(np.array([*at, -1])[part.codes])
        return cls(np.concatenate([part.numbers for part in parts]), np.concatenate(codes), list(found))

    @property
    def dtype(self) -> Type:
        return Type()

    @property
    def nbytes(self) -> int:
        return int(self.numbers.nbytes + self.codes.nbytes)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, item: Any) -> Any:
        item = indexers.check_array_indexer(self, item)
        if np.ndim(item) == 0 and not isinstance(item, slice):
            return self.words[self.codes[item]] if self.codes[item] >= 0 else float(self.numbers[item])
        return NumbersAndWords(self.numbers[item], self.codes[item], self.words)

    def __eq__(self, other: object) -> Any:
        return np.array(list(self), object) == other

    def isna(self) -> np.ndarray:
        return np.isnan(self.numbers) & (self.codes < 0)

    def take(self, indices: Any, *, allow_fill: bool = False, fill_value: Any = None) -> "NumbersAndWords":
        numbers = extensions.take(self.numbers, indices, allow_fill=allow_fill, fill_value=np.nan)
        codes = extensions.take(self.codes, indices, allow_fill=allow_fill, fill_value=-1)
        return NumbersAndWords(numbers, codes, self.words)

    def copy(self) -> "NumbersAndWords":
        return NumbersAndWords(self.numbers.copy(), self.codes.copy(), self.words)
