"""HTML by which notebooks show results instead of their repr."""

import base64
import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedax.figures import Drawing


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table of texts, escaped; the first column has names, the others numbers.

    Example:
        >>> table(["Method", "Loss"], [["a < b", "0.5"]]).count("<td"), "a &lt; b" in table(["Method"], [["a < b"]])
        (1, True)
    """
    first = 'style="text-align:left"'
    titles = "".join(f'<th scope="col" {first * (not k)}>{html.escape(text)}</th>' for k, text in enumerate(head))
    body = "".join(
        f'<tr><th scope="row" style="text-align:left">{html.escape(name)}</th>'
        + "".join(f'<td style="text-align:right;white-space:nowrap">{html.escape(text)}</td>' for text in cells)
        + "</tr>"
        for name, *cells in rows
    )
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def image(figure: "Drawing", text: str) -> str:
    """A figure as an HTML image that holds its own data.

    Args:
        figure: from :mod:`fedax.figures`.
        text: a description for screen readers.

    Example:
        >>> from fedax.figures import Series, curves
        >>> image(curves([Series("fedavg", [0, 1], [[1.0, 0.5]])]), "curves")[:27]
        '<img alt="curves" style="wi'
    """
    from fedax.figures import encode  # slow

    content = base64.b64encode(encode(figure, "svg")).decode()
    style = "width:30em;max-width:100%;background:white"
    return f'<img alt="{html.escape(text)}" style="{style}" src="data:image/svg+xml;base64,{content}">'


def paragraph(*sentences: str) -> str:
    """Sentences as an HTML paragraph, escaped.

    Example:
        >>> paragraph("a < b.", "Yes.")
        '<p>a &lt; b. Yes.</p>'
    """
    return f"<p>{html.escape(' '.join(sentences))}</p>"
