"""One of several processes that run a job together; prints its history. Arguments: process, processes, port, JSON."""

import json
import os
import sys

if __name__ == "__main__":
    os.environ["JAX_NUM_CPU_DEVICES"] = sys.argv[5] if len(sys.argv) > 5 else "1"

import jax
import numpy as np
import pytest

import fedax
from fedax._start import collect_rarely
from fedax.engine import processes
from fedax.errors import ConfigError
from tests.engine.problem import DATA, MEASURED, UNEQUAL, federation, flat

WORK = {"steps": fedax.Steps(3), "unequal": UNEQUAL}
CLOCK = fedax.Clock(step=fedax.Lognormal(0.1, 1.0, anew=True), up=fedax.Exponential(100.0), server=0.5)
COHORT = {"full": fedax.Full(), "uniform": fedax.Uniform(3)}


def histories(cases: dict[str, dict[str, object]]) -> dict[str, object]:
    results = {}
    for label, case in cases.items():
        more = {}
        if case.get("private"):  # its sums as whole numbers, too
            privacy = fedax.DP(clip=0.5, noise=0.3, delta=1e-3, noise_seed=None if case.get("secret") else 0)
            more = {"privacy": privacy, "secure": fedax.SecureSum(), "participation": fedax.Poisson(0.7)}
        if case.get("compress"):
            more = {"compress": fedax.ErrorFeedback(fedax.TopK(0.5))}
        if case.get("guard"):  # which leaves one client out, in every round that it is in
            more = {"guard": True, "faults": fedax.Faults([3], sends=float("nan"))}
        data = DATA.with_weights(np.full(DATA.num_clients, 1 / DATA.num_clients)) if more else DATA
        more = {"participation": COHORT[case.get("cohort", "full")]} | more
        run = fedax.simulate(
            fedax.create(case["method"], lr=0.05),
            MEASURED,
            data,
            rounds=case.get("rounds", 4),
            checkpoint=None if "checkpoint" not in case else fedax.Checkpoints(case["checkpoint"], keep=1),
            work=WORK[case.get("work", "steps")],
            batch_size=case.get("batch_size", 2),
            test=federation([11], [1.0], seed=5).examples,
            evaluate_every=2,
            place=fedax.Place(stream=case.get("stream")),
            aggregate=fedax.CoordinateMedian() if case.get("median") else None,
            clock=CLOCK,
            **more,
        )
        if jax.process_count() > 1:  # each has the memory of its own clients alone
            with pytest.raises(ConfigError, match="in one process"):
                run.personal(0)
        columns = [name for name in run.history if name not in ("seconds", "bad_clients")]
        results[label] = {name: run.history[name].tolist() for name in columns}
        results[label]["times"] = [run.left_out.get(i, 0) for i in range(DATA.num_clients)]
        results[label]["params"] = flat(run.params).tolist()
        mine = np.arange(DATA.num_clients)[processes.own(DATA)]
        rows = run.memory[mine] if jax.process_count() > 1 or case.get("stream") else run.memory
        results[label]["memory"] = {
            i: [np.asarray(leaf[k]).tolist() for leaf in jax.tree.leaves(rows)] for k, i in enumerate(mine.tolist())
        }
    return results


if __name__ == "__main__":
    collect_rarely()
    process, number, port = (int(word) for word in sys.argv[1:4])
    if number > 1:
        fedax.connect(f"localhost:{port}", number, process)
    print(json.dumps(histories(json.loads(sys.argv[4]))), flush=True)
