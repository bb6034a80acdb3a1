"""The look of method k in figures and in the report: colour, dash and mark."""

WIDTH = 3.3  # inches, of one column of a paper

# Each differs from each other by 27 units of CIELAB or more, as people see them who lack one kind of cones too (Machado
# et al. 2009), and from white by a contrast of 3.
COLOURS = ("#0667c6", "#d77b05", "#8c0c72", "#829a5e", "#5b4b40", "#b982a7", "#ae1607", "#810dff")
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")  # nine markers and eight colours, so that pairs repeat late
CLASS_COLOURS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#edc948", "#76b7b2", "#9c755f", "#ff9da7", "#8a8f98",
)  # fmt: skip


def colour(k: int) -> str:
    """The colour of method k, as ``#rrggbb``.

    Example:
        >>> colour(0), colour(8) == colour(0)
        ('#0667c6', True)
    """
    return COLOURS[k % len(COLOURS)]


def dash(k: int) -> str:
    """The line of method k, one of ``DASHES``; neighbours differ, and so do methods of one colour.

    Example:
        >>> [dash(k) for k in (0, 1, 8)]
        ['solid', 'dash', 'dash']
    """
    return DASHES[(k + k // len(COLOURS)) % len(DASHES)]


def marker(k: int) -> str:
    """The mark of method k, as Matplotlib calls it.

    Example:
        >>> marker(0), marker(8)
        ('o', '>')
    """
    return MARKERS[k % len(MARKERS)]
