"""Tables as LaTeX (with booktabs) and Markdown. Texts of users are escaped, so that they appear unchanged."""

import html
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sheet:
    """A table of texts.

    Attributes:
        name: a short name of letters, for LaTeX labels.
        title: what the table shows, without a full stop.
        heads: of the columns; the first column has words, the others numbers.
        rows: [rows, columns].
        strong: the cells in bold, as (row, column).
        conclusion: as sentences, before the table.
        notes: how to read the table, as sentences.
    """

    name: str
    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: frozenset[tuple[int, int]] = frozenset()
    conclusion: Sequence[str] = ()
    notes: Sequence[str] = ()


def latex(sheets: Sequence[Sheet]) -> str:
    """The tables as LaTeX, for a document with the package booktabs."""
    tables = [_latex(sheet) for sheet in sheets]
    head = "% \\usepackage{booktabs}\n"
    seen = "\n".join(line for text in tables for line in text.split("\n") if not line.startswith("  % "))
    if not all(map(_in_latin_1, seen)):
        head += "% Some characters here are not known to pdfLaTeX: compile with LuaLaTeX or XeLaTeX, or rename.\n"
    return head + "\n".join(tables)


def _latex(sheet: Sheet) -> str:
    lines = ["\\begin{table}", "  \\centering", "  \\small", "  \\setlength{\\tabcolsep}{4pt}"]
    lines += [f"  % {_one_line(sentence)}" for sentence in sheet.conclusion]
    caption = " ".join([f"{sheet.title}.", *sheet.notes])
    lines += [f"  \\caption{{{tex(caption)}}}", f"  \\label{{tab:{sheet.name}}}"]
    lines += [f"  \\begin{{tabular}}{{l{'r' * (len(sheet.heads) - 1)}}}", "    \\toprule"]
    heads = [_wrapped(head, "l" if i == 0 else "r") for i, head in enumerate(sheet.heads)]
    lines += [f"    {' & '.join(heads)} \\\\", "    \\midrule"]
    for i, row in enumerate(sheet.rows):
        cells = [f"\\textbf{{{tex(cell)}}}" if (i, j) in sheet.strong else tex(cell) for j, cell in enumerate(row)]
        lines.append(f"    {' & '.join(cells)} \\\\")
    return "\n".join([*lines, "    \\bottomrule", "  \\end{tabular}", "\\end{table}", ""])


def _wrapped(head: str, side: str) -> str:
    """A head of several words, broken into lines."""
    lines = textwrap.wrap(head, 13, break_long_words=False, break_on_hyphens=False)
    if len(lines) < 2:
        return tex(head)
    text = r" \\ ".join(map(tex, lines))
    return f"\\begin{{tabular}}[b]{{@{{}}{side}@{{}}}}{text}\\end{{tabular}}"


def markdown(sheets: Sequence[Sheet]) -> str:
    """The tables as Markdown of GitHub's flavour."""
    return "\n".join(map(_markdown, sheets))


def _markdown(sheet: Sheet) -> str:
    lines = [f"### {md(sheet.title)}", ""]
    if sheet.conclusion:
        lines += [" ".join(map(md, sheet.conclusion)), ""]
    lines += [_row([md(head) for head in sheet.heads]), _row(["---", *["---:"] * (len(sheet.heads) - 1)])]
    for i, row in enumerate(sheet.rows):
        lines.append(_row([f"**{md(cell)}**" if (i, j) in sheet.strong else md(cell) for j, cell in enumerate(row)]))
    if sheet.notes:
        lines += ["", " ".join(map(md, sheet.notes))]
    return "\n".join([*lines, ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def md(text: str) -> str:
    r"""Escape a text, so that Markdown shows it as it is, also in a table.

    Example:
        >>> print(md("a|b *c* <d> $x_1$"))
        a\|b \*c\* &lt;d&gt; \$x\_1\$
    """
    return re.sub(r"([\\`*_{}\[\]#|~$])", r"\\\1", html.escape(_one_line(text), quote=False))


_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "[": "{[}", "]": "{]}", "*": "{*}",  # at the start of a row they are for the command before
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$", '"': "''",
    "…": r"\ldots{}",
    "–": "--", "—": "---", "’": "'", "‘": "`", "“": "``", "”": "''", "\u00a0": "~", "\u202f": r"\,",
    "±": r"$\pm$", "−": "$-$", "×": r"$\times$", "·": r"$\cdot$", "•": r"$\bullet$", "★": r"$\star$", "≈": r"$\approx$",
    "≤": r"$\leq$", "≥": r"$\geq$", "≠": r"$\neq$", "∞": r"$\infty$", "→": r"$\to$", "∇": r"$\nabla$", "‖": r"$\|$",
    "₀": "$_0$", "₁": "$_1$", "₂": "$_2$", "₃": "$_3$",
}  # fmt: skip
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_AS_LATIN = {"ALPHA": "A", "BETA": "B", "EPSILON": "E", "ZETA": "Z", "ETA": "H", "IOTA": "I", "KAPPA": "K", "MU": "M",
             "NU": "N", "OMICRON": "O", "RHO": "P", "TAU": "T", "CHI": "X"}  # fmt: skip


def tex(text: str) -> str:
    r"""Escape a text, so that LaTeX sets it as it is.

    Example:
        >>> print(tex("50 % of $x_1$, λ = 2 ± 1 × 10⁻³"))
        50 \% of \$x\_1\$, $\lambda$ = 2 $\pm$ 1 $\times$ 10$^{-3}$
    """
    raised = re.split("([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)", _one_line(text))
    parts = [
        f"$^{{{part.translate(_RAISED)}}}$" if i % 2 else "".join(map(_tex_letter, part))
        for i, part in enumerate(raised)
    ]
    return re.sub(r"(?<!\\)\$\$", "", "".join(parts))  # join neighbouring formulas


def _tex_letter(letter: str) -> str:
    if letter in _SPECIAL:
        return _SPECIAL[letter]
    size, _, name = unicodedata.name(letter, "").removeprefix("GREEK ").partition(" LETTER ")
    name = name.replace("LAMDA", "LAMBDA")
    if not unicodedata.name(letter, "").startswith("GREEK ") or not name.isalpha():
        return letter
    if name == "OMICRON" and size == "SMALL":
        return "o"
    if size == "CAPITAL":
        return _AS_LATIN.get(name) or f"$\\{name.capitalize()}$"
    return f"$\\{name.lower()}$"


def _in_latin_1(letter: str) -> bool:
    """Whether pdfLaTeX knows a character: ASCII and Latin-1."""
    return letter == "\n" or " " <= letter <= "~" or "\u00a1" <= letter <= "\u00ff"


def _one_line(text: str) -> str:
    return re.sub(r"[\x00-\x20\x7f]+", " ", text).strip()
