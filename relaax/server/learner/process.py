"""The steps of a learner: wait for a model, register, connect to replay memory, and learn."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from relaax.algorithm_base import ConfigBase, LearnerContext, Space
from relaax.configuration import ConfigurationError, LearnerSection
from relaax.hosting.fingerprint import fingerprint, first_difference, parse_fingerprint
from relaax.hosting.gradient_filters import agent_parameters
from relaax.hosting.loader import Algorithm
from relaax.nn.devices import NoSuchDevice, use_device, use_one_thread
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as rpc
from relaax.parameters.calls import Call, Calls
from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import LEARN, ParameterClientBase, ParameterServerError, Registration, TrainingEnded
from relaax.server.access import MakeReplay, make_replay, replay_use, targets
from relaax.server.command.configuration import description
from relaax.server.command.hardware import device_error, device_of
from relaax.server.learner.learning import Interruption, LearnerState, SamplePrefetcher, learn
from relaax.transport.channel import Target, open_channel

_log = logging.getLogger(__name__)
CALL_SECONDS = 15.0
POLL_SECONDS = 1.0
LOG_SECONDS = 600.0


def await_spaces(
    target: Target, algorithm: Algorithm, config: ConfigBase, patience: float, waiting: Callable[[], None]
) -> tuple[Space, Space]:
    """Wait until the parameter server has a model; return the model's observation and action space.

    `waiting` is called after each answer without a model. Raises TrainingEnded, ParameterServerUnavailable if the
    server is unavailable for more than `patience` seconds, and ParameterServerError if its algorithm or configuration
    is different.
    """
    call = Calls(CALL_SECONDS, patience)
    channel = open_channel(target)
    reminded = -LOG_SECONDS
    try:
        stub = rpc.ParameterServerServiceStub(channel)
        while True:
            status: pb.GetStatusResponse = call([Call(stub.GetStatus, pb.GetStatusRequest(), target)])[0]
            if status.finished:
                raise TrainingEnded(status.global_step)
            if status.spaces:
                return _spaces_of(status, target, algorithm, config)
            waiting()
            if time.monotonic() - reminded >= LOG_SECONDS:
                reminded = time.monotonic()
                _log.info("parameter server %s has no model: waiting for the first worker", target.address)
            time.sleep(POLL_SECONDS)
    finally:
        channel.close()


def _spaces_of(
    status: pb.GetStatusResponse, target: Target, algorithm: Algorithm, config: ConfigBase
) -> tuple[Space, Space]:
    try:
        _, observation_space, action_space = parse_fingerprint(status.spaces)
        ours = description(algorithm.name, config)
        difference = first_difference(ours, status.description, at_theirs="at this learner")
    except (ValueError, TypeError, AttributeError) as error:
        raise ParameterServerError(
            f"cannot read the model description of parameter server {target.address}: {error}"
        ) from None
    if difference is not None:
        raise ParameterServerError(
            f"parameter server {target.address} has another configuration than this learner: {difference}; "
            "use the same configuration for both"
        )
    return observation_space, action_space


@dataclass(frozen=True, slots=True)
class LearnerPlan:
    """The parts of a learner. `ready` is called when the parameter server has answered."""

    number: int
    algorithm: Algorithm
    config: ConfigBase
    targets: Sequence[Target]
    patience: float
    make_client: Callable[[], ParameterClientBase]
    make_replay: MakeReplay
    ready: Callable[[], None]

    def __post_init__(self) -> None:
        """Raise ConfigurationError if the algorithm does not use learners."""
        name = self.algorithm.name
        if self.algorithm.Learner is None or self.algorithm.Replay is None:
            raise ConfigurationError(f"algorithm.path: {name} does not use learners, as its workers learn themselves")
        if self.algorithm.Replay.bundled(self.config):
            raise ConfigurationError(
                f"algorithm: with this configuration of {name}, each worker learns from its own replay memory: "
                "start no learner"
            )


def run(plan: LearnerPlan, state: LearnerState, interruption: Interruption) -> None:
    """Learn until an exception: TrainingEnded, SignalReceived, or an error of a server or of the learner."""
    with contextlib.ExitStack() as ended, interruption.armed():
        _run(plan, state, interruption, ended)


def _run(plan: LearnerPlan, state: LearnerState, interruption: Interruption, ended: contextlib.ExitStack) -> None:
    """Learn. `ended` closes the resources afterwards."""
    algorithm, config = plan.algorithm, plan.config
    assert algorithm.Learner is not None

    def enter(phase: Literal["waiting", "learning"]) -> None:
        first, state.phase = state.phase == "starting", phase
        if first:
            plan.ready()

    def waiting() -> None:
        enter("waiting")
        interruption.check()

    spaces = await_spaces(plan.targets[0], algorithm, config, plan.patience, waiting)
    client = plan.make_client()
    ended.callback(client.close)
    client.register(
        Registration(
            fingerprint(algorithm.name, config, *spaces),
            environments=0,
            purpose=LEARN,
            environment=f"learner {plan.number}",
            host=socket.gethostname(),
        )
    )
    state.global_step = client.global_step
    enter("learning")
    _log.info("learner %d starts to learn at global step %d", plan.number, client.global_step)
    replay = plan.make_replay(replay_use(algorithm, config, spaces, number=plan.number))
    ended.callback(replay.close)
    observation_space, action_space = spaces
    context = LearnerContext(
        observation_space=observation_space,
        action_space=action_space,
        seed=config.seed,
        learner=plan.number,
        parameters=agent_parameters(client, config),
        metrics=client.metrics,
        replay=replay,
    )
    learner = algorithm.Learner(config, context)
    ended.callback(learner.close)
    samples = SamplePrefetcher(replay, learner.batch_size)
    ended.callback(samples.close)
    learn(learner, samples, client, state, interruption)


def make_plan(
    settings: LearnerSection, algorithm: Algorithm, config: ConfigBase, number: int, ready: Callable[[], None]
) -> LearnerPlan:
    """Select the device of learner `number`, and return its plan. Raises ConfigurationError."""
    servers = targets(settings)
    plan = LearnerPlan(
        number=number,
        algorithm=algorithm,
        config=config,
        targets=servers,
        patience=settings.parameter_server_patience,
        make_client=lambda: ParameterClient(
            servers, unavailable_after=settings.parameter_server_patience, transport=settings.bridge
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
