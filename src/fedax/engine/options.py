"""The options of a run, by name."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence

from fedax.contract.compression import Compressor
from fedax.contract.types import Tree, Unknown
from fedax.engine.devices import Place
from fedax.errors import F, caller_level
from fedax.federation.participation import Full, Participation
from fedax.federation.work import Epochs, Work
from fedax.tasks.trainable import LoRA, Patterns
from fedax.wire.averages import Aggregator
from fedax.wire.compressed import Compression
from fedax.wire.faults import Faults
from fedax.wire.guard import Guard
from fedax.wire.privacy import DP
from fedax.wire.secure import SecureSum
from fedax.wire.wire import Wire


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What :func:`fedax.simulate` takes beside method, task and data; there it says what each is."""

    rounds: int
    work: Work | None = None
    batch_size: int | None = None
    participation: Participation | None = None
    seed: int = 0
    val: Tree = None
    test: Tree = None
    per_client: bool = False
    evaluate_every: int | Sequence[int] | None = None
    params: Tree = None
    trainable: Patterns | LoRA | None = None
    place: Place | None = None
    grad_norm: bool = False
    density: float | None = None
    until: Callable[[dict[str, Unknown]], bool] | None = None
    guard: Guard | bool | None = None
    aggregate: Aggregator | None = None
    faults: Faults | None = None
    privacy: DP | None = None
    compress: Compressor | Mapping[str, Unknown] | None = None
    secure: SecureSum | None = None

    def with_defaults(self) -> "Options":
        """The same with what stands for an option that was not given."""
        return dataclasses.replace(
            self,
            work=Epochs(1) if self.work is None else self.work,
            place=Place() if self.place is None else self.place,
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
        return Wire(self.faults, self.guard, self.aggregate, self.privacy, compression.down, secure=self.secure)


def with_place(options: Mapping[str, Unknown]) -> dict[str, Unknown]:
    """Options with former ones, which are fields of ``place`` now, in their place; warns of them.

    Example:
        >>> with_place({"rounds": 3, "place": Place(chunk_size=2)})
        {'rounds': 3, 'place': Place(chunk_size=2, mesh=None, client_memory='auto', stream=None)}
    """
    found = dict(options)
    former = {each.name: found.pop(each.name) for each in dataclasses.fields(Place) if each.name in found}
    if former:
        names = ", ".join(f"{name}=…" for name in former)
        text = f"{names} is deprecated: give place=fedax.Place({names})"
        warnings.warn(text, DeprecationWarning, stacklevel=caller_level())
        found["place"] = dataclasses.replace(found.get("place") or Place(), **former)
    return found


def place_given(function: F) -> F:
    """A function of options that takes them as :func:`with_place` does."""

    @functools.wraps(function)
    def called(*args: Unknown, **options: Unknown) -> Unknown:
        return function(*args, **with_place(options))

    return called  # type: ignore[return-value]
