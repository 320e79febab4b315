"""Access of workers and learners to the replay servers of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from relaax.algorithm_base import ConfigBase, Space
from relaax.configuration import ConfigurationError
from relaax.hosting.loader import Algorithm
from relaax.server.targets import replay_targets

if TYPE_CHECKING:
    from relaax.configuration.sections import LearnerSection, RlxServerSection
    from relaax.parameters.channel import Target
    from relaax.replay.declaration import TableDeclaration
    from relaax.replay.interfaces import ReplayMemory


@dataclass(frozen=True, slots=True)
class ReplayUse:
    """What somebody wants of a replay memory: a table, for environments with these actor indices; none of a learner's.

    session, client, seed: see `ReplayClient`.
    """

    declaration: TableDeclaration
    actors: Sequence[int] = ()
    session: str = ""
    seed: int = 0
    client: str = ""


MakeReplay = Callable[[ReplayUse], "ReplayMemory"]
"""Connects to the replay servers. Called in the process that uses them: gRPC does not survive a fork."""


def use_of(
    algorithm: Algorithm,
    config: ConfigBase,
    spaces: tuple[Space, Space],
    *,
    actors: Sequence[int] = (),
    session: str = "",
    number: int = 0,
    client: str = "",
) -> ReplayUse:
    """Return what a worker or learner wants of the memory that an algorithm declares for these spaces.

    The table is of this session if each worker learns from one of its own. `number`: tells learners apart.
    """
    assert algorithm.Replay is not None
    bundled = algorithm.Replay.bundled(config)
    seed = int(np.random.SeedSequence([config.seed, number, *actors]).generate_state(1)[0])
    return ReplayUse(algorithm.Replay(config, *spaces).table(), actors, session if bundled else "", seed, client)


def replay_source(settings: RlxServerSection, algorithm: Algorithm) -> MakeReplay | None:
    """Return what connects a worker to its memory; None if it has none or only acts. Raises ConfigurationError."""
    if algorithm.Replay is None or settings.only_acts:
        return None
    if not settings.replay_server:
        raise ConfigurationError(
            f"relaax-rlx-server.replay_server: {algorithm.name} keeps experience in a replay memory, and no replay "
            "server is named: set it to their addresses in the order of their shards, such as localhost:7002"
        )
    return make_replay(settings)


def make_replay(settings: RlxServerSection | LearnerSection) -> MakeReplay:
    """Return what connects to the replay servers that a section names. Raises ConfigurationError."""
    servers, patience = replay_targets(settings), settings.replay_server_patience
    share_memory = settings.bridge != "grpc"
    return lambda use: _connected(servers, use, patience, share_memory)


def _connected(servers: Sequence[Target], use: ReplayUse, patience: float, share_memory: bool) -> ReplayMemory:
    from relaax.replay.client import ReplayClient

    return ReplayClient(
        servers,
        use.declaration,
        actors=use.actors,
        session=use.session,
        seed=use.seed,
        client=use.client,
        patience=patience,
        share_memory=share_memory,
    )
