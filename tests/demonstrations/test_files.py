from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relaax.demonstrations.columns import RecordedSpaces, RecordingError, StepColumns
from relaax.demonstrations.reading import RecordedEpisodes
from relaax.demonstrations.writing import FIRST_SECONDS, LARGE, EpisodeFiles
from relaax.rlx import Box, Dict, Discrete
from support.recordings import arrays_of, written
from support.rlx_strategies import leaves, spaces

OBSERVATION = Dict({"camera": Box(0, 255, (2, 3, 1), "uint8"), "speed": Box(shape=())})
DESCRIPTION = RecordedSpaces(OBSERVATION, Discrete(3), "race", 4)

pytestmark = pytest.mark.checks("relaax/demonstrations", "relaax/rlx/spaces.py")


def steps_of(length: int, truncated: bool = False) -> StepColumns:
    numbers = np.arange(length)
    return StepColumns(
        [np.full((length, 2, 3, 1), length, np.uint8), numbers.astype(np.float32)],
        [numbers % 3],
        np.ones(length, np.bool_),
        numbers.astype(np.float64),
        not truncated,
        truncated,
        [np.full((1, 2, 3, 1), 9, np.uint8), np.array([0.5], np.float32)] if truncated else None,
    )


@st.composite
def episodes_of(draw: st.DrawFn, description: RecordedSpaces) -> StepColumns:
    length, truncated = draw(st.integers(1, 4)), draw(st.booleans())
    return StepColumns(
        draw(leaves(description.observation_space, length)),
        draw(leaves(description.action_space, length)),
        np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length))),
        np.array(draw(st.lists(st.floats(-1e6, 1e6), min_size=length, max_size=length))),
        not truncated,
        truncated,
        draw(leaves(description.observation_space, 1)) if truncated else None,
    )


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None, max_examples=60)
@given(data=st.data())
def test_read_episodes_equal_the_written_ones_in_any_space(data: st.DataObject) -> None:
    description = RecordedSpaces(data.draw(spaces), data.draw(spaces), "any", 2)
    episodes = data.draw(st.lists(episodes_of(description), min_size=1, max_size=3))
    with tempfile.TemporaryDirectory() as folder:
        found = RecordedEpisodes(written(Path(folder), *episodes, description=description))
        assert found.description == description
        for read, wrote in zip(found, episodes, strict=True):
            for one, other in zip([*arrays_of(read), read.chosen], [*arrays_of(wrote), wrote.chosen], strict=True):
                assert one.dtype == other.dtype
                np.testing.assert_array_equal(one, other)
            assert (read.terminated, read.truncated) == (wrote.terminated, wrote.truncated)


def test_counts_and_returns_are_those_of_all_files(tmp_path: Path) -> None:
    written(tmp_path, steps_of(3), steps_of(5), description=DESCRIPTION)
    written(tmp_path, steps_of(2, truncated=True), description=DESCRIPTION)
    found = RecordedEpisodes(tmp_path)
    assert (found.episodes, found.steps, sorted(found.returns)) == (3, 10, [1.0, 3.0, 10.0])
    one = RecordedEpisodes(sorted(tmp_path.iterdir())[0])
    assert one.episodes in (1, 2)


