"""The part of a private run's folder that may be published, as a page and as tables.

It is made only of what ε covers and of public data: the public columns of the history, the settings of the methods, and
what the runs have spent. All other figures of the folder are dropped first.
"""

import dataclasses
import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas

import fedax
from fedax import notebook
from fedax.columns import show
from fedax.engine.private import of_public
from fedax.errors import UNSEEN, ConfigError
from fedax.experiments import summary, tables
from fedax.experiments.report import page, privacy
from fedax.experiments.runs import Record
from fedax.experiments.summary import Method
from fedax.experiments.typeset import Sheet, latex, markdown
from fedax.figures import curves
from fedax.privacy import Ledger
from fedax.privacy.accounting import weakness


@dataclass(frozen=True)
class Public:
    """The publishable content of a run folder.

    Attributes:
        methods: with histories of public columns only.
        epsilon, delta: what all runs have spent together.
        weak: what is wrong with that δ; empty: nothing.
        relation, accountant: as of :class:`fedax.privacy.Ledger`.
    """

    methods: list[Method]
    epsilon: float
    delta: float
    weak: str
    relation: str
    accountant: str


def public(record: Record) -> Public:
    """Select the publishable content of a run folder.

    Raises:
        ConfigError: the runs are not private, or the folder does not say what is public.
    """
    folder, dp = str(record.folder), record.config.get("privacy")
    if dp is None or not dp["noise"]:
        hint = "its runs are not private, and nothing of them is covered; run it with [privacy], of noise above 0"
        raise ConfigError("run", folder, hint)
    if dp.get("noise_seed") is not None:
        hint = "its runs are not private: its noise was made of noise_seed, for tests; run it without that"
        raise ConfigError("run", folder, hint)
    if "sweep" in record.config:
        hint = "the runs of all points are spent on a sweep, and its best one tells of them; run its best.toml"
        raise ConfigError("run", folder, hint)
    columns, outlooks = record.about.get("public"), record.about.get("privacy") or {}
    if columns is None or any(outlooks.get(label, {}).get("drawn") is None for label in record.labels):
        hint = "it is of an earlier version of fedax, which did not keep what is public of it; run it again"
        raise ConfigError("run", folder, hint)
    runs = [dataclasses.replace(run, history=of_public(run.history, columns)) for run in record.runs]
    ledgers = [_joint_ledger(record, seed) for seed in dict.fromkeys(run.seed for run in runs)]
    spent = [ledger.epsilon(rounds, methods * dp["delta"]) for ledger, rounds, methods in ledgers]
    first = ledgers[0][0]
    found = summary.methods([dataclasses.replace(record, runs=runs)])
    delta = len(runs) * dp["delta"]
    weak = weakness(delta, len(record.about["clients"]["sizes"]))
    return Public(found, sum(spent), delta, weak, first.relation, first.accountant)


def _joint_ledger(record: Record, seed: int) -> tuple[Ledger, int, int]:
    """The ledger of all runs with a seed, as if they were one run; its rounds; and how many runs there are.

    These runs have the same cohorts, round by round, so their sums count as exchanges of the same rounds. With sampled
    cohorts that can be more than the sum of the single runs' ε.
    """
    runs = [run for run in record.runs if run.seed == seed]
    outlooks = [record.about["privacy"][run.label] for run in runs]
    exchanges = {stage: sum(outlook[stage] for outlook in outlooks) for stage in ("exchanges", "warmup")}
    exchanges["numbers"] = max(outlook.get("numbers", 0) for outlook in outlooks)
    number = len(record.about["clients"]["sizes"])
    ledger = Ledger(record.config["privacy"]["noise"], number, **outlooks[0]["drawn"], **exchanges)
    return ledger, max(int(run.history["round"][-1]) for run in runs), len(runs)


# ---- tables


