"""What the memory is, for replay servers."""

from __future__ import annotations

from relaax.algorithm_base import ReplayBase, TableDeclaration
from relaax.algorithm_base.stored_observations import ObservationLayout
from relaax.algorithm_base.transitions import AT_ONCE, transition_table

from .config import ReplayConfig

REQUESTS = 20
"""Either side may be ahead of the other by so many of the largest, at least: of K shards each allows a K-th of it."""


class Replay(ReplayBase):
    """Transitions, drawn uniformly or by priority; the oldest go first."""

    def table(self) -> TableDeclaration:
        config: ReplayConfig = self.config
        ratio, starts = config.samples_per_insert, config.learning_starts
        layout = ObservationLayout(self.observation_space, config.history_len)
        exponent = config.priority_exponent if config.prioritized else None
        buffer = None
        if ratio is not None:
            buffer = max(
                0.1 * starts * ratio, REQUESTS * AT_ONCE * max(1.0, ratio), float(REQUESTS * config.batch_size)
            )
        return TableDeclaration(transition_table(layout, config.replay_capacity, exponent), ratio, starts, buffer)

    @classmethod
    def bundled(cls, config: ReplayConfig) -> bool:
        return config.bundled
