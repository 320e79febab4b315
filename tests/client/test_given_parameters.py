"""Environments of gymnasium that get the server's parameters before each episode."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from relaax import rlx
from relaax.client import CheckedEnv, EnvironmentFault, run
from support.rlx_peer import PeerConnection, RlxPeer

LENGTH = 3
FORMS = pytest.mark.parametrize("form", ["options", "attributes"])


class Hill(gymnasium.Env):
    """Its observation is its height, which it gets when it is reset."""

    observation_space = gymnasium.spaces.Box(-1, np.inf, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    height = -1.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        self._top = (options or {}).get("height", self.height)
        return np.array([self._top], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return np.array([self._top], np.float32), 1.0, self._steps == LENGTH, False, {}


def serve_heights(environments: int) -> Any:
    """Return a server: its answer number k has the height 100 k + i for environment i, its welcome the height i."""

    def script(conn: PeerConnection) -> None:
        conn.welcome(parameters={"height": [float(i) for i in range(environments)]})
        number = 0
        while True:
            number += 1
            conn.answer({i: [100.0 * number + i] for i in range(environments)})

    return script


def begun(message: rlx.Init | rlx.Step, same_step: bool) -> list[int]:
    """Return the environments whose episode begins with a message."""
    if isinstance(message, rlx.Init):
        return list(range(len(message.observation[0])))
    mask = message.terminated if same_step else message.first
    return [] if mask is None else np.flatnonzero(mask).tolist()


@FORMS
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_episodes_of_a_vector_begin_with_the_newest_values(mode: AutoresetMode, kind: Any, form: Any) -> None:
    env = kind([lambda: CheckedEnv(Hill())] * 2, autoreset_mode=mode)
    with RlxPeer(serve_heights(2)) as peer:
        run(env, peer.address, steps=40, parameters=form)
        messages = [one for one in peer.connections[0].received if isinstance(one, rlx.Init | rlx.Step)]
    env.close()
    found = 0
    for number, message in enumerate(messages):
        for row in begun(message, mode is not AutoresetMode.NEXT_STEP):
            assert message.observation[0][row, 0] == 100 * number + row
            found += 1
    assert found > 8


@FORMS
def test_episodes_of_one_env_begin_with_the_newest_values(form: Any) -> None:
    with RlxPeer(serve_heights(1)) as peer:
        run(Hill(), peer.address, episodes=3, parameters=form)
        heights = [init.observation[0][0, 0] for init in peer.received(rlx.Init)]
    assert heights == [0, 100 * LENGTH, 200 * LENGTH + 100]


def test_other_names_after_a_reconnect_replace_the_earlier_ones() -> None:
    seen: list[dict[str, Any]] = []

    class Recorded(Hill):
        def reset(self, **arguments: Any) -> Any:
            seen.append(dict(arguments["options"] or {}))
            return super().reset(**arguments)

    def lost(conn: PeerConnection) -> None:
        conn.welcome(parameters={"height": [1.0], "size": [2.0]})
        conn.answer()
        conn.kill()

    def other(conn: PeerConnection) -> None:
        conn.welcome(parameters={"width": [3.0]})
        while True:
            conn.answer()

    def fewer(conn: PeerConnection) -> None:
        conn.welcome(parameters={"height": [1.0]})
        while True:
            conn.answer()

    for second, wanted in ((other, {"width": 3.0}), (fewer, {"height": 1.0})):
        seen.clear()
        with RlxPeer(lost, second) as peer:
            run(Recorded(), peer.address, episodes=3, parameters="options", retry_seconds=60)
        assert (seen[0], seen[-1]) == ({"height": 1.0, "size": 2.0}, wanted)


def test_environment_without_the_attribute_is_at_fault() -> None:
    def script(conn: PeerConnection) -> None:
        conn.welcome(parameters={"depth": [1.0]})

    with RlxPeer(script) as peer, pytest.raises(EnvironmentFault, match="lacks the attribute 'depth'"):
        run(Hill(), peer.address, parameters="attributes")


class Plain(VectorEnv):
    """A vector whose environments have no attributes of their own."""

    num_envs = 2
    single_observation_space, single_action_space = Hill.observation_space, Hill.action_space

    def close(self, terminate: bool = False) -> None:
        pass


@pytest.mark.parametrize("make", [Plain, lambda: AsyncVectorEnv([Hill, Hill])], ids=["plain", "unchecked"])
def test_vector_that_cannot_pass_parameters_is_refused(make: Any) -> None:
    env = make()
    with RlxPeer() as peer, pytest.raises(EnvironmentFault, match="cannot give the server's parameters to its env"):
        run(env, peer.address, parameters="options")
    assert not peer.connections
    env.close(terminate=True)  # an AsyncVectorEnv cannot be used after an error
