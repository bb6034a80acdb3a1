"""The wire as a whole: the stages that an upload goes through, in order."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp

from fedax.contract.algorithm import Round
from fedax.contract.compression import Compressor, decoded
from fedax.contract.types import Array, Number, Tree
from fedax.federation.participation import weight_growth
from fedax.wire.averages import Aggregator, Guard
from fedax.wire.compressed import encoded
from fedax.wire.faults import Faults
from fedax.wire.privacy import DP, DownloadAndClip
from fedax.wire.secure import FixedPoint, SecureSum
from fedax.wire.sums import by_kind, clipped, weighted, without_marks


class Wire(eqx.Module):
    """The stages between a client's upload and the server's step.

    Messages are decoded. At the client follow ``faults``, then ``guard``, then the clip of ``privacy`` or that of the
    average. Then the uploads are summed with their weights, or gathered one by one where the average is robust. The
    server takes the sum, or the average, over the clients that count. All numbers are traced: another clip needs no new
    compilation.

    Args:
        faults: clients that send wrong uploads; ``None``: none do.
        guard: which uploads count; ``None``: all.
        aggregate: the robust average instead of the mean; ``None``: the mean.
        privacy: how uploads are clipped before they are summed; :class:`fedax.wire.privacy.Private` adds the noise.
        down: the compressor of downloads; ``None``: they are not compressed.
        lossy: whether uploads may get lost on their way, as those of real clients may.
        sealed: whether uploads are passed on one by one as they are, with their messages not decoded.
        apart: whether uploads are kept one by one, and summed later.
        secure: how uploads are summed as whole numbers; ``None``: as they are.
        fixed: the fixed-point format of the round; see :meth:`of`.
        node_clip: the norm to which the node of a real client clips uploads before they leave it; ``None``: no clip.

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
    apart: bool = eqx.field(static=True, default=False)
    secure: SecureSum | None = None
    fixed: FixedPoint | None = None
    node_clip: Number = None

    @property
    def excludes(self) -> bool:
        """Whether uploads of clients that were asked may not count."""
        return self.guard is not None or self.lossy

    @property
    def zeroes(self) -> bool:
        """Whether an upload that is not finite becomes zero, by a clip of the run."""
        return self.privacy is not None or self.fixed is not None

    @property
    def gathers(self) -> bool:
        """Whether the server looks at the uploads one by one."""
        return self.sealed or self.apart or (self.aggregate is not None and self.aggregate.gathers)

    def download(self, download: Tree, key: Array, known: list[tuple[Array, Tree]] | None = None) -> Tree:
        """A download as it is sent, compressed if it is to be; see :func:`fedax.wire.compressed.encoded`."""
        if self.down is None:
            return download
        known = [] if known is None else known
        if isinstance(download, DownloadAndClip):  # the clip is not compressed: the noise is scaled by it
            return download._replace(value=encoded(self.down, download.value, key, known))
        return encoded(self.down, download, key, known)

    def of(self, round_: Round) -> "Wire":
        """The wire of a round, whose weights set the fixed-point format of secure sums."""
        if self.secure is None:
            return self
        clip = None if self.privacy is None else self.privacy.clip
        return dataclasses.replace(self, fixed=self.secure.of(round_, clip))

    def sent(self, upload: Tree, client: Array, num_clients: int, download: Tree = ()) -> tuple[Tree, Tree]:
        """The stages at a client, number ``client`` of N: its upload, and whether that counts; ``()``: it does.

        ``download``: what the client received.
        """
        accepted: Tree = ()
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
        if self.node_clip is not None:
            upload = clipped(upload, self.node_clip)[0]
        return upload, accepted

    def weighted(self, upload: Tree, weights: Array, data_weights: Array) -> Tree:
        """An upload times its weights, ready to be summed; or several uploads and weights along the first axis."""
        if self.fixed is None:
            return weighted(upload, weights, data_weights)
        each = self.fixed.integers
        return (jax.vmap(each) if jnp.ndim(weights) else each)(upload, weights, data_weights)

    def received(
        self, total: Tree, uploads: Tree, round_: Round, counts: Array, by_number: bool, alone: bool
    ) -> tuple[Tree, Round]:
        """The stages at the server: the mean, and the round with the clients that count, for the server's step.

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
            grow = weight_growth(round_.weights, counts, round_.present, by_number)
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
