"""Two encodings of the same messages: Protobuf, and JSON in Protobuf's canonical mapping.

A connection speaks one of them from end to end; the first byte of the client's first frame says which.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from relaax.rlx import rlx_pb2
from relaax.rlx.errors import ErrorCode, ProtocolError
from relaax.rlx.messages import Actions, Hello, Message, Step
from relaax.rlx.transitions import Sender
from relaax.rlx.wire import json_decoding
from relaax.rlx.wire.decoding import MOST, check_version, from_part, nothing_known
from relaax.rlx.wire.encoding import to_wire
from relaax.rlx.wire.framing import Piece
from relaax.rlx.wire.layouts import ActionsLayout, StepLayout

JSON_FIRST_BYTE = 0x7B  # "{"; in Protobuf the start of field 15 as a group, and that number is reserved

_BEFORE_JSON = b"\xef\xbb\xbf \t\r\n"  # a byte order mark, or white space


class Codec(Protocol):
    """Encode and decode. Errors are ProtocolError."""

    name: str

    def encode(self, message: Message, sender: Sender) -> bytes:
        """Return the payload of a frame."""

    def pieces(self, message: Message, sender: Sender) -> tuple[Sequence[Piece], int]:
        """Return the same, for `framing.framed`: in pieces, and how many bytes they are."""

    def decode(self, payload: bytes, sender: Sender) -> Message:
        """Return the message in the payload of a frame that `sender` sent."""

    def agree(self, hello: Hello) -> None:
        """Note the arrays of the messages after this hello."""


class ProtobufCodec:
    """Protobuf's binary form. Steps and actions go a short way, to the same bytes (`relaax.rlx.wire.layouts`)."""

    name = "protobuf"

    def __init__(self) -> None:
        self._steps: StepLayout | None = None
        self._actions: ActionsLayout | None = None

    def agree(self, hello: Hello) -> None:
        """Note that arrays of steps and actions have the shapes of this hello, and its element types."""
        if sys.byteorder == "little":  # as on the wire
            self._steps, self._actions = StepLayout(hello), ActionsLayout(hello)

    def encode(self, message: Message, sender: Sender) -> bytes:
        """Return the serialized message."""
        return b"".join(self.pieces(message, sender)[0])

    def pieces(self, message: Message, sender: Sender) -> tuple[Sequence[Piece], int]:
        """Return the serialized message in pieces, among them the arrays themselves."""
        written = None
        if self._steps is not None and isinstance(message, Step):
            written = self._steps.write(message)
        elif self._actions is not None and isinstance(message, Actions):
            written = self._actions.write(message)
        if written is not None:
            return written
        payload = to_wire(message, sender).SerializeToString()
        return [payload], len(payload)

    def decode(self, payload: bytes, sender: Sender) -> Message:
        """Decode a message. Raises ProtocolError: MALFORMED if it is not one in Protobuf, or else as `from_part`."""
        layout = self._steps if sender is Sender.CLIENT else self._actions
        if layout is not None and (message := layout.read(payload)) is not None:
            return message
        try:
            found = [
                (field.name, data)
                for field, all_of_it in _SKIMMED[sender].FromString(payload).ListFields()
                for data in all_of_it[:2]
            ]
            if not found:
                raise nothing_known()
            if len(found) > 1:
                raise ProtocolError(ErrorCode.MALFORMED, "a frame with more than one message")
            ((name, data),) = found
            if name == "hello":  # whose other fields may be anything in another version
                check_version(_VERSION.FromString(data).protocol_version, "the client speaks")
            return from_part(name, _PARTS[sender][name].FromString(data))
        except DecodeError:
            nearly_json = payload.lstrip(_BEFORE_JSON).startswith((b"{", b"[", b"<"))
            hint = "; a message in JSON begins with { at its first byte" if nearly_json else ""
            raise ProtocolError(
                ErrorCode.MALFORMED, f"a frame of {len(payload)} bytes is no Protobuf message{hint}"
            ) from None


