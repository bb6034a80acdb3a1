"""Studies: their choices, their jobs, and their conclusions."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import special, stats

import fedax
from docs import pooled, study_rules
from fedax.errors import ConfigError, DataError
from fedax.experiments import build, execute, new_folder, plan
from fedax.experiments import study as studies
from fedax.experiments.runs import MethodRun, Record, finite, read
from fedax.experiments.study import carry_out, claims, parts, read_study, results_of, verdict, write_page
from fedax.experiments.study.parts import short
from fedax.files import with_digest

RECIPE = """
name = "small"
data = {name = "digits", clients = 4, partition = "dirichlet", alpha = 0.5, split = {val = 0.2}}
task = {name = "softmax_regression"}
work = {kind = "steps", steps = 2}

[run]
rounds = 4
batch_size = 16
seeds = [3, 4]
split_seeds = true
evaluate_every = 1

[[methods]]
name = "fedavg"
lr = 0.1

[[methods]]
name = "fedavg-m"
lr = 0.1

[sweep.grid]
"methods.*.lr" = [0.1, 0.2]
"methods.*.beta" = [0.5, 0.9]
"""
PART = """
[[parts]]
name = "one"
recipe = "small.toml"
shows = ["Figure 1"]
text = "Momentum is better."
claims = [["fedavg-m", "fedavg"]]
"""
OTHER = """
[[parts]]
name = "two"
recipe = "small.toml"
tuned_by = "one"
set = {"run.rounds" = 5}
"""
ONE_CHOICE = """
methods = ["fedavg"]

