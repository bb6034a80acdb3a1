"""Jobs on other processes and machines, by engines that exist: Dask, SLURM, Ray, any ``concurrent.futures.Executor``.

A study, a comparison and a sweep consist of jobs that know nothing of each other. :func:`engine` is an engine by its
name; :class:`Crew` hands jobs to it and takes what comes back; :func:`work` does one job, wherever it runs.
"""

from fedax.experiments.cluster.crew import Crew, Failures, reason
from fedax.experiments.cluster.engines import Processes, engine
from fedax.experiments.cluster.jobs import ClusterJob, Outcome, deliver, delivered, packed, unpacked, work
