"""Libraries that a program needs to act with a policy."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Discrete, load_algorithm
from relaax.libraries import EXTRAS
from support.policy_files import bundled, write

VECTOR, IMAGE = Box(shape=(3,)), Box(0, 255, (36, 36), np.uint8)
WITHOUT = """
import json, sys

without, code, *arguments = sys.argv[1:]
sys.modules.update(dict.fromkeys(without.split()))  # as if they were not installed
exec(code)
"""
ACT = """
import numpy as np
import relaax.policy

# As many as in the agent, because products of other shapes are summed in another order.
observations = np.stack([json.loads(arguments[0])] * 3)
policy = relaax.policy.load(*arguments[1:2], algorithm=dict(enumerate(arguments)).get(2))
print(json.dumps(np.asarray(policy.act(observations)).tolist()))
"""
NEEDED = {library for library, extras in EXTRAS.items() if "policy" in extras}


def without(libraries: set[str], code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, " ".join(libraries), code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("name", "space", "action", "keys"),
    [
        ("da3c", VECTOR, Discrete(5), {}),
        ("da3c", IMAGE, Discrete(5), {}),
        ("da3c", IMAGE, Discrete(5), {"lstm": True}),
        ("da3c_cont", VECTOR, Box(-1, 1, (2,)), {}),
        ("ppo", VECTOR, Discrete(5), {}),
    ],
    ids=["dense", "convolutions", "lstm and convolutions", "lstm", "ppo"],
)
def test_acting_needs_neither_tensorflow_nor_a_compiler(
    name: str, space: Box, action: Any, keys: dict[str, Any], tmp_path: Path
) -> None:
    path, agent, _ = write(tmp_path, bundled(name), space, action, **keys)
    seen = np.random.default_rng(3).integers(0, 256, space.shape).astype(space.dtype)
    wanted = agent.reset([np.stack([seen] * 3)])[0]
    answer = without(set(EXTRAS) - NEEDED, ACT, json.dumps(seen.tolist()), path)
    assert answer.stderr == ""
    np.testing.assert_allclose(json.loads(answer.stdout), wanted, rtol=1e-5)


@pytest.mark.parametrize("library", sorted(NEEDED))
def test_error_names_missing_library_and_extra(library: str) -> None:
    lines = without({library}, "import relaax.policy").stderr.splitlines()
    assert lines[-1] == f"ModuleNotFoundError: {library} is not installed; pip install 'relaax[policy]'"
    assert not [line for line in lines if "pydantic/" in line or "configuration" in line], (
        "the traceback does not end deep inside"
    )


def test_own_algorithm_names_missing_library(tmp_path: Path) -> None:
    source = Path(shutil.copytree(bundled("da3c").source, tmp_path / "mine"))
    path, _, _ = write(tmp_path, load_algorithm(str(source), tmp_path), VECTOR, Discrete(3))
    with (source / "__init__.py").open("a") as init:
        init.write("import tensorflow\n")
    lines = without({"tensorflow"}, ACT, "[1.0, 1.0, 1.0]", path, source).stderr.splitlines()
    assert lines[-1] == "ModuleNotFoundError: tensorflow is not installed; pip install 'relaax[tensorflow]'"
    assert len(lines) < 20
