"""Two ways to write the same messages: Protobuf, and JSON in Protobuf's canonical mapping.

A connection speaks one of them from end to end; the first byte of the client's first frame says which.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from relaax.rlx import rlx_pb2
from relaax.rlx.decoding import from_wire
from relaax.rlx.encoding import Wire, to_wire
from relaax.rlx.errors import ErrorCode, ProtocolError
from relaax.rlx.framing import Piece
from relaax.rlx.layouts import ActionsLayout, StepLayout
from relaax.rlx.messages import Actions, Hello, Message, Step
from relaax.rlx.transitions import Sender

# Objects and lists within each other: the deepest space of a hello needs about 70.
MAX_JSON_NESTING = 100

JSON_FIRST_BYTE = 0x7B  # "{"; in Protobuf the start of field 15 as a group, and that number is reserved


class Codec(Protocol):
    """Both directions. Errors are ProtocolError."""

    name: str

    def encode(self, message: Message, sender: Sender) -> bytes:
        """The payload of a frame."""

    def pieces(self, message: Message, sender: Sender) -> tuple[Sequence[Piece], int]:
        """The same, for `framing.framed`: in pieces, and how many bytes they are."""

    def decode(self, payload: bytes, sender: Sender) -> Message:
        """The message in the payload of a frame that `sender` sent."""

    def agree(self, hello: Hello) -> None:
        """Learn what the arrays of the messages after this hello are."""


class ProtobufCodec:
    """Protobuf's binary form. Steps and actions go a short way, to the same bytes (`relaax.rlx.layouts`)."""

    name = "protobuf"

    def __init__(self) -> None:
        self._steps: StepLayout | None = None
        self._actions: ActionsLayout | None = None

    def agree(self, hello: Hello) -> None:
        """From here on arrays of steps and actions have the shapes of this hello, and its element types."""
        if sys.byteorder == "little":  # as on the wire
            self._steps, self._actions = StepLayout(hello), ActionsLayout(hello)

    def encode(self, message: Message, sender: Sender) -> bytes:
        """The serialized message."""
        return b"".join(self.pieces(message, sender)[0])

    def pieces(self, message: Message, sender: Sender) -> tuple[Sequence[Piece], int]:
        """The serialized message in pieces, among them the arrays themselves."""
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
        """Raises ProtocolError: MALFORMED where the payload is no Protobuf, or else as `from_wire`."""
        layout = self._steps if sender is Sender.CLIENT else self._actions
        if layout is not None and (message := layout.read(payload)) is not None:
            return message
        try:
            wire = _ENVELOPES[sender].FromString(payload)
        except DecodeError:
            raise ProtocolError(
                ErrorCode.MALFORMED, f"a frame of {len(payload)} bytes is no Protobuf message"
            ) from None
        return from_wire(wire)


class JsonCodec:
    """Protobuf's canonical JSON mapping, UTF-8. Unknown fields are ignored, as in Protobuf."""

    name = "json"

    def __init__(self) -> None:
        from google.protobuf import json_format  # here: it costs as much as the rest of the package

        self._format = json_format

    def agree(self, hello: Hello) -> None:
        """Nothing is to be learned: JSON is read and written one way only."""

    def encode(self, message: Message, sender: Sender) -> bytes:
        """The message on one line."""
        return json.dumps(self._format.MessageToDict(to_wire(message, sender)), separators=(",", ":")).encode()

    def pieces(self, message: Message, sender: Sender) -> tuple[Sequence[Piece], int]:
        """The message on one line, in one piece."""
        payload = self.encode(message, sender)
        return [payload], len(payload)

    def decode(self, payload: bytes, sender: Sender) -> Message:
        """Raises ProtocolError: MALFORMED where the payload is no JSON of a message, or else as `from_wire`."""
        wire = _ENVELOPES[sender]()
        try:
            tree = json.loads(payload.decode("utf-8"), object_pairs_hook=_no_duplicates)
            if payload.count(b"{") + payload.count(b"[") > MAX_JSON_NESTING:
                _refuse_nesting(tree)
            self._format.ParseDict(tree, wire, ignore_unknown_fields=True)
        except Exception as error:  # whatever two parsers that are not ours make of hostile text, nesting included
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
            raise ProtocolError(ErrorCode.MALFORMED, f"a frame is no JSON of a message: {reason}") from None
        _refuse_dropped_names(tree, wire)
        return from_wire(wire)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice in an object")
    return result


def _refuse_nesting(tree: Any) -> None:
    """Raises RecursionError. Whether the parsers do differs between versions of Python."""
    level = [tree]
    for _ in range(MAX_JSON_NESTING):
        inner = (child for node in level for child in (node.values() if isinstance(node, dict) else node))
        level = [child for child in inner if isinstance(child, dict | list)]
        if not level:
            return
    raise RecursionError


def _refuse_dropped_names(tree: dict[str, Any], wire: Wire) -> None:
    """The parser skips names of a list of enumerators that it does not know, and so shifts the others."""
    if isinstance(wire, rlx_pb2.ClientMessage) and wire.HasField("hello"):
        hello = tree["hello"]
        listed = hello.get("autoreset") if isinstance(hello, dict) else None
        if listed is not None and len(listed) != len(wire.hello.autoreset):
            raise ProtocolError(ErrorCode.INVALID_VALUE, f"autoreset: an unknown name in {str(listed)[:200]}")


_ENVELOPES: dict[Sender, type[Any]] = {Sender.CLIENT: rlx_pb2.ClientMessage, Sender.SERVER: rlx_pb2.ServerMessage}


def codec_named(name: str) -> Codec:
    """The codec called "protobuf" or "json". Raises ValueError for any other name."""
    if name == "protobuf":
        return ProtobufCodec()
    if name == "json":
        return JsonCodec()
    raise ValueError(f'no codec is called {name!r}; there are "protobuf" and "json"')


def codec_of(first_byte: int | None) -> Codec:
    """The codec of a connection whose first frame starts with this byte; Protobuf while there is none."""
    return JsonCodec() if first_byte == JSON_FIRST_BYTE else ProtobufCodec()
