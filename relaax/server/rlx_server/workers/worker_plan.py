"""What all workers of a server have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relaax.algorithm_base import Algorithm, ConfigBase
from relaax.configuration import RlxServerSection
from relaax.parameters.interfaces import ParameterClientBase
from relaax.replay.interfaces import ReplayMemory
from relaax.rlx import Hello
from relaax.rlx.messages import Mode
from relaax.server.replay_access import MakeReplay, use_of


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """Data common to all workers of a server.

    device: where they compute (see `relaax.nn.devices`).
    make_replay: connects to the replay memory; None if the algorithm has none, or workers only act.
    """

    settings: RlxServerSection
    algorithm: Algorithm
    config: ConfigBase
    device: str
    make_client: Callable[[], ParameterClientBase]
    make_replay: MakeReplay | None = None

    def replay_of(self, hello: Hello, session: str, actors: Sequence[int], client: str = "") -> ReplayMemory | None:
        """Return the memory of a connection that has registered; None if it has none. Raises ReplayError.

        `client`: the name that the connection's token proves.
        """
        if self.make_replay is None or hello.mode == Mode.EXPLOIT:
            return None
        spaces = hello.observation_space, hello.action_space
        return self.make_replay(
            use_of(self.algorithm, self.config, spaces, actors=actors, session=session, client=client)
        )
