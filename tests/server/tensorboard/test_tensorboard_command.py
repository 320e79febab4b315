"""The command `relaax-tensorboard` as a process: its page, its end and its errors."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from relaax.metrics.writer import do_without_tensorflow
from relaax.server.tensorboard.main import app
from support.processes import Processes, project_command, wait_until
from support.refusals import refusal

CONFIG = "da3c_gym_cartpole"


def get_data(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"http://{address}/data/{path}", timeout=60) as answer:
        return json.load(answer)


def write_curve(folder: Path) -> None:
    do_without_tensorflow()
    writer = EventFileWriter(str(folder))
    for step in range(3):
        value = Summary.Value(tag="episode/mean_return_100", simple_value=float(step))
        writer.add_event(Event(step=step, wall_time=float(step), summary=Summary(value=[value])))
    writer.close()


def command(*more: str) -> list[str]:
    return [project_command("relaax-tensorboard"), "--config", CONFIG, *more]


@pytest.mark.slow
@pytest.mark.checks("relaax/server/tensorboard")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_folder_is_shown_until_a_signal(
    processes: Processes, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    board = processes.start(*command("--bind", "localhost:0", "--metrics-dir", str(tmp_path / "metrics")))
    address = board.wait_for_address()
    write_curve(tmp_path / "metrics")  # the folder may be missing at the start

    def shown() -> bool:
        return any("episode/mean_return_100" in tags for tags in get_data(address, "plugin/scalars/tags").values())

    wait_until(shown, "the curve is shown", 120, interval=0.2)
    assert board.stop(number, timeout=60) == code, board.report()


def test_unusable_arguments_are_refused() -> None:
    def refused(*more: str) -> str:
        message = refusal(app, "--config", CONFIG, *more)
        assert message.count("\n") == 1, message
        return message

    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"cannot listen on {address}" in refused("--bind", address)
    assert "--allow-anonymous" in refused("--bind", "0.0.0.0:0")
    assert "relaax-parameter-server.metrics_dir" in refused("--set", "relaax-parameter-server.metrics_dir=null")
