"""Ask the parameter server for the spaces of its model, which the first worker brings."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from relaax.algorithm_base import (
    Algorithm,
    ConfigBase,
    ParameterServerError,
    Space,
    TrainingEnded,
    first_difference,
    parse_fingerprint,
)
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as rpc
from relaax.parameters.calls import Call, Calls
from relaax.parameters.channel import Target, open_channel
from relaax.server.command.configuration import description

_log = logging.getLogger(__name__)
CALL_SECONDS = 15.0
ASK_SECONDS = 1.0
REMIND_SECONDS = 600.0


def await_spaces(
    target: Target, algorithm: Algorithm, config: ConfigBase, patience: float, waiting: Callable[[], None]
) -> tuple[Space, Space]:
    """Return the model's observation and action space as soon as there is a model.

    `waiting` is called each time that there is none yet. Raises TrainingEnded, ParameterServerUnavailable if the server
    is away for more than `patience` seconds, and ParameterServerError if its algorithm or configuration are others.
    """
    call = Calls(CALL_SECONDS, patience)
    channel = open_channel(target)
    reminded = -REMIND_SECONDS
    try:
        stub = rpc.ParameterServerServiceStub(channel)
        while True:
            status: pb.GetStatusResponse = call([Call(stub.GetStatus, pb.GetStatusRequest(), target)])[0]
            if status.finished:
                raise TrainingEnded(status.global_step)
            if status.spaces:
                return _checked(status, target, algorithm, config)
            waiting()
            if time.monotonic() - reminded >= REMIND_SECONDS:
                reminded = time.monotonic()
                _log.info("parameter server %s has no model yet: waiting for the first worker", target.address)
            time.sleep(ASK_SECONDS)
    finally:
        channel.close()


def _checked(
    status: pb.GetStatusResponse, target: Target, algorithm: Algorithm, config: ConfigBase
) -> tuple[Space, Space]:
    try:
        _, observation_space, action_space = parse_fingerprint(status.spaces)
        ours = description(algorithm.name, config)
        difference = first_difference(ours, status.description, at_theirs="at this learner")
    except (ValueError, TypeError, AttributeError) as error:
        raise ParameterServerError(
            f"parameter server {target.address} describes its model in a way that cannot be read: {error}"
        ) from None
    if difference is not None:
        raise ParameterServerError(
            f"parameter server {target.address} is set up otherwise: {difference}; give both the same configuration"
        )
    return observation_space, action_space