[parts.set]
"run.seeds" = [3]
"sweep.grid" = {"methods.fedavg.lr" = [0.01, 0.2]}
"""


@pytest.fixture
def made(tmp_path):
    def make(parts=PART + "tune = {rounds = 2, again = 0}\n", recipe=RECIPE):
        (tmp_path / "small.toml").write_text(recipe)
        (tmp_path / "study.toml").write_text(f'name = "mine"\n{parts}')
        return read_study(tmp_path / "study.toml")

    return make


def tuned(study, label, *scores, criterion="val_loss", better="lower"):
    """Make up the results of the next choice of a method: the score of each point, in the order of the grid."""
    part = study.parts["one"]
    _, job = study.choice(part, label)
    axes = [(path.removeprefix("methods.*."), values) for path, values in job.config["sweep"]["grid"].items()]
    points = [{}]
    for name, values in axes:
        points = [point | {name: value} for point in points for value in values]
    number = len(job.config["run"]["seeds"])
    rows = [
        {"point": point, "mean": score, "failed": int(score is None), "seeds": [score] * number}
        for point, score in zip(points, scores, strict=True)
    ]
    study.results[job.key] = {
        "key": job.key,
        "label": label,
        "criterion": criterion,
        "better": better,
        "last": 1,
        "rounds": job.config["run"]["rounds"],
        "tuned_with": job.config["run"]["seeds"],
        "points": rows,
    }
    return job


def test_every_method_is_tuned_with_as_many_runs(made):
    jobs = {job.label: job.config for job in made().jobs()}
    assert jobs["fedavg"]["sweep"]["grid"] == {"methods.*.lr": [0.1, 0.2]}
    assert jobs["fedavg"]["run"]["seeds"] == [1000, 1001]
    assert jobs["fedavg-m"]["sweep"]["grid"] == {"methods.*.lr": [0.1, 0.2], "methods.*.beta": [0.5, 0.9]}
    assert jobs["fedavg-m"]["run"]["seeds"] == [1000]
    assert {config["run"]["rounds"] for config in jobs.values()} == {2}


def test_a_range_counts_as_its_points(made):
    grid = '{"methods.fedavg.lr" = {low = 0.1, high = 0.4, points = 2}, "methods.fedavg-m.lr" = [0.1, 0.2, 0.4, 0.8]}'
    jobs = {job.label: job.config for job in made(PART + f'tune = {{}}\nset = {{"sweep.grid" = {grid}}}\n').jobs()}
    assert jobs["fedavg"]["sweep"]["grid"] == {"methods.*.lr": [0.1, 0.4]}
    assert [len(jobs[label]["run"]["seeds"]) for label in ("fedavg", "fedavg-m")] == [2, 1]


def test_a_grid_grows_until_its_best_is_inside(made):
    study = made()
    part = study.parts["one"]
    tuned(study, "fedavg", 3.0, 2.0)
    assert tuned(study, "fedavg", 1.0).config["sweep"]["grid"] == {"methods.*.lr": [0.4]}
    assert tuned(study, "fedavg", 1.5).config["sweep"]["grid"] == {"methods.*.lr": [0.8]}
    assert study.choice(part, "fedavg") == ({"lr": 0.4}, None)
    assert [row["point"]["lr"] for row in study.tried(part, "fedavg")] == [0.4, 0.8, 0.2, 0.1]
    # Two axes, the best at an edge of both; beta cannot be above 1.
    tuned(study, "fedavg-m", 4.0, 3.0, 3.0, 2.0)
    job = tuned(study, "fedavg-m", 2.5, 2.6)
    assert job.config["sweep"]["grid"] == {"methods.*.lr": [0.4], "methods.*.beta": [0.9, 0.5]}
    assert study.choice(part, "fedavg-m") == ({"lr": 0.2, "beta": 0.9}, None)


def test_a_grid_grows_with_what_a_method_takes(made, tmp_path):
    (tmp_path / "dyn.toml").write_text(
        RECIPE.partition("[[methods]]")[0]
        + '[[methods]]\nname = "feddyn"\nlr = 0.5\nalpha = 0.1\n'
        + '[sweep.grid]\n"methods.*.lr" = [0.2, 0.5, 2.0]\n"methods.*.alpha" = [0.1, 0.4]\n'
    )
    study = made('[[parts]]\nname = "one"\nrecipe = "dyn.toml"\ntune = {rounds = 2, again = 0}\n')
    tuned(study, "feddyn", 4.0, 3.0, 2.0, 1.0, 3.0, 3.0)  # lr · alpha must be at most 1
    job = tuned(study, "feddyn", 0.5, 2.0)
    assert job.config["sweep"]["grid"] == {"methods.*.lr": [0.5, 0.2], "methods.*.alpha": [1.6]}
    plan(job.config)  # as the job does it
    assert study.choice(study.parts["one"], "feddyn") == ({"lr": 0.5, "alpha": 1.6}, None)  # 6.4 is refused


def test_settings_outside_of_methods_are_tuned(made, tmp_path):
    """Also a batch size is one of a method's axes, with the grid's values and beyond."""
    study = made(PART + 'tune = {again = 0}\nset = {"sweep.grid" = {"run.batch_size" = [8, 16]}}\n')
    for sizes, scores in ([8, 16], (2.0, 1.0)), ([32], (3.0,)):
        job = tuned(study, "fedavg", *scores)
        assert job.config["sweep"]["grid"] == {"run.batch_size": sizes}
    point, _ = study.choice(study.parts["one"], "fedavg")
    run = study.run(study.parts["one"], "fedavg", 3, point)
    assert point == {"run.batch_size": 16} and run.config["run"]["batch_size"] == 16


@pytest.mark.parametrize("axis", ["rnu.batch_size", "methods.fedavgg.lr", "methods.fedavg.beta", "run.rounds"])
def test_a_grid_that_no_method_can_have_is_refused_before_any_job(made, axis):
    grid = f'tune = {{}}\nset = {{"sweep.grid" = {{"{axis}" = [1, 2]}}}}\n'
    with pytest.raises(ConfigError, match=re.escape(f"sweep.grid.{axis}")):
        made(PART + grid)


def test_a_grid_grows_no_longer_than_asked_and_not_where_all_failed(made):
    study = made(PART + "tune = {rounds = 2, extend = 1, again = 0}\n")
    part = study.parts["one"]
    tuned(study, "fedavg", 2.0, 3.0)
    assert tuned(study, "fedavg", 1.0).config["sweep"]["grid"] == {"methods.*.lr": [0.05]}
    assert study.choice(part, "fedavg") == ({"lr": 0.05}, None)
    tuned(study, "fedavg-m", None, None, None, None)
    assert study.choice(part, "fedavg-m")[1] is None


def test_the_two_best_points_are_tried_again_where_they_are_close(made):
    study = made(PART + "tune = {extend = 0}\n")
    part = study.parts["one"]
    assert tuned(study, "fedavg-m", 1.0, 1.05, 1.07, 3.0).config["run"]["rounds"] == 4  # those of the runs
    first, second = (tuned(study, "fedavg-m", score) for score in (1.3, 1.1))
    assert first.config["sweep"]["grid"] == {"methods.*.lr": [0.1], "methods.*.beta": [0.5]}
    assert second.config["sweep"]["grid"] == {"methods.*.lr": [0.1], "methods.*.beta": [0.9]}
    assert first.config["run"]["seeds"] == second.config["run"]["seeds"] == [1001]
    # Over both seeds 1.15 and 1.075; the third best, 1.07, had one seed only and does not count.
    assert study.choice(part, "fedavg-m") == ({"lr": 0.1, "beta": 0.9}, None)
    assert [(row["mean"], row["seeds"]) for row in study.tried(part, "fedavg-m")[:2]] == [
        (1.075, [1.05, 1.1]),
        (1.15, [1.0, 1.3]),
    ]
    tuned(study, "fedavg", 1.0, 1.2)  # not close
    assert study.choice(part, "fedavg") == ({"lr": 0.1}, None)


def test_a_point_that_fails_when_tried_again_is_not_taken(made):
    study = made(PART + "tune = {extend = 0}\n")
    tuned(study, "fedavg-m", 1.0, 1.05, 1.07, 3.0)
    tuned(study, "fedavg-m", None)
    tuned(study, "fedavg-m", 2.0)
    assert study.choice(study.parts["one"], "fedavg-m")[0] == {"lr": 0.1, "beta": 0.9}
    assert study.tried(study.parts["one"], "fedavg-m")[-1]["failed"] == 1


STEM = (
    RECIPE.partition("[[methods]]")[0]
    + '[[methods]]\nname = "stem"\nlr = 0.1\nw = 100.0\nc = 2000.0\n'
    + '[sweep.grid]\n"methods.*.lr" = [0.05, 0.1, 0.2]\n'
)


def test_what_is_held_changes_with_what_is_tuned(made, tmp_path):
    """α = c lr² / (w + t)^(2/3) is the same at all rates, so that none of them leaves its domain."""
    (tmp_path / "stem.toml").write_text(STEM)
    study = made('[[parts]]\nname = "one"\nrecipe = "stem.toml"\ntune = {again = 0}\nhold = {stem = {c = "lr^-2"}}\n')
    part = study.parts["one"]
    for lr, c, score in ((0.05, 8000.0, 3.0), (0.1, 2000.0, 2.0), (0.2, 500.0, 1.0), (0.4, 125.0, 4.0)):
        job = tuned(study, "stem", score)
        (row,) = job.config["methods"]
        assert (row["lr"], row["c"]) == (lr, c) and job.config["sweep"]["grid"] == {"methods.*.lr": [lr]}
        (made_method,) = plan(job.config).experiments["stem"][0].methods.values()
        assert float(made_method.alpha(0)) == pytest.approx(2000 * 0.1**2 / 100 ** (2 / 3), rel=1e-5)
    run = study.run(part, "stem", 3, study.choice(part, "stem")[0])
    assert (run.config["methods"][0]["lr"], run.config["methods"][0]["c"]) == (0.2, 500.0)
    assert study_rules.unsure(study, part) == []
    for rule, message in (("lr", "give a name and a power"), ("beta^2", "the recipe gives no number for beta")):
        with pytest.raises(ConfigError, match=rf"hold.stem.c = '{rule.replace('^', '.')}': {message}"):
            made(f'[[parts]]\nname = "one"\nrecipe = "stem.toml"\nhold = {{stem = {{c = "{rule}"}}}}\n')
    for field in ("hold = {fedprox = {}}", 'unfair = {fedprox = "why"}'):
        with pytest.raises(ConfigError, match=rf"parts.{field.split()[0]} = 'fedprox'"):
            made(PART + field + "\n")


def test_a_grid_that_leaves_a_methods_domain_is_found(made, tmp_path):
    (tmp_path / "stem.toml").write_text(STEM)
    study = made('[[parts]]\nname = "one"\nrecipe = "stem.toml"\ntune = {again = 0, extend = 0}\n')
    tuned(study, "stem", 3.0, 1.0, None)
    assert study_rules.unsure(study, study.parts["one"]) == [
        "one: stem: points that the method refuses were tried (lr 0.2).",
        "one: stem: alpha, which is c lr², changes along the grid of lr.",
    ]


def test_choices_that_others_might_turn_around_are_found(made):
    parts = PART + 'tune = {rounds = 2, extend = 0, again = 0}\nset = {"methods.fedavg-m.lr" = LR}\n' + OTHER
    grid = '"sweep.grid" = {"methods.fedavg.lr" = [0.1, 0.2], "methods.fedavg-m.lr.value" = [0.1, 0.2], '
    grid += '"methods.*.beta" = [0.5, 0.9]}'
    falls = "{value = 0.1, at = {2 = 0.1}}"
    parts = parts.replace("LR", f"{falls}, {grid}").replace(
        'set = {"run.rounds" = 5}', f'set = {{"run.rounds" = 5, "work.steps" = 3, "methods.fedavg-m.lr" = {falls}}}'
    )
    study = made(parts)
    one, two = study.parts.values()
    assert study_rules.unsure(study, one) == []  # nothing was chosen yet
    tuned(study, "fedavg", 1.0, 1.02)  # two seeds
    tuned(study, "fedavg-m", 1.0, 2.0, 1.05, 2.0)
    assert study_rules.unsure(study, one) == [
        "one: chosen on 2 of 4 rounds (fedavg; fedavg-m).",
        "one: a rate falls after the rounds that were tried (fedavg-m).",
        "one: fedavg-m: beta 0.5, lr.value 0.1 (1) is chosen over beta 0.9, lr.value 0.1 (1.05) by one seed.",
    ]
    assert study_rules.unsure(study, two)[:3] == [
        "two: chosen on 2 of 5 rounds (fedavg; fedavg-m).",
        "two: a rate falls after the rounds that were tried (fedavg-m).",
        "two: chosen on another problem, that of one (fedavg; fedavg-m).",
    ]


@pytest.mark.parametrize(
    ("printed", "lr", "best", "holes"),
    [
        ("{}", [0.1, 0.2, 0.6, 2.0], 0, []),  # 2 next to the best, else 3, or 10/3
        ("{}", [0.1, 0.2, 0.6, 2.0], 1, ["lr 0.2 to 0.6"]),
        ("{}", [0.1, 0.2, 0.4, 1.5], 0, ["lr 0.4 to 1.5"]),
        ('{"methods.*.lr" = [0.1, 0.15], "methods.fedavg-m.lr" = [9.0]}', [0.1, 0.2], 0, ["lr 0.15"]),
        ('{"methods.*.beta" = [0.7]}', [0.1, 0.2], 0, []),  # fedavg has no beta
        ('{"methods.*.momentum" = [0.5, 0.9]}', [0.1, 0.2], 0, ["momentum 0.5"]),  # all runs have 0.9
    ],
)
def test_holes_of_a_grid_are_found_unless_they_are_named(made, tmp_path, printed, lr, best, holes):
    def study(named):
        grid = ONE_CHOICE.replace("[0.01, 0.2]", str(lr)) + '"methods.fedavg.momentum" = 0.9\n'
        text = PART.replace('claims = [["fedavg-m", "fedavg"]]\n', f"printed = {printed}\nholes = {named}\n")
        made_one = made(text + "tune = {extend = 0, again = 0}\n" + grid)
        tuned(made_one, "fedavg", *[float(at != best) for at in range(len(lr))])
        (tmp_path / "results").mkdir(exist_ok=True)
        lines = [json.dumps(line) + "\n" for line in made_one.results.values()]
        (tmp_path / "results" / "one.jsonl").write_text("".join(lines))
        (tmp_path / "results" / "one.json").write_text(json.dumps({"config": {}, "about": {}}))
        return made_one

    assert study_rules.holes(study("{}"), study("{}").parts["one"]) == {"fedavg": holes}
    assert study_rules.faults(study("{}"), tmp_path) == [f"one: fedavg: {hole} was not tried." for hole in holes]
    named = f"{{fedavg = {json.dumps(holes)}}}"
    assert study_rules.faults(study(named), tmp_path) == []
    stale = study_rules.faults(study('{fedavg = ["lr 7"]}'), tmp_path)
    assert stale[-1] == "one: fedavg: lr 7 is called a hole and is none."


def test_unequal_budgets_are_found(made, tmp_path):
    recipe = RECIPE.replace('"methods.*.lr" = [0.1, 0.2]', '"methods.fedavg.lr" = [0.1, 0.2, 0.4, 0.8]').replace(
        "[0.5, 0.9]", "[0.5, 0.9, 1.0, 0.2, 0.7]"
    )
    (tmp_path / "uneven.toml").write_text(recipe)
    study = made(PART.replace("small.toml", "uneven.toml") + "tune = {extend = 0}\n")
    tuned(study, "fedavg", 2.0, 1.0, 2.0, 2.0)
    tuned(study, "fedavg-m", 2.0, 1.0, 2.0, 2.0, 2.0)
    assert study_rules.unsure(study, study.parts["one"]) == [
        "one: 5 runs chose for fedavg-m, 4 for fedavg, before grids grew.",
        "one: lr is tuned for other methods, and not for fedavg-m.",
    ]


@pytest.mark.parametrize(("beyond", "counted"), [([0.9, 0.8, 2.0], 8), ([2.0], None), ([0.9, 2.0], None)])
def test_growth_counts_that_brought_one_of_the_two_best(made, beyond, counted):
    """Twice as many runs are unequal budgets, unless what grew last was not chosen."""
    study = made(PART + "tune = {again = 0}\n")
    tuned(study, "fedavg", 1.5, 1.0)  # two seeds each; the larger rate is better, so the grid grows
    tuned(study, "fedavg-m", 2.0, 1.0, 2.0, 2.0)
    for score in beyond:
        tuned(study, "fedavg", score)
    expected = [] if counted is None else [f"one: {counted} runs chose for fedavg, 4 for fedavg-m."]
    assert [text for text in study_rules.unsure(study, study.parts["one"]) if "runs chose" in text] == expected


def test_a_part_from_which_nothing_follows_is_not_a_fault(made, tmp_path):
    study = made(PART + "tune = {rounds = 2, extend = 0, again = 0}\n")
    tuned(study, "fedavg", 1.0, 2.0)
    (tmp_path / "results").mkdir()
    text = "".join(json.dumps(line) + "\n" for line in study.results.values())
    (tmp_path / "results" / "one.jsonl").write_text(text)
    assert study_rules.faults(study, tmp_path) == ["one: chosen on 2 of 4 rounds (fedavg)."]
    study.parts["one"].section.provisional = "tuned on too few rounds."
    assert study_rules.faults(study, tmp_path) == []


def test_higher_scores_can_be_better(made):
    study = made(PART + "tune = {rounds = 2, extend = 0, again = 0}\n")
    tuned(study, "fedavg", 0.4, 0.5, criterion="val_accuracy", better="higher")
    assert study.choice(study.parts["one"], "fedavg") == ({"lr": 0.2}, None)


def test_another_part_takes_what_was_chosen(made):
    study = made(PART + "tune = {rounds = 2, extend = 0, again = 0}\n" + OTHER)
    assert {job.part for job in study.jobs()} == {"one"}
    tuned(study, "fedavg", 2.0, 1.0)
    runs = [job for job in study.jobs() if job.seed is not None]
    assert {(job.part, job.label, job.seed) for job in runs} == {
        (p, "fedavg", s) for p in ("one", "two") for s in (3, 4)
    }
    assert {job.config["methods"][0]["lr"] for job in runs} == {0.2}


def test_a_part_alone_has_that_by_which_it_is_tuned(made, tmp_path):
    made(PART + "tune = {rounds = 2, again = 0}\n" + OTHER + OTHER.replace("two", "three"))
    assert [*read_study(tmp_path / "study.toml", only=["three"]).parts] == ["one", "three"]
    assert [*read_study(tmp_path / "study.toml", only=["one"]).parts] == ["one"]
    with pytest.raises(ConfigError, match="part = 'four'"):
        read_study(tmp_path / "study.toml", only=["four"])


def test_a_folder_of_the_same_name_does_not_hide_a_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "momentum").mkdir()
    assert [*read_study("momentum", only=["figure-1c-again"]).parts] == ["figure-1c-again"]


def test_jobs_that_are_alike_but_for_names_are_done_once(made):
    same = PART.replace('"one"', '"two"')
    study = made(PART + same)
    assert len([*study.jobs()]) == 4
    other = made(PART + same + 'set = {"run.rounds" = 5}\n')
    assert len([*other.jobs()]) == 8


def test_settings_of_several_parts_stand_once(made):
    sets = '[sets.short]\n"run.rounds" = 5\n"run.batch_size" = 4\n[sets.few]\n"run.batch_size" = 2\n'
    use = 'use = ["short", "few"]\n'
    two = PART.replace('"one"', '"two"') + use + 'set = {"run.rounds" = 7}\n'
    study = made(sets + PART + use + two + PART.replace('"one"', '"three"') + 'set = {"run.rounds" = 5}\n')
    found = {
        name: (part.config["run"]["rounds"], part.config["run"]["batch_size"]) for name, part in study.parts.items()
    }
    assert found["one"] == (5, 2) and found["two"] == (7, 2)
    assert found["three"] == (5, made(PART).parts["one"].config["run"]["batch_size"])
    same = made(PART + 'set = {"run.rounds" = 5, "run.batch_size" = 2}\n')
    assert [job.key for job in same.jobs()] == [job.key for job in study.jobs()][:4]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (PART + PART, "parts.name = 'one': give each part a name of its own"),
        ("[sets.slow]\n" + PART + 'use = ["slwo"]\n', "parts.use = 'slwo': did you mean 'slow'?"),
        (PART + 'tuned_by = "two"\n', "parts.tuned_by = 'two'"),
        (PART.replace('"fedavg"]', '"fedprox"]'), "parts.claims = 'fedprox'"),
        (PART + 'methods = ["scaffold"]\n', "parts.methods = 'scaffold'"),
        (PART + 'set = {"run.round" = 5}\n', "run.round"),
        (PART + "tune = {rounds = 0}\n", "rounds = 0"),
        (PART.replace("small.toml", "nowhere.toml"), "config = 'nowhere.toml'"),
        ("parts = []\n", "parts"),
    ],
)
def test_a_study_that_cannot_be_is_refused(made, parts, message):
    with pytest.raises(ConfigError) as caught:
        made(parts)
    assert message in str(caught.value)


def test_a_study_that_is_not_there():
    with pytest.raises(ConfigError, match=r"study = 'nope'.*fednova, momentum"):
        read_study("nope")


def test_results_of_a_cnn_belong_to_the_weights_that_it_began_with():
    """Those that were published before there were two rules have no word of them, and are of the older one."""
    part = read_study("fednova").parts["figure-8"]
    older = parts.job_of(part, part.labels[0], 0, parts.at_point(part, part.labels[0], {}))
    assert part.config["task"]["init"] == "he"
    for named in (True, False):  # by the task or by its data set
        if not named:
            del part.config["task"]["name"]
        keys = {}
        for init in ("he", "lecun", None):
            part.config["task"] = {**part.config["task"], "init": init}
            if init is None:
                del part.config["task"]["init"]
            keys[init] = parts.job_of(part, part.labels[0], 0, parts.at_point(part, part.labels[0], {})).key
        assert keys["lecun"] == keys[None] != keys["he"]
        assert (keys["he"] == older.key) == named
    folder = Path(__file__).parents[2] / "docs" / "study" / "fednova"
    study = read_study("fednova", only=["figure-8"])
    study.results = results_of(folder)
    part = study.parts["figure-8"]
    point, _ = study.choice(part, part.labels[0])
    assert study.run(part, part.labels[0], 2, point).key in study.results


def test_studies_that_come_with_fedax_can_be_read():
    for name in studies.studies():
        study = read_study(name)
        assert study.section.name == name
        assert all(part.section.shows for part in study.parts.values())
        assert [*study.jobs()]


def record(column="test_accuracy", **values):
    """The record of methods with these last values of each seed; ``None`` where a run diverged."""
    runs, labels = [], []
    for label, seeds in values.items():
        labels.append(label)
        for seed, value in enumerate(seeds):
            late = math.nan if value is None else value
            history = {"round": np.arange(21), "train_loss": np.ones(21), column: np.r_[np.zeros(18), late, late, late]}
            runs.append(MethodRun(label, "fedavg", seed, "finished" if value is not None else "diverged", history))
    config = {
        "name": "x",
        "data": {"name": "digits"},
        "task": {"name": "t"},
        "work": {"kind": "steps"},
        "participation": {"kind": "full"},
        "run": {"rounds": 20, "seeds": [0], "judge": column},
        "methods": [{"name": "fedavg", "label": label} for label in labels],
    }
    return Record(Path("x"), config, {"clients": {"sizes": [1], "counts": None}}, runs, [])


def part_with(*pairs, labels=(), **given):
    section = studies.PartSection(name="one", recipe="x", claims=[list(pair) for pair in pairs], **given)
    return studies.StudyPart(section, {"run": {"seeds": 3}, "methods": [{"label": label} for label in labels]})


def test_claims_are_tested_over_the_seeds_that_both_have():
    result = record(a=[0.9, 0.8, 0.7, 0.6], b=[0.8, 0.69, 0.61, 0.5], c=[0.5, 0.9, 0.6])
    one, two, three = claims(part_with(("a", "b"), ("b", "a"), ("c", "a")), result)
    assert (one.gap, one.seeds, one.result) == (pytest.approx(0.1), 4, "as claimed")
    assert one.low < 0.1 < one.high and one.low > 0
    assert (two.gap, two.result) == (pytest.approx(-0.1), "the other way")
    assert (three.seeds, three.result) == (3, "not told")
    assert verdict([one, two, three]) == "does not hold"  # all of it was claimed
    alone = claims(part_with(("a", "b")), result)[0]
    assert alone.corrected == alone.p == one.p < one.corrected  # of fewer claims


def test_of_losses_lower_is_better():
    (claim,) = claims(part_with(("a", "b")), record("test_loss", a=[1.0, 1.1, 1.2], b=[1.5, 1.59, 1.71]))
    assert claim.gap == pytest.approx(0.5)
    assert claim.result == "as claimed" and verdict([claim]) == "holds"


def test_a_method_that_fails_with_every_seed_has_lost():
    result = record(a=[0.9, 0.8], b=[None, None], c=[0.5, None], d=[None, None])
    one, two, three, four = claims(part_with(("a", "b"), ("b", "a"), ("a", "c"), ("b", "d")), result)
    assert (one.result, two.result) == ("as claimed", "the other way")
    assert (three.result, four.result) == ("not told", "not told")
    assert one.gap == math.inf and math.isnan(three.gap) and math.isnan(four.gap)
    assert verdict([one]) == "holds" and verdict([one, three]) == "cannot be told"
    assert studies.effect(one, "test_accuracy") == "a against b, which failed"


def test_one_seed_tells_nothing():
    (claim,) = claims(part_with(("a", "b")), record(a=[0.9], b=[0.1]))
    assert claim.gap == pytest.approx(0.8)
    assert (claim.result, math.isnan(claim.p), verdict([claim])) == ("not told", True, "cannot be told")
    assert "One seed" in studies.design(
        studies.StudyPart(
            part_with(("a", "b")).section, {"run": {"seeds": 1}, "methods": [{"label": "a"}, {"label": "b"}]}
        )
    )


def test_that_all_hold_needs_no_correction_and_that_one_does_not_needs_it():
    """Each of three pairs has a p under .05, and none after the correction for three."""
    rng, noise = np.random.default_rng(5), np.array([-0.01, 0.01, 0.0, 0.005, -0.005])
    values = {label: 0.5 + rng.permutation(noise) for label in "bcd"}
    values["a"] = np.full(5, 0.5117)
    pairs = [("a", label) for label in "bcd"]
    result = claims(part_with(*pairs), record(**values))
    assert all(claim.p < 0.05 < claim.corrected for claim in result) and verdict(result) == "holds"
    against = claims(part_with(*[pair[::-1] for pair in pairs]), record(**values))
    assert all(claim.p < 0.05 and claim.gap < 0 for claim in against) and verdict(against) == "cannot be told"
    assert (
        verdict(claims(part_with(("b", "a")), record(**values))) == "does not hold"
    )  # alone there is nothing to correct


def test_pairs_are_tested_by_their_own_differences_and_a_pooled_error_is_a_remark():
    """Three seeds: a difference of three standard deviations is significant with six methods' error only."""
    rng = np.random.default_rng(0)
    seed = rng.normal(scale=0.1, size=3)
    values = {label: 0.5 + seed + rng.normal(scale=0.01, size=3) for label in "bcdef"}
    values["a"] = 0.53 + seed + rng.normal(scale=0.01, size=3)
    values["wild"] = 0.5 + seed + np.array([0.2, -0.2, 0.0])
    part = part_with(("a", "b"), ("a", "wild"), labels=values)
    result = claims(part, record(**values))
    together = pooled.pool_of(values)
    assert together.apart == ("wild",) and together.freedom == 10
    d = values["a"] - values["b"]
    assert result[0].high - result[0].gap == pytest.approx(4.302653 * math.sqrt(d.var(ddof=1) / 3), rel=1e-5)
    paired = [stats.ttest_rel(values["a"], values[other]).pvalue for other in ("b", "wild")]
    assert [claim.p for claim in result] == pytest.approx(paired)
    assert result[0].corrected == pytest.approx(2 * paired[0]) and result[0].result == "not told"
    error = math.sqrt(max(2 * together.variance, d.var(ddof=1)) / 3)
    p = 2 * stats.t.sf(d.mean() / error, 10)
    assert pooled.compare(together, "a", "b", values)[0].p == pytest.approx(p) and p < 0.05 / 2
    remark = pooled.remark(part, record(**values))
    assert "all methods but wild" in remark and remark.endswith("1 more would be beyond chance: a > b (as claimed).")
    many = part_with(*[("a", "b")] * math.ceil(0.05 / p), labels=values)  # p is corrected for all pairs
    assert pooled.remark(many, record(**values)).endswith("the same pairs are beyond chance.")
    assert pooled.remark(part_with(("a", "b"), labels="ab"), record(a=values["a"], b=values["b"])) == ""


