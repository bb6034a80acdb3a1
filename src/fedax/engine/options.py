"""The options of a run, each declared once."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from fedax.contract.compression import Compressor
from fedax.contract.types import Tree, Unknown
from fedax.engine.declared import Option, declared, option
from fedax.engine.devices import Place
from fedax.federation.clock import Clock
from fedax.federation.pace import Async
from fedax.federation.participation import Full, Participation
from fedax.federation.work import Epochs, Work
from fedax.wire.averages import Aggregator, Guard
from fedax.wire.compressed import Compression
from fedax.wire.faults import Faults
from fedax.wire.privacy import DP
from fedax.wire.secure import SecureSum
from fedax.wire.wire import Wire

TRAIN_LOSS = 'give "full", "none", or "sample:N" with a number of rows, such as "sample:10000"'


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """What :func:`fedax.simulate` takes beside method, task, data and seed: what runs have in common that are compared.

    Each option is declared here and nowhere else: its type, its default, and of the rest what :class:`Option` says.

    Args:
        rounds: R ≥ 0.
        work: local steps of each client; default ``Epochs(1)``.
        batch_size: B ≥ 1 examples a local step; ``None``: all local data, which makes gradients deterministic.
        participation: who takes part; default ``Full()``.
        val: held-out examples by which rounds and hyper-parameters are chosen: a pytree like ``data.examples``, or
            those of clients, :class:`fedax.FederatedData`.
        test: the same, for the final figures.
        evaluate_every: rounds between evaluations, or the rounds ≥ 1 themselves after which to evaluate; default: about
            fifty evaluations. The start and the last round are always among them.
        train_loss: on what the training loss is measured: ``"full"``, all training data, which is the default;
            ``"sample:N"``, N rows, the same for all runs on these data, in the column ``train_loss_sample``; or
            ``"none"``. For simulations.
        params: initial model; default ``task.init``.
        place: where the clients run, :class:`fedax.Place`: how many side by side, on which devices, and where their
            memory and their examples are.
        clock: how long clients take, :class:`fedax.Clock`; the history then has ``time``, in simulated seconds.
        pace: ``fedax.Async(…)``, a server that does not wait for all clients of a round; it needs a ``clock``, and has
            who starts instead of ``participation``. A round is then a step of the server.
        until: called with each row of the history; where it is true the run ends, as at a target that is reached.
        min_heard: of real clients, in (0, 1]: an evaluation in which less of their weight was heard counts for no
            target, no patience and no best model; default 1. In a simulation all are heard.
        newcomer_turns: of methods with personal models, in 0, 1, …: how many turns a client that never took part takes
            before its own model is evaluated, for that alone; default 1. Models that are fine-tuned need none.
        guard: leave out uploads that are not finite or absurdly large: ``True``, or :class:`fedax.Guard`. Default: all
            count, as the papers have it, and a run whose model is no longer finite has diverged.
        aggregate: what replaces the mean of the uploads, for instance :class:`fedax.CoordinateMedian`.
        faults: clients that send something else than they should, :class:`fedax.Faults`.
        privacy: clip uploads and add noise to their sums, :class:`fedax.DP`; the history then has ``epsilon``.
        compress: what uploads are compressed by, for instance ``fedax.ErrorFeedback(fedax.TopK(0.1))``; or ``{"up": …,
            "down": …}`` for uploads and downloads. Bytes in the history are those of the messages.
        secure: sum uploads as whole numbers, as secure aggregation does, :class:`fedax.SecureSum`.
    """

    rounds: int = dataclasses.field(metadata={"option": Option(setting="run.rounds", of_problem=True, at_nodes=True)})
    work: Work | None = option(
        None,
        hint="give Steps, Epochs, RandomEpochs, RandomSteps, GeometricSteps or Deadline",
        setting="work",
        of_problem=True,
        at_nodes=True,
        varies="steps",
    )
    batch_size: int | None = option(
        None, setting="run.batch_size", fingerprint="always", of_problem=True, at_nodes=True, varies="batch_size"
    )
    participation: Participation | None = option(
        None,
        hint="give Full, Uniform, Proportional, ... or Trace",
        setting="participation",
        of_problem=True,
        at_nodes=True,
        varies="size",
    )
    val: Tree = None
    test: Tree = None
    evaluate_every: int | Sequence[int] | None = option(None, setting="run.evaluate_every", at_nodes=True)
    train_loss: str | None = option(
        None, hint=TRAIN_LOSS, setting="run.train_loss", fingerprint="given", of_problem=True
    )
    params: Tree = None
    place: Place | None = option(None, hint="give fedax.Place(...)")
    clock: Clock | None = option(
        None, hint="give fedax.Clock(...)", setting="clock", fingerprint="given", varies="step"
    )
    pace: Async | None = option(
        None,
        hint="give fedax.Async(concurrency, buffer)",
        setting="pace",
        fingerprint="given",
        at_nodes=True,
        varies="buffer",
    )
    until: Callable[[dict[str, Unknown]], bool] | None = option(
        None, hint="give a function of one row of the history that tells whether to stop", setting="run.patience"
    )
    min_heard: float | None = option(None, setting="run.min_heard")
    newcomer_turns: int | None = option(None, setting="run.newcomer_turns", fingerprint="given", at_nodes=True)
    guard: Guard | bool | None = option(None, hint="give True or fedax.Guard(...)", setting="run.guard", of_wire=True)
    aggregate: Aggregator | None = option(
        None, hint="give CoordinateMedian, TrimmedMean, ... or ClippedMean", setting="run.aggregate", of_wire=True
    )
    faults: Faults | None = option(
        None, hint="give fedax.Faults(...)", setting="run.faults", of_wire=True, of_problem=True
    )
    privacy: DP | None = option(
        None, hint="give fedax.DP(clip=..., noise=..., delta=...)", setting="privacy", of_wire=True, varies="noise"
    )
    compress: Compressor | Mapping[str, Compressor] | None = option(
        None, setting="run.compress", of_wire=True, varies="compress"
    )
    secure: SecureSum | None = option(None, hint="give fedax.SecureSum(...)", setting="run.secure", of_wire=True)

    @property
    def keywords(self) -> dict[str, Unknown]:
        """Name -> value of the options, without the arguments that a subclass has beside them."""
        kind = Options if isinstance(self, Options) else CommonOptions
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(kind)}

    def with_defaults(self) -> Self:
        """Return a copy with defaults filled in."""
        return dataclasses.replace(
            self,
            work=Epochs(1) if self.work is None else self.work,
            place=Place() if self.place is None else self.place,
            train_loss=None if self.train_loss == "full" else self.train_loss,
            min_heard=1.0 if self.min_heard is None else self.min_heard,
            participation=Full() if self.participation is None else self.participation,
            guard=Guard() if self.guard is True else None if self.guard is False else self.guard,
        )

    @property
    def parts(self) -> dict[str, Tree]:
        """Part of the held-out data, "val" or "test" -> what was given for it."""
        return {name: part for name, part in (("val", self.val), ("test", self.test)) if part is not None}

    def wire(self, compression: Compression) -> Wire:
        """What becomes of uploads and downloads, of all options that belong to it."""
        assert not isinstance(self.guard, bool)  # see with_defaults
        stages = {name: getattr(self, name) for name in OF_WIRE if name != "compress"}
        return Wire(down=compression.down, **stages)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CommonOptions):
    """The options of a run: those that several have in common, and its seed.

    Args:
        seed: whole number ≥ 0; fixes the initial model, the cohorts, the local work and the minibatches.
    """

    seed: int = option(0, fingerprint="always")


OPTIONS = declared(Options)
OF_WIRE = tuple(name for name, each in OPTIONS.items() if each.option.of_wire)
