"""Protobuf's variable-length integers."""

from __future__ import annotations


def varint(number: int) -> bytes:
    """Return `number`, from 0, as Protobuf writes it: 7 bits a byte, the low ones first."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
