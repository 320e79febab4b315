"""Mixins that count the updates and items of an algorithm with replay memory.

See `soak_parameters` and `replay_soak_items`. A mixin stands before the algorithm's own class in the list of bases.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from relaax.algorithm_base import AgentContext, LearnerContext
from relaax.replay.interfaces import Sampled
from relaax.replay.spec import TableDeclaration

from .replay_soak_items import NumberedItems, with_serials
from .soak_journal import Journal
from .soak_parameters import LedgerParameters


class NumberedTable:
    """A mixin that adds serial numbers to the items of a replay table."""

    def table(self) -> TableDeclaration:
        return with_serials(super().table())  # type: ignore[misc]


class Accounted:
    """A mixin for agents and learners: parameters and a replay memory that record updates and items.

    The class attribute `server` is the algorithm's `ParameterServer`.
    """

    server: Any

    def __init__(self, config: Any, context: AgentContext | LearnerContext) -> None:
        self._journal = Journal(Path(config.journals), config.slots)
        layout = self.server(config, context.observation_space, context.action_space).layout()
        accounted = dataclasses.replace(
            context,
            parameters=LedgerParameters(context, layout, self._journal, config),
            replay=NumberedItems(context.replay, Path(config.items), self._journal.slot),  # type: ignore[arg-type]
        )
        super().__init__(config, accounted)  # type: ignore[call-arg]

    def close(self) -> None:
        super().close()  # type: ignore[misc]
        self._journal.closed()


class AccountedLearner(Accounted):
    """A mixin for learners: the items of each batch are recorded."""

    def step(self, sampled: Sampled) -> None:
        self.context.replay.see(sampled)  # type: ignore[attr-defined]
        super().step(sampled)  # type: ignore[misc]
