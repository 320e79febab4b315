"""The client of one environment, and the base class of all clients."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from relaax import rlx
from relaax.client.connection.scalars import Latency, Scalars
from relaax.client.connection.session import Session, Timeouts
from relaax.client.connection.values import reward_of, single_leaves, values_of
from relaax.files import read_bounded_text
from relaax.tls import client_context

Mode = Literal["train", "exploit"]
Codec = Literal["protobuf", "json"]

TOKEN_VARIABLE = "RELAAX_TOKEN"
TLS_VARIABLE = "RELAAX_TLS"
CA_VARIABLE = "RELAAX_TLS_CA"

_Self = TypeVar("_Self", bound="ClientBase")
_ONE = np.array([True])  # the mask of the only environment


class ClientBase:
    """A client's settings and its connection. Only one thread may use it.

    `address`: HOST:PORT of an RLX server, or HOST for port 7001. Write ws://HOST:PORT/PATH to connect over WebSocket,
    for example through an HTTP proxy, and wss:// to use TLS as well (`pip install 'relaax[websocket]'`). Several
    addresses are separated by commas; @FILE names a file with one on each line.
    `observation_space`, `action_space`: spaces of one environment, from `relaax.rlx` or gymnasium.
    `environment`: name of the environment, for logs and metrics.
    `mode`: "train"; or "exploit", to act as well as the parameters allow without training.
    `token`: the client's secret. The default is the environment variable RELAAX_TOKEN, or the content of the file that
    RELAAX_TOKEN_FILE names.
    `tls`: whether to connect over TLS, with the certificate authorities of this system. The default is the environment
    variable RELAAX_TLS, 1 or 0.
    `tls_ca`: a file with the certificate authority (PEM) of the server, used instead of the system's. If it is given,
    TLS is used. The default is the environment variable RELAAX_TLS_CA.
    `frame_skip`: emulator frames per step.
    `codec`: "protobuf" or "json".
    `connect_timeout`, `response_timeout`: seconds to wait for a connection, and for any bytes from a server that owes
    an answer. After that the connection counts as lost.
    `retry_seconds`: seconds to retry after a connection was lost; None to retry forever, 0 not to retry.
    `reports_episodes`: whether the environment reports whole episodes itself (`episodes` of send, step and reset),
    because its episodes for training are parts of whole ones. Otherwise the server adds up rewards.
    `chosen_actions`: whether the client may report that another action than the agent's was taken, because a person or
    a script took the controls (`action` of send and reset).
    `environment_parameters`: whether the server may set `parameters` of the environment for each episode.
    If the algorithm or the server does not support one of these two, the first connection raises Failure.
    `report_latency`: seconds between reports of the client's own latency metrics (client/latency/...); None for no
    reports.

    Raises ValueError if an argument is invalid. The client connects with `connect` or with the first `init`.
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
        chosen_actions: bool = False,
        environment_parameters: bool = False,
        report_latency: float | None = 5.0,
        _environments: int = 1,
        _autoreset: Sequence[rlx.Autoreset] = (rlx.Autoreset.DISABLED,),
        _out_of_step: bool = False,
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
            out_of_step=_out_of_step,
            chosen_actions=chosen_actions,
            environment_parameters=environment_parameters,
        )
        timeouts = Timeouts(connect_timeout, response_timeout, retry_seconds)
        security = tls_context(tls, tls_ca)
        self._session = Session(address, hello, codec, timeouts, Latency(report_latency), security)
        self._chosen_actions, self._environment_parameters = chosen_actions, environment_parameters
        self._in_episode = False
        self._interrupted = False

    def connect(self) -> None:
        """Connect now, not with the first `init`. Raises Failure and TrainingFinished."""
        self._session.connect()

    def metrics(self) -> Scalars:
        """Return the recorder of metrics: `metrics().scalar(name, value)` records a number of the environment."""
        return self._session.scalars

    def ping(self) -> float:
        """Return the round-trip time to the server, in seconds. Raises Failure and TrainingFinished."""
        return self._session.ping(time.perf_counter)

    def disconnect(self) -> None:
        """Disconnect, which ends the current episode. Never raises. `init` connects again."""
        self._in_episode = False
        self._session.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def _parameters(self) -> tuple[Sequence[str], npt.NDArray[np.float64]]:
        """Return the names of the server's parameters, and their values [N, P] for the next episodes."""
        if not self._environment_parameters:
            raise RuntimeError("create the client with environment_parameters=True to receive parameters")
        return self._session.parameters()

    def _check_chosen_actions(self) -> None:
        if not self._chosen_actions:
            raise ValueError("an action was chosen: create the client with chosen_actions=True")

    def _prepare_episode(self) -> None:
        if self._in_episode:
            raise RuntimeError("an episode is in progress: end it with reset() before the next init()")
        self._interrupted = False

    def _check_in_episode(self) -> None:
        if not self._in_episode:
            raise RuntimeError("no episode is in progress: begin one with init()")


