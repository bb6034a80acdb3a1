"""A configuration, from TOML to the objects that run: everything is checked before anything long begins.

| module | what |
|---|---|
| sections | what a configuration looks like: names, types and ranges of its settings |
| edit | its tables: read from a file, changed setting by setting |
| codec | objects from tables, and tables from objects |
| data | the section ``data``: clients and their parts |
| experiment | all of it together, checked and made |
"""

from fedax.experiments.config.data import class_names, data_set, datasets
from fedax.experiments.config.edit import override, put, read_toml, recipes, value_of
from fedax.experiments.config.experiment import Experiment, build, build_all, check_settings, columns, problem_of, tasks
from fedax.experiments.config.sections import check, labels, seeds_of

__all__ = [
    "Experiment",
    "build",
    "build_all",
    "check",
    "check_settings",
    "class_names",
    "columns",
    "data_set",
    "datasets",
    "labels",
    "override",
    "problem_of",
    "put",
    "read_toml",
    "recipes",
    "seeds_of",
    "tasks",
    "value_of",
]
