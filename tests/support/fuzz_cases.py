"""Cases of the fuzz test: sequences of frames with mutations. A case is determined by a seed and a number."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor

from relaax.rlx import HANDSHAKE_FRAME_BYTES, Sender
from relaax.rlx.wire.encoding import CAPABILITIES, Wire
from support.fuzz_fields import JSON_VALUES, NUMBERS, mutate_fields, mutate_json
from support.fuzz_messages import MessageSequence, golden_sequences, random_sequence
from support.rlx_vector_recorder import framed, varint

NUMBER_BYTES = (bytes(8), b"\xff" * 8, b"\0\0\xc0\x7f" * 2, struct.pack("<q", -1), struct.pack("<d", 1e308))
LENGTHS = (0, 1, 4, 255, HANDSHAKE_FRAME_BYTES, HANDSHAKE_FRAME_BYTES + 1, 2**20, 2**20 + 1, 2**24, 2**31, 2**32 - 1)


@dataclass(frozen=True)
class Case:
    """Frames, valid or not, to send in order, `piece` bytes at a time. `name`: of the golden conversation, or empty."""

    codec: str
    frames: tuple[bytes, ...]
    piece: int
    name: str = ""

    @property
    def data(self) -> bytes:
        return b"".join(self.frames)


def case(seed: int, number: int, sender: Sender = Sender.CLIENT) -> Case:
    """Return the case with this seed and number: the frames of one side of a connection."""
    rng = random.Random(f"{seed} {number} {sender.value}")
    if sender is Sender.CLIENT and rng.random() < 0.75:
        sequence = random_sequence(rng)
    else:
        sequences = golden_sequences(sender)
        with_parameters = [each for each in sequences if each.name.startswith("environment_parameters")]
        sequence = rng.choice(with_parameters if rng.random() < 0.3 else sequences)
    frames = _Frames(rng, sequence, sender)
    for _ in range(rng.choice((0, 1, 1, 1, 1, 1, 1, 2, 2, 4))):
        frames.mutate()
    size = sum(map(len, frames.frames))
    piece = max(rng.choice((1 << 20, 1 << 20, 1 << 20, 4096, 61, 7)), size // 50)
    return Case(sequence.codec, tuple(frames.frames), piece, sequence.name)


class _Frames:
    def __init__(self, rng: random.Random, sequence: MessageSequence, sender: Sender) -> None:
        self._rng, self._sequence = rng, sequence
        self._other = Sender.SERVER if sender is Sender.CLIENT else Sender.CLIENT
        self.messages = list(sequence.messages)
        self.frames = [
            _frame(one, sequence.codec) if rng.random() < 0.5 else self._encode_differently(one)
            for one in sequence.messages
        ]

    def _encode_differently(self, message: Wire | bytes) -> bytes:
        """Return a valid frame as a newer peer or another library might write it."""
        rng = self._rng
        if isinstance(message, bytes):
            return message
        if self._sequence.codec == "json":
            tree = json_format.MessageToDict(message, preserving_proto_field_name=rng.random() < 0.5)
            for part in tree.values():
                part["hue"] = rng.choice(JSON_VALUES[:30])
            indent = rng.choice((None, 1))
            return framed(json.dumps(tree, indent=indent, sort_keys=rng.random() < 0.5).encode("utf-8"))
        unknown = rng.choice((b"\xa0\x06\x07", b"\xa2\x06\x02hi", b"\xa3\x06\x08\x01\xa4\x06", b"\xa5\x06abcd"))
        payload = message.SerializeToString()
        return framed(rng.choice((payload + unknown, unknown + payload, unknown * 20 + payload + unknown)))

    def mutate(self) -> None:
        if not self.frames:
            return
        # Prefer the first frame and late frames, because a peer reads little after a mutation.
        index = 0 if self._rng.random() < 0.1 else int(len(self.frames) * self._rng.random() ** 0.4)
        self._rng.choice(_MUTATIONS)(self, index)

    def fields(self, index: int) -> None:
        message = copy.deepcopy(self.messages[index])
        if isinstance(message, bytes):
            return self.bits(index)
        if self._sequence.codec == "json" and self._rng.random() < 0.6:
            self.frames[index] = framed(mutate_json(self._rng, json_format.MessageToDict(message)))
            return None
        mutate_fields(self._rng, message)
        self.messages[index], self.frames[index] = message, _frame(message, self._sequence.codec)
        return None

    def idle(self, index: int) -> None:
        """Change the capabilities of a hello or welcome, or a mask of another message, also to a wrong length."""
        rng, message = self._rng, copy.deepcopy(self.messages[index])
        name = "" if isinstance(message, bytes) else message.WhichOneof("message")
        if name not in ("hello", "welcome", "init", "step"):
            return self.fields(index)
        part: Any = getattr(message, name)
        if name in ("hello", "welcome"):
            capability = rng.choice(list(CAPABILITIES))
            setattr(part, capability, not getattr(part, capability))
        else:
            masks = ("idle", "partial")
            if name == "step":
                masks = ("idle", "idle", "first", "terminated", "truncated")
            mask = getattr(part, rng.choice(masks))
            length = len(mask) or rng.choice((1, 1, 2, 3))
            length = rng.choice((length,) * 6 + (length + 1, length - 1, 0, 300))
            del mask[:]
            mask.extend(rng.random() < 0.5 for _ in range(length))
        self.messages[index], self.frames[index] = message, _frame(message, self._sequence.codec)
        return None

    def chosen(self, index: int) -> None:
        """Change which actions the client chose in a step or reset, and some of these actions, also to invalid ones."""
        rng, message = self._rng, copy.deepcopy(self.messages[index])
        name = "" if isinstance(message, bytes) else message.WhichOneof("message")
        if name not in ("step", "reset"):
            return self.fields(index)
        part: Any = getattr(message, name)
        kind = rng.choice(("mask", "data", "data", "dtype", "shape", "leaf", "clear"))
        if kind == "mask" or not len(part.action):
            count = len(part.chosen) or rng.choice((1, 2, 3))
            part.chosen[:] = [rng.random() < 0.7 for _ in range(count)]
        elif kind in ("data", "dtype", "shape"):
            array = rng.choice(part.action)
            if kind == "data":
                array.data = rng.choice(NUMBER_BYTES) * (len(array.data) // 8) or array.data[:-1]
            elif kind == "dtype":
                array.dtype = rng.choice((0, 1, 9, 11, 12, 99))
            else:
                array.shape.insert(rng.randrange(len(array.shape) + 1), rng.choice((0, 1, 2**32 - 1)))
        elif kind == "leaf":
            part.action.add().CopyFrom(part.action[0])
        else:
            part.ClearField(rng.choice(("action", "chosen")))
        self.messages[index], self.frames[index] = message, _frame(message, self._sequence.codec)
        return None

    def parameters(self, index: int) -> None:
        """Change the parameters of environments in a welcome or in actions: their names, places, number or values."""
        rng, message = self._rng, copy.deepcopy(self.messages[index])
        name = "" if isinstance(message, bytes) else message.WhichOneof("message")
        if name not in ("welcome", "actions"):
            return self.chosen(index)
        part: Any = getattr(message, name)
        kind = rng.choice(("numbers", "numbers", "count", "places"))
        if kind == "numbers" and len(part.parameters):
            part.parameters[rng.randrange(len(part.parameters))] = rng.choice(NUMBERS[FieldDescriptor.CPPTYPE_DOUBLE])
        elif kind == "places" and name == "welcome":
            names = ["size", "size", "", "\n", "\u0085", "é" * 128, "é" * 129, "\U0001f600"]
            part.parameter_names[:] = rng.choices(names, k=rng.choice((1, 1, 2, 2, 64, 65, 300)))
            if rng.random() < 0.2:
                part.parameter_names.extend(map(str, range(rng.choice((62, 63, 10_000)))))
        elif kind == "places":
            part.parameters_of[:] = rng.choice(([0], [1], [0, 0], [1, 0], [0, 1], [2**31], [2**32 - 1], range(5000)))
        else:
            count = max(0, len(part.parameters) + rng.choice((-2, -1, 1, 2, 300)))
            part.parameters[:] = [rng.uniform(-9, 9) for _ in range(count)]
        self.messages[index], self.frames[index] = message, _frame(message, self._sequence.codec)
        return None

    def order(self, index: int) -> None:
        """Drop, duplicate, move or swap a frame."""
        kind = self._rng.choice(("drop", "duplicate", "move", "swap"))
        frame, message = self.frames[index], self.messages[index]
        to = self._rng.randrange(len(self.frames))
        if kind == "swap":
            for items in (self.frames, self.messages):
                items[index], items[to] = items[to], items[index]  # type: ignore[index]
            return
        if kind != "duplicate":
            del self.frames[index], self.messages[index]
        if kind != "drop":
            self.frames.insert(to, frame)
            self.messages.insert(to, message)

    def insert(self, index: int) -> None:
        """Insert a frame of another sequence, of the other side, of the other codec, or noise."""
        rng = self._rng
        kind = rng.choice(("other", "side", "codec", "noise", "http", "tls"))
        sequences = golden_sequences(self._other) if kind == "side" else golden_sequences(Sender.CLIENT)
        message: Wire | bytes = rng.choice(rng.choice(sequences).messages)
        if kind == "codec":
            frame = _frame(message, "json" if self._sequence.codec == "protobuf" else "protobuf")
        elif kind == "noise":
            frame = rng.randbytes(rng.choice((1, 4, 5, 100, 3000)))
        elif kind in ("http", "tls"):
            frame = b"GET / HTTP/1.1\r\n\r\n" if kind == "http" else bytes.fromhex("160301020001000001fc0303")
        else:
            frame = _frame(message, self._sequence.codec)
        self.frames.insert(index, frame)
        self.messages.insert(index, frame)

    def bits(self, index: int) -> None:
        """Change, remove or insert bytes. The length of the frame may become wrong."""
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
        """Mutate the Protobuf encoding: fields that are unknown, duplicate, groups, or truncated."""
        rng, message = self._rng, self.messages[index]
        if isinstance(message, bytes) or self._sequence.codec == "json":
            return self.fields(index)
        name = message.WhichOneof("message")
        if name is None:
            return self.bits(index)
        number = message.DESCRIPTOR.fields_by_name[name].number
        inner = getattr(message, name).SerializeToString()
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
        """Replace a frame by a long one without content."""
        count = self._rng.choice((HANDSHAKE_FRAME_BYTES - 1, HANDSHAKE_FRAME_BYTES, 300_000))
        fill = b"{" + b" " * count if self._sequence.codec == "json" else b"\xa2\x06" + varint(count) + bytes(count)
        self.frames[index] = framed(fill)


_MUTATIONS: tuple[Callable[[Any, int], None], ...] = (
    *(_Frames.fields,) * 8,
    *(_Frames.wire,) * 3,
    *(_Frames.bits,) * 2,
    *(_Frames.order,) * 2,
    *(_Frames.idle,) * 2,
    *(_Frames.parameters,) * 3,
    *(_Frames.insert, _Frames.length, _Frames.long),
)


def _frame(message: Wire | bytes, codec: str) -> bytes:
    if isinstance(message, bytes):
        return message
    if codec == "json":
        return framed(json_format.MessageToJson(message, indent=None).encode())
    return framed(message.SerializeToString())