def test_seed_decides_the_order_of_shuffled_episodes(tmp_path: Path) -> None:
    for _ in range(3):
        written(tmp_path, *(steps_of(length) for length in range(1, 6)), description=DESCRIPTION)
    found = RecordedEpisodes(tmp_path)
    orders = [[len(each) for each in found.shuffled(np.random.default_rng(seed))] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == sorted([*range(1, 6)] * 3)


def test_pandas_reads_a_folder(tmp_path: Path) -> None:
    table = pandas.read_parquet(written(tmp_path, steps_of(3), steps_of(2, truncated=True), description=DESCRIPTION))
    assert list(table.columns) == [
        "episode", "step", "observation.camera", "observation.speed", "action", "chosen", "reward", "terminated",
        "truncated", "final_observation.camera", "final_observation.speed",
    ]  # fmt: skip
    assert table["step"].tolist() == [0, 1, 2, 0, 1]
    assert table.groupby("episode")["reward"].sum().tolist() == [3.0, 1.0]
    assert table["terminated"].tolist() == [False, False, True, False, False]
    assert table["final_observation.speed"].dropna().tolist() == [0.5]
    assert table["observation.camera"][0].tolist() == [3] * 6


def test_files_appear_complete_and_seldom(tmp_path: Path) -> None:
    now = 0.0
    files = EpisodeFiles(tmp_path, DESCRIPTION, lambda: now)
    counts = []
    for _ in range(2_000):
        files.add(steps_of(1))
        files.write_if_due()
        counts.append(len(list(tmp_path.iterdir())))
        now += 1.0
    assert counts[int(FIRST_SECONDS) - 1] == 0
    assert counts[int(FIRST_SECONDS)] == 1
    assert 20 < counts[-1] < 50  # a file for each second would be 2,000
    files.write()
    assert RecordedEpisodes(tmp_path).episodes == 2_000
    assert all(path.suffix == ".parquet" for path in tmp_path.iterdir())


def test_large_episodes_are_written_at_once(tmp_path: Path) -> None:
    files = EpisodeFiles(tmp_path, RecordedSpaces(Box(shape=(LARGE // 4,)), Discrete(2)), lambda: 0.0)
    one = np.ones(1, np.bool_)
    files.add(
        StepColumns([np.zeros((1, LARGE // 4), np.float32)], [np.zeros(1, np.int64)], one, one * 1.0, True, False)
    )
    files.write_if_due()
    assert len(list(tmp_path.iterdir())) == 1


def test_full_disk_ends_the_recording_with_one_error(disk: Any, caplog: pytest.LogCaptureFixture) -> None:
    files = EpisodeFiles(disk.path, RecordedSpaces(Box(shape=(100_000,)), Discrete(2)))
    noise = np.random.default_rng(0).random((2, 100_000), np.float32)
    episode = StepColumns([noise], [np.zeros(2, np.int64)], np.ones(2, np.bool_), np.ones(2), True, False)
    for _ in range(3):
        files.add(episode)
        files.write()
    assert caplog.text.count("recording ends") == 1
    assert "No space left on device" in caplog.text
    assert list(disk.path.glob("*.parquet")) == []


def changed(change: Callable[[dict[str, Any]], None]) -> Callable[[pa.Table], pa.Table]:
    """Return a change of a table's columns, which keeps its metadata and the types of the others."""

    def apply(table: pa.Table) -> pa.Table:
        columns = {name: table.column(name) for name in table.column_names}
        change(columns)
        return pa.table(columns).replace_schema_metadata(table.schema.metadata)

    return apply


def put(name: str, values: Any) -> Callable[[pa.Table], pa.Table]:
    return changed(lambda columns: columns.update({name: values}))


NAMES = ["a", "a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda table: table.replace_schema_metadata({}), "it was not recorded by RELAAX"),
        (
            lambda table: table.replace_schema_metadata({b"relaax": b'{"format": 2}'}),
            "its format is 2; this version reads 1",
        ),
        (lambda table: table.replace_schema_metadata({b"relaax": b"[]"}), "its description is not valid"),
        (changed(lambda columns: columns.pop("reward")), "there is no column reward"),
        (put("reward", pa.array([1, 2, 3, 4, 5])), "column reward: its type is int64; double is expected"),
        (put("reward", pa.array([1.0, None, 3, 4, 5])), "column reward: it has missing values"),
        (put("reward", pa.array([1.0, np.nan, 3, 4, 5])), "row 1: the reward is nan"),
        (put("action", pa.array([0, 1, 2, 3, 0])), "action"),
        (put("action", pa.array([0.0, 1, 2, 0, 1])), "column action: its numbers are of type double"),
        (put("observation.speed", pa.array([0, 1, np.nan, 0, 0], pa.float32())), "NaN"),
        (
            put("observation.camera", pa.array([[1] * 5] * 5, pa.list_(pa.uint8()))),
            "column observation.camera: its lists must have 6 elements each",
        ),
        (put("observation.camera", pa.array([1] * 5)), "lists of 6 x uint8 are expected"),
        (put("step", pa.array([0, 1, 3, 0, 1])), "row 2: step 3 of episode 'a' is not the next step of episode 'a'"),
        (
            put("episode", pa.array(["a", "c", "a", "b", "b"])),
            "row 1: step 1 of episode 'c' is not the next step of episode 'a'",
        ),
        (put("truncated", pa.array([False] * 5)), "episode 'b' has no end"),
        (put("terminated", pa.array([False, False, True, False, True])), "row 4: an episode is either"),
        (
            put("final_observation.speed", pa.array([None] * 5, pa.float32())),
            "row 4: final_observation.speed is missing; a truncated episode needs it",
        ),
    ],
)
def test_unusable_files_are_refused_with_the_place(
    change: Callable[[pa.Table], pa.Table], sentence: str, tmp_path: Path
) -> None:
    (path,) = written(tmp_path, steps_of(3), steps_of(2, truncated=True), description=DESCRIPTION).iterdir()
    table = pq.read_table(path)
    names = pa.array(NAMES)
    pq.write_table(change(put("episode", names)(table)), path)
    with pytest.raises(RecordingError) as caught:
        RecordedEpisodes(tmp_path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


def test_damaged_missing_and_different_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="there is no such file or folder; `relaax record` makes one"):
        RecordedEpisodes(tmp_path / "none")
    with pytest.raises(RecordingError, match="there is no .parquet file in this folder"):
        RecordedEpisodes(tmp_path)
    (path,) = written(tmp_path, steps_of(3), description=DESCRIPTION).iterdir()
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(RecordingError, match="it is not a Parquet file"):
        RecordedEpisodes(path)
    path.write_bytes(content)
    written(tmp_path, steps_of(3), description=RecordedSpaces(OBSERVATION, Discrete(4), "race", 4))
    (written_now,) = set(tmp_path.iterdir()) - {path}
    other = written_now.rename(tmp_path / "z.parquet")  # the last one
    with pytest.raises(RecordingError, match="it has another description than") as caught:
        RecordedEpisodes(tmp_path)
    assert [str(caught.value).count(str(each)) for each in (path, other)] == [1, 1]
    other.write_bytes(content[: len(content) // 2])
    with pytest.raises(RecordingError, match="cannot be read") as caught:
        RecordedEpisodes(tmp_path)
    assert str(caught.value).count(str(other)) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(place=st.floats(0, 0.999), byte=st.integers(0, 255))
def test_a_wrong_byte_gives_episodes_or_an_error(place: float, byte: int, tmp_path: Path) -> None:
    folder = tmp_path / "recorded"
    if not folder.is_dir():
        written(folder, steps_of(3), steps_of(2, truncated=True), description=DESCRIPTION)
    (path,) = folder.iterdir()
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] = byte
    spoiled = tmp_path / "spoiled.parquet"
    spoiled.write_bytes(content)
    try:
        assert RecordedEpisodes(spoiled).episodes >= 1
    except RecordingError as error:
        assert str(spoiled) in str(error)
