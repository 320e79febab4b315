"""The two codecs of messages: Protobuf, and JSON in Protobuf's canonical mapping.

A connection uses one of them in both directions. The server detects it from the first payload byte.
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
from relaax.rlx.wire.decoding import LIST_LIMITS, check_version, from_part, unknown_message
from relaax.rlx.wire.encoding import to_wire
from relaax.rlx.wire.framing import Piece
from relaax.rlx.wire.layouts import ActionsLayout, StepLayout

JSON_FIRST_BYTE = 0x7B  # "{"; a Protobuf message of RLX never starts with it: field 15 is reserved

_BEFORE_JSON = b"\xef\xbb\xbf \t\r\n"  # a byte order mark and white space


class Codec(Protocol):
    """An encoder and decoder of messages. Its errors are ProtocolError."""

    name: str

    def encode(self, message: Message, sender: Sender) -> bytes:
        """Return the payload of a frame."""

    def pieces(self, message: Message, sender: Sender) -> tuple[Sequence[Piece], int]:
        """Return the payload in pieces, for `framing.framed`, and its length in bytes."""

    def decode(self, payload: bytes, sender: Sender) -> Message:
        """Return the message in the payload of a frame that `sender` sent."""

    def configure(self, hello: Hello) -> None:
        """Prepare for the messages after this hello."""


class ProtobufCodec:
    """The codec of Protobuf. A faster path writes the same bytes for steps and actions (`relaax.rlx.wire.layouts`)."""

    name = "protobuf"

    def __init__(self) -> None:
        self._steps: StepLayout | None = None
        self._actions: ActionsLayout | None = None

    def configure(self, hello: Hello) -> None:
        """Make the layouts of steps and actions from the spaces of this hello."""
        if sys.byteorder == "little":  # the order of the wire; layouts do not convert
            self._steps, self._actions = StepLayout(hello), ActionsLayout(hello)

    def encode(self, message: Message, sender: Sender) -> bytes:
        """Return the serialized message."""
        return b"".join(self.pieces(message, sender)[0])

    def pieces(self, message: Message, sender: Sender) -> tuple[Sequence[Piece], int]:
        """Return the serialized message in pieces. Arrays are pieces without a copy."""
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
        """Return the message.

        Raises ProtocolError (MALFORMED) if the payload is not Protobuf, and the errors of `from_part`.
        """
        layout = self._steps if sender is Sender.CLIENT else self._actions
        if layout is not None and (message := layout.read(payload)) is not None:
            return message
        try:
            found = [
                (field.name, data)
                for field, messages in _SKIMMED_ENVELOPES[sender].FromString(payload).ListFields()
                for data in messages[:2]
            ]
            if not found:
                raise unknown_message()
            if len(found) > 1:
                raise ProtocolError(ErrorCode.MALFORMED, "a frame with more than one message")
            ((name, data),) = found
            if name == "hello":  # its other fields may have changed in another version
                check_version(_VERSION.FromString(data).protocol_version, "the client speaks")
            return from_part(name, _PARTS[sender][name].FromString(data))
        except DecodeError:
            nearly_json = payload.lstrip(_BEFORE_JSON).startswith((b"{", b"[", b"<"))
            hint = "; a message in JSON begins with { at its first byte" if nearly_json else ""
            raise ProtocolError(
                ErrorCode.MALFORMED, f"a frame of {len(payload)} bytes is no Protobuf message{hint}"
            ) from None


class CodecMismatch(Exception):
    """A server's message in Protobuf to a JSON client: the server refused the client before it detected the codec."""


class JsonCodec:
    """The codec of Protobuf's canonical JSON mapping, in UTF-8. Unknown fields are ignored, as in Protobuf."""

    name = "json"

    def __init__(self) -> None:
        from google.protobuf import json_format  # imported here because it takes as long as the rest of the package

        self._format = json_format

    def configure(self, hello: Hello) -> None:
        """Do nothing: JSON has no faster path."""

    def encode(self, message: Message, sender: Sender) -> bytes:
        """Return the message on one line."""
        return json.dumps(self._format.MessageToDict(to_wire(message, sender)), separators=(",", ":")).encode()

    def pieces(self, message: Message, sender: Sender) -> tuple[Sequence[Piece], int]:
        """Return the message on one line, in one piece."""
        payload = self.encode(message, sender)
        return [payload], len(payload)

    def decode(self, payload: bytes, sender: Sender) -> Message:
        """Return the message.

        Raises CodecMismatch if a server's payload does not begin with {, ProtocolError (MALFORMED) if any other payload
        is not a message in JSON, and the errors of `from_part`.
        """
        if sender is Sender.SERVER and not payload.startswith(b"{"):
            raise CodecMismatch
        tree = json_decoding.parse_object(payload)
        found = json_decoding.single_message(tree, _ENVELOPES[sender].DESCRIPTOR)
        if found is None:
            raise unknown_message(list(tree))
        name, body = found
        if name == "hello":  # its other fields may have changed in another version
            version = rlx_pb2.Hello()
            sent_version = json_decoding.select_keys(body, "protocolVersion", "protocol_version")
            json_decoding.fill(name, sent_version, version, LIST_LIMITS)
            check_version(version.protocol_version, "the client speaks")
        part = _PARTS[sender][name]()
        json_decoding.fill(name, body, part, LIST_LIMITS)
        return from_part(name, part)


_ENVELOPES: dict[Sender, type[Any]] = {Sender.CLIENT: rlx_pb2.ClientMessage, Sender.SERVER: rlx_pb2.ServerMessage}


_PARTS: dict[Sender, dict[str, type[Any]]] = {
    sender: {field.name: field.message_type._concrete_class for field in envelope.DESCRIPTOR.fields}
    for sender, envelope in _ENVELOPES.items()
}


def _skimmed_classes() -> list[type[Any]]:
    """Return a class for each envelope, with lists of bytes instead of messages, and a class for a hello's version.

    Protobuf would merge two messages of one kind in a frame; a list keeps both, so that they can be refused.
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


*_BOTH, _VERSION = _skimmed_classes()
_SKIMMED_ENVELOPES: dict[Sender, type[Any]] = dict(zip(_ENVELOPES, _BOTH, strict=True))


def codec_named(name: str) -> Codec:
    """Return the codec called "protobuf" or "json". Raises ValueError for any other name."""
    if name == "protobuf":
        return ProtobufCodec()
    if name == "json":
        return JsonCodec()
    raise ValueError(f'codec must be "protobuf" or "json", not {name!r}')


def codec_of(first_byte: int | None) -> Codec:
    """Return the codec of a connection whose first payload starts with this byte; Protobuf if the byte is None."""
    return JsonCodec() if first_byte == JSON_FIRST_BYTE else ProtobufCodec()
