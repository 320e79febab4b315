"""Protobuf's variable-length integers."""

from __future__ import annotations


def varint(number: int) -> bytes:
    """Return the encoding of `number` (at least 0): 7 bits in each byte, the lowest first."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
