from . import data, figures, metrics, privacy, tasks, theory, tracking
from .algorithms import (
    SGD,
    VRLSGD,
    Adaptive,
    DelayedNesterov,
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
from .citations import cite
from .conformance import check
from .contract.algorithm import Algorithm, Change, Exchange, Round, Traits
from .contract.compression import Compressor, Message
from .contract.compressors import QSGD, Cast, ErrorFeedback, Identity, Natural, PowerSGD, RandomK, Rotated, Sign, TopK
from .contract.local import LocalMethod, Solver, local_steps
from .contract.oracle import Oracle
from .contract.personal import PersonalPart
from .contract.regularizers import (
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
from .contract.schedule import Cosine, FromFunction, Piecewise, PowerDecay, Schedule, StepDecay, stepwise
from .contract.staleness import HingeStaleness, PolynomialStaleness, Staleness
from .contract.vector import Vector, zeros_like
from .data.federated import FederatedData
from .engine.arrivals import Arrivals, arrivals
from .engine.by_client import evaluate
from .engine.checkpoint import Checkpoints
from .engine.devices import Place
from .engine.history import Run
from .engine.patience import Patience
from .engine.processes import connect
from .engine.saved import Model, load_model
from .engine.search import Range, random_points
from .engine.simulate import simulate
from .engine.sweep import Sweep, sweep
from .errors import (
    BadClientWarning,
    CheckpointError,
    ConfigError,
    DataError,
    DivergedWarning,
    DoubtfulWarning,
    FedaxError,
    NodeError,
    ProcessError,
    TrackingWarning,
)
from .experiments.comparison import Comparison, compare, load
from .experiments.helped import Baselines, baselines
from .experiments.tables import read
from .federation.clock import Clock, Exponential, HalfNormal, Lognormal, UniformBetween
from .federation.pace import Async
from .federation.participation import (
    Cyclic,
    Dropout,
    Full,
    Participation,
    Poisson,
    Proportional,
    Systematic,
    Trace,
    Uniform,
    UniformNormalized,
)
from .federation.work import Deadline, Epochs, GeometricSteps, RandomEpochs, RandomSteps, Steps, Work
from .plugins import register
from .progress import show_progress
from .tasks.task import Task
from .wire.averages import (
    Aggregator,
    ClippedMean,
    CoordinateMedian,
    GeometricMedian,
    TrimmedMean,
)
from .wire.faults import Faults
from .wire.guard import Guard
from .wire.privacy import DP, AdaptiveClip
from .wire.secure import SecureSum

__version__: str

__all__ = [
    "DP",
    "L1",
    "QSGD",
    "SGD",
    "VRLSGD",
    "Adaptive",
    "AdaptiveClip",
    "Aggregator",
    "Algorithm",
    "Arrivals",
    "Async",
    "BadClientWarning",
    "Baselines",
    "Box",
    "Cast",
    "Change",
    "CheckpointError",
    "Checkpoints",
    "ClippedMean",
    "Clock",
    "Comparison",
    "Compressor",
    "ConfigError",
    "CoordinateMedian",
    "Cosine",
    "Cyclic",
    "DataError",
    "Deadline",
    "DelayedNesterov",
    "DivergedWarning",
    "DoubtfulWarning",
    "Dropout",
    "ElasticNet",
    "Epochs",
    "ErrorFeedback",
    "Exchange",
    "Exponential",
    "Faults",
    "FedAvg",
    "FedNovaVR",
    "FedaxError",
    "FederatedData",
    "FromFunction",
    "Full",
    "GeometricMedian",
    "GeometricSteps",
    "Guard",
    "HalfNormal",
    "HingeStaleness",
    "Identity",
    "L1Ball",
    "L2Ball",
    "LocalMethod",
    "Lognormal",
    "Message",
    "Model",
    "Momentum",
    "Natural",
    "NodeError",
    "NonNegative",
    "Normalized",
    "Optax",
    "OptaxServer",
    "Oracle",
    "Participation",
    "Patience",
    "PersonalPart",
    "Piecewise",
    "Place",
    "Plain",
    "Poisson",
    "PolynomialStaleness",
    "PowerDecay",
    "PowerSGD",
    "ProcessError",
    "Proportional",
    "RandomEpochs",
    "RandomK",
    "RandomSteps",
    "Range",
    "Regularizer",
    "Rotated",
    "Round",
    "Run",
    "Schedule",
    "SecureSum",
    "Sign",
    "Simplex",
    "SlowMo",
    "Solver",
    "Staleness",
    "StepDecay",
    "Steps",
    "Sweep",
    "Systematic",
    "Task",
    "TopK",
    "Trace",
    "TrackingWarning",
    "Traits",
    "TrimmedMean",
    "Unconstrained",
    "Uniform",
    "UniformBetween",
    "UniformNormalized",
    "Vector",
    "Weighted",
    "Work",
    "arrivals",
    "available",
    "baselines",
    "check",
    "cite",
    "compare",
    "connect",
    "create",
    "data",
    "evaluate",
    "figures",
    "hyperparameters",
    "load",
    "load_model",
    "local_steps",
    "metrics",
    "privacy",
    "random_points",
    "read",
    "register",
    "show_progress",
    "simulate",
    "stepwise",
    "sweep",
    "tasks",
    "theory",
    "tracking",
    "zeros_like",
]
