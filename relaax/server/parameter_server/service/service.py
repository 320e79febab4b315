"""The service for workers, over any transport. Every field of a request is checked first."""

from __future__ import annotations

import contextlib
import logging
import re
from dataclasses import replace

from relaax.checkpoint.manifest import is_id
from relaax.configuration.errors import unknown
from relaax.metrics import check_name
from relaax.metrics.histogram import HIGHEST, LOWEST
from relaax.metrics.names import CLIENTS
from relaax.metrics.rate_limited_log import RateLimitedLog
from relaax.metrics.returns import is_return
from relaax.optim.vector import is_finite, not_finite_sentence
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.editions import edition_message
from relaax.parameters.interfaces import PURPOSES, FlatVector
from relaax.parameters.precision import Narrower, check_precision, widened
from relaax.parameters.wire import statistics_from_messages, statistics_to_messages
from relaax.rlx.messages import MAX_ENVIRONMENT_PARAMETERS, MAX_ENVIRONMENTS, MAX_FRAME_SKIP, MAX_NUMBER
from relaax.server.parameter_server.service.core import ParameterServerCore
from relaax.server.parameter_server.service.pictures import check_picture
from relaax.server.parameter_server.service.registry import RegisteredWorker, WorkerOrigin
from relaax.server.parameter_server.shard.model import ModelRefused
from relaax.server.parameter_server.shard.shard import CannotShare, Push, PushRefused, PushResult
from relaax.server.parameter_server.shard.state import Discard, PushOutOfOrder, Statistics
from relaax.server.parameter_server.shard.target import TARGET
from relaax.server.ports.local_session import SharedMemoryOffers
from relaax.server.ports.shared_budget import no_memory_left
from relaax.server.ports.wait_slots import LONGEST_WAIT, WaitSlots
from relaax.server.service_errors import (
    InvalidRequest,
    MemoryExhausted,
    NotAllowedNow,
    UnknownWorker,
)
from relaax.transport.grpc_options import MESSAGE_OVERHEAD
from relaax.transport.long_messages import Carrier

_log = logging.getLogger(__name__)

MAX_TEXT = 256
_WORKER_ID = re.compile(r"[0-9a-f]{32}")
_MAX_ENV_STEPS = 10**9
MAX_WAITING_WORKERS = 40
"""Maximum number of workers that wait for a synchronous update over gRPC, half of the threads."""
_MAX_ENTRIES = 65_536
_MAX_GENERATION = 1 << 52
_MARGIN = 1.001  # a rounded sum may slightly exceed count times bound


def to_push(carrier: Carrier[pb.PushRequest], worker: RegisteredWorker) -> Push:
    """Convert a request to a Push. The gradient is a view of the request's bytes if they are float32.

    Raises ValueError.
    """
    request, data = carrier.message, carrier.data
    if request.env_steps > _MAX_ENV_STEPS:
        raise ValueError(f"env_steps must be at most {_MAX_ENV_STEPS:,} per push, not {request.env_steps}")
    return Push(
        worker=request.worker_id,
        push_id=request.push_id,
        base_version=request.base_version,
        gradient=widened(data, request.precision) if len(data) else None,
        env_steps=request.env_steps,
        frames=request.env_steps * worker.frame_skip,
        global_step=request.global_step,
        withheld=request.withheld,
        applied=request.applied,
        want_parameters=request.want_parameters and not request.applied,
        statistics=statistics_from_messages(request.statistics),
        target_generation=request.target_generation,
        client=worker.client,
        environments=len(worker.actors),
    )


