"""The files through which a controller receives requests and reports its state."""

from __future__ import annotations

import json
from pathlib import Path

from relaax.cluster.keeper import REQUESTED, STATUS, Control
from support.disks import Disk


def test_report_is_written_and_request_is_read(tmp_path: Path) -> None:
    control = Control(tmp_path)
    assert control.turn(lambda: {"processes": []}) == {}
    assert json.loads((tmp_path / STATUS).read_text()) == {"processes": []}
    (tmp_path / REQUESTED).write_text('{"client": 3}')
    assert Control(tmp_path).turn(dict) == {"client": 3}


def test_unwritable_report_does_not_stop_the_training(tmp_path: Path, disk: Disk) -> None:
    control = Control(disk.path)
    disk.fill()
    assert control.turn(lambda: {"processes": ["x" * 100_000]}) == {}


def test_report_and_request_are_limited_to_once_a_second(tmp_path: Path) -> None:
    control, reports = Control(tmp_path), [1, 2]
    control.turn(lambda: {"number": reports.pop(0)})
    control.turn(lambda: {"number": reports.pop(0)})
    assert reports == [2]
