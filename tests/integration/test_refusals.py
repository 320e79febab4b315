"""Spaces that an RLX server of da3c refuses, and its errors. The parameter server does not run."""

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
    ("observation_space", "action_space", "code", "texts"),
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
        (
            Box(-1, 1, (4,)),
            Box(0, 9, (2,), "int64"),
            ErrorCode.UNSUPPORTED_SPACE,
            ["da3c", "Box(int64, [2]", "Discrete"],
        ),
        (Box(0, 255, (4000, 4000), "uint8"), Discrete(2), ErrorCode.UNSUPPORTED_SPACE, ["da3c", "[4000, 4000]"]),
    ],
    ids=["state_size", "action_size", "whole numbers", "too large an image"],
)
def test_refused_space_is_named_in_the_error(  # type: ignore[no-untyped-def]
    rlx_server, observation_space, action_space, code, texts
) -> None:
    with (
        pytest.raises(Failure) as refused,
        Client(rlx_server, observation_space=observation_space, action_space=action_space) as client,
    ):
        client.connect()
    assert refused.value.code is code
    for words in texts:
        assert words in str(refused.value)


@pytest.fixture(scope="module")
def rlx_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an RLX server whose parameter server does not run."""
    folder = tmp_path_factory.mktemp("rlx_server")
    config = write_service_config(folder, state_size=[4], action_size=6)
    with Processes(folder) as processes:
        yield processes.start_server(*RLX_SERVER, "--config", config, "--parameter-server", "127.0.0.1:1")[1]
