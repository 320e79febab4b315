"""The file for `rlx_policy.h` and `policy.js`, which tests/clients/test_policies_outside_python.py tests."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaax.policy
from relaax.algorithm_base import Box, Dict, Discrete, MultiBinary, Space
from relaax.policy import PolicyError, game_export
from relaax.policy.game_export import game_file_of
from support.policy_files import bundled, write

SEEN = Dict({"action_mask": MultiBinary(3), "at": Discrete(4, 2), "camera": Box(0, 255, (20, 20), np.uint8)})


def exported(folder: Path, observation: Space, action: Space, **keys: Any) -> bytes:
    path, *_ = write(folder, bundled("da3c"), observation, action, **keys)
    return game_file_of(relaax.policy.load(path))


def test_file_has_the_documented_lines_and_arrays(tmp_path: Path) -> None:
    network = {"convolutions": [{"filters": 2, "kernel": 8, "stride": 4}], "dense": [5], "activation": "tanh"}
    path, *_ = write(tmp_path, bundled("da3c"), SEEN, Discrete(3, -1), history_len=2, network=network)
    policy = relaax.policy.load(path)
    file = game_file_of(policy)
    assert file[:4] == b"RLXP"
    version, size, checksum = struct.unpack_from("<3I", file, 4)
    assert (version, checksum) == (1, zlib.crc32(file[16:]))
    lines = file[16 : 16 + size].decode("ascii").splitlines()
    side = policy.graph().network.side_width
    features = 4 * 4 * 2 + side
    floats = (8 * 8 * 2 * 2 + 2) + (4 * side + side) + (features * 5 + 5) + (5 * 3 + 3)
    assert lines == [
        "# da3c at global step 120, checkpoint 00000004-120",
        f"arrays 1 {floats}",
        "observation mask int8 3",
        "observation choices 2 4",
        "observation frames uint8 400 2",
        "inputs plain 804",
        "convolution tanh 0 0 20 20 2 2 8 4",
        f"dense tanh 0 800 4 {side}",
        "join 1 2",
        f"dense tanh 3 0 {features} 5",
        "dense linear 4 0 5 3",
        "output policy 5",
        "action largest 5 -1 3",
    ]
    assert len(file) == 16 + size + 8 + 4 * floats
    kernel = policy.graph().network.layout().views(policy.graph().parameters)["conv0/kernel"]
    first = np.frombuffer(file, "<f4", kernel.size, 16 + size + 8)
    np.testing.assert_array_equal(first, kernel.reshape(-1))


def test_unbounded_actions_have_finite_bounds(tmp_path: Path) -> None:
    file = exported(tmp_path, Box(shape=(3,)), Box(shape=(2,)), normalize_observations=True)
    size = struct.unpack_from("<I", file, 8)[0]
    doubles = np.frombuffer(file, "<f8", 3 + 3 + 1 + 4 * 2, 16 + size)
    assert np.isfinite(doubles).all()
    assert doubles[6] == 10
    assert np.abs(doubles[-4:]).tolist() == [np.finfo(np.float64).max] * 4


@pytest.mark.parametrize(
    ("observation", "action", "sentence"),
    [
        (Box(shape=(3,), dtype=np.float16), Discrete(2), "use float32 instead of float16"),
        (Discrete(2, 2**60), Discrete(2), r"the integer 1152921504606846976 of a space is beyond 2\^53"),
    ],
    ids=["float16", "integer"],
)
def test_export_refuses_what_readers_do_not_support(
    tmp_path: Path, observation: Space, action: Space, sentence: str
) -> None:
    with pytest.raises(PolicyError, match=sentence):
        exported(tmp_path, observation, action)


@pytest.mark.parametrize(
    ("limit", "value", "sentence"),
    [
        ("MOST_NUMBERS", 9, r"the network has \d+ activations, and at most 9 fit"),
        ("MOST_LINES", 1, r"the network has \d+ layers, and at most 1 fit"),
        ("MOST_LINES", 0, r"the file needs 1 lines 'observation', and at most 0 fit"),
    ],
)
def test_export_refuses_a_network_beyond_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, sentence: str
) -> None:
    monkeypatch.setattr(game_export, limit, value)
    with pytest.raises(PolicyError, match=sentence):
        exported(tmp_path, Box(shape=(3,)), Discrete(2))
