from __future__ import annotations

import sys
from pathlib import Path

from relaax import rlx
from support.offline import ALGORITHM, SERVER, write_config
from support.processes import Processes, wait_until
from support.rlx_line import Line

# Before a function is traced, autograph writes what it has made of it to a temporary file.
COMPILED = """

import tensorflow as tf

class Agent(Agent):
    def _act(self, observations):
        def negative(x):
            return -x if tf.reduce_sum(x) > 0 else x

        tf.function(negative)(tf.ones([2]))
        return super()._act(observations)
"""


def test_a_worker_leaves_nothing_in_the_temporary_directory(processes: Processes, tmp_path: Path) -> None:
    algorithm, temporary = tmp_path / "compiled.py", tmp_path / "temporary"
    algorithm.write_text(ALGORITHM.read_text() + COMPILED)
    temporary.mkdir()
    config = write_config(tmp_path, {"path": str(algorithm)})
    server = processes.start(sys.executable, SERVER, "--config", config, env={"TMPDIR": str(temporary)})
    address = server.wait_for_address()
    with Line(address) as line:
        line.open()
        line.init()
        assert [path for path in temporary.rglob("*") if path.is_file()], "this test proves nothing otherwise"
        line.say(rlx.Bye())
        line.expect_end()
    wait_until(lambda: not server.children(), "the worker has ended")
    assert list(temporary.iterdir()) == []
