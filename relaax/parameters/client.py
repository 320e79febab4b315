"""A worker's client of all shards of a parameter server."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal, TypeVar

import grpc
import numpy as np

from relaax.optim.vector import is_finite
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.calls import Call, Calls, NotReady
from relaax.parameters.editions import edition_of
from relaax.parameters.hogwild import HogwildUpdates
from relaax.parameters.interfaces import (
    FlatVector,
    ParameterClientBase,
    ParameterServerError,
    ParameterServerUnavailable,
    ParameterServerUnusable,
    Pulled,
    Pushed,
    Registered,
    Registration,
    TrainingEnded,
)
from relaax.parameters.metrics import MetricsCollector, Reports
from relaax.parameters.precision import PRECISIONS
from relaax.parameters.received import Answer, IncarnationEnded, ReceivedState, ReceivedTarget
from relaax.parameters.shard_client import ShardClient
from relaax.parameters.synchronous import UpdateWaits
from relaax.parameters.wire import statistics_to_messages
from relaax.transport.channel import Target
from relaax.transport.local_socket import FailureKind, NoSharedMemory
from relaax.transport.long_messages import Carrier
from relaax.transport.process_resources import allow_descriptors, keep_freed_memory

_log = logging.getLogger(__name__)
_DISCARDED = {
    pb.DISCARD_UNSPECIFIED: None,
    pb.DISCARD_STALE: "stale",
    pb.DISCARD_INCARNATION: "incarnation",
    pb.DISCARD_NOT_FINITE: "not_finite",
    pb.DISCARD_LOSS: "loss",
}
Transport = Literal["auto", "grpc", "shared_memory", "hogwild"]
PushAnswer = Carrier[pb.PushResponse]
_Result = TypeVar("_Result")
_MAX_REGISTRATIONS = 5


_Progress = pb.RegisterResponse | pb.PushResponse | pb.PullResponse | pb.ReportResponse


class ParameterClient(ParameterClientBase):
    """A client of all shards of a parameter server, by gRPC or shared memory.

    `servers`: the shards, shard 0 first; a bare address is a server without TLS and without a token. `timeout`: the
    deadline of each call. `unavailable_after`: how long a server may be unavailable. Both are in seconds. `transport`:
    vectors are sent by gRPC ("grpc"), through shared memory if a shard is on this host ("auto"), or only through shared
    memory ("shared_memory"); with "hogwild" the worker updates that memory itself. `wire_precision`: one of
    `relaax.parameters.precision.PRECISIONS`; gradients and parameters that are sent by gRPC are rounded to it. Create
    the client in the process that uses it, because a channel does not survive a fork.
    """

    def __init__(
        self,
        servers: Sequence[Target | str] | str,
        *,
        timeout: float = 15.0,
        unavailable_after: float = 60.0,
        transport: Transport = "grpc",
        wire_precision: str = "float32",
    ) -> None:
        given = [servers] if isinstance(servers, str) else servers
        targets = [Target(server) if isinstance(server, str) else server for server in given]
        self._call = Calls(timeout, unavailable_after)
        self._transport = transport
        self._wire_precision = wire_precision
        self._links = [ShardClient(target, shard, PRECISIONS[wire_precision]) for shard, target in enumerate(targets)]
        self._hogwild = HogwildUpdates() if transport == "hogwild" else None
        self._registration: Registration | None = None
        self.metrics: MetricsCollector = MetricsCollector()
        self._reports = Reports(self.metrics)
        self._worker_id = ""
        self._incarnation = 0
        self._parameters = 0
        self._received = ReceivedState(self._links)
        self._waits = UpdateWaits(self._links, self._call)
        self._target = ReceivedTarget(self._links, self._call)
        self._global_step = 0
        self._pending_push: Callable[[], Pushed] | None = None
        self._closed = False

    @property
    def global_step(self) -> int:
        return self._global_step

    @property
    def shares_memory(self) -> bool:
        """Whether vectors are exchanged with every shard through shared memory."""
        return all(link.memory is not None for link in self._links)

    def register(self, registration: Registration) -> Registered:
        self._registration = registration
        self._target.reset(wanted=registration.purpose.may_update and registration.wants_target)
        for link in self._links:
            link.wants_parameters = registration.wants_parameters
        self._worker_id = uuid.uuid4().hex
        self._reports.restart_numbers()
        request = registration_message(registration, self._worker_id)
        first = self._retry_until_ready(self._register_all, request)
        self.edition = edition_of(first.edition) if first.HasField("edition") else None
        return Registered(first.parameters, tuple(first.actors), first.global_step)

    def pull(self) -> Pulled:
        self._finish_pending_push()
        for _ in range(_MAX_REGISTRATIONS):
            carriers = self._call([link.pull(self._identity(), link.version) for link in self._links])
            responses: list[pb.PullResponse] = [carrier.message for carrier in carriers]
            if not any(response.incarnation_ended for response in responses):
                self._note_progress(responses[0])
                with contextlib.suppress(IncarnationEnded):
                    return self._received.join(carriers, self._target.refreshed(carriers, self._identity()))
            self._register_again()
        raise self._too_many_registrations()

    def push(
        self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True, *, withheld: bool = False
    ) -> Pushed:
        self._finish_pending_push()
        self._check_gradient(gradient)
        # If a flush has found a new incarnation, the gradient belongs to the earlier one.
        if gradient is not None and self._received.rolled_back:
            return self._pushed(self._push(self._common_request(env_steps, True, False), None)[0], True, None)
        # A gradient that is not finite is sent to the shards, which discard and count it.
        if self._hogwild is not None and gradient is not None and is_finite(gradient):
            return self._push_hogwild(self._hogwild, gradient, env_steps, want_parameters)
        answered = self._push(self._common_request(env_steps, want_parameters, withheld), gradient)
        return self._pushed(*answered, self._received.join if want_parameters else None)

    def push_later(
        self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True, *, withheld: bool = False
    ) -> Callable[[], Pushed]:
        self._finish_pending_push()
        if self._hogwild is not None or self._received.rolled_back:
            return super().push_later(gradient, env_steps, want_parameters, withheld=withheld)
        self._check_gradient(gradient)
        common = self._common_request(env_steps, want_parameters, withheld)
        calls = self._calls_of_push(common, gradient)
        answers = self._call.start(calls)

        def pushed() -> Pushed:
            self._pending_push = None
            answered = self._push(common, gradient, calls, answers)
            return self._pushed(*answered, self._received.join if want_parameters else None)

        self._pending_push = cache(pushed)
        return self._pending_push

    def _finish_pending_push(self) -> None:
        """Wait for the answer to a push that `push_later` sent."""
        if self._pending_push is not None:
            self._pending_push()

    def _push_hogwild(
        self, hogwild: HogwildUpdates, gradient: FlatVector, env_steps: int, want_parameters: bool
    ) -> Pushed:
        """Apply a gradient in the shards' memory, then push steps, metrics and statistics without a gradient."""
        if not hogwild.is_connected(self._links):
            try:
                self._retry_until_ready(self._reconnect, hogwild)
            except NoSharedMemory as why:
                self._register_again(f"no longer shares its memory ({why})")
                return replace(self.push(None, env_steps), discarded="incarnation")
        parameters = hogwild.apply(gradient, self._links)
        common = self._common_request(env_steps, want_parameters, withheld=False)
        common.applied = True
        carriers, rolled_back = self._push(common, None)
        if not rolled_back:
            hogwild.learning_rate = carriers[0].message.learning_rate
        join = partial(self._received.join_own_update, parameters) if want_parameters else None
        return self._pushed(carriers, rolled_back, join)

    def _reconnect(self, hogwild: HogwildUpdates) -> None:
        """Share memory again after it was lost. Raises NotReady, and NoSharedMemory if a new registration is needed."""
        for link in self._links:
            try:
                hogwild.reconnect(link, self._identity())
            except NoSharedMemory as why:
                if why.kind is FailureKind.TEMPORARY:
                    raise self._sharing_error(link, why, "") from None
                raise

    def _identity(self) -> pb.PullRequest:
        return pb.PullRequest(
            worker_id=self._worker_id,
            incarnation=self._incarnation,
            target_generation=self._target.newest,
            have_edition=self._edition_number,
        )

    @property
    def _edition_number(self) -> int:
        return self.edition.number if self.edition else 0

    def gradient_memory(self) -> FlatVector | None:
        memory = self._links[0].memory
        return memory.gradient if len(self._links) == 1 and memory is not None else None

    def flush(self) -> None:
        if not self._reports.start_if_due():
            return
        self._finish_pending_push()
        for _ in range(_MAX_REGISTRATIONS):
            request = self._reports.next(self._worker_id)
            if request is None:
                return
            request.have_edition = self._edition_number
            response = self._call([self._links[0].report(request)])[0]
            if not response.incarnation_ended:
                self._reports.acknowledge()
                self._note_progress(response)
                return
            self._register_again()
        raise self._too_many_registrations()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._incarnation:
            request = pb.LeaveRequest(worker_id=self._worker_id)
            with_report = pb.LeaveRequest(worker_id=self._worker_id, report=self._reports.final_report())
            answers = [link.deregister(request if link.shard else with_report, 3.0) for link in self._links]
            for answer in answers:
                with contextlib.suppress(grpc.RpcError, grpc.FutureCancelledError):
                    if answer is not None:
                        answer.result()
        for link in self._links:
            link.close()

    def _register_all(self, request: pb.RegisterRequest) -> pb.RegisterResponse:
        """Register with shard 0, which creates the model, then with the others.

        Raises NotReady, and ParameterServerError if the addresses are not in the order of the shards.
        """
        links = self._links
        first: pb.RegisterResponse = self._call([links[0].register(request)])[0]
        self._incarnation = first.incarnation
        self._note_progress(first)
        links[0].check_place(first, len(links))
        others = self._call([link.register(request) for link in links[1:]]) if len(links) > 1 else []
        for link, response in zip(links[1:], others, strict=True):
            link.check_place(response, len(links))
        incarnations = [first.incarnation, *(response.incarnation for response in others)]
        if len(set(incarnations)) > 1:
            listed = ", ".join(map(str, incarnations))
            raise NotReady(f"the shards of the parameter server have different incarnations: {listed}")
        if self._parameters and self._parameters != first.parameters:
            raise ParameterServerError(
                f"parameter server {links[0].address} has {first.parameters} parameters, but it had {self._parameters}"
            )
        self._parameters = first.parameters
        keep_freed_memory(4 * first.parameters * (1 + first.soft_target))
        for link, response in zip(links, [first, *others], strict=True):
            link.set_range(response)
            if self._transport != "grpc":
                self._share_memory(link, response)
        return first

    def _retry_until_ready(self, attempt: Callable[..., _Result], argument: Any) -> _Result:
        """Retry `attempt` while it raises NotReady. Raises ParameterServerUnavailable after the bounded wait."""
        try:
            return self._call.retry(NotReady, attempt, argument)
        except NotReady as error:
            raise ParameterServerUnavailable(f"{error} (not ready within {self._call.unavailable_after:g} s)") from None

    def _share_memory(self, link: ShardClient, response: pb.RegisterResponse) -> None:
        """Share memory with a shard if possible. If it is required, raises NotReady or ParameterServerUnusable."""
        allow_descriptors()
        try:
            link.share_memory(response)
        except NoSharedMemory as why:
            if self._transport != "auto":
                raise self._sharing_error(
                    link,
                    why,
                    f"parameter server {link.address} cannot be reached through shared memory, and bridge is "
                    f"{self._transport}: {why}; run both on one host and in one network namespace, or set "
                    "bridge to auto",
                ) from None
            _log.info("parameter server %s: vectors are sent by gRPC, memory is not shared: %s", link.address, why)
        else:
            asked = self._wire_precision
            unused = "" if asked == "float32" else f", in float32: wire-precision {asked} applies to gRPC only"
            _log.info("parameter server %s: using shared memory for vectors%s", link.address, unused)
        if self._hogwild is not None and self._registration is not None and self._registration.purpose.may_update:
            self._share_live(self._hogwild, link)

    def _share_live(self, hogwild: HogwildUpdates, link: ShardClient) -> None:
        """Map the shard's own vectors for Hogwild updates. Raises NotReady and ParameterServerUnusable."""
        try:
            hogwild.connect(link, self._identity())
        except NoSharedMemory as why:
            sentence = f"parameter server {link.address} does not support bridge hogwild: {why}; set bridge to auto"
            raise self._sharing_error(link, why, sentence) from None
        _log.info("parameter server %s: updating its memory directly, without locks", link.address)

    def _sharing_error(
        self, link: ShardClient, why: NoSharedMemory, permanent: str
    ) -> ParameterServerUnusable | NotReady:
        """Return the error if shared memory is required but missing. `permanent`: the text if a retry does not help."""
        if why.kind is FailureKind.PERMANENT:
            return ParameterServerUnusable(permanent)
        _log.info("parameter server %s: memory cannot be shared yet: %s", link.address, why)
        return NotReady(
            f"parameter server {link.address} did not share its memory, and bridge is {self._transport}: {why}"
        )

    def _check_gradient(self, gradient: FlatVector | None) -> None:
        if gradient is not None and (gradient.shape != (self._parameters,) or gradient.dtype != np.float32):
            raise ValueError(
                f"the gradient must be float32 of shape ({self._parameters},), not {gradient.dtype} {gradient.shape}"
            )
        if gradient is not None and self._received.pulled is None and not self._received.rolled_back:
            raise RuntimeError("there are no parameters yet for a gradient: call pull before the first push")

    def _common_request(self, env_steps: int, want_parameters: bool, withheld: bool) -> pb.PushRequest:
        """Return the fields of a push that do not depend on the shard. Only shard 0 gets steps and metrics."""
        return pb.PushRequest(
            env_steps=env_steps,
            want_parameters=want_parameters,
            withheld=withheld,
            report=self.metrics.take_report(),
            have_edition=self._edition_number,
            statistics=statistics_to_messages(self.metrics.take_statistics()),
        )

    def _pushed(
        self,
        carriers: Sequence[PushAnswer],
        rolled_back: bool,
        join: Callable[[Sequence[Answer], FlatVector | None], Pulled] | None,
    ) -> Pushed:
        """Return the outcome of a push. `join`: reads the parameters from the answers, if they are wanted."""
        responses = [carrier.message for carrier in carriers]
        first = responses[0]
        self._note_progress(first)
        answers: Sequence[Answer] = carriers
        discarded = next((_DISCARDED[r.discard] for r in responses if r.discard), None)
        staleness = max(response.staleness for response in responses)
        if rolled_back:
            discarded, staleness, join = "incarnation", first.staleness, self._received.join
        if join is None:
            self._target.note_generation(carriers)
            return Pushed(discarded, first.global_step, first.version, staleness, None)
        try:
            if first.HasField("pending"):
                answers, waited = self._waits.await_updates(carriers, self._identity())
                if waited is not None:
                    self.metrics.scalar("sync/wait_fraction", waited)
            pulled = join(answers, self._target.refreshed(answers, self._identity()))
        except IncarnationEnded:  # the push was counted, and then rolled back with everything else
            self._register_again()
            pulled = self.pull()
            return Pushed("incarnation", pulled.global_step, pulled.version, staleness, pulled)
        newest = answers[0].message
        self._note_progress(newest)
        return Pushed(discarded, newest.global_step, newest.version, staleness, pulled)

    def _calls_of_push(self, common: pb.PushRequest, gradient: FlatVector | None) -> list[Call]:
        """Return the calls of a push, one for each shard."""
        common.global_step, common.target_generation = self._global_step, self._target.newest
        identity, target = (self._worker_id, self._incarnation), self._target
        return [link.push(*identity, common, gradient, target.held_generation(link.shard)) for link in self._links]

    def _push(
        self,
        common: pb.PushRequest,
        gradient: FlatVector | None,
        calls: Sequence[Call] = (),
        sent: Callable[[], Sequence[PushAnswer]] | None = None,
    ) -> tuple[Sequence[PushAnswer], bool]:
        """Send a push to all shards. Return their answers, and whether a new incarnation has begun.

        In a new incarnation, the gradient is dropped. The steps, episodes and statistics are sent again, unless the
        checkpoint contains them. `calls`: the calls, if they were sent before; then `sent` waits for their answers.
        """
        rolled_back = False
        for _ in range(_MAX_REGISTRATIONS + 1):
            if sent is None:
                calls = self._calls_of_push(common, gradient)
            answers, sent = self._call(calls) if sent is None else sent(), None
            if all(answer.message.discard != pb.DISCARD_INCARNATION for answer in answers):
                return answers, rolled_back
            if len(calls) > 1 and answers[0].message.discard != pb.DISCARD_INCARNATION:
                # Shard 0 may have answered before it was restored: ask again whether its checkpoint has the push.
                answers = self._call(calls[:1])
            if answers[0].message.discard != pb.DISCARD_INCARNATION:
                common = pb.PushRequest()
            rolled_back, common.want_parameters, common.applied, gradient = True, True, False, None
            self._register_again()
        raise self._too_many_registrations()

    def _register_again(self, because: str = "started a new incarnation") -> None:
        assert self._registration is not None, "call register first"
        _log.warning("parameter server %s %s: registering again", self._links[0].address, because)
        self._received.roll_back()
        self.register(self._registration)

    def _note_progress(
        self, answer: pb.RegisterResponse | pb.PushResponse | pb.PullResponse | pb.ReportResponse
    ) -> None:
        """Note the global step and a new edition in an answer of shard 0. Raises TrainingEnded."""
        self._global_step = answer.global_step
        if answer.HasField("edition"):
            self.edition = edition_of(answer.edition)
        if isinstance(answer, pb.PushResponse | pb.ReportResponse):
            self.metrics.wants_picture = answer.wants_picture
        if answer.finished:
            raise TrainingEnded(answer.global_step)

    def _too_many_registrations(self) -> ParameterServerError:
        return ParameterServerError(
            f"parameter server {self._links[0].address} ended the registration of this worker {_MAX_REGISTRATIONS} "
            "times in a row"
        )


def registration_message(registration: Registration, worker_id: str) -> pb.RegisterRequest:
    """Return the request that registers a worker under `worker_id`."""
    return pb.RegisterRequest(
        worker_id=worker_id,
        session_id=registration.session_id,
        environments=registration.environments,
        fingerprint=registration.fingerprint,
        role=pb.Role.Name(registration.purpose.number),
        frame_skip=registration.frame_skip,
        environment=registration.environment,
        host=registration.host,
        server=registration.server,
        client=registration.client,
    )
