"""What the memory is, for replay servers."""

from __future__ import annotations

from typing import Literal

from relaax.algorithm_base import ReplayBase, Space, TableDeclaration
from relaax.algorithm_base.network import image_part
from relaax.algorithm_base.transitions import ObservationLayout, transition_table

from .config import ReplayConfig

_REMOVERS: dict[str, Literal["fifo", "lowest_priority"]] = {"oldest": "fifo", "lowest_priority": "lowest_priority"}


def observation_layout(config: ReplayConfig, observation_space: Space) -> ObservationLayout:
    """Return how observations are kept."""
    return ObservationLayout(observation_space, config.history_len, image_part(config.network, observation_space))


class Replay(ReplayBase):
    """Transitions, drawn uniformly or by priority; the oldest go first, or those of the lowest priority."""

    def table(self) -> TableDeclaration:
        config: ReplayConfig = self.config
        layout = observation_layout(config, self.observation_space)
        exponent = config.priority_exponent if config.prioritized else None
        return TableDeclaration(
            transition_table(layout, config.replay_capacity, exponent, _REMOVERS[config.removal]),
            samples_per_insert=config.samples_per_insert,
            min_size=config.learning_starts,
        )

    @classmethod
    def bundled(cls, config: ReplayConfig) -> bool:
        return config.bundled