def test_a_conclusion_gives_the_effect_first_and_says_what_does_not_count():
    values = {"a": [0.50, 0.51, 0.53], "b": [0.55, 0.56, 0.59], "low": [0.1, 0.1, 0.12]}
    pairs, result = [("a", "low"), ("a", "b")], record(**values)
    plain = studies.conclusion(part_with(*pairs), result)
    assert plain.startswith("Found: a against b -5.33 % (") and "; at most a against low 40.67 % (" in plain
    assert "Verdict: does not hold; of 2 pairs 1 as claimed and 1 the other way, beyond chance." in plain
    part = part_with(*pairs, unfair={"low": "its rate is too low"}, scope="for a small network")
    text = studies.conclusion(part, result)
    assert text.startswith("Found: a against b -5.33 %") and "a against low" not in text
    assert "Verdict, for a small network: does not hold. Pairs that say nothing of the methods: those with low" in text
    only = studies.conclusion(part_with(("a", "low"), unfair={"low": "its rate is too low"}), result)
    assert "No pair can be compared" in only and "cannot be told" in only  # and not that it holds
    later = studies.conclusion(part_with(*pairs, provisional="tuned on too few rounds."), result)
    assert later.endswith("Nothing follows from it: tuned on too few rounds.") and "Verdict" not in later


