"""The wire: what happens to an upload between a client and the server's step.

``wire`` has the stages in order. One module a stage: ``faults``, ``compressed`` (compression), ``privacy`` (clipping
and noise), ``secure`` (sums as whole numbers), ``sums`` (weighted sums) and ``averages`` (robust averages, the guard).
"""

from fedax.registry import Registry
from fedax.wire.averages import ClippedMean, CoordinateMedian, GeometricMedian, TrimmedMean

__all__ = ["AVERAGES"]

AVERAGES = Registry("aggregate")
AVERAGES.add("coordinate-median", CoordinateMedian)
AVERAGES.add("trimmed-mean", TrimmedMean)
AVERAGES.add("geometric-median", GeometricMedian)
AVERAGES.add("clipped-mean", ClippedMean)
