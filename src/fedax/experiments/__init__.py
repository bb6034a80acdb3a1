"""Experiments: a configuration, its run folder, its report."""

from fedax.experiments.config import Experiment, build, datasets, override, read_toml, recipes, tasks
from fedax.experiments.report import write_report
from fedax.experiments.runner import execute
from fedax.experiments.runs import MethodRun, Record, new_folder, read

__all__ = [
    "Experiment",
    "MethodRun",
    "Record",
    "build",
    "datasets",
    "execute",
    "new_folder",
    "override",
    "read",
    "read_toml",
    "recipes",
    "tasks",
    "write_report",
]