class AnotherCodec(Exception):
    """A message of a server that did not know its client's codec yet: it refused the connection at once."""


class JsonCodec:
    """Protobuf's canonical JSON mapping, UTF-8. Unknown fields are ignored, as in Protobuf."""

    name = "json"

    def __init__(self) -> None:
        from google.protobuf import json_format  # here: it costs as much as the rest of the package

        self._format = json_format

    def agree(self, hello: Hello) -> None:
        """Do nothing: JSON is read and written in one way only."""

    def encode(self, message: Message, sender: Sender) -> bytes:
        """Return the message on one line."""
        return json.dumps(self._format.MessageToDict(to_wire(message, sender)), separators=(",", ":")).encode()

    def pieces(self, message: Message, sender: Sender) -> tuple[Sequence[Piece], int]:
        """Return the message on one line, in one piece."""
        payload = self.encode(message, sender)
        return [payload], len(payload)

    def decode(self, payload: bytes, sender: Sender) -> Message:
        """Decode a message.

        Raises AnotherCodec, and ProtocolError: MALFORMED if it is not one in JSON, or else as `from_part`.
        """
        if sender is Sender.SERVER and not payload.startswith(b"{"):
            raise AnotherCodec
        tree = json_decoding.tree_of(payload)
        found = json_decoding.one_of(tree, _ENVELOPES[sender].DESCRIPTOR)
        if found is None:
            raise nothing_known(list(tree))
        name, said = found
        if name == "hello":  # whose other fields may be anything in another version
            version = rlx_pb2.Hello()
            said_version = json_decoding.part_of(said, "protocolVersion", "protocol_version")
            json_decoding.fill(name, said_version, version, MOST)
            check_version(version.protocol_version, "the client speaks")
        part = _PARTS[sender][name]()
        json_decoding.fill(name, said, part, MOST)
        return from_part(name, part)


_ENVELOPES: dict[Sender, type[Any]] = {Sender.CLIENT: rlx_pb2.ClientMessage, Sender.SERVER: rlx_pb2.ServerMessage}


_PARTS: dict[Sender, dict[str, type[Any]]] = {
    sender: {field.name: field.message_type._concrete_class for field in envelope.DESCRIPTOR.fields}
    for sender, envelope in _ENVELOPES.items()
}


def _skimming() -> list[type[Any]]:
    """Both envelopes with lists of bytes in the place of messages: a second one is seen, not merged. And a hello of
    which only the version is read.
    """
    file = descriptor_pb2.FileDescriptorProto(name="skimmed.proto", package="skimmed", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto
    for envelope in _ENVELOPES.values():
        message = file.message_type.add(name=envelope.DESCRIPTOR.name)
        for one in envelope.DESCRIPTOR.fields:
            message.field.add(name=one.name, number=one.number, type=field.TYPE_BYTES, label=field.LABEL_REPEATED)
    version = rlx_pb2.Hello.DESCRIPTOR.fields_by_name["protocol_version"]
    message = file.message_type.add(name="Version")
    message.field.add(name=version.name, number=version.number, type=field.TYPE_UINT32, label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [f"skimmed.{message.name}" for message in file.message_type]
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names]


*_BOTH, _VERSION = _skimming()
_SKIMMED: dict[Sender, type[Any]] = dict(zip(_ENVELOPES, _BOTH, strict=True))


def codec_named(name: str) -> Codec:
    """Return the codec called "protobuf" or "json". Raises ValueError for any other name."""
    if name == "protobuf":
        return ProtobufCodec()
    if name == "json":
        return JsonCodec()
    raise ValueError(f'no codec is called {name!r}; there are "protobuf" and "json"')


def codec_of(first_byte: int | None) -> Codec:
    """Return the codec of a connection whose first frame starts with this byte; Protobuf while there is none."""
    return JsonCodec() if first_byte == JSON_FIRST_BYTE else ProtobufCodec()
