"""Converters from Protobuf objects, which both codecs share, to messages.

They raise ProtocolError for an invalid message. `relaax.rlx.checks` checks that a message fits the spaces, and
`relaax.rlx.transitions` that it is allowed in the current state.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from relaax.rlx import rlx_pb2
from relaax.rlx.errors import ErrorCode, ProtocolError, too_many_entries
from relaax.rlx.messages import (
    MAX_ENVIRONMENTS,
    PROTOCOL_VERSION,
    Actions,
    Autoreset,
    Bye,
    Episode,
    EpisodeReturns,
    Error,
    Hello,
    Init,
    Leaves,
    Limits,
    Mask,
    Message,
    Metrics,
    Mode,
    Ping,
    Pong,
    Reset,
    Rewards,
    Step,
    TrainingFinished,
    Welcome,
)
from relaax.rlx.metric_names import missing_metric_name
from relaax.rlx.wire.arrays import read_array
from relaax.rlx.wire.encoding import CAPABILITIES, LIMIT_FIELDS, Wire
from relaax.rlx.wire.space_encoding import MAX_LEAVES, read_space

_E = TypeVar("_E", bound=enum.IntEnum)


LIST_LIMITS: dict[str, tuple[int, ErrorCode]] = {
    "Array": (MAX_LEAVES, ErrorCode.INVALID_VALUE),
    "Space": (MAX_LEAVES, ErrorCode.LIMIT_EXCEEDED),
    "Entry": (MAX_LEAVES, ErrorCode.LIMIT_EXCEEDED),
    "Episode": (MAX_ENVIRONMENTS, ErrorCode.INVALID_VALUE),
}
"""For each type of message: the maximal length of lists of it, and the error code for a longer one."""


def from_wire(wire: Wire) -> Message:
    """Return the message in a Protobuf envelope. Raises ProtocolError if it has no known message."""
    name = wire.WhichOneof("message")
    if name is None:
        raise unknown_message()
    return from_part(name, getattr(wire, name))


def from_part(name: str, part: Any) -> Message:
    """Return the message in the field `name` of an envelope. Raises ProtocolError if it is invalid."""
    return _READERS[name](part)


def unknown_message(names: Sequence[str] = ()) -> ProtocolError:
    """Return the error for an envelope without a known message. `names`: its unknown fields."""
    instead = f"; it has {', '.join(repr(name[:40]) for name in names[:4])}" if names else ""
    return ProtocolError(ErrorCode.UNEXPECTED_MESSAGE, f"a frame with no message that this version knows{instead}")


def check_version(version: int, whose: str) -> None:
    """Raise ProtocolError (UNSUPPORTED_VERSION) if `version` is not `PROTOCOL_VERSION`."""
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{whose} RLX version {version}{'' if version else ' (protocol_version is missing)'}; only version "
            f"{PROTOCOL_VERSION} is spoken here",
        )


def _leaves(source: Any, field: str) -> Leaves:
    _check_length(source, "Array", field)
    leaves: Leaves = []
    try:
        for array in source:
            leaves.append(read_array(array))
    except ProtocolError as error:
        raise ProtocolError(error.code, f"{field}[{len(leaves)}]: {error.message}") from None
    return leaves


def _mask(source: Any) -> Mask | None:
    return np.array(source, np.bool_) if len(source) else None


def _numbers(source: Any) -> Rewards:
    return np.fromiter(source, np.float64, len(source))


def _enum(kind: type[_E], number: int, field: str) -> _E:
    try:
        return kind(number)
    except ValueError:
        what = f"{field} {number} is not one of" if number else f"{field} is missing; it is one of"
        raise ProtocolError(ErrorCode.INVALID_VALUE, f"{what} {_choices(kind)}") from None


def _choices(kind: type[enum.IntEnum]) -> str:
    return ", ".join(f"{member.value} ({member.name})" for member in kind)


def _episodes(source: Any) -> tuple[Episode, ...]:
    if not len(source):
        return ()
    _check_length(source, "Episode", "episodes")
    return tuple(Episode(e.environment, e.episode_return, e.length) for e in source)


def _metrics(part: rlx_pb2.Metrics) -> Metrics:
    scalars: list[tuple[str, float]] = []
    for scalar in part.scalars:
        if not (name := scalar.name):  # checked here, because a frame can hold a million scalars
            raise missing_metric_name(len(scalars))
        scalars.append((name, scalar.value))
    return Metrics(tuple(scalars))


def _check_length(source: Any, kind: str, what: str) -> None:
    most, code = LIST_LIMITS[kind]
    if len(source) > most:
        raise ProtocolError(code, too_many_entries(len(source), most, f"{what} has "))


def _hello(part: rlx_pb2.Hello) -> Hello:
    check_version(part.protocol_version, "the client speaks")  # first: other fields may have changed in another version
    return Hello(
        observation_space=read_space(part.observation_space, "observation_space"),
        action_space=read_space(part.action_space, "action_space"),
        environments=part.environments,
        autoreset=tuple(_enum(Autoreset, number, "autoreset") for number in part.autoreset),
        mode=_enum(Mode, part.mode, "mode"),
        protocol_version=part.protocol_version,
        client_name=part.client_name,
        client_version=part.client_version,
        token=part.token,
        environment=part.environment,
        host=part.host,
        frame_skip=part.frame_skip or 1,
        session_id=part.session_id,
        reports_episodes=part.reports_episodes,
        **{name: getattr(part, name) for name in CAPABILITIES},
    )


def _welcome(part: rlx_pb2.Welcome) -> Welcome:
    check_version(part.protocol_version, "the server answers in")
    return Welcome(
        session_id=part.session_id,
        algorithm=part.algorithm,
        limits=Limits(**{name: getattr(part.limits, name) for name in LIMIT_FIELDS}),
        protocol_version=part.protocol_version,
        server_version=part.server_version,
        **{name: getattr(part, name) for name in CAPABILITIES},
        parameter_names=tuple(part.parameter_names),
        parameters=_numbers(part.parameters) if len(part.parameters) else None,
    )


def _init(part: rlx_pb2.Init) -> Init:
    return Init(_leaves(part.observation, "observation"), _mask(part.partial), _mask(part.idle))


def _step(part: rlx_pb2.Step) -> Step:
    final = part.final_observation
    return Step(
        _numbers(part.reward),
        _leaves(part.observation, "observation"),
        _mask(part.terminated),
        _mask(part.truncated),
        _leaves(final, "final_observation") if len(final) else None,
        _mask(part.first),
        _episodes(part.episodes),
        _mask(part.idle),
        _mask(part.chosen),
        _leaves(part.action, "action") if len(part.action) else None,
    )


def _reset(part: rlx_pb2.Reset) -> Reset:
    final = part.final_observation
    return Reset(
        _numbers(part.reward),
        _mask(part.truncated),
        _leaves(final, "final_observation") if len(final) else None,
        _episodes(part.episodes),
        _mask(part.chosen),
        _leaves(part.action, "action") if len(part.action) else None,
    )


def _actions(part: rlx_pb2.Actions) -> Actions:
    parameters = _numbers(part.parameters) if len(part.parameters) else None
    return Actions(_leaves(part.action, "action"), tuple(part.parameters_of), parameters)


def _error(part: rlx_pb2.Error) -> Error:
    try:
        code = ErrorCode(part.code)
    except ValueError:  # of a newer server: `message` and `retryable` are enough
        code = ErrorCode.UNKNOWN
    return Error(code, part.message, part.retryable, part.retry_after_seconds)


_READERS: dict[str, Callable[[Any], Message]] = {
    "hello": _hello,
    "init": _init,
    "step": _step,
    "reset": _reset,
    "metrics": _metrics,
    "ping": lambda part: Ping(part.nonce),
    "pong": lambda part: Pong(part.nonce),
    "bye": lambda part: Bye(part.reason),
    "welcome": _welcome,
    "actions": _actions,
    "episode_returns": lambda part: EpisodeReturns(_numbers(part.episode_return)),
    "error": _error,
    "training_finished": lambda part: TrainingFinished(part.message, part.global_step),
}
