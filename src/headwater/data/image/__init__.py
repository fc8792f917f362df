"""Images as files: reading their headers, holding them to limits, decoding all or a box of them."""

from headwater.data.image.decoding import MODES, decode
from headwater.data.image.header import Data, Header
from headwater.data.image.limits import DEFAULT_LIMITS, Limits
from headwater.data.image.reading import read_header, read_sizes
from headwater.data.image.region import region_available

__all__ = [
    "DEFAULT_LIMITS",
    "MODES",
    "Data",
    "Header",
    "Limits",
    "decode",
    "read_header",
    "read_sizes",
    "region_available",
]
