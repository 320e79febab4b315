"""The errors of the two ends of an RLX connection."""

from __future__ import annotations

import enum


class ErrorCode(enum.IntEnum):
    """The codes of RLX errors (protocol/RLX.md, section "Errors"). Values are those on the wire.

    UNKNOWN is never sent: it stands for a code of a newer peer. Such an error is judged by its `retryable` alone.
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
        """Whether the same client may succeed later; the default of `relaax.rlx.Error.retryable`."""
        return self in _RETRYABLE


_RETRYABLE = frozenset({ErrorCode.TIMEOUT, ErrorCode.OVERLOADED, ErrorCode.REBALANCING, ErrorCode.UNAVAILABLE})


MAX_SENTENCE = 2000


def shortened(sentence: str) -> str:
    """Return the sentence, or its start if it is longer than `MAX_SENTENCE` characters; lone surrogates become "?".

    A JSON peer can send those, a sentence may quote them, and UTF-8 cannot say them.
    """
    sentence = sentence.encode("utf-8", "replace").decode("utf-8")
    return sentence if len(sentence) <= MAX_SENTENCE else sentence[: MAX_SENTENCE - 3] + "..."


class ProtocolError(Exception):
    """The protocol was broken. `code` is what the peer is to be told, `message` one sentence for people.

    Parts of the core that do not know whose mistake it is raise this; the connection turns it into one of the two
    below. The sentence is cut to `MAX_SENTENCE` characters, so that it fits a frame whatever it quotes.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        message = shortened(message)
        super().__init__(message)
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[type[ProtocolError], tuple[ErrorCode, str]]:
        return type(self), (self.code, self.message)


class LocalProtocolError(ProtocolError):
    """The local side tried to break the protocol: a mistake in the program that uses the connection."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol: tell it `code` and `message`, then close."""
