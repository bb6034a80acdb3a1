"""The wire: what becomes of an upload between a client and the server's step."""

from fedax.registry import Registry
from fedax.wire.averages import ClippedMean, CoordinateMedian, GeometricMedian, TrimmedMean

__all__ = ["AVERAGES"]

AVERAGES = Registry("aggregate")
AVERAGES.add("coordinate-median", CoordinateMedian)
AVERAGES.add("trimmed-mean", TrimmedMean)
AVERAGES.add("geometric-median", GeometricMedian)
AVERAGES.add("clipped-mean", ClippedMean)
