"""A study: several experiments that belong together, each tuned on validation data and then run with all its seeds.

A study consists of jobs: the tuning of one method, or one method with one seed. Each is a process on one core with its
own run folder. So many jobs can run side by side, a stopped job continues from its checkpoint, and the numbers do not
depend on how many run at the same time. The result of a job is one line of a file.

| in the folder of a study | what |
|---|---|
| results/<part>.jsonl | a line for each finished job: its settings, its rows, its time |
| jobs/<key>/ | the run folders; stopped jobs continue from them, those of finished jobs may be removed |
| report.html | the report of all parts, by :func:`fedax.experiments.write_report` |
"""

from fedax.experiments.study.parts import PartSection, Study, StudyPart, read_study, studies
from fedax.experiments.study.results import record_of, results_of
from fedax.experiments.study.running import carry_out
from fedax.experiments.study.verdicts import (
    Claim,
    claims,
    column_of,
    conclusion,
    decisive,
    design,
    effect,
    fair,
    least,
    outcome,
    values_of,
    verdict,
    write_page,
)
