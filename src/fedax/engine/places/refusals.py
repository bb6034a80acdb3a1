"""The refusals of a node: fixed texts, for they go to a coordinator that is not trusted."""

import enum

from fedax.data.cells import shown
from fedax.errors import NodeError


class Rule(enum.Enum):
    """Why a node refuses, in words that say nothing of its data; what does is on its own terminal."""

    QUESTION = "the question is none that this version of fedax answers"
    FAILED = "the node failed; its terminal says more"
    NO_TRANSFORM = "its table is not transformed yet: fedax deploy tables"
    OTHER_TABLE = "the transform that it has does not fit its table: fedax deploy tables again"
    NOT_SENT = "this transform was not sent to it before: fedax deploy tables again"
    NO_LABEL = "there is no label in what is asked, and nothing is learned without one"
    NO_COLUMN = "its table has no such column"
    COLUMN = "a column of its table cannot be used so; the node's terminal says which and why"
    NUMBER = "a number is beyond float32, or has no logarithm where one is asked for; the node's terminal says which"
    LABEL_MISSING = "a row has no label; its owner leaves such rows out: fedax deploy node … --drop-missing-labels"
    LABEL_UNKNOWN = (
        "a label is no number, or none of the transform's classes, of which those of a few rows at every site are "
        "not named; its owner joins such a class with another, or leaves its rows out"
    )
    FEW_ROWS = "its table has too few rows for a summary that hides single ones"
    IDENTIFIES = (
        "texts of a column identify rows, and leave this site only if its owner agrees: fedax deploy node … --review"
    )
    LEFT = "no other summary of a column leaves; its owner looks into left/ in the node's folder, and moves it away"
    TRANSFORMS = "no other transform is tried; its owner looks into left/ in the node's folder, and moves it away"
    LEFT_UNREADABLE = "left/ in the node's folder cannot be read; its owner moves it away"
    OWNER = "its owner does not let the summary leave"
    DECISION = "what its owner said cannot be read; remove it, and say it again"

    @property
    def text(self) -> str:
        """The rule in words."""
        return self.value


class Refusal(NodeError):
    """A refusal that may be sent.

    Args:
        rule: which.
        setting: the setting or the part of the question that decides, if there is one.
        value: what is set there, or asked for; nothing of the node's data.

    Example:
        >>> raise Refusal(Rule.NO_COLUMN, "column", "ward")
        Traceback (most recent call last):
        fedax.engine.places.refusals.Refusal: its table has no such column (column = 'ward')
    """

    def __init__(self, rule: Rule, setting: str | None = None, value: object = None):
        self.rule, self.setting, self.value = rule, setting, value
        super().__init__(rule.text if setting is None else f"{rule.text} ({setting} = {shown(value)})")