def test_the_pair_that_decides_is_one_that_is_told_the_other_way():
    values = {"a": [0.50, 0.51, 0.53], "b": [0.55, 0.56, 0.58], "wild": [0.9, 0.2, 0.9]}
    wild, close = claims(part_with(("a", "wild"), ("a", "b")), record(**values))
    assert wild.gap < close.gap < 0 and wild.result == "not told"
    assert studies.decisive([wild, close]) is close and studies.decisive([wild]) is wild
    assert studies.decisive([]) is None


def test_the_smallest_difference_is_told_with_four_of_five():
    rng, draws = np.random.default_rng(5), 20_000
    for seeds, tests in ((3, 1), (10, 1), (5, 6)):
        size, freedom = studies.least(seeds, tests), seeds - 1
        gaps = size + rng.normal(size=draws) * np.sqrt(2 / seeds)
        errors = np.sqrt(2 / seeds * rng.chisquare(freedom, size=draws) / freedom)
        values = np.abs(gaps / errors) > special.stdtrit(freedom, 1 - 0.025 / tests)
        assert values.mean() == pytest.approx(0.8, abs=0.012)
    exact = stats.nct.sf(stats.t.ppf(0.975, 9), 9, studies.least(10) / np.sqrt(2 / 10))
    assert exact == pytest.approx(0.8, abs=1e-6)
    assert studies.least(3, 29) > studies.least(3) > studies.least(5)


