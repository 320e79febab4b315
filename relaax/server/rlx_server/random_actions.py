"""An RLX server whose agents act at random, without a parameter server: for clients that choose their actions.

`python -m relaax.server.rlx_server.random_actions SETTINGS`: the keys of `relaax-rlx-server` as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from relaax.algorithm_base import AgentBase, AgentContext, ConfigBase, Leaves, StepResult
from relaax.client.connection.values import values_of
from relaax.client.program.agents import RandomAgent
from relaax.configuration import ConfigurationError, RlxServerSection
from relaax.configuration.roles import RLX_SERVER
from relaax.configuration.validation import validate_section
from relaax.console import print_error, replace_unknown_characters
from relaax.hosting.loader import Algorithm
from relaax.nn.devices import CPU
from relaax.parameters.interfaces import (
    FlatVector,
    ParameterClientBase,
    ParameterServerError,
    Pulled,
    Pushed,
    Registered,
    Registration,
)
from relaax.policy.policy import NoMetrics
from relaax.server.address import AddressError
from relaax.server.command.configuration import require_private_ports
from relaax.server.command.logs import configure_logging
from relaax.server.command.role import CommandError
from relaax.server.rlx_server.workers.checkpoint_client import unassigned_actors
from relaax.server.rlx_server.workers.plan import RANDOM, WorkerPlan, check_record


class RandomActions(AgentBase):
    """An agent whose actions are random, as those of `relaax check`."""

    out_of_step = chosen_actions = True

    def __init__(self, config: ConfigBase, context: AgentContext) -> None:
        super().__init__(config, context)
        seed = int(np.random.default_rng([context.seed, *context.actors]).integers(2**31))
        self._random = RandomAgent(context.observation_space, context.action_space, context.environments, seed)
        self._actions = values_of(context.action_space)

    def reset(self, observations: Leaves) -> Leaves:
        return self._act(observations)

    def step(self, step: StepResult) -> Leaves:
        return self._act(step.observations)

    def _act(self, observations: Leaves) -> Leaves:
        return self._actions.to_leaves(self._random.draw(observations), 1)


class NoParameters(ParameterClientBase):
    """A parameters client without parameters. It ignores metrics."""

    def __init__(self) -> None:
        self.metrics = NoMetrics()

    def register(self, registration: Registration) -> Registered:
        return Registered(0, unassigned_actors(registration), 0)

    def pull(self) -> Pulled:
        return Pulled(np.zeros(0, np.float32), 0, 0)

    def push(
        self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True, *, withheld: bool = False
    ) -> Pushed:
        """Raise ParameterServerError: there is nothing to train."""
        raise ParameterServerError("this server acts at random, so it accepts no gradients")

    def flush(self) -> None:
        """Do nothing: no server receives metrics."""

    @property
    def global_step(self) -> int:
        return 0

    def close(self) -> None:
        """Do nothing."""


def random_plan(settings: RlxServerSection) -> WorkerPlan:
    """Return the plan of workers that act at random. Raises ConfigurationError."""
    check_record(settings)
    exports = SimpleNamespace(Config=ConfigBase, Agent=RandomActions)
    return WorkerPlan(settings, Algorithm(RANDOM, Path(__file__), exports), ConfigBase(path=RANDOM), CPU, NoParameters)


def main() -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    replace_unknown_characters()
    try:
        settings = validate_section(RlxServerSection, json.loads(sys.argv[1]), RLX_SERVER.section)
        configure_logging(settings.log_level, settings.log_format)
        require_private_ports(settings)
        return _serve(settings)
    except CommandError as end:
        print_error(str(RLX_SERVER.command), end)
        return end.code
    except (ConfigurationError, AddressError) as error:
        print_error(str(RLX_SERVER.command), error)
        return 2


def _serve(settings: RlxServerSection) -> int:
    from relaax.server.rlx_server.main import accept
    from relaax.server.rlx_server.workers.spawners import ForkSpawner, SpawnSpawner

    if settings.worker_start == "spawn":
        return accept(settings, lambda *shared: SpawnSpawner(settings, {}, RANDOM, Path(), *shared))
    plan = random_plan(settings)
    return accept(settings, lambda *shared: ForkSpawner(plan, *shared))


if __name__ == "__main__":
    sys.exit(main())
