"""Jobs on other processes and machines, by engines that exist: Dask, SLURM, Ray, any ``concurrent.futures.Executor``.

A study, a comparison and a sweep consist of jobs that know nothing of each other. :func:`engine` is an engine by its
name; :func:`carry_out` hands jobs to it and takes what comes back, by a :class:`Crew`; :func:`work` does one job.
"""

from fedax.experiments.cluster.crew import Crew, carry_out
from fedax.experiments.cluster.engines import Processes, engine
from fedax.experiments.cluster.jobs import ClusterJob, Outcome, deliver, delivered, packed, unpacked, work
