"""The recording of one connection: its recorder, and its files."""

from __future__ import annotations

from pathlib import Path

from relaax.demonstrations.columns import RecordedSpaces
from relaax.demonstrations.recorder import EpisodeRecorder
from relaax.demonstrations.writing import EpisodeFiles
from relaax.rlx import Hello


class Recording:
    """The recording of the environments of a hello to a folder. Give `recorder` the steps, and call `files.write`."""

    def __init__(self, folder: Path, hello: Hello) -> None:
        spaces = hello.observation_space, hello.action_space
        self.files = EpisodeFiles(folder, RecordedSpaces(*spaces, hello.environment, hello.frame_skip))
        self.recorder = EpisodeRecorder(hello.environments, self.files.add)
