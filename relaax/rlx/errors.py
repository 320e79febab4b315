"""The errors of the two ends of an RLX connection."""

from __future__ import annotations

import enum


class ErrorCode(enum.IntEnum):
    """The codes of RLX errors (protocol/RLX.md, section "Errors"). Values are those on the wire.

    UNKNOWN is never sent. It stands for a code of a newer peer; then only the error's `retryable` field counts.
    """

    UNKNOWN = 0
    MALFORMED = 1
    FRAME_TOO_LARGE = 2
    UNEXPECTED_MESSAGE = 3
    UNSUPPORTED_VERSION = 4
    UNAUTHENTICATED = 5
    UNSUPPORTED_SPACE = 6
    SPACE_MISMATCH = 7
    INVALID_VALUE = 8
    LIMIT_EXCEEDED = 9
    TIMEOUT = 10
    OVERLOADED = 11
    REBALANCING = 12
    UNAVAILABLE = 13
    AGENT_FAILED = 14

    @property
    def retryable(self) -> bool:
        """Whether the same client may succeed later. It is the default of `relaax.rlx.Error.retryable`."""
        return self in _RETRYABLE


_RETRYABLE = frozenset({ErrorCode.TIMEOUT, ErrorCode.OVERLOADED, ErrorCode.REBALANCING, ErrorCode.UNAVAILABLE})


MAX_SENTENCE = 2000


def shortened(sentence: str) -> str:
    """Return the sentence, or its start if it is longer than `MAX_SENTENCE` characters; lone surrogates become "?".

    A JSON peer can send lone surrogates, and an error message may quote them, but UTF-8 cannot encode them.
    """
    sentence = sentence.encode("utf-8", "replace").decode("utf-8")
    return sentence if len(sentence) <= MAX_SENTENCE else sentence[: MAX_SENTENCE - 3] + "..."


class ProtocolError(Exception):
    """A breach of the protocol. `code` and `message`, one sentence, are sent to the peer in an `Error`.

    Code that cannot tell which side broke the protocol raises this class; the connection turns it into one of the two
    subclasses. The message is cut to `MAX_SENTENCE` characters so that it fits a frame.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        message = shortened(message)
        super().__init__(message)
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[type[ProtocolError], tuple[ErrorCode, str]]:
        return type(self), (self.code, self.message)


class LocalProtocolError(ProtocolError):
    """A breach of the protocol by the local side: a bug in the program that uses the connection."""


class RemoteProtocolError(ProtocolError):
    """A breach of the protocol by the peer. A server sends `code` and `message` to it and closes the connection."""


def above_maximum(field: str, value: object, most: int) -> str:
    """Return the message for a field above its maximum."""
    return f"{field} is {value}; at most {most} is allowed"


def below_one(field: str, value: int) -> str:
    """Return the message for a field that must be at least 1."""
    return f"{field} is {value}; at least 1 is needed"


def too_many_bytes(field: str, size: int, most: int) -> ProtocolError:
    """Return the error (LIMIT_EXCEEDED) for a text of more than `most` bytes."""
    return ProtocolError(ErrorCode.LIMIT_EXCEEDED, f"{field} has {size} bytes; at most {most} is allowed")


def too_many_entries(count: int, most: int, subject: str = "") -> str:
    """Return the message for a list of more than `most` entries. `subject`: "", or a prefix such as "episodes has "."""
    return f"{subject}{count} entries; at most {most} is allowed"


def too_many_axes(what: str, axes: int, most: int) -> str:
    """Return the message for a shape of more than `most` axes. `what`: "" or a prefix such as "action_space: "."""
    return f"{what}shape has {axes} axes; at most {most} is allowed"
