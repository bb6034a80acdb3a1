"""What the final model of a run decides for held-out examples: a threshold, recall and precision, and calibration.

Of two classes all of it is made of the histograms of scores from which AUC is computed: a sum over examples, which real
clients' nodes send as well. The threshold is the one with the largest F1 of the positive class on the validation rows
of all clients together. Recall, precision and calibration are those of the test rows.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedax
from fedax.contract.personal import has_personal
from fedax.engine.checkpoint import write_tensors
from fedax.engine.devices import in_precision
from fedax.engine.saved import Model, read_model
from fedax.errors import DamagedWarning
from fedax.experiments.clients import finite_model, record_left_out
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.runs import Record, model_path, said, tensors_of
from fedax.files import slug
from fedax.metrics import AUC, CalibrationError
from fedax.metrics.base import classes_of, fitting, of_two
from fedax.metrics.ranking import edges
from fedax.sites.protocol.site import whole_task

BINS = 10  # of probabilities, equally wide
_MOST_BYTES = 1 << 24
_MOST = 100  # classes


class Decisions(NamedTuple):
    """The decisions of one run's final model.

    Attributes:
        threshold: of two classes, the probability of the positive one from which on it is decided for; not-a-number:
            none was chosen, and the more probable class is taken.
        chosen: [2] the validation rows of the negative and of the positive class by which it was chosen.
        confusion: [C, C] test rows by their class (rows) and the decision (columns).
        bins: [3, 10] test rows by their probability: how many, the sum of the probabilities, and how many are of the
            class. Of two classes the positive one, of more the most probable one.
    """

    threshold: float
    chosen: np.ndarray
    confusion: np.ndarray
    bins: np.ndarray

    @property
    def recall(self) -> np.ndarray:
        """[C] of the rows of a class, the share that is decided so; not-a-number where there are none."""
        return _share(np.diag(self.confusion), self.confusion.sum(1))

    @property
    def precision(self) -> np.ndarray:
        """[C] of the rows that are decided for a class, the share that is of it; not-a-number where there are none."""
        return _share(np.diag(self.confusion), self.confusion.sum(0))

    @property
    def calibration_error(self) -> float:
        """Σ_b (n_b/n) |mean probability − frequency| over the bins."""
        number, said_sum, so = self.bins
        return float(np.abs(said_sum - so).sum() / max(number.sum(), 1))


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)


# ---- from counts of scores, and from outputs


def of_counts(val: np.ndarray | None, test: np.ndarray) -> Decisions:
    """The decisions of two classes, from the histograms of AUC on validation and on test rows.

    Args:
        val, test: [2, bins] counts of the negative and the positive rows; ``None``: there is no validation part.

    Example:
        >>> def counts(scores, y):
        ...     return AUC().sums(np.float32(scores), np.array(y), np.ones(len(y)))["counts"]
        >>> val, test = counts([-3.0, -2.0, -1.0, 1.0], [0, 0, 1, 1]), counts([-2.5, -1.2, 2.0], [0, 1, 1])
        >>> decided = of_counts(val, test)
        >>> round(decided.threshold, 2), decided.confusion.tolist(), decided.recall.tolist()
        (0.18, [[1, 0], [0, 2]], [1.0, 1.0])
    """
    test = np.asarray(test, np.int64)
    ends = edges(int(np.log2(test.shape[1] / 22)))
    first = None if val is None else _best_bin(np.asarray(val, np.int64))
    start = test.shape[1] // 2 if first is None else first  # log-odds 0: the more probable class
    above = test[:, start:].sum(1)
    confusion = np.stack([test.sum(1) - above, above], 1)
    centres = _sigmoid((np.clip(ends[:-1], -100, 100) + np.clip(ends[1:], -100, 100)) / 2)
    place = np.minimum((centres * BINS).astype(int), BINS - 1)
    bins = [np.bincount(place, weights, BINS) for weights in (test.sum(0), test.sum(0) * centres, test[1])]
    threshold = np.nan if first is None else float(_sigmoid(ends[first]))
    chosen = np.zeros(2, np.int64) if val is None else np.asarray(val, np.int64).sum(1)
    return Decisions(threshold, chosen, confusion, np.stack(bins))


def _best_bin(counts: np.ndarray) -> int | None:
    """The bin from which on the positive class is decided for, with the largest F1; in the middle of the scores.

    ``None`` where a class does not occur.
    """
    if not counts.sum(1).all():
        return None
    negative, positive = counts[:, ::-1].cumsum(1)[:, ::-1]
    f1 = 2 * positive / (positive + negative + positive[0])
    best = np.flatnonzero(f1 >= f1.max() * (1 - 1e-12))
    last = best[-1]  # the fewest decisions for it, of those that are as good
    lowest = last - np.argmax(np.diff(best[::-1], append=-2) != -1)  # with the same decisions
    return int(last if lowest == 0 else (lowest + last + 1) // 2)


def _sigmoid(score: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(score, float)))


def of_outputs(outputs: np.ndarray, y: np.ndarray) -> Decisions:
    """The decisions of more than two classes: for the most probable one."""
    predicted, true = classes_of(outputs, y)
    classes = outputs.shape[-1]
    confusion = np.bincount(true * classes + predicted, minlength=classes**2).reshape(classes, classes)
    sums = CalibrationError(BINS).sums(outputs, y, np.ones(len(y)))
    bins = np.stack([sums["all"], sums["said"], sums["so"]])
    return Decisions(np.nan, np.zeros(2, np.int64), confusion.astype(np.int64), bins)


# ---- of a run


def decided(
    experiment: Experiment,
    params: Any,
    val: Any,
    test: Any,
    counts: Mapping[str, Any] | None = None,
    own: Callable[[str], Any] | None = None,
) -> Decisions | None:
    """The decisions of a model; ``None``: its task or data have none, or what they are made of may not be known.

    Args:
        experiment: of the run.
        params: the model.
        val, test: the held-out examples of the run, where they are here.
        counts: of AUC, by part, where they are at nodes.
        own: the model of each client, by name, that decides for it in place of ``params``.
    """
    task = whole_task(experiment.task)
    if not _has_classes(experiment) or not finite_model(params):
        return None
    two = len(experiment.classes or ()) == 2
    found: dict[str, Any] = {}
    for part, held in (("val", val), ("test", test)):
        if experiment.public is not None and f"{part}_{'auc' if two else 'accuracy'}" not in experiment.public:
            continue
        if held is None:
            if counts and part in counts:
                found[part] = counts[part]
            continue
        examples = held.examples if isinstance(held, fedax.FederatedData) else held
        with in_precision(experiment.config["run"].get("precision")), np.errstate(all="ignore"):
            if own is None:
                outputs = Model(task, params).outputs(examples)
            else:
                there = np.flatnonzero(held.sizes)
                outputs = np.concatenate([Model(task, own(held.name(i))).outputs(held.client(i)) for i in there])
        y = fitting(np.asarray(examples["y"]), outputs)
        if not of_two(outputs, y):
            return of_outputs(outputs, y) if part == "test" else None
        found[part] = AUC().sums(outputs, y, np.ones(len(y), np.int64))["counts"]
    return of_counts(found.get("val"), found["test"]) if "test" in found else None


def _has_classes(experiment: Experiment) -> bool:
    """Whether there are two classes, or those of tables, and a model that says which."""
    task, data = experiment.task, experiment.data
    names = experiment.classes
    if task.kind != "classification" or task.outputs is None or names is None or not 2 <= len(names) <= _MOST:
        return False
    labels = data.examples["y"] if isinstance(data, fedax.FederatedData) else data.example["y"]
    one_each = len(labels.shape) == int(isinstance(data, fedax.FederatedData))
    return one_each and (len(names) == 2 or data.transform is not None)


def threshold_of(found: Decisions | None) -> float | None:
    """The threshold that goes with a model."""
    return None if found is None or not np.isfinite(found.threshold) else found.threshold


def path_of(folder: Path, label: str, seed: int) -> Path:
    """The path of the file with the decisions of a run."""
    return folder / "classes" / f"{slug(label)}-seed{seed}.safetensors"


def write(experiment: Experiment, folder: Path, label: str, seed: int, found: Decisions | None) -> None:
    """Write the decisions of a run; or why there are none, where its nodes or its privacy are against it."""
    if found is None:
        if _has_classes(experiment) and (experiment.fleet is not None or experiment.public is not None):
            why = "nodes sent no counts of their scores, test_auc" if len(experiment.classes or ()) == 2 else ""
            why = why or "nodes send no counts of decisions for more than two classes"
            why = why if experiment.public is None else "the run is private, and ε does not cover them"
            record_left_out(folder, f"Threshold, confusion and calibration are absent: {why}.")
        return
    path = path_of(folder, label, seed)
    path.parent.mkdir(exist_ok=True)
    tensors = {name: np.asarray(value) for name, value in found._asdict().items()}
    write_tensors(path, tensors, "decisions for held-out examples", said(folder, path))


def mend(experiment: Experiment, folder: Path, label: str, seed: int) -> None:
    """Write the decisions of a finished run anew if they are missing or damaged, and its examples are here.

    Not of a method with personal models, which are gone with the run.
    """
    if has_personal(experiment.methods[label]):
        return
    if experiment.fleet is not None or not _has_classes(experiment) or read(folder, label, seed) is not None:
        return
    if (path := path_of(folder, label, seed)).exists():
        warnings.warn(f"{path} is damaged; it is made again", DamagedWarning, stacklevel=3)
    model = model_path(folder, label, seed)
    params = read_model(model, experiment.task.entire.form(), said(folder, model))
    _, val, test = experiment.split(seed)
    if fedax.load_model(model, whole_task(experiment.task)).threshold is None:  # as of an older version
        val = None
    write(experiment, folder, label, seed, decided(experiment, params, val, test))


def read(folder: Path, label: str, seed: int) -> Decisions | None:
    """The decisions of a run; ``None`` if the file is missing or cannot be used."""
    tensors = tensors_of(folder, path_of(folder, label, seed), _MOST_BYTES)
    if not tensors.keys() >= {*Decisions._fields}:
        return None
    found = Decisions(float(tensors["threshold"]), *(tensors[name] for name in Decisions._fields[1:]))
    square = found.confusion.ndim == 2 and found.confusion.shape[0] == found.confusion.shape[1] >= 2
    if not square or found.bins.shape != (3, BINS) or found.chosen.shape != (2,) or not np.isfinite(found.bins).all():
        return None
    return found


# ---- of a record


def of_method(record: Record, label: str) -> list[Decisions]:
    """The decisions of a method, one for each seed that has them."""
    found = (read(record.folder, label, seed) for seed in record.config["run"]["seeds"])
    return [each for each in found if each is not None]


def names_of(record: Record, found: Sequence[Decisions]) -> list[str]:
    """The names of the classes."""
    size = found[0].confusion.shape[0]
    names = record.about["clients"]["classes"]
    return [*map(str, names)] if names is not None and len(names) == size else [*map(str, range(size))]


def confusion(found: Sequence[Decisions]) -> np.ndarray:
    """[C, C] the counts of all seeds together."""
    return np.sum([each.confusion for each in found], axis=0)


def bins(found: Sequence[Decisions]) -> np.ndarray:
    """[3, 10] the counts of all seeds together."""
    return np.sum([each.bins for each in found], axis=0)


def figures(names: Sequence[str], found: Sequence[Decisions]) -> dict[str, np.ndarray]:
    """Threshold, recall, precision and calibration error, by what they are called: of each seed where it is defined."""
    recall, precision = (np.array([getattr(each, what) for each in found]) for what in ("recall", "precision"))
    table = {"Threshold": np.array([each.threshold for each in found])} if len(names) == 2 else {}
    for c in (1, 0) if len(names) == 2 else ():
        table |= {f"Recall of {names[c]}": recall[:, c], f"Precision of {names[c]}": precision[:, c]}
    if len(names) > 2:
        table |= {f"Mean {name}": np.array([mean(each) for each in values])
                  for name, values in (("recall", recall), ("precision", precision))}  # fmt: skip
    table["Calibration error"] = np.array([each.calibration_error for each in found])
    return {name: values[np.isfinite(values)] for name, values in table.items()}


def mean(values: Sequence[float] | np.ndarray) -> float:
    """The mean of those that are defined."""
    known = np.asarray(values, float)
    known = known[np.isfinite(known)]
    return float(known.mean()) if known.size else float("nan")


def described(record: Record, label: str) -> dict[str, Any] | None:
    """Means over the seeds, and sums of their counts, as summary.json has them; ``None``: there are none."""
    if not (found := of_method(record, label)):
        return None
    names = names_of(record, found)
    return {
        "names": names,
        "threshold": mean([each.threshold for each in found]),
        "recall": {name: mean([each.recall[c] for each in found]) for c, name in enumerate(names)},
        "precision": {name: mean([each.precision[c] for each in found]) for c, name in enumerate(names)},
        "confusion": confusion(found).tolist(),
        "calibration_error": mean([each.calibration_error for each in found]),
        "bins": bins(found).tolist(),
    }


def text(record: Record, label: str) -> str:
    """What a method's models decide in one line; empty: not known, or there are many classes."""
    about = described(record, label)
    if about is None or len(about["names"]) != 2:
        return ""
    positive, threshold = about["names"][-1], about["threshold"]
    where = "if it is the more probable class"
    if np.isfinite(threshold):
        where = f"from a probability of {threshold:.3g} on, which has the best F1 on validation"
    recall, precision = about["recall"][positive], about["precision"][positive]
    return (
        f"Deciding for class {positive} {where}, {label} finds {_percent(recall)} of its rows (recall), "
        f"and is right in {_percent(precision)} of such decisions (precision)."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if np.isfinite(share) else "none"
