"""Cases of the fuzz test: conversations with some frames spoiled. A seed and a number give the same case again."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format

from relaax.rlx import HANDSHAKE_FRAME_BYTES, Sender
from relaax.rlx.wire.encoding import Wire
from support.fuzz_fields import JSON_VALUES, spoil_fields, spoil_json
from support.fuzz_messages import Talk, golden, random_talk
from support.rlx_vector_talk import framed, varint

LENGTHS = (0, 1, 4, 255, HANDSHAKE_FRAME_BYTES, HANDSHAKE_FRAME_BYTES + 1, 2**20, 2**20 + 1, 2**24, 2**31, 2**32 - 1)


@dataclass(frozen=True)
class Case:
    """Frames, right or not, to be sent one after the other, in `pieces` bytes at a time."""

    codec: str
    frames: tuple[bytes, ...]
    piece: int

    @property
    def data(self) -> bytes:
        return b"".join(self.frames)


def case(seed: int, number: int, sender: Sender = Sender.CLIENT) -> Case:
    """The frames of one side of a conversation."""
    rng = random.Random(f"{seed} {number} {sender.value}")
    if sender is Sender.CLIENT and rng.random() < 0.75:
        talk = random_talk(rng)
    else:
        talk = rng.choice(golden(sender))
    frames = _Frames(rng, talk, sender)
    for _ in range(rng.choice((0, 1, 1, 1, 1, 1, 1, 2, 2, 4))):
        frames.spoil()
    size = sum(map(len, frames.frames))
    return Case(talk.codec, tuple(frames.frames), max(rng.choice((1 << 20, 1 << 20, 1 << 20, 4096, 61, 7)), size // 50))


class _Frames:
    def __init__(self, rng: random.Random, talk: Talk, sender: Sender) -> None:
        self._rng, self._talk = rng, talk
        self._other = Sender.SERVER if sender is Sender.CLIENT else Sender.CLIENT
        self.said = list(talk.said)
        self.frames = [_frame(one, talk.codec) if rng.random() < 0.5 else self._otherwise(one) for one in talk.said]

    def _otherwise(self, said: Wire | bytes) -> bytes:
        """The same in a way that this project would not write, and must read: a newer peer's, or another library's."""
        rng = self._rng
        if isinstance(said, bytes):
            return said
        if self._talk.codec == "json":
            tree = json_format.MessageToDict(said, preserving_proto_field_name=rng.random() < 0.5)
            for part in tree.values():
                part["hue"] = rng.choice(JSON_VALUES[:30])
            indent = rng.choice((None, 1))
            return framed(json.dumps(tree, indent=indent, sort_keys=rng.random() < 0.5).encode("utf-8"))
        unknown = rng.choice((b"\xa0\x06\x07", b"\xa2\x06\x02hi", b"\xa3\x06\x08\x01\xa4\x06", b"\xa5\x06abcd"))
        payload = said.SerializeToString()
        return framed(rng.choice((payload + unknown, unknown + payload, unknown * 20 + payload + unknown)))

    def spoil(self) -> None:
        if not self.frames:
            return
        # The first frame more often than its turn; else rather late, since little is read after what is spoiled.
        index = 0 if self._rng.random() < 0.1 else int(len(self.frames) * self._rng.random() ** 0.4)
        self._rng.choice(_WAYS)(self, index)

    def fields(self, index: int) -> None:
        said = copy.deepcopy(self.said[index])
        if isinstance(said, bytes):
            return self.bits(index)
        if self._talk.codec == "json" and self._rng.random() < 0.6:
            self.frames[index] = framed(spoil_json(self._rng, json_format.MessageToDict(said)))
            return None
        spoil_fields(self._rng, said)
        self.said[index], self.frames[index] = said, _frame(said, self._talk.codec)
        return None

    def order(self, index: int) -> None:
        """A frame is dropped, said twice, or at another time."""
        kind = self._rng.choice(("drop", "again", "move", "swap"))
        frame, said = self.frames[index], self.said[index]
        to = self._rng.randrange(len(self.frames))
        if kind == "swap":
            for items in (self.frames, self.said):
                items[index], items[to] = items[to], items[index]  # type: ignore[index]
            return
        if kind != "again":
            del self.frames[index], self.said[index]
        if kind != "drop":
            self.frames.insert(to, frame)
            self.said.insert(to, said)

    def insert(self, index: int) -> None:
        """A frame of another conversation, of the other side, of the other codec, or noise."""
        rng = self._rng
        kind = rng.choice(("other", "side", "codec", "noise", "http", "tls"))
        talks = golden(self._other) if kind == "side" else golden(Sender.CLIENT)
        said: Wire | bytes = rng.choice(rng.choice(talks).said)
        if kind == "codec":
            frame = _frame(said, "json" if self._talk.codec == "protobuf" else "protobuf")
        elif kind == "noise":
            frame = rng.randbytes(rng.choice((1, 4, 5, 100, 3000)))
        elif kind in ("http", "tls"):
            frame = b"GET / HTTP/1.1\r\n\r\n" if kind == "http" else bytes.fromhex("160301020001000001fc0303")
        else:
            frame = _frame(said, self._talk.codec)
        self.frames.insert(index, frame)
        self.said.insert(index, frame)

    def bits(self, index: int) -> None:
        """Bytes changed, taken away or put in; the length right or not."""
        rng, frame = self._rng, self.frames[index]
        payload = bytearray(frame[4:])
        for _ in range(rng.choice((1, 1, 1, 2, 8))):
            at = rng.randrange(len(payload) + 1)
            kind = rng.choice(("flip", "put", "cut"))
            if kind == "flip" and at < len(payload):
                payload[at] ^= 1 << rng.randrange(8)
            elif kind == "put":
                payload[at:at] = rng.choice((rng.randbytes(rng.randrange(1, 9)), b"\0", b"\xff" * 10, b"}"))
            else:
                del payload[at : at + rng.randrange(1, 9)]
        self.frames[index] = framed(bytes(payload)) if rng.random() < 0.8 else frame[:4] + bytes(payload)

    def length(self, index: int) -> None:
        rng, payload = self._rng, self.frames[index][4:]
        length = rng.choice((*LENGTHS, len(payload) + 1, len(payload) - 1, len(payload) + rng.randrange(1000)))
        self.frames[index] = struct.pack(">I", max(0, length)) + payload

    def wire(self, index: int) -> None:
        """Protobuf's own ways: fields in another order, twice, unknown, in groups, cut short."""
        rng, said = self._rng, self.said[index]
        if isinstance(said, bytes) or self._talk.codec == "json":
            return self.fields(index)
        name = said.WhichOneof("message")
        if name is None:
            return self.bits(index)
        number = said.DESCRIPTOR.fields_by_name[name].number
        inner = getattr(said, name).SerializeToString()
        kind = rng.choice(("unknown", "unknown", "twice", "group", "cut", "overlong", "known elsewhere"))
        extra = {
            "unknown": bytes([0xA2, 0x06]) + varint(n := rng.choice((0, 3, 3000))) + bytes(n) + b"\xa8\x06\x07",
            "twice": inner,
            "group": rng.choice((b"\x7b\x08\x01\x7c", b"\x7b", b"\x7c", b"\x0b" * 200)),
            "cut": b"\x0a\x7f",
            "overlong": b"\x88\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00\x01",
            "known elsewhere": bytes([rng.randrange(8, 128), rng.randrange(128)]),
        }[kind]
        inner = inner + extra if rng.random() < 0.7 else extra + inner
        payload = varint(number << 3 | 2) + varint(len(inner)) + inner
        self.frames[index] = framed(payload if rng.random() < 0.9 else payload[: rng.randrange(1, len(payload) + 1)])
        return None

    def long(self, index: int) -> None:
        """A frame of many bytes that mean nothing."""
        count = self._rng.choice((HANDSHAKE_FRAME_BYTES - 1, HANDSHAKE_FRAME_BYTES, 300_000))
        fill = b"{" + b" " * count if self._talk.codec == "json" else b"\xa2\x06" + varint(count) + bytes(count)
        self.frames[index] = framed(fill)


_WAYS: tuple[Callable[[Any, int], None], ...] = (
    *(_Frames.fields,) * 8,
    *(_Frames.wire,) * 3,
    *(_Frames.bits,) * 2,
    *(_Frames.order,) * 2,
    *(_Frames.insert, _Frames.length, _Frames.long),
)


def _frame(said: Wire | bytes, codec: str) -> bytes:
    if isinstance(said, bytes):
        return said
    if codec == "json":
        return framed(json_format.MessageToJson(said, indent=None).encode())
    return framed(said.SerializeToString())
