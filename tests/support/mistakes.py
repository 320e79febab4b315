"""Mistakes of new users, and the messages that they cause.

python tests/support/mistakes.py          prints the rows of the study first-hour
"""

from __future__ import annotations

import json
import os
import pickle
import re
import socket
import struct
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gymnasium
import numpy as np

from relaax import rlx
from relaax.algorithm_base import load_algorithm
from relaax.client import Client, run
from relaax.configuration import find_configuration, load_configuration
from relaax.hosting.fingerprint import fingerprint
from support.rlx_peer import RlxPeer

MISTAKES: dict[str, Callable[[], object]] = {}
"""By name: a function that makes the mistake. It raises the error, or returns its message."""
_SPACES: dict[str, Any] = {"observation_space": rlx.Box(shape=(4,)), "action_space": rlx.Discrete(2)}
_STATE = np.zeros(4, np.float32)


def mistake(name: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    def add(make: Callable[[], object]) -> Callable[[], object]:
        MISTAKES[name] = make
        return make

    return add


def message_of(name: str) -> str:
    """Make a mistake in an empty folder. Return the message, with PORT and FOLDER in place of the actual values."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            message = str(MISTAKES[name]())
        except (Exception, SystemExit) as error:
            message = str(error)
        finally:
            os.chdir(here)
    message = message.replace(os.path.realpath(folder), "FOLDER").replace(folder, "FOLDER")
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", message)


class Env(gymnasium.Env[Any, Any]):
    """An environment with a given space, observation and result of `step`."""

    observation_space: Any = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, space: Any = None, observation: Any = _STATE, outcome: Any = None) -> None:
        self.observation_space = self.observation_space if space is None else space
        self._observation, self._outcome = observation, outcome

    def reset(self, **options: Any) -> Any:
        return self._observation, {}

    def step(self, action: Any) -> Any:
        return self._outcome or (self._observation, 1.0, False, False, {})


def _run(*arguments: Any) -> object:
    return run(Env(*arguments), "random", steps=3, environment="MyGame")


@mistake("`step()` returns four values, as before gymnasium")
def _four_values() -> object:
    return _run(None, _STATE, (_STATE, 1.0, False, {}))


@mistake("an observation of three numbers, of a space of four")
def _three_numbers() -> object:
    return _run(None, np.zeros(3, np.float32))


@mistake("a part of a Dict observation is forgotten")
def _missing_part() -> object:
    parts = {"camera": gymnasium.spaces.Box(0, 1, (2,)), "speed": gymnasium.spaces.Discrete(3)}
    return _run(gymnasium.spaces.Dict(parts), {"camera": np.zeros(2, np.float32)})


@mistake("pixels as floats, of a space of uint8")
def _pixels() -> object:
    return _run(gymnasium.spaces.Box(0, 255, (4,), np.uint8), _STATE)


@mistake("the reward is None")
def _no_reward() -> object:
    return _run(None, _STATE, (_STATE, None, False, False, {}))


@mistake("a pickled state, in one's own client")
def _pickled() -> object:
    with RlxPeer() as peer, Client(peer.address, **_SPACES) as client:
        return client.init(pickle.dumps(_STATE))


@mistake("`send` before `init`, in one's own client")
def _no_init() -> object:
    with RlxPeer() as peer, Client(peer.address, **_SPACES) as client:
        return client.send(1.0, _STATE)


@mistake("a truncated episode without its last state")
def _no_final_state() -> object:
    with RlxPeer() as peer, Client(peer.address, **_SPACES) as client:
        client.init(_STATE)
        return client.reset(1.0, truncated=True)


def _answer_to(*messages: dict[str, Any]) -> str:
    """Return the server's error for a client that sends these messages in JSON."""
    connection = rlx.ServerConnection()
    for message in messages:
        payload = json.dumps(message).encode()
        connection.receive_data(struct.pack(">I", len(payload)) + payload)
        try:
            event = connection.next_event()
        except rlx.RemoteProtocolError as error:
            return error.message
        if isinstance(event, rlx.Hello):
            connection.send(rlx.Welcome("s", "da3c", connection.limits))
        else:
            connection.send(rlx.Actions([np.zeros(1, np.int64)]))
    raise AssertionError("no message was refused")


_LEAF = {"dtype": "DTYPE_FLOAT32", "shape": [1, 4], "data": "AAAAAAAAAAAAAAAAAAAAAA=="}
_HELLO = {
    "protocolVersion": 1,
    "environments": 1,
    "observationSpace": {"box": {"dtype": "DTYPE_FLOAT32", "shape": [4]}},
    "actionSpace": {"discrete": {"n": 2}},
    "autoreset": ["AUTORESET_DISABLED"],
    "mode": "MODE_TRAIN",
}
_INIT = {"init": {"observation": [_LEAF]}}


@mistake("JSON: the reward is a number, not a list of one")
def _json_reward() -> object:
    return _answer_to({"hello": _HELLO}, _INIT, {"step": {"reward": 1, "observation": [_LEAF]}})


@mistake("JSON: a misspelt field, `observations`")
def _json_misspelt() -> object:
    return _answer_to({"hello": _HELLO}, {"init": {"observations": [_LEAF]}})


@mistake("JSON: a step before init")
def _json_order() -> object:
    return _answer_to({"hello": _HELLO}, {"step": {"reward": [1], "observation": [_LEAF]}})


@mistake("JSON: `step` ends an episode in place of `reset`")
def _json_end() -> object:
    return _answer_to({"hello": _HELLO}, _INIT, {"step": {"reward": [1], "observation": [_LEAF], "terminated": [True]}})


@mistake("a client at the parameter server's port")
def _wrong_port() -> object:
    import grpc

    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with Client(f"127.0.0.1:{port}", **_SPACES) as client:
            client.connect()
    finally:
        server.stop(None).wait()
    return "it connected"


@mistake("no server there")
def _no_server() -> object:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with Client(f"127.0.0.1:{taken.getsockname()[1]}", retry_seconds=0, **_SPACES) as client:
            client.connect()
    return "it connected"


@mistake("a URL for an address")
def _url() -> object:
    return Client("http://127.0.0.1:7001", **_SPACES)


@mistake("a browser at the RLX server's port")
def _browser() -> object:
    from relaax.server.rlx_server.connection.channel import WebSocketLayer

    return WebSocketLayer(()).decode(b"GET / HTTP/1.1\r\nHost: localhost:7001\r\n\r\n", 1000)


@mistake("a port in use")
def _port_in_use() -> object:
    from relaax.server.address import reserve

    with socket.create_server(("127.0.0.1", 0)) as taken:
        reserve(f"127.0.0.1:{taken.getsockname()[1]}").close()
    return "it is free"


def _configured(text: str) -> object:
    Path("mine.yaml").write_text(text)
    from relaax.hosting.loader import load_config

    return load_configuration("mine.yaml", config_of=load_config)


@mistake("a misspelt key in a configuration")
def _misspelt_key() -> object:
    return _configured("algorithm: {path: da3c, entropy_betta: 0.01}")


@mistake("a misspelt configuration")
def _misspelt_configuration() -> object:
    return find_configuration("da3c_gym_cartpol")


@mistake("continuous actions with n_step_q")
def _continuous() -> object:
    algorithm = load_algorithm("n_step_q", Path())
    config = algorithm.configure({"path": "n_step_q"})
    refused = algorithm.refusal(config, rlx.Box(shape=(3,)), rlx.Box(-2, 2, (1,)))
    assert refused is not None
    return refused.sentence


@mistake("an error in one's own algorithm")
def _own_error() -> object:
    from relaax.server.rlx_server.workers.session import agent_failure

    algorithm = _own("class Agent(AgentBase):\n    def step(self, step): return step.rewards + np.zeros(3)\n")
    try:
        algorithm.Agent.step(None, SimpleNamespace(rewards=np.zeros(4)))  # type: ignore[arg-type]
    except ValueError as error:
        return agent_failure(error, algorithm.source)
    return "no error"


@mistake("an import that is not there, in one's own algorithm")
def _own_import() -> object:
    return _own("import numpyy\n")


def _own(text: str) -> Any:
    Path("mine.py").write_text(
        "from relaax.algorithm_base import AgentBase, ConfigBase, ParameterServerBase\nimport numpy as np\n"
        f"class Config(ConfigBase): pass\nclass ParameterServer(ParameterServerBase): pass\n{text}"
    )
    return load_algorithm("mine.py", Path.cwd())


@mistake("a checkpoint of another algorithm")
def _other_checkpoint() -> object:
    from relaax.checkpoint import Checkpoint
    from relaax.server.parameter_server.shard.persistence import check_origin

    def described(name: str) -> str:
        algorithm = load_algorithm(name, Path())
        return fingerprint(name, algorithm.configure({"path": name}), rlx.Box(shape=(4,)), rlx.Discrete(2))

    there = Checkpoint("00000002-81178-f1", {}, {"fingerprint": json.loads(described("n_step_q"))})
    return check_origin(there, described("da3c"))


@mistake("a run directory that cannot be made")
def _run_directory() -> object:
    from relaax.cli.run.run_directory import RunDirectory

    Path("file").write_text("")
    return RunDirectory(Path.cwd() / "file" / "run").open(fresh=False, max_steps=1)


@mistake("an environment's library is not installed")
def _no_library() -> object:
    with mock.patch.dict(sys.modules, {"gymnasium": None}):
        return run("CartPole-v1", "random", steps=1)


if __name__ == "__main__":
    for name in MISTAKES:
        print(f"| {name} | `{message_of(name)}` |")
