"""The base of the clients of one and of many environments."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy as np

from relaax import rlx
from relaax.client.connection.scalars import Latency, Scalars
from relaax.client.connection.session import Patience, Session
from relaax.client.connection.values import reward_of, single_leaves, values_of
from relaax.files import read_bounded_text
from relaax.tls import client_context

Mode = Literal["train", "exploit"]
Codec = Literal["protobuf", "json"]

TOKEN_VARIABLE = "RELAAX_TOKEN"
TLS_VARIABLE = "RELAAX_TLS"
CA_VARIABLE = "RELAAX_TLS_CA"

_Self = TypeVar("_Self", bound="ClientBase")


class ClientBase:
    """A client's settings and its connection. Used by one thread.

    `address`: HOST:PORT of an RLX server, or HOST for port 7001; ws://HOST:PORT/PATH to reach it over WebSocket, by an
    HTTP proxy for example, and wss:// over TLS as well (`pip install 'relaax[websocket]'`).
    `observation_space`, `action_space`: those of one environment, of `relaax.rlx` or of gymnasium.
    `environment`: its name, for logs and metrics.
    `mode`: "train", or "exploit" to act as well as the parameters allow and teach nothing.
    `token`: the secret that lets the client in; by default that of the environment variable RELAAX_TOKEN, or in the
    file that RELAAX_TOKEN_FILE names.
    `tls`: connect over TLS; the server's certificate must be one that this system trusts. By default the environment
    variable RELAAX_TLS says so, as 1 or 0.
    `tls_ca`: a file with the authority (PEM) that signed the server's certificate, in place of those; TLS is used. By
    default that of the environment variable RELAAX_TLS_CA.
    `frame_skip`: emulator frames per step.
    `codec`: "protobuf" or "json".
    `connect_timeout`, `response_timeout`: seconds to wait for a connection, and for any sign of a server that has an
    answer to give; after that the connection counts as lost.
    `retry_seconds`: how long to go on trying after a connection was lost; None for ever, 0 for not at all.
    `reports_episodes`: the environment gives whole episodes itself (`episodes` of send, step and reset), because what
    it calls an episode for learning is not one; otherwise the server adds up rewards.
    `report_latency`: seconds between the client's own metrics, client/latency/...: what answers take; None for none.

    Raises ValueError if an argument makes no sense. Connecting is left to `connect`, or to the first `init`.
    """

    def __init__(
        self,
        address: str,
        *,
        observation_space: Any,
        action_space: Any,
        environment: str = "",
        mode: Mode = "train",
        token: str | None = None,
        tls: bool | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        frame_skip: int = 1,
        codec: Codec = "protobuf",
        connect_timeout: float = 10.0,
        response_timeout: float = 60.0,
        retry_seconds: float | None = 300.0,
        reports_episodes: bool = False,
        report_latency: float | None = 5.0,
        _environments: int = 1,
        _autoreset: Sequence[rlx.Autoreset] = (rlx.Autoreset.DISABLED,),
    ) -> None:
        if mode not in ("train", "exploit"):
            raise ValueError(f"mode is {mode!r}: choose train or exploit")
        self._observe = values_of(observation_space)
        self._act = values_of(action_space)
        hello = rlx.Hello(
            observation_space=self._observe.space,
            action_space=self._act.space,
            environments=_environments,
            autoreset=_autoreset,
            mode=rlx.Mode.TRAIN if mode == "train" else rlx.Mode.EXPLOIT,
            token=secret(TOKEN_VARIABLE) if token is None else token,
            environment=environment,
            frame_skip=frame_skip,
            reports_episodes=reports_episodes,
        )
        patience = Patience(connect_timeout, response_timeout, retry_seconds)
        self._session = Session(
            address,
            hello,
            codec=codec,
            patience=patience,
            latency=Latency(report_latency),
            tls=tls_context(tls, tls_ca),
        )
        self._in_episode = False
        self._interrupted = False

    def connect(self) -> None:
        """Connect now rather than with the first `init`. Raises Failure and TrainingFinished."""
        self._session.connect()

    def metrics(self) -> Scalars:
        """`metrics().scalar(name, value)` notes a number of the environment's own."""
        return self._session.scalars

    def ping(self) -> float:
        """Return the seconds that a message to the server and its echo take. Raises Failure and TrainingFinished."""
        return self._session.ping(time.perf_counter)

    def disconnect(self) -> None:
        """Leave the server, and with it the episode under way. Never raises; `init` connects again."""
        self._in_episode = False
        self._session.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disconnect()

    def _begin(self) -> None:
        if self._in_episode:
            raise RuntimeError("an episode is under way: end it with reset() before the next init()")
        self._interrupted = False

    def _check_begun(self) -> None:
        if not self._in_episode:
            raise RuntimeError("no episode is under way: begin one with init()")