def secret(variable: str) -> str:
    """Return the environment variable, or the content of the file that VARIABLE_FILE names; "" if neither is set.

    White space around it is removed, because a Kubernetes secret made from a file may end with a newline.

    Raises ValueError if the file cannot be read.
    """
    path = os.environ.get(f"{variable}_FILE")
    if variable in os.environ or not path:
        return os.environ.get(variable, "").strip()
    try:
        return read_bounded_text(path).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}, which {variable}_FILE names: {error}") from None


def tls_context(tls: bool | None, ca: str | os.PathLike[str] | None) -> ssl.SSLContext | None:
    """Return the TLS context that these arguments or their environment variables select; None without TLS.

    Raises ValueError.
    """
    ca = os.environ.get(CA_VARIABLE) or None if ca is None else ca
    if ca is None:
        asked = os.environ.get(TLS_VARIABLE, "")
        if tls is None and asked not in ("", "0", "1"):
            raise ValueError(f"the environment variable {TLS_VARIABLE} is {asked!r}: set it to 1 for TLS, or to 0")
        return client_context() if (asked == "1" if tls is None else tls) else None
    try:
        return client_context(read_bounded_text(ca, "ascii"))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ValueError(f"tls_ca {os.fspath(ca)}: cannot read a certificate (PEM) from it: {error}") from None


class Client(ClientBase):
    """The client of one environment. See `ClientBase` for the arguments.

    Usage::

        with Client("127.0.0.1:7001", observation_space=..., action_space=...) as client:
            while ...:
                action = client.init(state)
                while ...:
                    action = client.send(reward, state)      # the outcome of the last action
                episode_return = client.reset(reward)         # the outcome of the episode's last action

    An action is an int for a Discrete space, otherwise an array, a tuple or a dict, according to the space.

    If the connection is lost, the client reconnects, and the agent starts a new episode from the current state. The
    environment only notices a pause. Every call may raise Failure, if the server refuses the client or is unavailable
    for longer than `retry_seconds`; TrainingFinished, if training has finished; and ValueError for a state or a reward
    that the protocol does not carry, such as NaN.

    With `chosen_actions`, a person or a script may take over::

        action = client.send(reward, state, action=own_action)    # the last step took own_action, not the agent's

    With `environment_parameters`, the server sets numbers for each episode::

        state = reset_environment(**client.parameters)
        action = client.init(state)
    """

    _return = 0.0

    @property
    def parameters(self) -> dict[str, float]:
        """The server's parameters for the next episode, by name. Read them before each episode begins.

        Connects if there is no connection. Raises Failure, TrainingFinished, and RuntimeError without
        `environment_parameters`.
        """
        names, values = self._parameters()
        return dict(zip(names, values[0].tolist(), strict=True))

    def init(self, state: Any) -> Any:
        """Begin an episode with its first state. Return the first action."""
        self._prepare_episode()
        actions = self._session.start(rlx.Init(single_leaves(self._observe, state)))
        self._in_episode = True
        self._return = 0.0
        return self._act.from_leaves(iter(actions.action), True)

    def send(self, reward: float, state: Any, *, action: Any = None, episodes: Sequence[rlx.Episode] = ()) -> Any:
        """Send the reward of the last action and the new state. Return the next action.

        `action`: the action that was really taken, if it was not the agent's.
        """
        self._check_in_episode()
        number = reward_of(reward)
        leaves = single_leaves(self._observe, state)
        step = rlx.Step(np.array([number]), leaves, episodes=episodes)
        if action is not None:
            step.chosen, step.action = _ONE, self._chosen(action)
        actions = self._session.step(step)
        self._return += number
        if actions is None:
            self._interrupted = True
            actions = self._session.start(rlx.Init(leaves, partial=_ONE))
        return self._act.from_leaves(iter(actions.action), True)

    def reset(
        self,
        reward: float,
        *,
        truncated: bool = False,
        state: Any = None,
        action: Any = None,
        episodes: Sequence[rlx.Episode] = (),
    ) -> float:
        """End the episode with the reward of the last action. Return the episode's return, the sum of its rewards.

        `truncated`: whether the episode was cut off, not ended by the task's rule. Then the final `state` is required,
        because the agent's bootstrap uses its value.
        `action`: the action that was really taken, if it was not the agent's.
        """
        self._check_in_episode()
        number = reward_of(reward)
        if truncated and state is None:
            raise ValueError("a truncated episode needs its final state: reset(reward, truncated=True, state=state)")
        final = None if state is None else single_leaves(self._observe, state)
        mask = _ONE if truncated else None
        chosen, own = (None, None) if action is None else (_ONE, self._chosen(action))
        answer = self._session.reset(rlx.Reset(np.array([number]), mask, final, episodes, chosen, own))
        self._in_episode = False
        self._return += number
        if answer is None or self._interrupted:
            return self._return
        return float(answer.episode_return[0])

    def _chosen(self, action: Any) -> rlx.Leaves:
        self._check_chosen_actions()
        return single_leaves(self._act, action)
