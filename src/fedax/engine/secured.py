"""Secure sums of a run: refuses what a server that sees only sums cannot do, and counts the bytes of uploads.

The arithmetic is in :mod:`fedax.wire.secure`, the masks of real nodes in :mod:`fedax.sites.protocol.masks`.
"""

import functools

import jax
import numpy as np

from fedax.contract.algorithm import Algorithm
from fedax.contract.compression import is_message
from fedax.contract.schedule import resolve
from fedax.contract.types import Tree
from fedax.engine.plan import ExchangeForm
from fedax.errors import ConfigError
from fedax.federation.census import Census
from fedax.federation.participation import Participation
from fedax.wire.wire import Wire


def check(wire: Wire, method: Algorithm, participation: Participation, census: Census) -> None:
    """Refuse what needs single uploads, and sums over a single client.

    Raises:
        ConfigError: it says what to do instead.
    """
    if (secure := wire.secure) is None:
        return
    refused = functools.partial(ConfigError, "secure", secure)
    if wire.gathers:
        raise refused("a robust average looks at single uploads, and the server learns their sum alone; leave one out")
    if wire.guard is not None:
        raise refused("a guard looks at single uploads; leave it out: an upload that is not finite counts as 0")
    if secure.clip is None and wire.privacy is None:
        raise ConfigError("secure.clip", None, "give the longest norm of an upload, such as SecureSum(clip=1.0)")
    if secure.clip is not None and wire.privacy is not None:
        raise ConfigError("secure.clip", secure.clip, "privacy clips uploads already; leave this one out")
    if wire.privacy is not None and wire.privacy.adaptive is not None:
        hint = "whole numbers need a clip that stays; leave adaptive out"
        raise ConfigError("privacy.adaptive", wire.privacy.adaptive, hint)
    if participation.places(census.num_clients) == 1:
        raise refused("in a round with one client the sum is its upload; take more clients")
    first = resolve(method, 0)
    if any(exchange.who == "one" for exchange in (*first.warmup(), *first.exchanges())):
        name = method.traits().name
        raise refused(f"in {name} one client moves the model alone, and one upload is no sum; take another method")


def forms(
    wire: Wire,
    method: Algorithm,
    participation: Participation,
    census: Census,
    plain: tuple[list[ExchangeForm], list[ExchangeForm]],
) -> tuple[list[ExchangeForm], list[ExchangeForm]]:
    """The forms of exchanges; with secure sums those whose uploads are whole numbers, byte by byte as they are sent.

    Raises:
        ConfigError: uploads are compressed, or their numbers need more bits.
    """
    if (secure := wire.secure) is None:
        return plain

    def sent(form: ExchangeForm, places: int) -> ExchangeForm:
        parts = jax.tree.leaves(form.upload, is_leaf=is_message)
        if any(map(is_message, parts)):
            hint = f"what {method.traits().name} sends is compressed, and read one by one; leave one of them out"
            raise ConfigError("secure", secure, hint)
        secure.check(places, sum(part.size for part in parts))
        # An estimate and a change of the same numbers are two sums.
        return form._replace(upload=jax.tree.map(bytes_of, form.upload), first=tuple(range(len(parts))))

    def bytes_of(leaf: Tree) -> Tree:
        return jax.ShapeDtypeStruct((*leaf.shape, secure.bits // 8), np.uint8)

    warmup, exchanges = plain
    everyone, places = census.num_clients, participation.places(census.num_clients)
    return [sent(form, everyone) for form in warmup], [sent(form, places) for form in exchanges]
