"""The colours of plots and report."""

# To be told apart by the colour-blind in this order; a ninth method begins again with broken lines.
COLOURS = ("#0b63c4", "#c8384a", "#1f8a4c", "#d98200", "#7b4fb5", "#008b98", "#8a5a3c", "#c2417c")
DASHES = ("solid", "dash", "dot", "dashdot")
CLASS_COLOURS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#edc948", "#76b7b2", "#9c755f", "#ff9da7", "#8a8f98",
)  # fmt: skip


def colour(k: int) -> str:
    """The colour of method k."""
    return COLOURS[k % len(COLOURS)]


def dash(k: int) -> str:
    """The line of method k."""
    return DASHES[k // len(COLOURS) % len(DASHES)]
