"""The record of episodes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from relaax.lessons.episode_log import COLUMNS, EpisodeLog
from relaax.parameters import parameter_server_pb2 as pb

EPISODE = pb.EpisodeResult(
    episode_return=2.5, length=30, edition=4, actor=5, joined=60, number=7, parameters=[9.5, 0.125]
)


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_episodes_are_appended(tmp_path: Path) -> None:
    for step in (100, 200):
        log = EpisodeLog(tmp_path, ["gravity", "size"])
        log.add(step, [EPISODE])
        log.close()
    header, first, second = rows(tmp_path / "episodes.csv")
    assert header == [*COLUMNS, "gravity", "size"]
    assert (first[0], second[0]) == ("100", "200")
    assert first[2:] == second[2:] == ["5", "60", "7", "4", "2.5", "30", "9.5", "0.125"]


def test_file_with_other_columns_is_kept(tmp_path: Path) -> None:
    EpisodeLog(tmp_path, ["gravity"]).close()
    other = EpisodeLog(tmp_path, ["gravity", "size"])
    other.add(1, [EPISODE])
    other.close()
    assert len(rows(tmp_path / "episodes.csv")) == 1
    assert len(rows(tmp_path / "episodes-2.csv")) == 2


def test_error_of_the_disk_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "episodes.csv").mkdir()
    log = EpisodeLog(tmp_path, ["gravity"])
    log.add(1, [EPISODE])
    log.close()
    (record,) = caplog.records
    assert "the record of episodes cannot be written" in record.message
