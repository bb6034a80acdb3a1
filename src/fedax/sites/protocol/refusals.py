"""What a node says where it does not answer: one of these texts, with the rule and the setting of its owner.

No text holds a value of the data, a count below a threshold, or another library's message: the owner's log has those.
"""

import enum

from fedax.contract.types import Unknown
from fedax.errors import NodeError


class Rule(enum.Enum):
    """A reason not to answer: a text; or what a setting in the owner's policy is against, and the setting."""

    def __init__(self, text: str, setting: str | None = None):
        self.text, self.setting = text, setting

    METHOD = "a run with this method", "runs.methods"
    TASK = "a run with this task", "runs.tasks"
    SPLIT = (
        "a run that splits its rows: --set data.split={} runs without held-out rows, or its owner gives --test, --val",
        "runs.split",
    )
    ROUNDS = "more rounds, of all runs together", "runs.rounds"
    TOTAL = "more questions: that many were answered", "messages.total"
    DAILY = "more questions: that many were answered today", "messages.daily"
    CLIENTS = "a sum in which one client counts for more", "sums.clients"
    EXAMPLES = "a sum in which one example counts for more", "sums.examples"
    HELD = "figures of fewer held-out examples", "sums.examples"
    CLIENTS_APART = "another sum for the same model: their difference would be of fewer clients", "sums.clients"
    EXAMPLES_APART = (
        "another sum for the same model: their difference could be of fewer examples (run.split_seeds = false helps)",
        "sums.examples",
    )
    SINGLE = "uploads or figures of single clients, as of robust averages, compression and pace", "sums.single"
    ONE_BY_ONE = "figures of single clients", "sums.clients"
    BATCH = "local steps of fewer examples", "work.batch"
    STEPS = "an upload after fewer local steps", "work.steps"
    SECURE = "an update that is not in a secure sum: set run.secure", "secure.nodes"
    NODES = "a secure sum over fewer other nodes", "secure.nodes"
    NODES_APART = "another secure sum for the same model: their difference would be of fewer nodes", "secure.nodes"
    SILENCED = "a sum hides nobody in whose run others can be made to send nothing: leave out run.faults"
    GUARD = "a guard, which tells of single clients: leave out run.guard", "sums.clients"
    GRADIENT = "gradients, which can be subtracted from sums of updates: leave out run.grad_norm", "sums.clients"
    COLUMNS = "these measures leaving it; run.metrics names fewer", "figures.columns"
    UNBOUNDED = "these measures, which one client can move without a bound; run.metrics names fewer", "figures.noise"
    PERSONAL = "figures of personal models, to which it cannot add its noise", "figures.noise"
    BITS = "histograms of so many bits: give the metric fewer, run.metrics = [{name = 'auc', bits = 6}]", "figures.bits"
    NO_FIGURES = "figures of single clients", "figures.noise"
    NOISE = "uploads in secure sums, with a guard or one by one, to which it cannot add its noise", "updates.clip"
    BUDGET = "more answers with noise than are left: run.evaluate_every = 50 asks less often", "budget.epsilon"
    TABLE = "the run has secure sums, and figures of single clients do not leave it"
    NOT_TESTED = "it has split off no test examples for its clients"
    HELD_OUT = "its owner has given held-out examples, and none can be split off: set that share of data.split to 0"
    CLIENT = "the run's roster has not each of its clients once, with its size"
    CHANGED = "its clients, their examples, or its versions, are others than when the run began"
    VERSIONS = "its versions are others than those of the run"
    PROGRAM = "its code differs from the server's for this configuration"
    UNKNOWN = "it knows no such agreement: --resume sends it again"
    COHORT = "other clients are asked than the run's agreement draws in this round"
    FORM = "the message is not of its form"
    EXAMPLES_FIT = "its examples do not fit the run's task; its owner's log says more"
    FROZEN = "the frozen part of the model is not there: --resume sends it again"
    ROSTER = "secure sums need the keys of the other nodes: its owner names their folder: roster in node.toml"
    # Of tables:
    NO_TRANSFORM = "its table is not transformed yet: fedax deploy tables"
    OTHER_TABLE = "the transform that it has does not fit its table: fedax deploy tables again"
    NOT_SENT = "this transform was not sent to it before: fedax deploy tables again"
    NO_LABEL = "there is no label in what is asked, and nothing is learned without one"
    NO_COLUMN = "its table has no such column"
    COLUMN = "a column of its table cannot be used so; the node's terminal says which and why"
    NUMBER = "a number is beyond float32, or has no logarithm where one is asked for; the node's terminal says which"
    LABEL_MISSING = "a row has no label; its owner leaves such rows out: drop_missing_labels in node.toml"
    LABEL_UNKNOWN = (
        "a label is no number, or none of the transform's classes, of which those of a few rows at every site are "
        "not named; its owner joins such a class with another, or leaves its rows out"
    )
    FEW_ROWS = "its table has too few rows for a summary that hides single ones"
    IDENTIFIES = "texts of a column identify rows, and leave this site only if its owner agrees: review in node.toml"
    LEFT = "no other summary of a column leaves; its owner looks into left/ in the node's folder, and moves it away"
    TRANSFORMS = "no other transform is tried; its owner looks into left/ in the node's folder, and moves it away"
    LEFT_UNREADABLE = "left/ in the node's folder cannot be read; its owner moves it away"
    OWNER = "its owner does not let the summary leave"
    DECISION = "what its owner said cannot be read; remove it, and say it again"
    # Of the node itself:
    DISK = "it cannot write its record, without which nothing leaves"
    FAILED = "it failed; its owner's log says more"


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
        text = rule.text
        if rule.setting is not None:
            text = f"its owner's policy ({rule.setting} = {value}) is against {text}"
        super().__init__(f"{text} ({about})" if about else text)