def check_registration(request: pb.RegisterRequest) -> None:
    """Raise InvalidRequest if a field exceeds its bounds."""
    texts = request.session_id, request.environment, request.host, request.server, request.client
    wrong = None
    if not _WORKER_ID.fullmatch(request.worker_id):
        wrong = "worker_id must be 32 hexadecimal digits"
    elif request.role not in PURPOSES:
        wrong = f"role {request.role} is not supported"
    elif not PURPOSES[request.role].acts and request.environments:
        wrong = f"environments must be 0 for {PURPOSES[request.role].name}, not {request.environments}"
    elif PURPOSES[request.role].acts and not 1 <= request.environments <= MAX_ENVIRONMENTS:
        wrong = f"environments must be from 1 to {MAX_ENVIRONMENTS}, not {request.environments}"
    elif request.frame_skip > MAX_FRAME_SKIP:
        wrong = f"frame_skip must be at most {MAX_FRAME_SKIP}, not {request.frame_skip}"
    elif max(map(len, texts)) > MAX_TEXT:
        wrong = f"session_id, environment, host, server and client may have at most {MAX_TEXT} characters"
    elif len(request.fingerprint) > MESSAGE_OVERHEAD:
        wrong = f"a fingerprint may have at most {MESSAGE_OVERHEAD} characters, not {len(request.fingerprint)}"
    if wrong:
        raise InvalidRequest(wrong)


def check_vector_request(request: pb.PushRequest | pb.PullRequest) -> None:
    """Raise InvalidRequest for an unknown precision, or a target generation beyond the bound."""
    try:
        check_precision(request.precision)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    if request.target_generation > _MAX_GENERATION:
        raise InvalidRequest(f"target_generation must be at most {_MAX_GENERATION}, not {request.target_generation}")


def check_report(report: pb.MetricsReport) -> None:
    """Raise InvalidRequest if a report has an invalid name, value or histogram, or too many entries.

    Returns, gauges and clients' scalars must be within RLX's bounds. Scalars of the algorithm may be NaN, because a
    loss that becomes NaN must be visible.
    """
    if report.HasField("picture"):
        check_picture(report.picture)
    entries = report.episodes, report.scalars, report.histograms, report.gauges, report.games
    longest = max(len(found) for found in entries)
    if longest > _MAX_ENTRIES:
        raise InvalidRequest(f"a report may have at most {_MAX_ENTRIES} entries, not {longest}")
    for game in report.games:
        if not is_return(game.episode_return) or not is_id(game.checkpoint):
            raise InvalidRequest(
                f"a game needs the id of a checkpoint and a return within RLX's bounds, not "
                f"{game.checkpoint[:MAX_TEXT]!r} and {game.episode_return}"
            )
    for episode in report.episodes:
        if not is_return(episode.episode_return):
            raise InvalidRequest(f"episode return {episode.episode_return} is not within RLX's bounds")
        if len(episode.parameters) > MAX_ENVIRONMENT_PARAMETERS or not all(
            abs(one) <= MAX_NUMBER for one in episode.parameters
        ):
            raise InvalidRequest(
                f"an episode has at most {MAX_ENVIRONMENT_PARAMETERS} parameters, within ±{MAX_NUMBER:g}"
            )
    try:
        for scalar in report.scalars:
            check_name(scalar.name)
            if scalar.name.startswith(CLIENTS) and not abs(scalar.sum) <= _MARGIN * MAX_NUMBER * scalar.count:
                raise ValueError(
                    f"{scalar.count} samples of {scalar.name[:MAX_TEXT]!r} cannot have the sum {scalar.sum}"
                )
        for histogram in report.histograms:
            check_name(histogram.name)
            buckets, counts = histogram.buckets, histogram.counts
            if len(buckets) != len(counts):
                raise ValueError(f"histogram {histogram.name!r} has {len(buckets)} buckets, but {len(counts)} counts")
            if any(not LOWEST <= bucket <= HIGHEST for bucket in buckets):
                raise ValueError(f"histogram {histogram.name!r}: buckets must be from {LOWEST} to {HIGHEST}")
        for gauge in report.gauges:
            check_name(gauge.name)
            if not abs(gauge.value) <= MAX_NUMBER:
                raise ValueError(f"gauge {gauge.name[:MAX_TEXT]!r} is {gauge.value}, not within ±{MAX_NUMBER:g}")
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


