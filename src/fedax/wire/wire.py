"""The wire as a whole: the parts that an upload goes through, in order."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp

from fedax.contract.algorithm import Round
from fedax.contract.compression import Compressor, decoded
from fedax.contract.types import Array, Number, Tree
from fedax.federation.participation import left
from fedax.wire.averages import Aggregator
from fedax.wire.compressed import encoded
from fedax.wire.faults import Faults
from fedax.wire.guard import Guard
from fedax.wire.privacy import DP, Download
from fedax.wire.secure import FixedPoint, SecureSum
from fedax.wire.sums import by_kind, clipped, weighted, without_marks


class Wire(eqx.Module):
    """What becomes of an upload between a client and the server's step.

    What messages say is read. At the client: ``faults``, then ``guard``, then the clip of ``privacy``, or what the
    average takes of one upload. Then the weighted sum, or the uploads one by one where the average is robust. At the
    server: the sum, or the average, for the clients that count. All numbers are traced: another clip compiles nothing.

    Args:
        faults: clients that send something else; ``None``: none do.
        guard: which uploads count; ``None``: all.
        aggregate: what stands in the place of the mean; ``None``: the mean.
        privacy: how uploads are clipped before they are summed; :class:`fedax.wire.privacy.Private` adds the noise.
        down: what downloads are compressed by; ``None``: they are not.
        lossy: whether uploads may get lost on their way, as those of real clients may.
        sealed: whether uploads go on as they are, one by one, their messages unread.
        secure: how uploads are summed as whole numbers; ``None``: as they are.
        fixed: in a round, what its whole numbers stand for; see :meth:`of`.
        own_clip: the longest norm of an upload that the node of a real client lets leave; ``None``: any.

    Example:
        >>> upload, accepted = Wire(guard=Guard()).sent(jnp.array([jnp.nan, 1.0]), client=0, num_clients=5)
        >>> upload.tolist(), bool(accepted)
        ([0.0, 0.0], False)
    """

    faults: Faults | None = None
    guard: Guard | None = None
    aggregate: Aggregator | None = None
    privacy: DP | None = None
    down: Compressor | None = None
    lossy: bool = eqx.field(static=True, default=False)
    sealed: bool = eqx.field(static=True, default=False)
    secure: SecureSum | None = None
    fixed: FixedPoint | None = None
    own_clip: Number = None

    @property
    def excludes(self) -> bool:
        """Whether uploads of clients that were asked may not count."""
        return self.guard is not None or self.lossy

    @property
    def gathers(self) -> bool:
        """Whether the server looks at the uploads one by one."""
        return self.sealed or (self.aggregate is not None and self.aggregate.gathers)

    def download(self, download: Tree, key: Array, known: list[tuple[Array, Tree]] | None = None) -> Tree:
        """What goes to a client, with messages where it is compressed; see :func:`fedax.wire.compressed.encoded`."""
        if self.down is None:
            return download
        known = [] if known is None else known
        if isinstance(download, Download):  # the clip goes as it is: noise is for this one
            return download._replace(value=encoded(self.down, download.value, key, known))
        return encoded(self.down, download, key, known)

    def of(self, round_: Round) -> "Wire":
        """The wire of a round."""
        if self.secure is None:
            return self
        clip = None if self.privacy is None else self.privacy.clip
        return dataclasses.replace(self, fixed=self.secure.of(round_, clip))

    def sent(self, upload: Tree, client: Array, num_clients: int, download: Tree = ()) -> tuple[Tree, Array]:
        """What is left of the upload of client number ``client`` of N, and whether it counts; ``()``: it must.

        ``download``: what the client had received.
        """
        accepted: Array = ()
        if self.sealed:
            return upload, accepted
        upload = decoded(upload)
        if self.faults is not None:
            upload = self.faults.applied(upload, client, num_clients)
        if self.guard is not None:
            accepted = self.guard.accepts(upload)
            upload = jax.tree.map(lambda leaf: jnp.where(accepted, leaf, 0), upload)
        if self.privacy is not None:
            upload = self.privacy.entering(upload, download)
        if self.aggregate is not None:
            upload = self.aggregate.each(upload)
        if self.own_clip is not None:
            upload = clipped(upload, self.own_clip)[0]
        return upload, accepted

    def weighted(self, upload: Tree, weights: Array, data_weights: Array) -> Tree:
        """What is summed of an upload; of several along the first axis, as are their weights."""
        if self.fixed is None:
            return weighted(upload, weights, data_weights)
        each = self.fixed.integers
        return (jax.vmap(each) if jnp.ndim(weights) else each)(upload, weights, data_weights)

    def received(
        self, total: Tree, uploads: Tree, round_: Round, counts: Array, by_number: bool, alone: bool
    ) -> tuple[Tree, Round]:
        """What the server's step is given: the mean, and the round with the clients that count.

        Args:
            total: the sum of what :meth:`weighted` gives, over the clients that count.
            uploads: leaves [S, ...], where the server looks at them one by one.
            round_: the round with the whole cohort.
            counts: [S] whose upload counts.
            by_number: whether weights grow by the number of clients that are left, or by their weight.
            alone: whether ``total`` is the one upload of an exchange with one client.
        """
        mean = total = total if self.fixed is None else self.fixed.numbers(total)
        if self.privacy is not None:
            return mean, round_  # whoever came: weights that grow would tell of it
        if self.excludes:
            grow = left(round_.weights, counts, round_.present, by_number)
            weights = jnp.where(counts, round_.weights * grow, 0)
            if not alone:
                mean = by_kind(lambda leaf: leaf * grow.astype(leaf.dtype), lambda leaf: leaf, total)
            round_ = round_._replace(
                weights=weights,
                steps=jnp.where(counts, round_.steps, 0),
                present=round_.present & counts,
                data_weights=jnp.where(counts, round_.data_weights, 0),
                total=nonzero(jnp.sum(weights)),
            )
        if self.aggregate is not None and self.gathers:
            average = self.aggregate.average(uploads, round_.weights)
            mean = jax.tree.map(lambda leaf: leaf * round_.total.astype(leaf.dtype), average)
        return without_marks(mean), round_


def nonzero(total: Array) -> Array:
    """Σ ω, and 1 where it is 0: a cohort whose clients all have weight 0 moves nothing, and dividing stays finite."""
    return jnp.where(total > 0, total, 1.0)
