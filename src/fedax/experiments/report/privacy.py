"""The report's section on privacy: what a private run has spent, what that guarantees, and what it does not cover."""

from typing import Any

from fedax.columns import show
from fedax.experiments import summary
from fedax.experiments.runs import Record

_NEIGHBOURS = {
    "add or remove a client": "whether any one client took part, with all of its data",
    "replace a client": "which of two clients, with all of their data, took part instead of one",
}


def note(record: Record) -> str:
    """Sentences on clipping and noise."""
    dp = summary.varied(record.config)["privacy"]
    clip, noise = (summary.in_words(dp[name]) for name in ("clip", "noise"))
    if dp.get("adaptive"):
        text = f"Each upload was clipped to a norm that followed the norms of uploads and began with {clip}. "
    else:
        text = f"Each upload was clipped to norm {clip}{', its arrays one by one' * bool(dp.get('by_leaf'))}. "
    text += f"The sum of a cohort's uploads got Gaussian noise of {noise} times the clip, once an exchange"
    if (bands := dp.get("bands", 1)) > 1:
        text += f", which is correlated over {bands} rounds"
    return f"{text}. Non-finite uploads counted as zero."


def table(record: Record) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: what each method has spent, planned and in fact."""
    methods, outlooks = summary.methods([record]), record.about.get("privacy") or {}
    several_exchanges = any(_releases(outlook) > 1 for outlook in outlooks.values())
    heads = [
        "Method",
        "ε spent",
        "δ",
        "Rounds",
        *(["Over all rounds", "With one exchange a round"] if several_exchanges else []),
    ]
    rows = []
    for m in methods:
        if m.epsilon is None:
            continue
        rounds = max(int(run.history["round"][-1]) for run in m.runs)
        ended = ", the budget's end" if any(run.spent for run in m.runs) else ""
        row = [m.label, show("epsilon", m.epsilon), f"{m.delta:g}", f"{rounds}{ended}"]
        if several_exchanges:
            outlook = outlooks[m.label]
            row += [f"{_shown(outlook['epsilon'])} by {_counted(outlook)}", _shown(outlook["one"])]
        rows.append(row)
    return heads, rows


def parts(record: Record) -> dict[str, list[str]]:
    """The subsections: heading -> sentences."""
    outlooks = record.about.get("privacy") or {}
    return {
        "What this guarantees": [*_guarantee(record, outlooks), _together(record)],
        "What is private": [
            "The model, and its whole trajectory: every model that clients received, the one in the end, and all that "
            "is computed from them and from public data.",
            "Figures of held-out data, where these count as public: no client's training data are in them.",
        ],
        "What is not": [
            "Losses and gradients that are measured on clients' training data (columns such as train_loss), figures "
            "and tables of single clients, the pictures of clients, baselines and the diagnosis. They have no noise. "
            "They are in this report: who publishes it publishes them.",
            "The number of clients, and the largest number of local steps of a client, are taken as known.",
            _secret(record),
        ],
    }


def _guarantee(record: Record, outlooks: dict[str, dict[str, Any]]) -> list[str]:
    relations = list(dict.fromkeys((outlook["relation"], outlook["accountant"]) for outlook in outlooks.values()))
    sentences = [guaranteed(*outlook) for outlook in relations]
    if record.config["privacy"].get("noise_seed") is not None:
        sentences.insert(0, summary.NOT_PRIVATE)
    swept = record.config.get("sweep", {}).get("grid", {}).get("privacy.noise", [record.config["privacy"]["noise"]])
    if 0 in (swept.values() if isinstance(swept, dict) else swept):
        sentences.append("Without noise there is no guarantee: ε is infinite.")
    return sentences


def guaranteed(relation: str, accountant: str) -> str:
    """The meaning of ε for a neighbouring relation, in words."""
    known = _NEIGHBOURS.get(relation, relation)
    return (
        f"Who sees every model of one run can tell {known} only within (ε, δ): no event becomes more likely by "
        f"more than a factor of e^ε, but for a probability of δ. Neighbouring relation: {relation}. "
        f"Accountant: {accountant}, of dp-accounting."
    )


def _together(record: Record) -> str:
    runs = len(record.labels) * len(record.config["run"]["seeds"])
    text = "ε is that of one run"
    if runs > 1:
        text += f"; these {runs} runs were on the same clients, and who sees the models of several learns more"
    return (
        f"{text}. Runs on the same clients add up, those of a search for good settings, too; methods with one seed "
        "draw the same cohorts, and can spend more than that together: fedax report --public says how much."
    )


def _secret(record: Record) -> str:
    if (seed := record.config["privacy"].get("noise_seed")) is not None:
        return f"Anything: the noise was made of noise_seed = {seed}, for tests. Who knows it takes the noise away."
    return (
        "The file noise.key in the run's folder, from which noise and cohorts are drawn, and checkpoints: who has them "
        "can take the noise away again. Nobody but their owner can read them, as long as the folder stays here."
    )


def _releases(outlook: dict[str, Any]) -> int:
    return int(outlook["exchanges"] + outlook["warmup"])


def _counted(outlook: dict[str, Any]) -> str:
    """
    Example:
        >>> _counted({"exchanges": 2, "warmup": 1, "rounds": 50})
        '50 rounds of 2 exchanges, and 1 before them'
    """
    text = f"{outlook['rounds']} rounds of {outlook['exchanges']} exchange{'s' * (outlook['exchanges'] > 1)}"
    return text + (f", and {outlook['warmup']} before them" if outlook["warmup"] else "")


def _shown(value: float | None) -> str:
    return "∞" if value is None else show("epsilon", value)
