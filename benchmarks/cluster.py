"""What it costs to hand a job to Dask and to take what comes back, beside the job itself. See README.md."""

import argparse
import pathlib
import tempfile
import time

import numpy as np

from fedax.experiments import runner
from fedax.experiments.cluster import ClusterJob, Crew, Outcome, crew, deliver, engine, jobs

BYTES = 100_000  # that come back, as of a run with a small model


def nothing(job: ClusterJob, perform: object = None) -> Outcome:
    """A job that does nothing, and has results all the same."""
    files = {"metrics.jsonl": b"\0" * BYTES, "config.toml": b"", "about.json": b"", "summary.json": b""}
    return Outcome(job.key, "", files, jobs._digest(job.key, files))


def measure(number: int, address: str | None) -> tuple[float, float, float]:
    """Seconds a job: by Dask, of the submitting side's processor, and where the job is called here."""
    import distributed

    config = {"data": {"name": "digits", "clients": 4}, "run": {"rounds": 1}, "methods": [{"name": "fedavg"}]}
    made = [ClusterJob.of(f"job {i}", [config | {"run": {"rounds": 1, "seeds": [i]}}]) for i in range(number)]
    crew.work = nothing
    with tempfile.TemporaryDirectory() as place:
        began = time.perf_counter()
        for job in made:
            deliver(nothing(job), pathlib.Path(place, "here", job.key))
        here = time.perf_counter() - began
        cluster = distributed.LocalCluster(3, threads_per_worker=1, dashboard_address=None) if address is None else None
        at = address or cluster.scheduler_address
        with distributed.Client(at, set_as_default=False) as client:
            client.run(nothing, made[0])  # workers import fedax before the clock runs
        with engine(f"dask:{at}")() as executor, Crew(executor, runner.perform) as hands:
            began, spent = time.perf_counter(), time.process_time()
            for job in made:
                hands.give(job)
            while hands.under_way:
                arrived = hands.wait()
                assert arrived is not None and not arrived[1].error
                deliver(arrived[1], pathlib.Path(place, "dask", arrived[0].key))
            dask, spent = time.perf_counter() - began, time.process_time() - spent
        if cluster is not None:
            cluster.close()
    return dask / number, spent / number, here / number


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--address", help="of a scheduler; default: three worker processes here")
    given = parser.parse_args()
    for dask, spent, here in (measure(given.jobs, given.address) for _ in range(given.repeats)):
        by, own, called = np.round(1000 * np.array([dask, spent, here]), 1)
        print(f"{given.jobs} jobs: {by} ms each by Dask ({own} of the submitting side's processor),", end="")
        print(f" {called} called here")
