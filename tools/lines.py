"""Lines of code, without blank lines, comments and docstrings, by package.

``python tools/lines.py`` counts those of ``src`` and ``tests``, ``python tools/lines.py FOLDER …`` others.
"""

import ast
import io
import pathlib
import sys
import tokenize
from collections import Counter

_EMPTY = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def lines(text: str) -> int:
    """The lines of a Python text that hold code.

    Example:
        >>> lines('"A docstring."\\n\\n# a comment\\nx = (1,\\n     2)\\n')
        2
    """
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _EMPTY:
            code |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            code -= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    return len(code)


def packages(folder: pathlib.Path) -> Counter[str]:
    """Package -> lines of code; a package is the part of a file's path before its name."""
    found: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        found[str(path.parent.relative_to(folder.parent))] += lines(path.read_text(encoding="utf-8"))
    return found


def main() -> None:
    root = pathlib.Path(__file__).parents[1]
    for folder in map(pathlib.Path, sys.argv[1:] or [root / "src", root / "tests"]):
        found = packages(folder.resolve())
        for name, number in sorted(found.items()):
            print(f"{number:7,}  {name}")
        print(f"{found.total():7,}  {folder.name} in all\n")


if __name__ == "__main__":
    main()