def test_what_a_design_can_tell_is_said_before_it_runs():
    text = studies.design(part_with(("a", "b"), ("a", "c"), labels="abcd"))
    assert text.startswith("3 seeds: a pair is told with 80 % if it differs by 4.6 standard deviations of a run,")
    assert text.endswith(f"against the claim of 2 pairs by {studies.least(3, 2):.2g}.")
    assert studies.design(part_with(labels="ab")) == ""
    part = part_with(("a", "b"), ("a", "c"), labels="abc", unfair={"c": "why"})
    assert "against" not in studies.design(part)


def test_choices_by_test_data_or_by_seeds_that_count_are_found(made, tmp_path):
    study = made(PART + "tune = {rounds = 2, extend = 0, again = 0, seed = 3}\n")
    tuned(study, "fedavg", 2.0, 1.0, criterion="test_loss")
    tuned(study, "fedavg-m", 2.0, 1.0, 3.0, 4.0)
    lines = [*study.results.values(), {"key": "0" * 16, "label": "fedavg", "seed": 3}]
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "one.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "results" / "one.json").write_text(json.dumps({"config": {}, "about": {}}))
    assert study_rules.faults(study, tmp_path) == [
        "one: fedavg, tuning: chosen by test_loss.",
        "one: fedavg, tuning: chosen with the seeds [3, 4], which count.",
        "one: fedavg-m, tuning: chosen with the seeds [3], which count.",
        "one: chosen on 2 of 4 rounds (fedavg; fedavg-m).",
        "fedavg, 0000000000000000: a result at settings that nobody chose.",
    ]
    (tmp_path / "results" / "one.jsonl").write_text("{\n")
    with pytest.raises(DataError, match=r"one\.jsonl, line 1"):
        results_of(tmp_path)


