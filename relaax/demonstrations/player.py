"""A player of recorded episodes: a client whose environments repeat them, and choose all actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from relaax.client import TrainingFinished, VectorClient
from relaax.demonstrations.columns import RecordedSpaces, StepColumns
from relaax.demonstrations.reading import RecordedEpisodes
from relaax.rlx import Leaves, Space

Episodes = Iterator[StepColumns]


def play_forever(
    address: str, recorded: RecordedEpisodes, environments: int, rng: np.random.Generator, **settings: Any
) -> None:
    """Play all episodes repeatedly, in random order, in N environments at once, until the training ends.

    `settings`: further arguments of `VectorClient`. Raises RecordingError and Failure.
    """
    _play(address, recorded.description, lambda: _endless(recorded, rng), environments, lambda steps: None, settings)


def play_once(address: str, recorded: RecordedEpisodes, show: Callable[[int], None], **settings: Any) -> bool:
    """Play each episode once, one after another. Return whether the training had not ended before.

    `show`: receives the number of steps so far. Raises RecordingError and Failure.
    """
    return _play(address, recorded.description, lambda: iter(recorded), 1, show, settings)


def _endless(recorded: RecordedEpisodes, rng: np.random.Generator) -> Episodes:
    while True:
        yield from recorded.shuffled(rng)


def _play(
    address: str,
    description: RecordedSpaces,
    begin: Callable[[], Episodes],
    environments: int,
    show: Callable[[int], None],
    settings: dict[str, Any],
) -> bool:
    """Play episodes until an environment finds none. Return whether the training had not ended before.

    The agent did not achieve the recorded returns, so the client reports none.
    """
    episodes = begin()
    with VectorClient(
        address,
        environments=environments,
        observation_space=description.observation_space,
        action_space=description.action_space,
        environment=description.environment,
        frame_skip=description.frame_skip,
        chosen_actions=True,
        reports_episodes=True,
        **settings,
    ) as client:
        try:
            streams = [_Stream(next(episodes)) for _ in range(environments)]
            everywhere, steps = np.ones(environments, np.bool_), 0
            client.init(_batch(description.observation_space, [stream.observation for stream in streams]))
            while True:
                rewards = [stream.reward for stream in streams]
                actions = _batch(description.action_space, [stream.action for stream in streams])
                terminated, truncated = np.zeros((2, environments), np.bool_)
                final: list[Leaves | None] = [None] * environments
                for index, stream in enumerate(streams):
                    if stream.advance():
                        continue
                    ended = stream.episode
                    terminated[index], truncated[index], final[index] = ended.terminated, ended.truncated, ended.final
                    following = next(episodes, None)
                    if following is None:
                        finals = _finals(description.observation_space, streams, final)
                        client.reset(rewards, truncated, finals, actions=actions, chosen=everywhere)
                        return True
                    streams[index] = _Stream(following)
                states = _batch(description.observation_space, [stream.observation for stream in streams])
                finals = _finals(description.observation_space, streams, final)
                client.step(rewards, states, terminated, truncated, finals, actions=actions, chosen=everywhere)
                steps += environments
                show(steps)
        except TrainingFinished:
            return False


class _Stream:
    """The position in one episode."""

    def __init__(self, episode: StepColumns) -> None:
        self.episode = episode
        self._at = 0

    @property
    def observation(self) -> Leaves:
        return [leaf[self._at] for leaf in self.episode.observations]

    @property
    def action(self) -> Leaves:
        return [leaf[self._at] for leaf in self.episode.actions]

    @property
    def reward(self) -> float:
        return float(self.episode.rewards[self._at])

    def advance(self) -> bool:
        """Go to the next step; return False at the episode's end."""
        if self._at + 1 == len(self.episode):
            return False
        self._at += 1
        return True


def _batch(space: Space, rows: list[Leaves]) -> Any:
    """Return the value [N, ...] of the leaves of N environments."""
    return space.unflatten([np.stack(leaves) for leaves in zip(*rows, strict=True)])


def _finals(space: Space, streams: list[_Stream], final: list[Leaves | None]) -> Any:
    """Return the final observations as a batch, with any observation in other rows; None if no episode has one."""
    if not any(final):
        return None
    rows = [
        stream.observation if leaves is None else [leaf[0] for leaf in leaves]
        for stream, leaves in zip(streams, final, strict=True)
    ]
    return _batch(space, rows)
