"""Metrics of the whole data set against scikit-learn: exact outside of a run; of sums, within the stated bound."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics as sk

import fedax
from fedax import metrics as M
from fedax.engine import by_client
from fedax.engine.evaluate import held_out
from fedax.errors import ConfigError
from fedax.metrics.base import wide
from fedax.metrics.ranking import bin_of

RANDOM = np.random.default_rng(0)


def two(n, spread=3.0, share=0.5, digits=None):
    """Labels and log-odds of two classes; few ``digits`` make ties."""
    y = (RANDOM.random(n) < share).astype(int)
    y[:2] = 0, 1
    score = RANDOM.normal(size=n) * spread + y
    return y, score if digits is None else np.round(score, digits)


def sigmoid(score):
    return 1 / (1 + np.exp(-score))


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


OF_CLASSES = {
    M.Accuracy(): sk.accuracy_score,
    M.BalancedAccuracy(): sk.balanced_accuracy_score,
    M.F1(): sk.f1_score,
    M.F1("macro"): lambda *given, **more: sk.f1_score(*given, average="macro", **more),
    M.F1("micro"): lambda *given, **more: sk.f1_score(*given, average="micro", **more),
    M.Precision(): sk.precision_score,
    M.Precision("macro"): lambda *given, **more: sk.precision_score(*given, average="macro", **more),
    M.Recall(): sk.recall_score,
    M.Recall("macro"): lambda *given, **more: sk.recall_score(*given, average="macro", **more),
}
OF_SCORES = {
    M.AUC(): sk.roc_auc_score,
    M.AveragePrecision(): sk.average_precision_score,
    M.Brier(): sk.brier_score_loss,
    M.LogLoss(): sk.log_loss,
}
OF_REGRESSION = {M.R2(): sk.r2_score, M.MAE(): sk.mean_absolute_error, M.RMSE(): sk.root_mean_squared_error}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@pytest.mark.parametrize("metric", OF_CLASSES, ids=lambda metric: metric.name)
@pytest.mark.parametrize("weighted", [False, True])
def test_of_predicted_classes(metric, weighted):
    y, score = two(60)
    weights = {"sample_weight": RANDOM.random(60)} if weighted else {}
    predicted = (score > 0).astype(int)
    due = OF_CLASSES[metric](y, predicted, **weights)
    signs = {"y": 2 * y - 1, "said": 2 * predicted - 1}
    given = [(y, score), (y, sigmoid(score)), (y, predicted), (2 * y - 1, score), (signs["y"], signs["said"])]
    given += [(y, np.stack([np.zeros(60), score], 1)), (y, np.stack([1 - sigmoid(score), sigmoid(score)], 1))]
    for true, answer in given:
        assert metric(true, answer, **weights) == pytest.approx(due, abs=1e-12)
    assert metric.exact(np.float32(score), y, weights.get("sample_weight")) == pytest.approx(due, abs=1e-12)
    if metric.name in ("f1", "precision", "recall"):
        with pytest.raises(fedax.ConfigError, match=r"average = 'binary': .*there are 3"):
            metric([0, 1, 2], np.eye(3))
        return
    y, logits = RANDOM.integers(0, 4, 60), RANDOM.normal(size=(60, 4))
    y[y == 3] = 1  # a class that is predicted, and never true
    if metric.name == "balanced_accuracy":  # scikit-learn warns of that class
        due = sk.recall_score(y, logits.argmax(1), labels=[0, 1, 2], average="macro", **weights)
    else:
        due = OF_CLASSES[metric](y, logits.argmax(1), **weights)
    for answer in (logits, softmax(logits), logits.argmax(1)):
        assert metric(y, answer, **weights) == pytest.approx(due, abs=1e-12)


@pytest.mark.parametrize("metric", OF_SCORES, ids=lambda metric: metric.name)
@pytest.mark.parametrize("digits", [None, 0], ids=["all different", "ties"])
def test_of_scores(metric, digits):
    y, score = two(80, share=0.2, digits=digits)
    weights = RANDOM.random(80)
    ranks = metric.name in ("auc", "average_precision")
    for more in ({}, {"sample_weight": weights}):
        due = OF_SCORES[metric](y, score if ranks else sigmoid(score), **more)
        for answer in (score, sigmoid(score), np.stack([1 - score, 1 + score], 1) / 2 if ranks else score):
            assert metric(2 * y - 1, answer, **more) == pytest.approx(due, abs=1e-9)
    labels, logits = np.arange(60) % 3, RANDOM.normal(size=(60, 3))
    each = [OF_SCORES[metric](labels == c, softmax(logits)[:, c]) for c in range(3)]
    due = {
        "auc": sk.roc_auc_score(labels, softmax(logits), multi_class="ovr"),
        "average_precision": np.mean(each),
        "brier": np.mean(((softmax(logits) - np.eye(3)[labels]) ** 2).sum(1)),
        "log_loss": sk.log_loss(labels, softmax(logits)),
    }[metric.name]
    assert metric(labels, logits) == pytest.approx(due, abs=1e-9)
    assert metric(labels, softmax(logits)) == pytest.approx(due, abs=1e-9)


@pytest.mark.parametrize("metric", [M.AUC(), M.AveragePrecision()], ids=lambda metric: metric.name)
def test_small_probabilities_are_told_apart(metric):
    y, p = np.array([0, 0, 1]), np.array([1e-20, 1e-19, 1e-18])
    both = np.stack([1 - p, p], 1)
    assert metric(y, both) == metric(y[None], both[None]) == 1


@pytest.mark.parametrize("metric", OF_REGRESSION, ids=lambda metric: metric.name)
@pytest.mark.parametrize("shape", [(50,), (50, 3)])
def test_of_regression(metric, shape):
    y = RANDOM.normal(size=shape) + 1000
    f, weights = y + RANDOM.normal(size=shape), RANDOM.random(50)
    assert metric(y, f) == pytest.approx(OF_REGRESSION[metric](y, f), abs=1e-9)
    assert metric(y, f, weights) == pytest.approx(OF_REGRESSION[metric](y, f, sample_weight=weights), abs=1e-9)


@pytest.mark.parametrize("offset", [2e9, -1e12])
@pytest.mark.parametrize("shape", [(50,), (50, 3)])
def test_labels_far_from_zero_keep_their_digits(offset, shape):
    """The variance of labels at 2e9 is no difference of two sums of squares; in parts, as from nodes, neither."""
    y = RANDOM.normal(size=shape) + offset
    f, weights = y + 0.1 * RANDOM.normal(size=shape), RANDOM.random(50) * (np.arange(50) != 0)
    for metric, function in OF_REGRESSION.items():
        assert metric(y, f) == pytest.approx(function(y, f), rel=1e-6)
        assert metric(y, f, weights) == pytest.approx(function(y, f, sample_weight=weights), rel=1e-6)
    r2 = M.R2()
    places = [slice(0, 7), slice(7, 7), slice(7, 30), slice(30, 50)]
    labels = [r2.labels(y[place], weights[place]) for place in places]
    sums = r2.sums(f, y, weights)
    together = r2.value(sums, functools.reduce(r2.joined, labels))
    assert together == pytest.approx(sk.r2_score(y, f, sample_weight=weights), rel=1e-6)
    alike = functools.reduce(r2.joined, [r2.labels(np.full(shape, 0.1)[:9]), r2.labels(np.full(shape, 0.1))])
    assert (alike["m2"] == 0).all()


def test_weights_of_all_sizes():
    y, score = two(60, digits=0)
    weights = 10.0 ** RANDOM.uniform(-18, 0, 60)
    assert M.AUC()(y, score, weights) == pytest.approx(sk.roc_auc_score(y, score, sample_weight=weights), abs=1e-12)
    weights = np.where(np.argsort(np.argsort(score)) < 40, 1e18, 1.0)  # equal scores at the top keep their weight
    y[np.argsort(score)[40:]] = np.arange(20) % 2
    groups = [weights[(score == s) & (y == 1)].sum() for s in np.unique(score)]
    seen = []

    class Kept(M.AUC):
        def _value_of_groups(self, negative, positive):
            seen.append(positive)
            return 0.0

    Kept()(y, score, weights)
    assert seen[0].tolist() == groups


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_log_loss_of_probabilities_0_and_1(kind):
    y, p = [0, 1, 1, 0, 1], np.array([0.0, 0.0, 1.0, 1.0, 1e-20], kind)
    weights = [1, 2, 1, 1, 3]
    for true, given in ((y, p), (y, np.stack([1 - p, p], 1)), ([0, 2, 1, 2], np.eye(3, dtype=kind)[[1, 2, 0, 0]])):
        due = sk.log_loss(true, given, labels=np.unique(true))
        assert M.LogLoss()(true, given) == pytest.approx(due, rel=1e-6)
        assert M.Perplexity()(true, given) == pytest.approx(np.exp(due), rel=1e-5)
    assert M.LogLoss()(y, p, weights) == pytest.approx(sk.log_loss(y, p, sample_weight=weights), rel=1e-6)
    assert M.LogLoss()([0, 1], [50.0, -60.0]) == 55  # log-odds are taken as they are


def test_of_text_and_calibration():
    y, logits = RANDOM.integers(0, 5, (7, 4)), RANDOM.normal(size=(7, 4, 5))
    loss = sk.log_loss(y.ravel(), softmax(logits).reshape(-1, 5), labels=range(5))
    assert M.Perplexity().exact(logits, y) == pytest.approx(np.exp(loss))
    assert M.Accuracy().exact(logits, y) == pytest.approx((logits.argmax(-1) == y).mean())
    y, score = two(500)
    p, bins = sigmoid(score), np.minimum((sigmoid(score) * 10).astype(int), 9)
    due = sum(abs((p - y)[bins == b].sum()) for b in range(10)) / 500
    assert M.CalibrationError(10)(y, score) == pytest.approx(due)
    labels, logits = RANDOM.integers(0, 3, 200), RANDOM.normal(size=(200, 3))
    top, right = softmax(logits).max(1), logits.argmax(1) == labels
    due = sum(abs((top - right)[(top * 15).astype(int) == b].sum()) for b in range(15)) / 200
    assert M.CalibrationError()(labels, logits) == pytest.approx(due)


def test_where_a_metric_is_not_defined():
    for metric in (M.AUC(), M.AveragePrecision()):
        assert np.isnan(metric([0, 0], [0.1, 0.9]))
        counts = wide(metric.sums(jnp.array([1.0, 2.0]), jnp.zeros(2), jnp.ones(2, jnp.int32)))
        assert np.isnan(metric.of_run(counts))
        assert np.isnan(metric.exact([np.nan, 0.5], [0, 1]))
        lost = metric.sums(jnp.array([np.nan, 2.0]), jnp.array([0, 1]), jnp.ones(2, jnp.int32))
        assert np.isnan(metric.of_run(lost)) and np.isnan(metric.bound(wide(lost)))
    assert np.isnan(M.AUC()([1, 1], [0.1, 0.9])) and M.AveragePrecision()([1, 1], [0.1, 0.9]) == 1
    assert np.isnan(M.R2()([1.0], [1.0])) and M.R2()([2.0, 2.0], [2.0, 3.0]) == 0 and M.R2()([2.0, 2.0], [2, 2]) == 1
    assert np.isclose(M.R2()([0.1, 0.2, 0.4], [0.1, 0.3, 0.3]), sk.r2_score([0.1, 0.2, 0.4], [0.1, 0.3, 0.3]))
    assert M.F1()([0, 0], [0, 0]) == 0 and M.BalancedAccuracy()([0, 0], [0, 1]) == 0.5
    assert M.BalancedAccuracy()([0, 0, 1], [0, 0, 0]) == 0.5
    assert M.AUC()([0, 1, 1], [3.0, 3.0, 3.0]) == 0.5 and M.AveragePrecision()([0, 1, 1, 0], [3.0] * 4) == 0.5


ADVERSARIAL = {
    "usual": lambda: two(400),
    "unbalanced": lambda: two(2000, share=0.03),
    "ties": lambda: two(300, digits=1),
    "confident": lambda: two(300, spread=80.0),
    "near minus eight": lambda: (lambda y, s: (y, s * 0.02 - 8))(*two(300, share=0.1)),
    "constant": lambda: (np.array([0, 1, 1]), np.zeros(3)),
    "two bins": lambda: (np.array([0, 1] * 50), np.tile([1e-6, 2e-6, 40.0, 40.000004], 25)),
    "upside down": lambda: (lambda y, s: (y, -20.0 * y + 1e-3 * s))(*two(100)),
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_histograms_are_within_their_bound(name):
    y, score = ADVERSARIAL[name]()
    score = np.float32(score)
    for make, exactly in ((M.AUC, sk.roc_auc_score), (M.AveragePrecision, sk.average_precision_score)):
        for bits in (1, 4, 9):
            metric = make(bits)
            sums = wide(metric.sums(jnp.asarray(score), jnp.asarray(2 * y - 1), jnp.ones(len(y), jnp.int32)))
            assert abs(metric.of_run(sums) - exactly(y, score)) <= metric.bound(sums) + 1e-12
            assert metric.exact(score, y) == pytest.approx(exactly(y, score), abs=1e-12)
        if name in ("usual", "unbalanced", "confident"):
            assert metric.bound(sums) < 0.02


@pytest.mark.parametrize(("p", "q", "above"), [(3, 2, 1), (10, 1, 5)], ids=["upper end", "lower end"])
def test_the_ends_of_a_bound_are_reached(p, q, above):
    """One bin with p positive and q negative examples, below some negative ones: as its derivation has them."""
    counts = np.zeros((2, 22), np.int64)
    counts[:, 12], counts[0, 20] = (q, p), above
    sums, first = {"counts": counts, "lost": np.int64(0)}, [0] * above + [1] * p + [0] * q
    scores = [99.0] * above + [*range(p + q, 0, -1)]
    last = [0] * above + [0] * q + [1] * p
    ties = [99.0] * above + [50.0] * p + [*range(q, 0, -1)]
    for metric, exactly in ((M.AUC(1), sk.roc_auc_score), (M.AveragePrecision(1), sk.average_precision_score)):
        ends = [exactly(labels, given) for labels, given in ((first, scores), (last, scores), (first, ties))]
        assert max(abs(end - metric.value(sums)) for end in ends) == pytest.approx(metric.bound(sums))


def test_bins_are_a_monotone_function_with_the_same_values_everywhere():
    score = np.sort(np.float32(RANDOM.normal(size=5000) * np.exp(RANDOM.uniform(-20, 12, 5000))))
    score = np.concatenate([score, np.nextafter(score, np.float32(np.inf))])
    score.sort()
    for bits in (1, 9, 14):
        bins = bin_of(score, bits)
        assert (np.diff(bins) >= 0).all() and bins.min() >= 0 and bins.max() < 22 << bits
        assert (np.asarray(jax.jit(bin_of, static_argnums=1)(score, bits)) == bins).all()


def outputs_of(params, batch):
    return batch["x"].astype(jnp.float32) * params


def test_sums_of_twenty_million_examples():
    n = 20_000_000
    y = np.zeros(n, np.int8)
    y[: 2**24 + 3] = 1  # more than a float32 can count
    x = (np.arange(n, dtype=np.int32) % 251 - 60).astype(np.int8)
    made = {"accuracy": M.Accuracy(), "brier": M.Brier()}
    task = fedax.Task(
        lambda key: jnp.ones(()), lambda p, b, key: 0.1 * jnp.ones(b["y"].shape), made, None, "t", outputs_of,
        "classification",
    )  # fmt: skip
    program = jax.jit(lambda p, b: held_out(task, fedax.Vector(p), b, None))
    sums = program(jnp.ones(()), {"x": jnp.asarray(x), "y": jnp.asarray(y)})
    predicted = np.int8(x > 0)
    assert int(sums["accuracy"]["right"]) == np.count_nonzero(predicted == y)
    exactly = (
        np.bincount(x.astype(int) + 128, weights=y, minlength=256),
        np.bincount(x.astype(int) + 128, minlength=256),
    )
    score = np.arange(256) - 128
    p = sigmoid(score.astype(float).clip(-700))
    brier = (exactly[0] * (p - 1) ** 2 + (exactly[1] - exactly[0]) * p**2).sum() / n
    assert made["brier"].of_run(sums["brier"]) == pytest.approx(brier, rel=1e-6)
    assert float(sums["loss"]) == pytest.approx(0.1, rel=1e-6)


def two_numbers(y, predicted):
    return [1, 2]


def test_a_function_of_the_users_own():
    y, score = two(50)
    mcc = M.OnHost(sk.matthews_corrcoef)
    assert mcc(y, score) == pytest.approx(sk.matthews_corrcoef(y, score > 0))
    assert mcc(2 * y - 1, score) == mcc(y, score) and mcc.name == "matthews_corrcoef"
    loss = M.OnHost(sk.log_loss, of="scores", better="lower")
    assert loss(y, score, np.arange(50)) == pytest.approx(sk.log_loss(y, sigmoid(score), sample_weight=np.arange(50)))
    of_regression = M.OnHost(sk.median_absolute_error, better="lower").exact(score, y, kind="regression")
    assert of_regression == pytest.approx(sk.median_absolute_error(y, score))
    with pytest.raises(fedax.ConfigError, match=r"metric two_numbers = .*: return one number"):
        M.OnHost(two_numbers)(y, score)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: M.F1("weighted"), "average = 'weighted'"),
        (lambda: M.AUC(0), "bits = 0"),
        (lambda: M.AveragePrecision(True), "bits = True"),
        (lambda: M.CalibrationError(0), "bins = 0"),
        (lambda: M.OnHost(3), "function = 3"),
        (lambda: M.OnHost(max, of="classes"), "of = 'classes'"),
        (lambda: M.OnHost(max, better="up"), "better = 'up'"),
        (lambda: M.AUC()([], []), "y_true"),
        (lambda: M.AUC()(["a"], [0.5]), "y_true"),
        (lambda: M.AUC()([0, 1], [0.5]), "y_score"),
        (lambda: M.AUC()([[1], [1, 2]], [0.5, 0.5]), "y_true"),
        (lambda: M.MAE()([0, 1], [0.5, 0.5], [0, 0]), "sample_weight"),
        (lambda: M.Accuracy()([0, 1], [0.5, 0.5], [1]), "sample_weight"),
        (lambda: M.Accuracy()([0, 1], [0.5, 0.5], [1, -1]), "sample_weight"),
        (lambda: M.R2()(np.zeros(3), np.zeros((3, 2))), "y = "),
        (lambda: M.create("auk"), "did you mean 'auc'"),
        (
            lambda: fedax.Task(jnp.zeros, max, {"auc": M.AUC()}),
            r"metrics\['auc'\] = AUC\(bits=9\): a metric",
        ),
        (lambda: fedax.tasks.linear_regression(2).with_metrics(f1=M.F1()), r"metrics\['f1'\].*one of regression"),
    ],
)
def test_bad_settings(make, match):
    with pytest.raises(fedax.ConfigError, match=match):
        make()


Y, P = np.array([0, 1, 1, 0]), np.array([0.2, 0.9, 0.4, 0.5])
THREE = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.5, 0.3, 0.2]])
OF_CLASSIFICATION = [M.create(name) for name in M.METRICS if M.create(name).kind == "classification"]
OF_CLASSIFICATION += [M.F1("macro"), M.OnHost(sk.matthews_corrcoef)]
NO_CLASSES = {
    "swapped": (P, Y, r"y_true = 0\.2: this is no class; y_true comes first"),
    "swapped, of three classes": (THREE, [0, 1, 2, 0], r"y_score = \[4\]: .* y_true comes first"),
    "a number is predicted": (10 * P + 0.5, 10 * P, "y_true = 2.5: this is no class.*(mae|MAE|kind='regression')"),
    "a label is missing": (np.where(Y, Y, np.nan), P, "y_true = nan"),
    "a label is infinite": (np.where(Y, np.inf, 0), P, "y_true = inf"),
    "a score is missing": (Y, np.where(Y, P, np.nan), "y_score = nan"),
    "1 and 2": (Y + 1, P, "y_true = 2: give labels 0 and 1, or -1 and"),
    "-1, 0 and 1": (Y - [0, 0, 0, 1], P, "y_true = 0: give labels 0 and 1"),
    "two columns": (Y + 1, np.stack([1 - P, P], 1), "y_true = 2: give labels 0 and 1.*two columns"),
    "three classes, one score": ([0, 1, 2, 0], P, r"y_true = 2: .*of more classes give \[n, C\]"),
    "beyond the columns": ([0, 1, 2, 3], THREE, "y_true = 3: y_score has 3 columns; give labels from 0 to 2"),
    "below 0": ([0, 1, -1, 0], THREE, "y_true = -1: y_score has 3 columns"),
    "one column": (Y, P[:, None], r"y_score = \[4, 1\]: this is one column"),
    "one-hot": (np.eye(3)[[0, 1, 2, 0]], THREE, "one-hot"),
    "texts": (["a", "b", "b", "a"], P, "y_true = .*: give an array of numbers"),
    "nothing": ([], [], "y_true"),
    "unequal lengths": (Y, P[:3], "y_score = "),
}


@pytest.mark.parametrize("metric", OF_CLASSIFICATION, ids=lambda metric: metric.name)
def test_labels_that_are_no_classes(metric):
    for what, (y, score, match) in NO_CLASSES.items():
        with pytest.raises(fedax.ConfigError, match=match):
            pytest.fail(f"{what}: {metric(y, score)}")
    due = metric(Y, P)
    assert np.isfinite(due)
    for y in (Y * 1.0, Y == 1, Y[:, None], 2.0 * Y - 1, Y.tolist()):
        assert metric(y, P) == due
    if metric.name != "matthews_corrcoef":  # sklearn's own business
        metric(np.zeros(4), P)  # of one class: a value, or not-a-number
        metric([True, True], [0.5, 0.25])


def test_whole_numbers_are_classes_but_where_scores_are_ranked():
    for metric in (M.Accuracy(), M.F1("macro"), M.BalancedAccuracy(), M.OnHost(sk.accuracy_score)):
        assert metric([0, 1, 2, 2], [0.0, 1.0, 2.0, 2.0]) == 1
        for y, predicted, match in [
            ([0, 1], [3, -5], "y_score = -5: whole numbers are classes"),
            ([0, 1], [1, -5], "y_score = -5: .*-1 and .1; whole"),
            ([-1, 2], [1, 2], "y_true = -1: whole numbers are classes"),
        ]:
            with pytest.raises(fedax.ConfigError, match=match):
                metric(y, predicted)
    for metric in (M.AUC(), M.AveragePrecision()):
        assert metric([0, 1, 1], [-5, 3, 1]) == 1
        with pytest.raises(fedax.ConfigError, match=r"y_true = 2: .*of more classes give \[n, C\]"):
            metric([0, 1, 2], [0, 1, 2])


@pytest.mark.parametrize("metric", OF_REGRESSION, ids=lambda metric: metric.name)
def test_predictions_that_are_no_numbers(metric):
    for y, f, match in [
        ([1.0, np.nan], [1.0, 2.0], "y_true = nan"),
        ([1.0, 2.0], [np.inf, 2.0], "y_score = inf"),
        ([1.0, 2.0], ["a", "b"], "y_score = "),
        ([], [], "y_true"),
    ]:
        with pytest.raises(fedax.ConfigError, match=match):
            metric(y, f)
    due = OF_REGRESSION[metric]([1.0, 2.0, 4.0], [1.0, 3.0, 3.0])
    assert metric([[1.0], [2.0], [4.0]], [1.0, 3.0, 3.0]) == pytest.approx(due)
    assert metric([1, 2, 4], [[1.0], [3.0], [3.0]]) == pytest.approx(due)


class Largest(M.Metric):
    better = "lower"


def test_a_metric_for_all_kinds_says_what_it_lacks():
    with pytest.raises(fedax.ConfigError, match=r"exact\(y_score, y_true, kind='regression'\)"):
        M.OnHost(sk.median_absolute_error)([1.5, 2.0], [1.0, 2.0])
    with pytest.raises(fedax.ConfigError, match="Largest needs kind = 'regression'"):
        Largest()([1.5, 2.0], [1.0, 2.0])


def test_a_metric_with_another_value_is_refused_before_a_run():
    class Short(M.Accuracy):
        def value(self, sums):
            return 0.0

    with pytest.raises(fedax.ConfigError, match=r"Short.value cannot .*value\(sums, labels\).*test_metrics.py:\d+"):
        fedax.tasks.softmax_regression(2, 2).with_metrics(short=Short())


@pytest.mark.parametrize(
    "metric", [M.AUC(), M.Accuracy(), M.OnHost(sk.roc_auc_score, of="scores")], ids=["auc", "accuracy", "host"]
)
@pytest.mark.parametrize("kind", [None, "classification"])
def test_continuous_labels_in_runs(metric, kind):
    if isinstance(metric, M.OnHost) and kind is None:
        return  # it may be of regression
    task = fedax.Task(
        lambda key: jnp.ones(()), lambda p, b, key: (p * b["x"] - b["y"]) ** 2, {"of_classes": metric}, None, "own",
        outputs_of, kind,
    )  # fmt: skip
    x = np.array([1.0, 2.0, 3.0], np.float32)
    good = fedax.FederatedData.from_clients(
        {"a": {"x": x, "y": np.sign(x - 1.5)}, "b": {"x": x, "y": np.sign(2.5 - x)}}
    )
    bad = fedax.FederatedData.from_clients({"a": {"x": x, "y": x}, "b": {"x": x, "y": x + np.float32([0, 0, 0.5])}})
    match = r"'b', .*row 2 has label \[3.5\], .*of_classes"
    with pytest.raises(fedax.DataError, match=match):
        fedax.evaluate(task, jnp.ones(()), bad)
    method = fedax.create("fedavg", lr=0.1)
    with pytest.raises(fedax.DataError, match=match):
        fedax.simulate(method, task, bad, rounds=1)
    for held in ({"test": bad}, {"val": bad.examples}):
        with pytest.raises(fedax.DataError, match=r"(test|val): .*row 2|example 5 .*\[3.5\]"):
            fedax.simulate(method, task, good, rounds=1, **held)
    assert fedax.evaluate(task, jnp.ones(()), good)["of_classes"].notna().all()


def test_every_metric_says_which_way_is_better():
    from fedax.columns import better

    for name in M.METRICS:
        metric = M.create(name)
        column = {"grad_norm": "grad_norm_sq", "density": "density"}.get(name, f"test_{name}")
        assert metric.name == name and better(column) == metric.better
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert eval(repr(metric), vars(M)) == metric and hash(metric) == hash(M.create(name))


@pytest.mark.parametrize("error", [ValueError, KeyError])
def test_a_metric_that_fails_is_not_taken_for_one_that_is_not_defined(error):
    """Of a client, of whose labels a ValueError tells, it is not-a-number; all else is an error."""

    def broken(y_true, y):
        raise error("broken")

    task = fedax.tasks.softmax_regression(2, 2).with_metrics(broken=M.OnHost(broken))
    data = fedax.FederatedData({"x": np.zeros((4, 2), np.float32), "y": np.array([0, 1, 0, 1])}, [2, 2])
    params = task.init(jax.random.key(0))
    if error is ValueError:
        assert fedax.evaluate(task, params, data)["broken"].isna().all()
    else:
        with pytest.raises(ConfigError, match="broken"):
            fedax.evaluate(task, params, data)
    with pytest.raises(ConfigError, match="broken"):
        by_client.whole(task, params, data, ["broken"])
