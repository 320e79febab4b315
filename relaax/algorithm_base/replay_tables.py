"""What an algorithm tells workers and learners about its replay memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relaax.replay.spec import TableDeclaration
    from relaax.rlx import Space


class ReplayBase(ABC):
    """A declaration, so that replay servers need not know the algorithm: who comes first has the table made."""

    def __init__(self, config: Any, observation_space: Space, action_space: Space) -> None:
        self.config = config
        self.observation_space = observation_space
        self.action_space = action_space

    @abstractmethod
    def table(self) -> TableDeclaration:
        """Describe the table, of all shards together."""

    @classmethod
    def bundled(cls, config: Any) -> bool:
        """Return whether each worker learns, from a memory of its own session; else learners do, from one for all."""
        return False
