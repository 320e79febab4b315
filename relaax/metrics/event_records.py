"""Reading the records of TensorBoard's event files while they are written.

TensorBoard's own reader is not used: it checks checksums in Python, which takes a minute for a day of metrics.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO

MAX_EVENT_BYTES = 2**26
"""Maximum size of an event. Larger ones are not events: the file ends before them."""
_HEADER = struct.Struct("<QI")  # length of the record, and the checksum of the length
_CHECKSUM_BYTES = 4


def complete_records(file: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield each complete record from the file's position on, with the offset of its end. Raises OSError.

    A record that is not completely written yet is not yielded; a later call from the last offset finds it.
    """
    while len(header := file.read(_HEADER.size)) == _HEADER.size:
        length, _ = _HEADER.unpack(header)
        if length > MAX_EVENT_BYTES:
            return
        record = file.read(length + _CHECKSUM_BYTES)
        if len(record) < length + _CHECKSUM_BYTES:
            return
        yield record[:length], file.tell()
