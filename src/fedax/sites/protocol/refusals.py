"""What a node says where it does not answer: one of these texts, with the rule and the setting of its owner.

No text holds a value of the data, a count below a threshold, or another library's message: the owner's log has those.
"""

import enum

from fedax.contract.types import Unknown
from fedax.errors import NodeError


class Rule(enum.Enum):
    """A reason not to answer: the setting in the owner's policy, if there is one, and what it is against."""

    METHOD = "runs.methods", "a run with this method"
    TASK = "runs.tasks", "a run with this task"
    SPLIT = (
        "runs.split",
        "a run that splits its rows: --set data.split={} runs without held-out rows, or its owner gives --test, --val",
    )
    ROUNDS = "runs.rounds", "more rounds, of all runs together"
    TOTAL = "messages.total", "more questions: that many were answered"
    DAILY = "messages.daily", "more questions: that many were answered today"
    CLIENTS = "sums.clients", "a sum in which one client counts for more"
    EXAMPLES = "sums.examples", "a sum in which one example counts for more"
    HELD = "sums.examples", "figures of fewer held-out examples"
    CLIENTS_APART = "sums.clients", "another sum for the same model: their difference would be of fewer clients"
    EXAMPLES_APART = (
        "sums.examples",
        "another sum for the same model: their difference could be of fewer examples (run.split_seeds = false helps)",
    )
    SINGLE = "sums.single", "uploads or figures of single clients, as of robust averages, compression and pace"
    ONE_BY_ONE = "sums.clients", "figures of single clients"
    BATCH = "work.batch", "local steps of fewer examples"
    STEPS = "work.steps", "an upload after fewer local steps"
    SECURE = "secure.nodes", "an update that is not in a secure sum: set run.secure"
    NODES = "secure.nodes", "a secure sum over fewer other nodes"
    NODES_APART = "secure.nodes", "another secure sum for the same model: their difference would be of fewer nodes"
    SILENCED = None, "a sum hides nobody in whose run others can be made to send nothing: leave out run.faults"
    GUARD = "sums.clients", "a guard, which tells of single clients: leave out run.guard"
    GRADIENT = "sums.clients", "gradients, which can be subtracted from sums of updates: leave out run.grad_norm"
    COLUMNS = "figures.columns", "these measures leaving it; run.metrics names fewer"
    UNBOUNDED = "figures.noise", "these measures, which one client can move without a bound; run.metrics names fewer"
    BITS = "figures.bits", "histograms of so many bits: give the metric fewer, run.metrics = [{name = 'auc', bits = 6}]"
    NO_FIGURES = "figures.noise", "figures of single clients"
    NOISE = "updates.clip", "uploads in secure sums, with a guard or one by one, to which it cannot add its noise"
    BUDGET = "budget.epsilon", "more answers with noise than are left: run.evaluate_every = 50 asks less often"
    TABLE = None, "the run has secure sums, and figures of single clients do not leave it"
    NOT_TESTED = None, "it has split off no test examples for its clients"
    HELD_OUT = (
        None,
        "its owner has given held-out examples, and none can be split off: set that share of data.split to 0",
    )
    CLIENT = None, "the run's roster has not each of its clients once, with its size"
    CHANGED = None, "its clients, their examples, or its versions, are others than when the run began"
    VERSIONS = None, "its versions are others than those of the run"
    PROGRAM = None, "its code differs from the server's for this configuration"
    UNKNOWN = None, "it knows no such agreement: --resume sends it again"
    COHORT = None, "other clients are asked than the run's agreement draws in this round"
    FORM = None, "the message is not of its form"
    EXAMPLES_FIT = None, "its examples do not fit the run's task; its owner's log says more"
    FROZEN = None, "the frozen part of the model is not there: --resume sends it again"
    ROSTER = None, "secure sums need the keys of the other nodes: its owner names their folder: roster in node.toml"
    # Of tables:
    NO_TRANSFORM = None, "its table is not transformed yet: fedax deploy tables"
    OTHER_TABLE = None, "the transform that it has does not fit its table: fedax deploy tables again"
    NOT_SENT = None, "this transform was not sent to it before: fedax deploy tables again"
    NO_LABEL = None, "there is no label in what is asked, and nothing is learned without one"
    NO_COLUMN = None, "its table has no such column"
    COLUMN = None, "a column of its table cannot be used so; the node's terminal says which and why"
    NUMBER = (
        None,
        "a number is beyond float32, or has no logarithm where one is asked for; the node's terminal says which",
    )
    LABEL_MISSING = (
        None,
        "a row has no label; its owner leaves such rows out: drop_missing_labels in node.toml",
    )
    LABEL_UNKNOWN = (
        None,
        (
            "a label is no number, or none of the transform's classes, of which those of a few rows at every site are "
            "not named; its owner joins such a class with another, or leaves its rows out"
        ),
    )
    FEW_ROWS = None, "its table has too few rows for a summary that hides single ones"
    IDENTIFIES = (
        None,
        ("texts of a column identify rows, and leave this site only if its owner agrees: review in node.toml"),
    )
    LEFT = (
        None,
        "no other summary of a column leaves; its owner looks into left/ in the node's folder, and moves it away",
    )
    TRANSFORMS = None, "no other transform is tried; its owner looks into left/ in the node's folder, and moves it away"
    LEFT_UNREADABLE = None, "left/ in the node's folder cannot be read; its owner moves it away"
    OWNER = None, "its owner does not let the summary leave"
    DECISION = None, "what its owner said cannot be read; remove it, and say it again"
    # Of the node itself:
    DISK = None, "it cannot write its record, without which nothing leaves"
    FAILED = None, "it failed; its owner's log says more"

    @property
    def text(self) -> str:
        """What it is against, in words."""
        return str(self.value[1])


class Refusal(NodeError):
    """A node does not answer.

    Args:
        rule: why.
        value: that of the owner's setting.
        about: names from what was asked, or what a limit is; nothing of the node's data.

    Example:
        >>> raise Refusal(Rule.CLIENTS, 3)
        Traceback (most recent call last):
        fedax.sites.protocol.refusals.Refusal: its owner's policy (sums.clients = 3) is against a sum in which one ...
    """

    def __init__(self, rule: Rule, value: Unknown = None, about: str = ""):
        self.rule = rule
        setting, text = rule.value[0], rule.text
        text = f"its owner's policy ({setting} = {value}) is against {text}" if setting else text
        super().__init__(f"{text} ({about})" if about else text)