def test_a_study_from_its_choices_to_its_page(made, tmp_path):
    study = made("together = 2\n" + PART + "tune = {extend = 0, again = 0}\n" + ONE_CHOICE)
    folder, lines = tmp_path / "out", []
    assert not carry_out(study, folder, hours=0.0)
    assert results_of(folder) == {}
    assert carry_out(study, folder, watch=lines.append)
    assert len(lines) == 4  # a choice and a run, from begin to end
    assert lines[0] == "one: fedavg, tuning begins: 2 runs of 4 rounds"
    (part,) = study.parts.values()
    (choice,) = study.choices(part, "fedavg")
    sweep = read(folder / "jobs" / choice.key / "run")
    assert sweep.config["sweep"]["criterion"] == "val_loss"
    assert study.tried(part, "fedavg")[0]["mean"] == pytest.approx(sweep.trials("fedavg")[0].mean, rel=1e-5)
    result = studies.record_of(study, part, folder)
    assert [(run.label, run.seed, run.status) for run in result.runs] == [("fedavg", 3, "finished")]
    job = study.run(part, "fedavg", 3, study.choice(part, "fedavg")[0])
    assert result.about["device"] == study.results[job.key]["device"] == "1 × cpu"
    (run,) = read(folder / "jobs" / job.key / "run").runs
    for name, values in run.history.items():
        np.testing.assert_allclose(result.runs[0].history[name], values, rtol=5e-3 if name == "seconds" else 1e-5)
    rows = fedax.read(folder).query("column == 'train_loss'")
    assert rows[["part", "method", "seed"]].drop_duplicates().values.tolist() == [[part.name, "fedavg", 3]]
    np.testing.assert_allclose(rows["value"], run.history["train_loss"], rtol=1e-5)
    assert study_rules.faults(study, folder) == []
    assert (
        "Figure 1, claimed: “Momentum is better.” No pair can be compared yet." in write_page(study, folder).read_text()
    )
    again = []
    assert carry_out(study, folder, watch=again.append)
    assert again == []
    shared = folder / "results" / "one.json"
    for damaged in (None, "{", "[]"):
        text = shared.read_text()
        shared.unlink() if damaged is None else shared.write_text(damaged)
        with pytest.raises(DataError, match=r"one\.json: .*cannot .*delete one\.jsonl"):
            carry_out(study, folder)
        shared.write_text(text)
    part.row("fedavg")["label"] = "FedAvg"  # as another part calls it, with the same job
    part.grids["FedAvg"] = part.grids.pop("fedavg")
    assert study_rules.faults(study, folder) == []
    path = folder / "results" / "one.jsonl"
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"mean":', b'"mean":1'))
    with pytest.raises(DataError, match=r"one\.jsonl, line 1: .*edited"):
        study_rules.faults(study, folder)
    path.write_bytes(b"".join(map(with_digest, path.read_bytes().splitlines(keepends=True))))
    assert f"one: FedAvg, tuning: its scores are not those of {sweep.folder}." in study_rules.faults(study, folder)


