"""Check the requests of workers before they are processed."""

from __future__ import annotations

import re

from relaax.metrics import check_name
from relaax.metrics.histogram import HIGHEST, LOWEST
from relaax.metrics.names import CLIENTS
from relaax.metrics.returns import is_return
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.interfaces import PURPOSES
from relaax.parameters.precision import check_precision, widened
from relaax.parameters.wire import Carrier, statistics_from_messages
from relaax.rlx.messages import MAX_ENVIRONMENTS, MAX_FRAME_SKIP, MAX_NUMBER
from relaax.server.parameter_server.shard import Push
from relaax.server.parameter_server.target import TARGET
from relaax.server.service_errors import InvalidRequest
from relaax.transport.grpc_options import MESSAGE_OVERHEAD

MAX_TEXT = 256
_WORKER_ID = re.compile(r"[0-9a-f]{32}")
_MAX_ENV_STEPS = 10**9
_MAX_ENTRIES = 65_536
_MAX_GENERATION = 1 << 52
_MARGIN = 1.001  # a sum of numbers up to a bound is a little more than their number times the bound, once rounded


def push_of(carrier: Carrier[pb.PushRequest], frame_skip: int, client: str = "") -> Push:
    """Return the request of a client as a value; its gradient is a view of the request's bytes if they are float32.

    Raises ValueError.
    """
    request, data = carrier.message, carrier.data
    if request.env_steps > _MAX_ENV_STEPS:
        raise ValueError(f"{request.env_steps} environment steps in one push are too many")
    return Push(
        worker=request.worker_id,
        push_id=request.push_id,
        base_version=request.base_version,
        gradient=widened(data, request.precision) if len(data) else None,
        env_steps=request.env_steps,
        frames=request.env_steps * frame_skip,
        global_step=request.global_step,
        withheld=request.withheld,
        applied=request.applied,
        want_parameters=request.want_parameters and not request.applied,
        statistics=statistics_from_messages(request.statistics),
        target_generation=request.target_generation,
        client=client,
    )


def check_registration(request: pb.RegisterRequest) -> None:
    """Raise InvalidRequest if a field is out of its bounds."""
    texts = request.session_id, request.environment, request.host, request.server, request.client
    wrong = None
    if not _WORKER_ID.fullmatch(request.worker_id):
        wrong = "worker_id must be 32 hexadecimal digits"
    elif request.role not in PURPOSES:
        wrong = f"role {request.role} is none"
    elif not PURPOSES[request.role].acts and request.environments:
        wrong = f"{PURPOSES[request.role].name} has no environments, not {request.environments}"
    elif PURPOSES[request.role].acts and not 1 <= request.environments <= MAX_ENVIRONMENTS:
        wrong = f"environments must be from 1 to {MAX_ENVIRONMENTS}, not {request.environments}"
    elif request.frame_skip > MAX_FRAME_SKIP:
        wrong = f"frame_skip must be at most {MAX_FRAME_SKIP}, not {request.frame_skip}"
    elif max(map(len, texts)) > MAX_TEXT:
        wrong = f"session_id, environment, host, server and client may have {MAX_TEXT} characters"
    elif len(request.fingerprint) > MESSAGE_OVERHEAD:
        wrong = f"a fingerprint of {len(request.fingerprint)} characters; {MESSAGE_OVERHEAD} are the most"
    if wrong:
        raise InvalidRequest(wrong)


def check_push(request: pb.PushRequest) -> None:
    """Raise InvalidRequest if the report of a push is invalid, its precision unknown or its generation impossible."""
    check_asked(request.precision)
    check_generation(request.target_generation)
    check_report(request.report)


def check_pull(request: pb.PullRequest) -> None:
    """Raise InvalidRequest if there can be no such vector, its precision is unknown or its generation impossible."""
    check_asked(request.precision)
    check_generation(request.target_generation)
    if request.vector not in ("", TARGET):
        raise no_vector(request.vector)


def no_vector(name: str) -> InvalidRequest:
    """Return the refusal of a pull of a vector that the model does not have."""
    return InvalidRequest(f"there is no vector named {name[:MAX_TEXT]!r}")


def check_generation(generation: int) -> None:
    """Raise InvalidRequest for a generation that no target network reaches."""
    if generation > _MAX_GENERATION:
        raise InvalidRequest(f"target_generation {generation} is more than {_MAX_GENERATION}")


def check_asked(precision: pb.Precision) -> None:
    """Raise InvalidRequest if parameters are asked for in an unknown precision."""
    try:
        check_precision(precision)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def check_report(report: pb.MetricsReport) -> None:
    """Raise InvalidRequest if a name is not allowed, a return, a gauge or a client's scalar is out of RLX's bounds, a
    histogram is impossible, or there are too many entries.

    A scalar of the algorithm's may be NaN: a loss that has become so is worth seeing.
    """
    longest = max(len(report.episodes), len(report.scalars), len(report.histograms), len(report.gauges))
    if longest > _MAX_ENTRIES:
        raise InvalidRequest(f"a report of {longest} entries; {_MAX_ENTRIES} are the most")
    for episode in report.episodes:
        if not is_return(episode.episode_return):
            raise InvalidRequest(f"an episode returned {episode.episode_return}")
    try:
        for scalar in report.scalars:
            check_name(scalar.name)
            if scalar.name.startswith(CLIENTS) and not abs(scalar.sum) <= _MARGIN * MAX_NUMBER * scalar.count:
                raise ValueError(f"{scalar.count} samples of {scalar.name[:MAX_TEXT]!r} have the sum {scalar.sum}")
        for histogram in report.histograms:
            check_name(histogram.name)
            _check_histogram(histogram)
        for gauge in report.gauges:
            check_name(gauge.name)
            if not abs(gauge.value) <= MAX_NUMBER:
                raise ValueError(f"gauge {gauge.name[:MAX_TEXT]!r} is {gauge.value}")
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def _check_histogram(histogram: pb.Histogram) -> None:
    buckets, counts = histogram.buckets, histogram.counts
    if len(buckets) != len(counts):
        raise ValueError(f"histogram {histogram.name!r} has {len(buckets)} buckets and {len(counts)} counts")
    if any(not LOWEST <= bucket <= HIGHEST for bucket in buckets):
        raise ValueError(f"histogram {histogram.name!r}: buckets are from {LOWEST} to {HIGHEST}")
