"""Run directories with the curve of one scalar."""

from __future__ import annotations

from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

SCALAR = "episode/mean_return_100"


def write_run(folder: Path, *values: float, first: int = 0) -> Path:
    """Write a run directory with one value every 100 steps and 30 seconds."""
    writer = EventFileWriter(str(folder / "metrics"))
    for index, value in enumerate(values, first):
        summary = Summary(value=[Summary.Value(tag=SCALAR, simple_value=value)])
        writer.add_event(Event(wall_time=1000.0 + 30 * index, step=100 * index, summary=summary))
    writer.close()
    return folder
