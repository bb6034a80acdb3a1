"""Federated optimization in JAX: every method as published, one compiled program, honest about what it optimizes."""

from fedax import data, tasks, theory
from fedax.algorithm import Algorithm, Exchange, Round
from fedax.algorithms import (
    SGD,
    VRLSGD,
    Adaptive,
    FedAvg,
    FedNovaVR,
    Momentum,
    Normalized,
    Optax,
    OptaxServer,
    Plain,
    SlowMo,
    Weighted,
    available,
    create,
    hyperparameters,
)
from fedax.data.federated import FederatedData
from fedax.engine.simulate import Run, simulate
from fedax.engine.sweep import Range, Sweep, random_points, sweep
from fedax.errors import ConfigError, DataError, DivergedWarning, FedaxError
from fedax.local import Solver, local_steps
from fedax.oracle import Oracle
from fedax.participation import Full, Participation, Proportional, Trace, Uniform, UniformNormalized
from fedax.regularizers import (
    L1,
    Box,
    ElasticNet,
    L1Ball,
    L2Ball,
    NonNegative,
    Regularizer,
    Simplex,
    Unconstrained,
)
from fedax.schedule import FromFunction, Piecewise, PowerDecay, Schedule, stepwise
from fedax.tasks.task import Task
from fedax.vector import Vector, zeros_like
from fedax.work import Deadline, Epochs, GeometricSteps, RandomEpochs, RandomSteps, Steps, Work

__version__ = "0.1.0"

__all__ = [
    "L1",
    "SGD",
    "VRLSGD",
    "Adaptive",
    "Algorithm",
    "Box",
    "ConfigError",
    "DataError",
    "Deadline",
    "DivergedWarning",
    "ElasticNet",
    "Epochs",
    "Exchange",
    "FedAvg",
    "FedNovaVR",
    "FedaxError",
    "FederatedData",
    "FromFunction",
    "Full",
    "GeometricSteps",
    "L1Ball",
    "L2Ball",
    "Momentum",
    "NonNegative",
    "Normalized",
    "Optax",
    "OptaxServer",
    "Oracle",
    "Participation",
    "Piecewise",
    "Plain",
    "PowerDecay",
    "Proportional",
    "RandomEpochs",
    "RandomSteps",
    "Range",
    "Regularizer",
    "Round",
    "Run",
    "Schedule",
    "Simplex",
    "SlowMo",
    "Solver",
    "Steps",
    "Sweep",
    "Task",
    "Trace",
    "Unconstrained",
    "Uniform",
    "UniformNormalized",
    "Vector",
    "Weighted",
    "Work",
    "available",
    "create",
    "data",
    "hyperparameters",
    "local_steps",
    "random_points",
    "simulate",
    "stepwise",
    "sweep",
    "tasks",
    "theory",
    "zeros_like",
]
