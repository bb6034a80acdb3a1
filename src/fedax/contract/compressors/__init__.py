"""The compressors, one family a file; :mod:`fedax.contract.compression` has what a compressor is."""

from fedax.contract.compression import COMPRESSORS, Identity, compressor
from fedax.contract.compressors.low_rank import PowerSGD
from fedax.contract.compressors.quantized import QSGD, Cast, Natural, Sign
from fedax.contract.compressors.sparse import RandomK, TopK
from fedax.contract.compressors.wrapping import ErrorFeedback, Rotated

__all__ = [
    "COMPRESSORS", "QSGD", "Cast", "ErrorFeedback", "Identity", "Natural", "PowerSGD", "RandomK", "Rotated", "Sign",
    "TopK", "compressor",
]  # fmt: skip

COMPRESSORS.add("top-k", TopK)
COMPRESSORS.add("random-k", RandomK)
COMPRESSORS.add("qsgd", QSGD)
COMPRESSORS.add("natural", Natural)
COMPRESSORS.add("sign", Sign)
COMPRESSORS.add("powersgd", PowerSGD)
COMPRESSORS.add("cast", Cast)
COMPRESSORS.add("rotated", Rotated)
COMPRESSORS.add("identity", Identity)
COMPRESSORS.add("error-feedback", ErrorFeedback)
