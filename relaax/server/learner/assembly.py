"""Assemble a learner from its configuration."""

from __future__ import annotations

from collections.abc import Callable

from relaax.algorithm_base import Algorithm, ConfigBase
from relaax.configuration import LearnerSection
from relaax.nn.devices import NoSuchDevice, use_device, use_one_thread
from relaax.parameters.client import ParameterClient
from relaax.server.command.hardware import device_error, device_of
from relaax.server.learner.process import LearnerPlan
from relaax.server.replay_access import make_replay
from relaax.server.targets import targets


def assemble(
    settings: LearnerSection, algorithm: Algorithm, config: ConfigBase, number: int, ready: Callable[[], None]
) -> LearnerPlan:
    """Return the plan of learner `number`, with its device in use. Raises ConfigurationError."""
    servers = targets(settings)
    plan = LearnerPlan(
        number=number,
        algorithm=algorithm,
        config=config,
        targets=servers,
        patience=settings.parameter_server_patience,
        make_client=lambda: ParameterClient(
            servers, unavailable_after=settings.parameter_server_patience, way=settings.bridge
        ),
        make_replay=make_replay(settings),
        ready=ready,
    )
    use_one_thread()
    device = device_of(settings, config)
    try:
        use_device(device)
    except NoSuchDevice as error:
        raise device_error(settings, str(error)) from None
    algorithm.prepare(config, device)
    return plan