class ParameterService:
    """The handler of workers' requests. Each method raises ServiceError if it refuses a request.

    Long vectors are sent next to their messages: see `relaax.parameters.wire`.
    """

    def __init__(self, core: ParameterServerCore, offers: SharedMemoryOffers | None = None) -> None:
        """`offers`: the offers of shared memory for workers that register."""
        self._core = core
        self._offers = offers
        self._narrowed = Narrower("parameters")
        self._warn = RateLimitedLog(_log)
        self._slots = WaitSlots(MAX_WAITING_WORKERS)

    def register(self, request: pb.RegisterRequest) -> pb.RegisterResponse:
        check_registration(request)
        core, purpose = self._core, PURPOSES[request.role]
        with core.access.enter():
            try:
                model, worker = core.register(
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
            _log.info("worker %s registered with this shard: %s", shown_id(worker.worker_id), what)
            offer = self._offers.offer(worker.worker_id) if self._offers else None
            return pb.RegisterResponse(
                incarnation=core.incarnation,
                shard=core.position.index,
                shards=core.position.count,
                range_start=model.shard.start,
                range_end=model.shard.start + model.shard.size,
                parameters=model.parameters,
                actors=worker.actors,
                global_step=core.global_step,
                finished=core.is_finished_for(purpose),
                shared_memory=pb.SharedMemoryOffer(**offer._asdict()) if offer else None,
                soft_target=model.shard.target_interval is not None and model.shard.target_interval.is_soft,
                edition=core.new_edition(0),
            )

    def push(self, carrier: Carrier[pb.PushRequest]) -> Carrier[pb.PushResponse]:
        request, core = carrier.message, self._core
        check_vector_request(request)
        check_report(request.report)
        with core.access.enter(update=True):
            worker = self._worker(request.worker_id, request.incarnation)
            if worker is None:
                return self._answer_earlier_push(request)
            if not worker.purpose.may_update:
                raise NotAllowedNow(f"{worker.purpose.name} cannot push updates to this server")
            try:
                push = to_push(carrier, worker)
                applied = core.push(push)
            except (PushRefused, ValueError) as error:
                raise InvalidRequest(str(error)) from None
            except PushOutOfOrder as error:
                raise NotAllowedNow(str(error)) from None
            if applied is None:
                return Carrier(pb.PushResponse(global_step=core.global_step, finished=True))
            if not applied.repeated:
                worker.activity.staleness.append(applied.outcome.staleness)
                self._record_report(request.report, worker, request.env_steps)
                if applied.outcome.discard is Discard.NOT_FINITE and push.gradient is not None:
                    self._log_not_finite(worker, push.gradient)
            return self._answer(applied, request, request.have_version if request.HasField("have_version") else None)

    def await_update(self, request: pb.PullRequest, *, own_thread: bool) -> None:
        """Wait before `pull` if the request asks for a newer version. The wait is bounded.

        `own_thread`: whether the calling thread serves only this worker. Otherwise waiting calls are limited.
        """
        if not request.HasField("newer_than"):
            if (model := self._core.model) is not None:
                model.shard.resume(request.worker_id)
        elif self._worker(request.worker_id, request.incarnation) is not None:
            with contextlib.nullcontext(LONGEST_WAIT) if own_thread else self._slots.acquire(LONGEST_WAIT) as seconds:
                self._core.await_version(request.worker_id, request.newer_than, seconds)

    def pull(self, request: pb.PullRequest) -> Carrier[pb.PullResponse]:
        check_vector_request(request)
        core = self._core
        with core.access.enter():
            model = core.model
            wants_target = request.vector == TARGET and (model is None or model.shard.target is not None)
            if request.vector and not wants_target:
                raise InvalidRequest(f"the model has no vector {request.vector[:MAX_TEXT]!r}")
            worker = self._worker(request.worker_id, request.incarnation)
            if worker is None or model is None:
                return Carrier(pb.PullResponse(incarnation_ended=True))
            target = model.shard.advance_target(request.target_generation)
            statistics: Statistics = {}
            if wants_target and target is not None:
                counters, vector, version = model.shard.counters, target.vector, target.generation
            else:
                counters, vector, statistics = model.shard.pull()
                version = counters.version
            modified = not request.HasField("have_version") or request.have_version != version
            modified &= not request.without_parameters or bool(request.vector)
            rank, count = core.registry.ranks(request.worker_id)
            response = pb.PullResponse(
                not_modified=not modified,
                version=version,
                precision=request.precision,
                global_step=counters.env_steps,
                finished=core.is_finished_for(worker.purpose),
                statistics=statistics_to_messages(statistics),
                frames=counters.frames,
                target_generation=None if target is None else target.generation,
                actor_count=count,
                actor_rank=rank,
                edition=core.new_edition(request.have_edition),
            )
            return Carrier(response, self._narrowed(vector, request.precision)) if modified else Carrier(response)

    def live(self, request: pb.PullRequest, index: int) -> tuple[pb.LiveVectors, FlatVector]:
        """Return one of the shard's own vectors, float32 [size], for a worker that changes it in memory (hogwild).

        The message describes the update. Only sessions over shared memory have this method.
        """
        with self._core.access.enter():
            model = self._core.model
            worker = self._worker(request.worker_id, request.incarnation)
            if worker is None or model is None:
                raise UnknownWorker("the worker is not registered in this incarnation of the server")
            if not worker.purpose.may_update:
                raise NotAllowedNow(f"{worker.purpose.name} may not change parameters")
            try:
                shared = model.shard.share(self._core.segments.writable)
            except CannotShare as error:
                raise NotAllowedNow(str(error)) from None
            except OSError as error:
                raise MemoryExhausted(no_memory_left(error)) from None
            if index >= len(shared.vectors):
                raise InvalidRequest(f"vector index must be below {len(shared.vectors)}, not {index}")
            message = pb.LiveVectors(
                optimizer=shared.function,
                numbers=[float(number) for number in shared.numbers],
                learning_rate=model.spec.schedule(self._core.global_step),
                vectors=len(shared.vectors),
            )
            return message, shared.vectors[index]

    def report(self, request: pb.ReportRequest) -> pb.ReportResponse:
        check_report(request.report)
        core = self._core
        with core.access.enter():
            worker = core.registry.record_call(request.worker_id)
            if worker is None:
                return pb.ReportResponse(incarnation_ended=True)
            if core.registry.accept_report(worker, request.report_id):
                self._record_report(request.report, worker)
            return pb.ReportResponse(
                global_step=core.global_step,
                finished=core.is_finished_for(worker.purpose),
                edition=core.new_edition(request.have_edition),
                wants_picture=core.pictures.is_wanted_from(request.worker_id),
            )

    def leave(self, request: pb.LeaveRequest) -> pb.LeaveResponse:
        check_report(request.report)
        worker = self._core.registry.record_call(request.worker_id, deregisters=True)
        if worker is not None:
            self._record_report(request.report, worker)
            self._core.deregister(request.worker_id)
            environments = len(worker.actors)
            _log.info(
                "worker %s deregistered from this shard (%d environments)", shown_id(request.worker_id), environments
            )
        return pb.LeaveResponse()

    def set_parameter(self, request: pb.SetParameterRequest) -> pb.SetParameterResponse:
        number = request.value if request.HasField("value") else None
        if number is not None and not abs(number) <= MAX_NUMBER:
            raise InvalidRequest(f"a parameter must be within ±{MAX_NUMBER:g}, not {number}")
        try:
            return pb.SetParameterResponse(edition=edition_message(self._core.set_parameter(request.name, number)))
        except KeyError:
            known = self._core.parameter_names
            if not known:
                raise NotAllowedNow("the configuration of this training lacks environment-parameters") from None
            raise InvalidRequest(unknown("parameter", request.name[:MAX_TEXT], known)) from None

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
                    silent_seconds=registry.silence(worker),
                    staleness=worker.activity.mean_staleness,
                )
                for worker in registry.connected()
            ]
        )

    def picture(self) -> pb.GetPictureResponse:
        return self._core.pictures.next(self._core.registry.connected())

    def _log_not_finite(self, worker: RegisteredWorker, gradient: FlatVector) -> None:
        assert self._core.model is not None
        start = self._core.model.shard.start
        what = (
            "it is not finite after delay compensation" if is_finite(gradient) else not_finite_sentence(gradient, start)
        )
        self._warn("discarded a gradient of worker %s: %s", worker.worker_id[:8], what)

    def _worker(self, worker_id: str, incarnation: int) -> RegisteredWorker | None:
        return self._core.registry.record_call(worker_id) if incarnation == self._core.incarnation else None

    def _answer_earlier_push(self, request: pb.PushRequest) -> Carrier[pb.PushResponse]:
        """Answer a push of another incarnation: with its result if the ledger has it, else as rolled back."""
        applied = self._core.repeat_of_earlier(request.worker_id, request.push_id)
        if applied is not None:  # versions and generations of other incarnations are not comparable
            return self._answer(replace(applied, target=None), request, None)
        return Carrier(pb.PushResponse(discard=pb.DISCARD_INCARNATION, global_step=self._core.global_step))

    def _answer(
        self, applied: PushResult, request: pb.PushRequest, have_version: int | None
    ) -> Carrier[pb.PushResponse]:
        wanted, version = request.want_parameters, applied.counters.version
        not_modified = wanted and (have_version == version or request.without_parameters)
        parameters = None if not wanted or not_modified else applied.parameters
        target = applied.target
        has_target = (
            parameters is not None
            and target is not None
            and request.HasField("have_target")
            and request.have_target != target.generation
        )
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
            has_target=has_target,
            actor_count=count,
            actor_rank=rank,
            edition=self._core.new_edition(request.have_edition),
            wants_picture=self._core.pictures.is_wanted_from(request.worker_id),
        )
        if applied.pending is not None:
            response.pending = applied.pending
        if request.applied and self._core.model is not None:
            response.learning_rate = self._core.model.spec.schedule(response.global_step)
        if parameters is None:
            return Carrier(response)
        vectors = (parameters, target.vector) if has_target and target is not None else (parameters,)
        return Carrier(response, *(self._narrowed(vector, request.precision) for vector in vectors))

    def _record_report(self, report: pb.MetricsReport, worker: RegisteredWorker, env_steps: int = 0) -> None:
        episodes = ((episode.episode_return, episode.length) for episode in report.episodes)
        self._core.metrics.episodes(episodes, worker.client)
        scalars = ((scalar.name, scalar.sum, scalar.count) for scalar in report.scalars)
        self._core.metrics.scalars(scalars, worker.worker_id)
        worker.activity.add_report(report, env_steps)
        if report.HasField("picture"):
            self._core.pictures.add(worker.worker_id, report.picture)
        self._core.record_lesson(report.episodes)
        self._core.record_games(report.games)
        actor = worker.actors[0] if worker.purpose.acts else None
        self._core.periodic_metrics.add_report(worker.worker_id, actor, env_steps, report)


def shown_id(worker_id: str) -> str:
    """Return the part of a worker's id that is logged and listed. The whole id is secret: it permits deregistration."""
    return worker_id[:8]


_DISCARDS = {
    Discard.NONE: pb.DISCARD_UNSPECIFIED,
    Discard.STALE: pb.DISCARD_STALE,
    Discard.INCARNATION: pb.DISCARD_INCARNATION,
    Discard.NOT_FINITE: pb.DISCARD_NOT_FINITE,
    Discard.LOSS: pb.DISCARD_LOSS,
}
