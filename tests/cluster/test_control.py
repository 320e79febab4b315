"""The files by which a controller is asked and answers."""

from __future__ import annotations

import json
from pathlib import Path

from relaax.cluster.keeper import ASKED, STATUS, Control
from support.disks import Disk


def test_a_report_is_written_and_what_is_asked_is_read(tmp_path: Path) -> None:
    control = Control(tmp_path)
    assert control.turn(lambda: {"processes": []}) == {}
    assert json.loads((tmp_path / STATUS).read_text()) == {"processes": []}
    (tmp_path / ASKED).write_text('{"client": 3}')
    assert Control(tmp_path).turn(dict) == {"client": 3}


def test_a_report_that_cannot_be_written_ends_nothing(tmp_path: Path, disk: Disk) -> None:
    control = Control(disk.path)
    disk.fill()
    assert control.turn(lambda: {"processes": ["x" * 100_000]}) == {}


def test_neither_is_done_more_often_than_each_second(tmp_path: Path) -> None:
    control, reports = Control(tmp_path), [1, 2]
    control.turn(lambda: {"number": reports.pop(0)})
    control.turn(lambda: {"number": reports.pop(0)})
    assert reports == [2]