def table(of: Public) -> pandas.DataFrame:
    """A row for each method.

    Returns:
        ``method``; ``settings``, its hyper-parameters; ``status``; ``seeds``, how many; ``round``, the last;
        ``epsilon`` and ``delta`` of one run, the most of its seeds; of each public measure ``<column>``, the mean over
        the seeds at the last evaluation, and ``<column>_std``; and in all rows ``epsilon_together`` and
        ``delta_together``, of all runs, ``neighbours`` and ``accountant``.
    """
    rows = []
    for m in of.methods:
        row = {"method": m.label, "settings": _settings(m), "status": m.status, "seeds": len(m.runs)}
        row |= {"round": max(_rounds(m)), "epsilon": m.epsilon, "delta": m.delta}
        for column in summary.metrics(of.methods):
            row |= tables.mean_and_std(column, m.final(column))
        together = {"epsilon_together": of.epsilon, "delta_together": of.delta}
        rows.append(row | together | {"neighbours": of.relation, "accountant": of.accountant})
    return pandas.DataFrame(rows)


def _settings(m: Method) -> str:
    return " · ".join(f"{name} {summary.short(value)}" for name, value in m.hyper.items())


def _rounds(m: Method) -> list[int]:
    return [int(run.history["round"][-1]) for run in m.runs]


def _sheet(of: Public) -> Sheet:
    columns = {
        "Method": [f"{m.label} ({_settings(m)})" if m.hyper else m.label for m in of.methods],
        "Seeds": [str(len(m.runs)) for m in of.methods],
        "Rounds": [" to ".join(map(str, sorted({min(_rounds(m)), max(_rounds(m))}))) for m in of.methods],
        "ε": [show("epsilon", m.epsilon or 0.0) for m in of.methods],
        "δ": [f"{m.delta:g}" for m in of.methods],
    }
    for column in summary.metrics(of.methods):
        columns |= tables.means_of(column, of.methods)
    rows = list(zip(*columns.values(), strict=True))
    return Sheet(
        "public",
        "Private training",
        list(columns),
        rows,
        notes=[*_explanation(of), *_spent(of), privacy.guaranteed(of.relation, of.accountant)],
    )


def _explanation(of: Public) -> list[str]:
    several = "Means ± standard deviations over the seeds, after the last round."
    sentences = [several] if max(len(m.runs) for m in of.methods) > 1 else ["After the last round."]
    sentences += [f"{m.label}: {m.status_text}." for m in of.methods if m.status != "finished"]
    return [*sentences, "ε: the privacy that one run has spent, the most of its seeds."]


def _spent(of: Public) -> list[str]:
    runs = sum(len(m.runs) for m in of.methods)
    rest = "Other runs on the same data add to it, those of a search for good settings too."
    rest += f" Of all together, {of.weak}." if of.weak else ""
    if runs == 1:
        return [rest]
    how = "The runs with one seed drew the same cohorts and count as one run that sends what they all send; "
    how = f"{how}seeds add up." if len(of.methods) > 1 else "They add up."
    return [f"All {runs} runs together have spent ε = {show('epsilon', of.epsilon)} at δ = {of.delta:g}. {how}", rest]


# ---- forms


def to_html(of: Public) -> str:
    """The page as HTML that needs no network."""
    from fedax.experiments.charts import series

    sheet, pictures = _sheet(of), []
    for column in (*summary.metrics(of.methods), "epsilon"):
        picture = curves(series(of.methods, column), column=column)
        pictures.append(f"<figure>{notebook.image(picture, column)}</figure>")
    fields = {
        "version": fedax.__version__,
        "style": page.style(),
        "table": page.table_of_texts(sheet.heads, sheet.rows),
        "reading": _paragraph(_explanation(of)),
        "pictures": "".join(pictures),
        "spent": _paragraph(_spent(of)),
        "meaning": _paragraph([privacy.guaranteed(of.relation, of.accountant)]),
    }
    return page.filled(page.file("public.html"), fields).translate(UNSEEN)


def _paragraph(sentences: Sequence[str]) -> str:
    return f"<p class='note'>{html.escape(' '.join(sentences))}</p>"


FORMS: dict[str, Callable[[Public], str]] = {
    "html": np.errstate(all="ignore")(to_html),  # means of numbers near the largest float overflow
    "csv": lambda of: tables.as_csv(table(of)),
    "latex": lambda of: latex([_sheet(of)]),  # the document needs the package booktabs
    "markdown": lambda of: markdown([_sheet(of)]),
}
