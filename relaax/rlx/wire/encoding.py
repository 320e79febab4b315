"""Converters from messages to Protobuf objects, which both codecs share. The messages must be valid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relaax.rlx import rlx_pb2
from relaax.rlx.messages import (
    Actions,
    Bye,
    Episode,
    EpisodeReturns,
    Error,
    Hello,
    Init,
    Leaves,
    Mask,
    Message,
    Metrics,
    Parameters,
    Ping,
    Pong,
    Reset,
    Step,
    TrainingFinished,
    Welcome,
)
from relaax.rlx.transitions import Sender
from relaax.rlx.wire.arrays import write_array
from relaax.rlx.wire.space_encoding import write_space

Wire = rlx_pb2.ClientMessage | rlx_pb2.ServerMessage


def to_wire(message: Message, sender: Sender) -> Wire:
    """Return the Protobuf object of a message. Raises ProtocolError if RLX does not have its space or dtype."""
    envelope: Any = rlx_pb2.ClientMessage() if sender is Sender.CLIENT else rlx_pb2.ServerMessage()
    name, write = _WRITERS[type(message)]
    part = getattr(envelope, name)
    part.SetInParent()
    write(message, part)
    wire: Wire = envelope
    return wire


def _leaves(leaves: Leaves | None, target: Any) -> None:
    for leaf in leaves or ():
        write_array(leaf, target.add())


def _mask(mask: Mask | None, target: Any) -> None:
    if mask is not None and mask.any():
        target.extend(mask.tolist())


def _numbers(numbers: Parameters | None, target: Any) -> None:
    if numbers is not None:
        target.extend(numbers.tolist())


def _episodes(episodes: Sequence[Episode], target: Any) -> None:
    for episode in episodes:
        target.add(environment=episode.environment, episode_return=episode.episode_return, length=episode.length)


def _hello(message: Hello, part: rlx_pb2.Hello) -> None:
    for name in ("protocol_version", "client_name", "client_version", "token", "environment", "host", "frame_skip"):
        setattr(part, name, getattr(message, name))
    write_space(message.observation_space, part.observation_space)
    write_space(message.action_space, part.action_space)
    part.environments = message.environments
    part.autoreset.extend(int(a) for a in message.autoreset)  # type: ignore[misc]
    part.mode = int(message.mode)  # type: ignore[assignment]
    part.session_id = message.session_id
    part.reports_episodes = message.reports_episodes
    for name in CAPABILITIES:
        setattr(part, name, getattr(message, name))


def _welcome(message: Welcome, part: rlx_pb2.Welcome) -> None:
    for name in ("protocol_version", "server_version", "session_id", "algorithm"):
        setattr(part, name, getattr(message, name))
    for name in LIMIT_FIELDS:
        setattr(part.limits, name, getattr(message.limits, name))
    for name in CAPABILITIES:
        setattr(part, name, getattr(message, name))
    part.parameter_names.extend(message.parameter_names)
    _numbers(message.parameters, part.parameters)


CAPABILITIES = {
    "out_of_step": "environments out of step",
    "chosen_actions": "actions of the client",
    "environment_parameters": "parameters of environments",
}
"""Fields of a hello that ask for a capability, and of a welcome that grant it. The values are their names in errors."""

LIMIT_FIELDS = (
    "max_frame_bytes",
    "idle_timeout_seconds",
    "heartbeat_seconds",
    "max_metric_name_bytes",
    "max_metric_names",
    "max_environments",
)


def _init(message: Init, part: rlx_pb2.Init) -> None:
    _leaves(message.observation, part.observation)
    _mask(message.partial, part.partial)
    _mask(message.idle, part.idle)


def _step(message: Step, part: rlx_pb2.Step) -> None:
    part.reward.extend(message.reward.tolist())
    _leaves(message.observation, part.observation)
    _mask(message.terminated, part.terminated)
    _mask(message.truncated, part.truncated)
    _leaves(message.final_observation, part.final_observation)
    _mask(message.first, part.first)
    _episodes(message.episodes, part.episodes)
    _mask(message.idle, part.idle)
    _mask(message.chosen, part.chosen)
    _leaves(message.action, part.action)


def _reset(message: Reset, part: rlx_pb2.Reset) -> None:
    part.reward.extend(message.reward.tolist())
    _mask(message.truncated, part.truncated)
    _leaves(message.final_observation, part.final_observation)
    _episodes(message.episodes, part.episodes)
    _mask(message.chosen, part.chosen)
    _leaves(message.action, part.action)


def _metrics(message: Metrics, part: rlx_pb2.Metrics) -> None:
    for name, value in message.scalars:
        part.scalars.add(name=name, value=value)


def _actions(message: Actions, part: rlx_pb2.Actions) -> None:
    _leaves(message.action, part.action)
    part.parameters_of.extend(message.parameters_of)
    _numbers(message.parameters, part.parameters)


def _returns(message: EpisodeReturns, part: rlx_pb2.EpisodeReturns) -> None:
    part.episode_return.extend(message.episode_return.tolist())


def _ping(message: Ping | Pong, part: Any) -> None:
    part.nonce = message.nonce


def _bye(message: Bye, part: rlx_pb2.Bye) -> None:
    part.reason = message.reason


def _error(message: Error, part: rlx_pb2.Error) -> None:
    part.code = int(message.code)  # type: ignore[assignment]
    part.message = message.message
    part.retryable = bool(message.retryable)
    part.retry_after_seconds = message.retry_after_seconds


def _training_finished(message: TrainingFinished, part: rlx_pb2.TrainingFinished) -> None:
    part.message, part.global_step = message.message, message.global_step


_WRITERS: dict[type[Message], tuple[str, Callable[[Any, Any], None]]] = {
    Hello: ("hello", _hello),
    Init: ("init", _init),
    Step: ("step", _step),
    Reset: ("reset", _reset),
    Metrics: ("metrics", _metrics),
    Ping: ("ping", _ping),
    Pong: ("pong", _ping),
    Bye: ("bye", _bye),
    Welcome: ("welcome", _welcome),
    Actions: ("actions", _actions),
    EpisodeReturns: ("episode_returns", _returns),
    Error: ("error", _error),
    TrainingFinished: ("training_finished", _training_finished),
}
