"""Answer the requests of workers, whatever their transport. Every field is checked first."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import replace

from relaax.metrics import check_name
from relaax.metrics.histogram import HIGHEST, LOWEST
from relaax.metrics.names import CLIENTS
from relaax.metrics.rate_limited_log import RateLimitedLog
from relaax.metrics.returns import is_return
from relaax.optim.vector import is_finite, not_finite_sentence
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.grpc_options import MESSAGE_OVERHEAD
from relaax.parameters.interfaces import FlatVector
from relaax.parameters.precision import Narrower, check_precision, widened
from relaax.parameters.purposes import PURPOSES
from relaax.parameters.statistics import statistics_from_messages, statistics_to_messages
from relaax.parameters.wire import Carrier
from relaax.rlx.messages import MAX_ENVIRONMENTS, MAX_FRAME_SKIP, MAX_NUMBER
from relaax.server.local_port.offers import SharedMemoryOffers
from relaax.server.parameter_server.service.core import ParameterServerCore
from relaax.server.parameter_server.service.registry import RegisteredWorker, WorkerOrigin
from relaax.server.parameter_server.shard.model import ModelRefused, ModelUnavailable
from relaax.server.parameter_server.shard.shard import Applied, CannotShare, Push, PushRefused
from relaax.server.parameter_server.shard.state import Discard, PushOutOfOrder, Statistics
from relaax.server.parameter_server.shard.target import TARGET
from relaax.server.service_errors import (
    InvalidRequest,
    MemoryExhausted,
    NotAllowedNow,
    TryAgain,
    UnknownWorker,
)

_log = logging.getLogger(__name__)

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


class ParameterService:
    """Answer requests for a `ParameterServerCore`. Each method raises ServiceError for what it refuses.

    Long vectors come and go beside their messages: see `relaax.parameters.wire`.
    """

    def __init__(
        self,
        core: ParameterServerCore,
        offers: SharedMemoryOffers | None = None,
    ) -> None:
        """`offers`: offers shared memory to each worker that registers."""
        self._core = core
        self._offers = offers
        self._narrowed = Narrower("parameters")
        self._complain = RateLimitedLog(_log)

    def register(self, request: pb.RegisterRequest) -> pb.RegisterResponse:
        check_registration(request)
        with self._passing():
            return self._register(request)

    def push(self, carrier: Carrier[pb.PushRequest]) -> Carrier[pb.PushResponse]:
        check_push(carrier.message)
        with self._passing(update=True):
            return self._push(carrier)

    def pull(self, request: pb.PullRequest) -> Carrier[pb.PullResponse]:
        check_pull(request)
        with self._passing():
            return self._pull(request)

    def live(self, request: pb.PullRequest, index: int) -> tuple[pb.LiveVectors, FlatVector]:
        """Return one of the shard's own vectors, float32 [size], for a worker that changes it in memory (hogwild), and
        what the worker needs to know. Shared memory only: gRPC has no such method.
        """
        with self._passing():
            return self._live(request, index)

    def report(self, request: pb.ReportRequest) -> pb.ReportResponse:
        check_report(request.report)
        with self._passing():
            return self._report(request)

    def leave(self, request: pb.LeaveRequest) -> pb.LeaveResponse:
        check_report(request.report)
        worker = self._core.registry.hear(request.worker_id, leaves=True)
        if worker is not None:
            self._take_in(request.report, worker)
            self._core.leave(request.worker_id)
            _log.info("worker %s leaves", shown_id(request.worker_id))
        return pb.LeaveResponse()

    def status(self) -> pb.GetStatusResponse:
        connected = self._offers.connected() if self._offers else 0
        return replace(self._core.status(), workers_by_shared_memory=connected).to_message()

    def workers(self) -> pb.ListWorkersResponse:
        registry = self._core.registry
        return pb.ListWorkersResponse(
            workers=[
                pb.WorkerDescription(
                    worker_id=shown_id(worker.worker_id),
                    role=pb.Role.Name(worker.purpose.number),
                    environment=worker.origin.environment,
                    host=worker.origin.host,
                    server=worker.origin.server,
                    environments=len(worker.actors),
                    actor=worker.actors[0] if worker.purpose.acts else 0,
                    seconds=registry.age(worker),
                    env_steps=worker.activity.env_steps,
                    episodes=worker.activity.episodes,
                    mean_return_100=worker.activity.mean_return,
                    act_ms_p50=worker.activity.act_ms,
                )
                for worker in registry.connected()
            ]
        )

    @contextlib.contextmanager
    def _passing(self, update: bool = False) -> Iterator[None]:
        """Keep the model from being replaced while inside. Raises TryAgain if it cannot be used now."""
        try:
            with self._core.access.passing(update=update):
                yield
        except ModelUnavailable as away:
            raise TryAgain(str(away)) from None

    def _register(self, request: pb.RegisterRequest) -> pb.RegisterResponse:
        purpose = PURPOSES[request.role]
        try:
            model, worker = self._core.register(
                request.worker_id,
                request.fingerprint,
                request.session_id,
                request.environments,
                purpose,
                request.frame_skip or 1,
                WorkerOrigin(request.environment, request.host, request.server, request.client),
            )
        except ModelRefused as error:
            raise NotAllowedNow(str(error)) from None
        what = f"{request.environments} x {request.environment!r}" if purpose.acts else request.environment
        _log.info("worker %s joins: %s", shown_id(worker.worker_id), what)
        shard = model.shard
        offer = self._offers.offer(worker.worker_id) if self._offers else None
        return pb.RegisterResponse(
            incarnation=self._core.incarnation,
            shard=self._core.position.index,
            shards=self._core.position.count,
            range_start=shard.start,
            range_end=shard.start + shard.size,
            parameters=model.parameters,
            actors=worker.actors,
            global_step=self._core.global_step,
            finished=self._core.is_over_for(purpose),
            shared_memory=pb.SharedMemoryOffer(**offer._asdict()) if offer else None,
        )

    def _push(self, carrier: Carrier[pb.PushRequest]) -> Carrier[pb.PushResponse]:
        request = carrier.message
        worker = self._worker(request.worker_id, request.incarnation)
        if worker is None:
            return self._push_of_another_life(request)
        if not worker.purpose.changes:
            raise NotAllowedNow(f"{worker.purpose.name} cannot push")
        try:
            push = push_of(carrier, worker.frame_skip, worker.client)
            applied = self._core.push(push)
        except (PushRefused, ValueError) as error:
            raise InvalidRequest(str(error)) from None
        except PushOutOfOrder as error:
            raise NotAllowedNow(str(error)) from None
        if applied is None:
            return Carrier(pb.PushResponse(global_step=self._core.global_step, finished=True))
        if not applied.repeated:
            self._take_in(request.report, worker, request.env_steps)
            if applied.outcome.discard is Discard.NOT_FINITE and push.gradient is not None:
                self._log_not_finite(worker, push.gradient)
        return self._answer(applied, request, request.have_version if request.HasField("have_version") else None)

    def _log_not_finite(self, worker: RegisteredWorker, gradient: FlatVector) -> None:
        assert self._core.model is not None
        start = self._core.model.shard.start
        what = (
            "it is not finite after delay compensation" if is_finite(gradient) else not_finite_sentence(gradient, start)
        )
        self._complain("discarded a gradient of worker %s: %s", worker.worker_id[:8], what)

    def _pull(self, request: pb.PullRequest) -> Carrier[pb.PullResponse]:
        model = self._core.model
        if request.vector == TARGET and model is not None and model.shard.target is None:
            raise no_vector(request.vector)
        worker = self._worker(request.worker_id, request.incarnation)
        if worker is None or model is None:
            return Carrier(pb.PullResponse(incarnation_ended=True))
        target = model.shard.hear(request.target_generation)
        if request.vector == TARGET and target is not None:
            counters, vector, version = model.shard.counters, target.vector, target.generation
            statistics: Statistics = {}
        else:
            counters, vector, statistics = model.shard.pull()
            version = counters.version
        modified = not request.HasField("have_version") or request.have_version != version
        rank, count = self._core.registry.ranks(request.worker_id)
        response = pb.PullResponse(
            not_modified=not modified,
            version=version,
            precision=request.precision,
            global_step=counters.env_steps,
            finished=self._core.is_over_for(worker.purpose),
            statistics=statistics_to_messages(statistics),
            frames=counters.frames,
            target_generation=None if target is None else target.generation,
            actor_count=count,
            actor_rank=rank,
        )
        return Carrier(response, self._narrowed(vector, request.precision)) if modified else Carrier(response)

    def _live(self, request: pb.PullRequest, index: int) -> tuple[pb.LiveVectors, FlatVector]:
        model = self._core.model
        worker = self._worker(request.worker_id, request.incarnation)
        if worker is None or model is None:
            raise UnknownWorker("it does not know this worker in this incarnation")
        if not worker.purpose.changes:
            raise NotAllowedNow(f"{worker.purpose.name} changes nothing")
        try:
            shared = model.shard.share(self._core.segments.writable)
        except CannotShare as error:
            raise NotAllowedNow(str(error)) from None
        except OSError as error:
            raise MemoryExhausted(f"it has no more memory to share: {error.strerror}") from None
        if index >= len(shared.vectors):
            raise InvalidRequest(f"vector {index} of {len(shared.vectors)} was asked for")
        message = pb.LiveVectors(
            optimizer=shared.function,
            numbers=[float(number) for number in shared.numbers],
            learning_rate=model.spec.schedule(self._core.global_step),
            vectors=len(shared.vectors),
        )
        return message, shared.vectors[index]

    def _report(self, request: pb.ReportRequest) -> pb.ReportResponse:
        worker = self._core.registry.hear(request.worker_id)
        if worker is None:
            return pb.ReportResponse(incarnation_ended=True)
        if self._core.registry.new_report(worker, request.report_id):
            self._take_in(request.report, worker)
        return pb.ReportResponse(global_step=self._core.global_step, finished=self._core.is_over_for(worker.purpose))

    def _worker(self, worker_id: str, incarnation: int) -> RegisteredWorker | None:
        return self._core.registry.hear(worker_id) if incarnation == self._core.incarnation else None

    def _push_of_another_life(self, request: pb.PushRequest) -> Carrier[pb.PushResponse]:
        """Answer a push of another incarnation: it was counted if the checkpoint's ledger has it, otherwise rolled
        back.
        """
        applied = self._core.repeat_of_earlier(request.worker_id, request.push_id)
        if applied is not None:  # versions and generations of another incarnation are others
            return self._answer(replace(applied, target_generation=None), request, None)
        return Carrier(pb.PushResponse(discard=pb.DISCARD_INCARNATION, global_step=self._core.global_step))

    def _answer(self, applied: Applied, request: pb.PushRequest, have_version: int | None) -> Carrier[pb.PushResponse]:
        wanted, version = request.want_parameters, applied.counters.version
        not_modified = wanted and have_version == version
        rank, count = self._core.registry.ranks(request.worker_id)
        response = pb.PushResponse(
            discard=_DISCARDS[applied.outcome.discard],
            global_step=applied.counters.env_steps,
            version=version,
            finished=self._core.finished,
            staleness=applied.outcome.staleness,
            statistics=statistics_to_messages(applied.statistics) if wanted else (),
            precision=request.precision,
            not_modified=not_modified,
            frames=applied.counters.frames,
            target_generation=applied.target_generation,
            actor_count=count,
            actor_rank=rank,
        )
        if request.applied and self._core.model is not None:
            response.learning_rate = self._core.model.spec.schedule(response.global_step)
        if not wanted or not_modified or applied.parameters is None:
            return Carrier(response)
        return Carrier(response, self._narrowed(applied.parameters, request.precision))

    def _take_in(self, report: pb.MetricsReport, worker: RegisteredWorker, env_steps: int = 0) -> None:
        episodes = ((episode.episode_return, episode.length) for episode in report.episodes)
        self._core.metrics.episodes(episodes, worker.client)
        scalars = ((scalar.name, scalar.sum, scalar.count) for scalar in report.scalars)
        self._core.metrics.scalars(scalars, worker.worker_id)
        worker.activity.take_in(report, env_steps)
        actor = worker.actors[0] if worker.purpose.acts else None
        self._core.figures.take_in(worker.worker_id, actor, env_steps, report)


def shown_id(worker_id: str) -> str:
    """Return the part of a worker's id that is logged and listed. The whole id permits to deregister the worker."""
    return worker_id[:8]


_DISCARDS = {
    Discard.NONE: pb.DISCARD_UNSPECIFIED,
    Discard.STALE: pb.DISCARD_STALE,
    Discard.INCARNATION: pb.DISCARD_INCARNATION,
    Discard.NOT_FINITE: pb.DISCARD_NOT_FINITE,
    Discard.LOSS: pb.DISCARD_LOSS,
}