def secret(variable: str) -> str:
    """Return the environment variable, or what the file has that VARIABLE_FILE names; "" if neither is set.

    White space around it is left out: a secret of Kubernetes that was made from a file ends with a line end.

    Raises ValueError if that file cannot be read.
    """
    path = os.environ.get(f"{variable}_FILE")
    if variable in os.environ or not path:
        return os.environ.get(variable, "").strip()
    try:
        return read_bounded_text(path).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}, which {variable}_FILE names: {error}") from None


def _asked_for_tls() -> bool:
    """Return what the environment variable RELAAX_TLS says. Raises ValueError."""
    text = os.environ.get(TLS_VARIABLE, "")
    if text not in ("", "0", "1"):
        raise ValueError(f"the environment variable {TLS_VARIABLE} is {text!r}: 1 connects over TLS, 0 does not")
    return text == "1"


def tls_context(tls: bool | None, ca: str | os.PathLike[str] | None) -> ssl.SSLContext | None:
    """Return what to connect with, whatever the address; None for plain text. Raises ValueError."""
    ca = os.environ.get(CA_VARIABLE) or None if ca is None else ca
    if ca is None:
        return client_context() if (_asked_for_tls() if tls is None else tls) else None
    try:
        return client_context(read_bounded_text(ca, "ascii"))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ValueError(f"tls_ca {os.fspath(ca)}: no certificate (PEM) can be read there: {error}") from None


_PARTIAL = np.array([True])


class Client(ClientBase):
    """One environment's way to its agent. See `ClientBase` for the arguments.

    The life of a client::

        with Client("127.0.0.1:7001", observation_space=..., action_space=...) as client:
            while ...:
                action = client.init(state)
                while ...:
                    action = client.send(reward, state)      # the outcome of the last action
                episode_return = client.reset(reward)         # the outcome of the episode's last action

    Actions are int for a Discrete space, otherwise arrays, tuples and dicts, as the space says.

    A connection that is lost is replaced behind the scenes, and the agent begins the interrupted episode anew where it
    stands; the environment sees nothing but a pause. Every call may raise Failure, if the agent's side failed for
    good or for longer than `retry_seconds`; TrainingFinished, if there is nothing left to do; and ValueError for a
    state or a reward that the protocol does not carry, such as NaN.
    """

    _return = 0.0

    def init(self, state: Any) -> Any:
        """Begin an episode with its first state; return the first action."""
        self._begin()
        actions = self._session.start(rlx.Init(single_leaves(self._observe, state)))
        self._in_episode = True
        self._return = 0.0
        return self._act.take(iter(actions.action), True)

    def send(self, reward: float, state: Any, *, episodes: Sequence[rlx.Episode] = ()) -> Any:
        """Send the last action's reward and the state that it led to; return the next action."""
        self._check_begun()
        number = reward_of(reward)
        leaves = single_leaves(self._observe, state)
        actions = self._session.step(rlx.Step(np.array([number]), leaves, episodes=episodes))
        self._return += number
        if actions is None:
            self._interrupted = True
            actions = self._session.start(rlx.Init(leaves, partial=_PARTIAL))
        return self._act.take(iter(actions.action), True)

    def reset(
        self, reward: float, *, truncated: bool = False, state: Any = None, episodes: Sequence[rlx.Episode] = ()
    ) -> float:
        """End the episode with the last action's reward; return the episode's return, the sum of its rewards.

        `truncated`: the episode was cut off rather than ended by the task's rule; then `state`, the final one, is
        needed, because its value is part of what the agent learns from.
        """
        self._check_begun()
        number = reward_of(reward)
        if truncated and state is None:
            raise ValueError("a truncated episode needs its final state: reset(reward, truncated=True, state=state)")
        final = None if state is None else single_leaves(self._observe, state)
        mask = np.array([True]) if truncated else None
        answer = self._session.reset(rlx.Reset(np.array([number]), mask, final, episodes))
        self._in_episode = False
        self._return += number
        if answer is None or self._interrupted:
            return self._return
        return float(answer.episode_return[0])
