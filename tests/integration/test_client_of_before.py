"""A client of an earlier version is served: see tests/data/before/README.md."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from support.processes import Processes
from support.run import PATIENCE
from support.service import started_service

BEFORE = Path(__file__).resolve().parent.parent / "data" / "before"
PROGRAM = '''
"""A client program of before: `main ADDRESS KIND`."""
import sys
import numpy as np
import relaax.client
from relaax.client import Box, Client, Discrete, Failure, TrainingFinished, VectorClient

assert "client.zip" in relaax.client.__file__
address, kind = sys.argv[1:]
spaces = dict(observation_space=Box(shape=(3,)), action_space=Discrete(2))
state = lambda *n: np.random.default_rng(0).normal(size=(*n, 3)).astype(np.float32)
try:
    if kind == "refused":
        Client(address, **{**spaces, "action_space": Box(-1, 1, (2,))}).init(state())
    elif kind == "single":
        with Client(address, **spaces) as client:
            while True:
                assert client.init(state()) in (0, 1)
                for _ in range(9):
                    assert client.send(1.0, state()) in (0, 1)
                assert client.reset(0.5) == 9.5
    else:
        with VectorClient(address, environments=4, **spaces) as client:
            actions, ended = client.init(state(4)), np.zeros(4, bool)
            for step in range(10**6):
                assert actions.shape == (4,)
                ended[:] = step % 10 == 9
                actions = client.step(np.ones(4), state(4), ended)
except TrainingFinished as finished:
    print("finished:", finished)
except Failure as failure:
    print("refused:", failure)
'''


@pytest.mark.parametrize("kind", ["single", "vector", "refused"])
def test_its_client_is_served(processes: Processes, tmp_path: Path, kind: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with started_service(tmp_path, max_global_step=400) as service:
        program = processes.start(
            *(sys.executable, tmp_path / "program.py", service.address, kind),
            env={**os.environ, "PYTHONPATH": str(BEFORE / "client.zip")},
        )
        assert program.wait(PATIENCE) == 0, program.report()
        status = service.status
    said = "\n".join(program.lines)
    if kind == "refused":
        assert "refused:" in said
        assert "Discrete" in said
        assert status.global_step == 0
    else:
        assert "finished:" in said
        assert (status.global_step >= 400, status.finished) == (True, True)
        assert status.episodes > 10
