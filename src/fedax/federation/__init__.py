"""The federation: who takes part (``participation``), how much each client works (``work``), how long (``clock``)."""

from fedax.federation.clock import DISTRIBUTIONS, PRESETS
from fedax.federation.participation import (
    Cyclic,
    Full,
    Poisson,
    Proportional,
    Systematic,
    Trace,
    Uniform,
    UniformNormalized,
)
from fedax.federation.work import Deadline, Epochs, GeometricSteps, RandomEpochs, RandomSteps, Steps
from fedax.registry import Registry

__all__ = ["DISTRIBUTIONS", "PARTICIPATION", "PRESETS", "WORK"]

WORK = Registry("work")
WORK.add("steps", Steps)
WORK.add("epochs", Epochs)
WORK.add("random-epochs", RandomEpochs, "epochs whose number is drawn anew for each client and round, from low to high")
WORK.add("random-steps", RandomSteps)
WORK.add("geometric-steps", GeometricSteps)
WORK.add("deadline", Deadline)

PARTICIPATION = Registry("participation")
PARTICIPATION.add("full", Full)
PARTICIPATION.add("uniform", Uniform)
PARTICIPATION.add("proportional", Proportional)
PARTICIPATION.add("systematic", Systematic)
PARTICIPATION.add("uniform-normalized", UniformNormalized)
PARTICIPATION.add("poisson", Poisson)
PARTICIPATION.add("cyclic", Cyclic)
PARTICIPATION.add("trace", Trace)
