"""Seconds a round with and without compressed uploads, on the case `unequal`. See README.md."""

import argparse
import statistics

from cases import cases
from with_fedax import Fedax, task

import fedax

COMPRESSORS: dict[str, fedax.Compressor] = {
    "TopK(0.1)": fedax.TopK(0.1),
    "ErrorFeedback(TopK(0.1))": fedax.ErrorFeedback(fedax.TopK(0.1)),
    "RandomK(0.1)": fedax.RandomK(0.1),
    "QSGD(16)": fedax.QSGD(16),
    "Natural()": fedax.Natural(),
    "Sign()": fedax.Sign(),
    "Rotated(QSGD(16))": fedax.Rotated(fedax.QSGD(16)),
    "PowerSGD(1)": fedax.PowerSGD(1),
    "Cast()": fedax.Cast(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--case", default="unequal")
    parser.add_argument("--only", nargs="+", choices=COMPRESSORS, default=list(COMPRESSORS))
    given = parser.parse_args()
    case = cases()[given.case]
    data, learned = Fedax(case).data, task(case)

    def seconds(how: fedax.Compressor | None) -> tuple[float, float]:
        """A round's, and megabytes up."""
        run = fedax.simulate(
            fedax.create("fedavg", lr=case.lr),
            learned,
            data,
            rounds=given.rounds,
            work=fedax.Epochs(1) if case.epoch else fedax.Steps(case.steps),
            batch_size=case.batch,
            participation=fedax.Uniform(case.cohort),
            evaluate_every=given.rounds,
            compress=how,
        )
        return run.history["seconds"][-1] / given.rounds, run.history["bytes_up"][-1] / given.rounds

    each: dict[str, fedax.Compressor | None] = {"none": None} | {name: COMPRESSORS[name] for name in given.only}
    measured_rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in each}
    for repeat in range(given.repeats + 1):  # they take turns; the first compiles
        for name, how in each.items():
            measured = seconds(how)
            if repeat:
                measured_rounds[name].append(measured)
    plain = [took for took, _ in measured_rounds["none"]]
    print("| compress | ms a round | of the round without | kB up a round |\n|---|---|---|---|")
    for name, took in measured_rounds.items():
        ratio = statistics.median(own / other for (own, _), other in zip(took, plain, strict=True))
        middle = statistics.median(own for own, _ in took)
        print(f"| `{name}` | {1e3 * middle:.2f} | {ratio:.2f} | {took[0][1] / 1e3:.1f} |", flush=True)


if __name__ == "__main__":
    main()
