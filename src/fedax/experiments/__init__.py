"""Experiments: a configuration, its run folder, its report."""

from fedax.experiments.config.data import datasets
from fedax.experiments.config.edit import override, read_toml, recipes
from fedax.experiments.config.experiment import Experiment, build, tasks
from fedax.experiments.report import write_report
from fedax.experiments.runner import execute
from fedax.experiments.runs import MethodRun, Record, Trial, begun_folder, locked, new_folder, read
from fedax.experiments.tuning import Tuning, plan, tune

__all__ = [
    "Experiment",
    "MethodRun",
    "Record",
    "Trial",
    "Tuning",
    "begun_folder",
    "build",
    "datasets",
    "execute",
    "locked",
    "new_folder",
    "override",
    "plan",
    "read",
    "read_toml",
    "recipes",
    "tasks",
    "tune",
    "write_report",
]
