"""One value that is written in several ways: in case, spaces, accents, encoding, or as another code of two classes."""

import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping

from fedax.data.cells import few, plain_numbers, shown

# What two classes are called, without case and accents. Words that may be one of three classes, such as "normal", are
# none: to take different classes for one is worse than to miss two codings.
_PAIRS = [
    {"no", "yes"}, {"n", "y"}, {"false", "true"}, {"f", "t"}, {"0", "1"}, {"1", "2"}, {"-1", "1"},
    {"neg", "pos"}, {"negative", "positive"}, {"negativ", "positiv"}, {"-", "+"}, {"absent", "present"},
    {"nein", "ja"}, {"n", "j"}, {"non", "oui"}, {"no", "si"}, {"nao", "sim"}, {"nee", "ja"}, {"nej", "ja"},
    {"female", "male"}, {"f", "m"}, {"w", "m"}, {"weiblich", "mannlich"},
]  # fmt: skip

Counted = Mapping[str, Mapping[str, int]]  # client -> text -> cells


def repaired(text: str) -> str:
    """The text as it was, if it is UTF-8 that was read as Latin-1 or cp1252.

    Example:
        >>> repaired("KÃ¶ln"), repaired("Köln")
        ('Köln', 'Köln')
    """
    if text.isascii():
        return text
    for encoding in ("cp1252", "latin-1"):
        try:
            return text.encode(encoding).decode()
        except UnicodeError:
            continue
    return text


def folded(text: str) -> str:
    """The text without case, accents and surplus spaces, and repaired; two texts that fold to one mean the same.

    Example:
        >>> folded("  KÃ–LN  Mitte"), folded("Koln mitte")
        ('koln mitte', 'koln mitte')
    """
    apart = unicodedata.normalize("NFKD", " ".join(repaired(text).split()).casefold())
    return "".join(letter for letter in apart if not "\u0300" <= letter <= "\u036f")


def alike_words(texts: Iterable[str]) -> list[list[str]]:
    """Texts that differ only in case, spaces, accents or encoding.

    Example:
        >>> alike_words(["North", "south", "north"])
        [['North', 'north']]
    """
    of_fold: dict[str, list[str]] = {}
    for text in dict.fromkeys(texts):
        of_fold.setdefault(folded(text), []).append(text)
    return [each for each in of_fold.values() if len(each) > 1]


def two_codings(counts: Counted) -> str:
    """Where the values of a label or category are coded in two ways; empty if they are not, as far as texts tell.

    They are where two classes differ only in case, spaces, accents or encoding; where one client has numbers and
    another words; and where each client has one of the usual pairs, but not all the same one. That a client has some
    of the classes, or one, is ordinary, and says nothing.

    Example:
        >>> two_codings({"north": {"no": 3, "yes": 4}, "south": {"1": 5, "0": 1}})
        "'no', 'yes' at 'north'; '0', '1' at 'south'"
        >>> two_codings({"north": {"0": 3, "1": 4}, "south": {"2": 5}})
        ''
    """
    classes = {client: {*texts} for client, texts in counts.items() if texts}
    alike = [each[:2] for each in alike_words(sorted(set().union(*classes.values())))]
    letters = [pair for pair in alike if len(folded(pair[0])) == 1]
    if any(texts >= {*pair} for pair in letters for texts in classes.values()):
        alike = [pair for pair in alike if pair not in letters]  # an alphabet, in which A and a are two
    for pair in alike:
        at = [next(client for client, texts in classes.items() if text in texts) for text in pair]
        first, second = sorted(at, key=[*classes].index)
        return _both(classes, first, second) if first != second else f"{few(pair)} at {shown(first)}"
    numbers = [client for client, texts in classes.items() if plain_numbers([*texts]) is not None]
    words = [client for client, texts in classes.items() if all(_is_word(text) for text in texts)]
    if numbers and words and len(numbers) + len(words) == len(classes):
        return _both(classes, *sorted([numbers[0], words[0]], key=[*classes].index))
    fold = {text: folded(text) for text in set().union(*classes.values())}
    names = {client: {fold[text] for text in texts} for client, texts in classes.items()}
    for client, each in names.items():
        pairs = [pair for pair in _PAIRS if pair <= each]
        apart = any(a.isdisjoint(b) for a, b in itertools.combinations(pairs, 2))
        if apart and each <= set().union(*pairs) and not _numeric(each):
            return f"{few(sorted(classes[client]))} at {shown(client)}"
    every = set().union(*names.values())
    paired = all(any(each <= pair for pair in _PAIRS) for each in names.values())
    if paired and not _numeric(every) and not any(every <= pair for pair in _PAIRS):
        first, second = next(
            (a, b)
            for a, b in itertools.combinations(names, 2)
            if not any(names[a] | names[b] <= pair for pair in _PAIRS)
        )
        return _both(classes, first, second)
    return ""


def _both(classes: Mapping[str, set[str]], first: str, second: str) -> str:
    return "; ".join(f"{few(sorted(classes[client]))} at {shown(client)}" for client in (first, second))


def _numeric(texts: Iterable[str]) -> bool:
    return plain_numbers([*texts]) is not None


def _is_word(text: str) -> bool:
    return any(letter.isalpha() for letter in text) and not any(letter.isdigit() for letter in text)


def unshared(counts: Counted) -> str:
    """The values of the first two clients, if no two clients have one in common; else empty.

    Example:
        >>> unshared({"north": {"a": 3, "b": 4}, "south": {"c": 5}})
        "'a', 'b' at 'north'; 'c' at 'south'"
    """
    classes = {client: {*texts} for client, texts in counts.items() if texts}
    if len(classes) < 2 or max(Counter(itertools.chain.from_iterable(classes.values())).values()) > 1:
        return ""
    return _both(classes, *[*classes][:2]) + "; …" * (len(classes) > 2)