def test_a_record_names_the_devices_of_all_its_runs(made, tmp_path):
    study = made(PART)
    (part,) = study.parts.values()
    line = {"versions": {}, "method": "fedavg", "status": "finished", "settings": {"name": "fedavg"}, "history": {}}
    for seed, device in ((3, "1 × cpu"), (4, "1 × GPU")):
        study.results[study.run(part, "fedavg", seed, {}).key] = line | {"device": device}
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "one.json").write_text(json.dumps({"config": {"run": {}}, "about": {}}))
    assert studies.record_of(study, part, tmp_path).about["device"] == "1 × GPU, 1 × cpu"


@pytest.fixture
def four(made):
    """Four jobs that one process takes; of a method both have one program."""
    study = made(PART + 'set = {"run.seeds" = [3, 4]}\n', RECIPE.replace('"dirichlet", alpha = 0.5', '"iid"'))
    return studies.Study(study.section.model_copy(update={"together": 4}), study.parts)


def test_small_jobs_are_done_by_one_process(four, tmp_path):
    lines, jobs = [], [*four.jobs()]
    assert carry_out(four, tmp_path / "out", jobs=1, watch=lines.append)
    assert [line.split(" took")[0] for line in lines] == [
        text for job in jobs for text in (f"{job.name} begins", job.name)
    ]
    done = results_of(tmp_path / "out")
    assert done.keys() == {job.key for job in jobs} and len(jobs) == 4
    for job in jobs:  # as each of them alone
        (run,) = execute(build(job.config), new_folder(tmp_path / job.key, "small"), drawn=False).runs
        for column in run.history.keys() - {"seconds"}:
            assert done[job.key]["history"][column] == short(finite(run.history[column])), column
        (kept,) = read(tmp_path / "out" / "jobs" / job.key / "run").runs
        np.testing.assert_allclose(done[job.key]["history"]["seconds"], kept.history["seconds"], rtol=5e-3)
    stored = [json.loads(line) for line in (tmp_path / "out" / "results" / "one.jsonl").read_text().splitlines()]
    assert all(line["history"]["bytes_up"] * 4 == done[line["key"]]["history"]["bytes_up"][-1] > 0 for line in stored)


def test_a_job_that_fails_is_told_and_does_not_stop_those_beside_it(four, tmp_path):
    jobs = [*four.jobs()]
    place = tmp_path / "out" / "jobs" / jobs[1].key
    (place / "run").mkdir(parents=True)
    (place / "run" / "metrics.jsonl").symlink_to("elsewhere")
    with pytest.raises(ConfigError, match=r"fedavg-m, seed 3: out = .*is a link.*log\.txt\)") as error:
        carry_out(four, tmp_path / "out", jobs=1)
    assert "seed 4" not in str(error.value)
    assert results_of(tmp_path / "out").keys() == {job.key for job in jobs if job is not jobs[1]}
    (place / "run" / "metrics.jsonl").unlink()
    assert carry_out(four, tmp_path / "out", jobs=1)
