from . import data, tasks, theory
from .algorithm import Algorithm, Exchange, Round
from .algorithms import (
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
from .data.federated import FederatedData
from .engine.checkpoint import Checkpoints
from .engine.simulate import Run, simulate
from .engine.sweep import Range, Sweep, random_points, sweep
from .errors import CheckpointError, ConfigError, DataError, DivergedWarning, FedaxError, ProcessError
from .local import Solver, local_steps
from .oracle import Oracle
from .participation import Full, Participation, Proportional, Trace, Uniform, UniformNormalized
from .regularizers import (
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
from .schedule import FromFunction, Piecewise, PowerDecay, Schedule, stepwise
from .tasks.task import Task
from .vector import Vector, zeros_like
from .work import Deadline, Epochs, GeometricSteps, RandomEpochs, RandomSteps, Steps, Work

__version__: str

__all__ = [
    "L1",
    "SGD",
    "VRLSGD",
    "Adaptive",
    "Algorithm",
    "Box",
    "CheckpointError",
    "Checkpoints",
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
    "ProcessError",
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
