"""What an RLX server of da3c refuses at the door, in which words. No parameter server is needed to say so."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium
import pytest

from relaax.client import Client, Failure
from relaax.rlx import ErrorCode
from support.processes import Processes
from support.service import RLX_SERVER, write_service_config

Box, Discrete = gymnasium.spaces.Box, gymnasium.spaces.Discrete


@pytest.mark.parametrize(
    ("observation_space", "action_space", "code", "said"),
    [
        (
            Box(-1, 1, (7,)),
            Discrete(6),
            ErrorCode.SPACE_MISMATCH,
            ["state_size", "[4]", "Box(float32, [7]"],
        ),
        (
            Box(-1, 1, (4,)),
            Discrete(2),
            ErrorCode.SPACE_MISMATCH,
            ["action_size", "6", "Discrete(2)"],
        ),
        (Box(-1, 1, (4,)), Box(-1, 1, (2,)), ErrorCode.UNSUPPORTED_SPACE, ["da3c", "Box(float32, [2]", "Discrete"]),
        (Box(0, 255, (4000, 4000), "uint8"), Discrete(2), ErrorCode.UNSUPPORTED_SPACE, ["da3c", "[4000, 4000]"]),
    ],
    ids=["state_size", "action_size", "continuous actions", "too large an image"],
)
def test_a_space_is_refused_in_a_sentence_that_names_both(  # type: ignore[no-untyped-def]
    door, observation_space, action_space, code, said
) -> None:
    with (
        pytest.raises(Failure) as refused,
        Client(door, observation_space=observation_space, action_space=action_space) as client,
    ):
        client.connect()
    assert refused.value.code is code
    for words in said:
        assert words in str(refused.value)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an RLX server whose parameter server is not there."""
    folder = tmp_path_factory.mktemp("door")
    config = write_service_config(folder, state_size=[4], action_size=6)
    with Processes(folder) as processes:
        yield processes.start_server(*RLX_SERVER, "--config", config, "--parameter-server", "127.0.0.1:1")[1]
