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
from relaax.parameters.received import IncarnationEnded, ReceivedState, ReceivedTarget
from relaax.parameters.shard_client import ShardClient
from relaax.parameters.wire import Carrier, statistics_to_messages
from relaax.transport.channel import Target
from relaax.transport.local_socket import FailureKind, NoSharedMemory
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


class ParameterClient(ParameterClientBase):
    """Talk to the shards of a parameter server, by gRPC or through memory.

    `servers`: where they are, shard 0 first; an address alone is a server without TLS and token. `timeout` is the
    deadline of each call and `unavailable_after` how long a server may be away, both in seconds. `way`: vectors go
    through gRPC too ("grpc"), or through memory if a shard shares this host ("auto"), or must ("shared_memory"); with
    "hogwild" a worker updates that memory by itself. `wire_precision`: one of `relaax.parameters.precision.PRECISIONS`,
    to which gradients and parameters that go through gRPC are rounded. Made in the process that uses it: a channel does
    not survive a fork.
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
        self._target = ReceivedTarget(self._links, self._call)
        self._global_step = 0
        self._unsettled: Callable[[], Pushed] | None = None
        self._closed = False

    @property
    def global_step(self) -> int:
        return self._global_step

    @property
    def shares_memory(self) -> bool:
        """Whether vectors go through memory, to and from every shard."""
        return all(link.memory is not None for link in self._links)

    def register(self, registration: Registration) -> Registered:
        self._registration = registration
        self._target.begin(wanted=registration.purpose.may_update)
        self._worker_id = uuid.uuid4().hex
        self._reports.begin()
        request = registration_message(registration, self._worker_id)
        first = self._for_a_while(self._register_with_all, request)
        return Registered(first.parameters, tuple(first.actors), first.global_step)

    def pull(self) -> Pulled:
        self._settle()
        for _ in range(_MAX_REGISTRATIONS):
            carriers = self._call([link.pull(self._asker(), link.version) for link in self._links])
            responses: list[pb.PullResponse] = [carrier.message for carrier in carriers]
            if not any(response.incarnation_ended for response in responses):
                self._see(responses[0].global_step, responses[0].finished)
                with contextlib.suppress(IncarnationEnded):
                    return self._received.take(carriers, self._target.follow(responses, self._asker()))
            self._register_again()
        raise self._no_end_of_incarnations()

    def push(
        self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True, *, withheld: bool = False
    ) -> Pushed:
        self._settle()
        self._check(gradient)
        if gradient is not None and self._received.rolled_back:  # by a flush: it goes with an earlier incarnation
            return self._pushed(self._push(self._common(env_steps, True, False), None)[0], True, None)
        # What is not finite the shard discards and counts, whoever would apply it.
        if self._hogwild is not None and gradient is not None and is_finite(gradient):
            return self._push_applied(self._hogwild, gradient, env_steps, want_parameters)
        answered = self._push(self._common(env_steps, want_parameters, withheld), gradient)
        return self._pushed(*answered, self._received.take if want_parameters else None)

    def push_later(
        self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True, *, withheld: bool = False
    ) -> Callable[[], Pushed]:
        self._settle()
        if self._hogwild is not None or self._received.rolled_back:
            return super().push_later(gradient, env_steps, want_parameters, withheld=withheld)
        self._check(gradient)
        common = self._common(env_steps, want_parameters, withheld)
        calls = self._parts(common, gradient)
        answers = self._call.begin(calls)

        def pushed() -> Pushed:
            self._unsettled = None
            answered = self._push(common, gradient, calls, answers)
            return self._pushed(*answered, self._received.take if want_parameters else None)

        self._unsettled = cache(pushed)
        return self._unsettled

    def _settle(self) -> None:
        """Wait for the answer to what `push_later` sent, if nobody has yet."""
        if self._unsettled is not None:
            self._unsettled()

    def _push_applied(
        self, hogwild: HogwildUpdates, gradient: FlatVector, env_steps: int, want_parameters: bool
    ) -> Pushed:
        """Apply a gradient to the shards' memory, then tell them: steps, metrics and statistics count as always."""
        if not hogwild.is_connected(self._links):
            try:
                self._for_a_while(self._connect_again, hogwild)
            except NoSharedMemory as why:
                self._register_again(f"does not share its memory any more ({why})")
                return replace(self.push(None, env_steps), discarded="incarnation")
        parameters = hogwild.apply(gradient, self._links)
        common = self._common(env_steps, want_parameters, withheld=False)
        common.applied = True
        carriers, rolled_back = self._push(common, None)
        if not rolled_back:
            hogwild.learning_rate = carriers[0].message.learning_rate
        take = partial(self._received.own, parameters) if want_parameters else None
        return self._pushed(carriers, rolled_back, take)

    def _connect_again(self, hogwild: HogwildUpdates) -> None:
        """Share memory again after it was lost. Raises NotReady, and NoSharedMemory if only registering again helps."""
        for link in self._links:
            try:
                hogwild.connect_again(link, self._asker())
            except NoSharedMemory as why:
                if why.kind is FailureKind.TEMPORARY:
                    raise self._must_share(link, why, "") from None
                raise

    def _asker(self) -> pb.PullRequest:
        return pb.PullRequest(
            worker_id=self._worker_id, incarnation=self._incarnation, target_generation=self._target.newest
        )

    def gradient_memory(self) -> FlatVector | None:
        memory = self._links[0].memory
        return memory.gradient if len(self._links) == 1 and memory is not None else None

    def flush(self) -> None:
        if not self._reports.due():
            return
        self._settle()
        for _ in range(_MAX_REGISTRATIONS):
            request = self._reports.next(self._worker_id)
            if request is None:
                return
            response = self._call([self._links[0].report(request)])[0]
            if not response.incarnation_ended:
                self._reports.answered()
                self._see(response.global_step, response.finished)
                return
            self._register_again()
        raise self._no_end_of_incarnations()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._incarnation:
            goodbye = pb.LeaveRequest(worker_id=self._worker_id)
            farewell = pb.LeaveRequest(worker_id=self._worker_id, report=self._reports.last())
            answers = [link.leave(goodbye if link.shard else farewell, 3.0) for link in self._links]
            for answer in answers:
                with contextlib.suppress(grpc.RpcError, grpc.FutureCancelledError):
                    if answer is not None:
                        answer.result()
        for link in self._links:
            link.close()

    def _register_with_all(self, request: pb.RegisterRequest) -> pb.RegisterResponse:
        """Register with shard 0, which makes the model, then with the others. Raises NotReady.

        ParameterServerError if a shard is not the one that the order of addresses says.
        """
        links = self._links
        first: pb.RegisterResponse = self._call([links[0].register(request)])[0]
        self._incarnation = first.incarnation
        self._see(first.global_step, first.finished)
        links[0].check_place(first, len(links))
        others = self._call([link.register(request) for link in links[1:]]) if len(links) > 1 else []
        for link, response in zip(links[1:], others, strict=True):
            link.check_place(response, len(links))
        incarnations = [first.incarnation, *(response.incarnation for response in others)]
        if len(set(incarnations)) > 1:
            told = ", ".join(map(str, incarnations))
            raise NotReady(f"the shards of the parameter server did not agree: their incarnations are {told}")
        if self._parameters and self._parameters != first.parameters:
            raise ParameterServerError(
                f"parameter server {links[0].address} has {first.parameters} parameters now, it had {self._parameters}"
            )
        self._parameters = first.parameters
        keep_freed_memory(4 * first.parameters)
        for link, response in zip(links, [first, *others], strict=True):
            link.take_range(response)
            if self._transport != "grpc":
                self._share_memory(link, response)
        return first

    def _for_a_while(self, attempt: Callable[..., _Result], argument: Any) -> _Result:
        """Retry `attempt` while it raises NotReady. Raises ParameterServerUnavailable after the bounded wait."""
        try:
            return self._call.retry(NotReady, attempt, argument)
        except NotReady as error:
            raise ParameterServerUnavailable(f"{error} (tried for {self._call.unavailable_after:g} s)") from None

    def _share_memory(self, link: ShardClient, response: pb.RegisterResponse) -> None:
        """Share memory with a shard, if possible. Raises NotReady and ParameterServerUnusable if it is required."""
        allow_descriptors()
        try:
            link.share_memory(response)
        except NoSharedMemory as why:
            if self._transport != "auto":
                raise self._must_share(
                    link,
                    why,
                    f"parameter server {link.address} cannot be reached through memory, and bridge is "
                    f"{self._transport}: {why}; run both on one host and in one network namespace, or set bridge to "
                    "auto",
                ) from None
            _log.info("parameter server %s: by gRPC, memory is not shared: %s", link.address, why)
        else:
            asked = self._wire_precision
            unused = "" if asked == "float32" else f", in float32: wire-precision {asked} is for a wire"
            _log.info("parameter server %s: by shared memory%s", link.address, unused)
        if self._hogwild is not None and self._registration is not None and self._registration.purpose.may_update:
            self._share_live(self._hogwild, link)

    def _share_live(self, hogwild: HogwildUpdates, link: ShardClient) -> None:
        """Share the shard's own vectors for Hogwild updates. Raises NotReady and ParameterServerUnusable."""
        try:
            hogwild.connect(link, self._asker())
        except NoSharedMemory as why:
            sentence = f"parameter server {link.address} cannot do with bridge hogwild: {why}; set bridge to auto"
            raise self._must_share(link, why, sentence) from None
        _log.info("parameter server %s: updated in that memory, without locks", link.address)

    def _must_share(self, link: ShardClient, why: NoSharedMemory, for_good: str) -> ParameterServerUnusable | NotReady:
        """Return the error if memory is required. `for_good`: the reason if it is never available."""
        if why.kind is FailureKind.PERMANENT:
            return ParameterServerUnusable(for_good)
        _log.info("parameter server %s: memory cannot be shared yet: %s", link.address, why)
        return NotReady(
            f"parameter server {link.address} did not share its memory, and bridge is {self._transport}: {why}"
        )

    def _check(self, gradient: FlatVector | None) -> None:
        if gradient is not None and (gradient.shape != (self._parameters,) or gradient.dtype != np.float32):
            raise ValueError(
                f"a gradient is float32 of shape ({self._parameters},), not {gradient.dtype} {gradient.shape}"
            )
        if gradient is not None and self._received.pulled is None and not self._received.rolled_back:
            raise RuntimeError("a gradient is computed on parameters: pull before the first push")

    def _common(self, env_steps: int, want_parameters: bool, withheld: bool) -> pb.PushRequest:
        """Return what a push tells every shard, and what it tells shard 0 on behalf of all."""
        return pb.PushRequest(
            env_steps=env_steps,
            want_parameters=want_parameters,
            withheld=withheld,
            report=self.metrics.take(),
            statistics=statistics_to_messages(self.metrics.take_statistics()),
        )

    def _pushed(
        self,
        carriers: Sequence[PushAnswer],
        rolled_back: bool,
        take: Callable[[Sequence[PushAnswer], FlatVector | None], Pulled] | None,
    ) -> Pushed:
        """`take`: reads the parameters from the answers, if they are wanted."""
        responses = [carrier.message for carrier in carriers]
        first = responses[0]
        self._see(first.global_step, first.finished)
        discarded = next((_DISCARDED[r.discard] for r in responses if r.discard), None)
        staleness = max(response.staleness for response in responses)
        if rolled_back:
            discarded, staleness, take = "incarnation", first.staleness, self._received.take
        if take is None:
            self._target.hear(responses)
            return Pushed(discarded, first.global_step, first.version, staleness, None)
        try:
            pulled = take(carriers, self._target.follow(responses, self._asker()))
        except IncarnationEnded:  # after the push was counted, which is now rolled back with all the rest
            self._register_again()
            pulled = self.pull()
            return Pushed("incarnation", pulled.global_step, pulled.version, staleness, pulled)
        return Pushed(discarded, first.global_step, first.version, staleness, pulled)

    def _parts(self, common: pb.PushRequest, gradient: FlatVector | None) -> list[Call]:
        """Return the parts of a push, one for each shard."""
        common.global_step, common.target_generation = self._global_step, self._target.newest
        return [link.push(self._worker_id, self._incarnation, common, gradient) for link in self._links]

    def _push(
        self,
        common: pb.PushRequest,
        gradient: FlatVector | None,
        calls: Sequence[Call] = (),
        sent: Callable[[], Sequence[PushAnswer]] | None = None,
    ) -> tuple[Sequence[PushAnswer], bool]:
        """Return the answers to all parts, and whether the gradient went with an earlier incarnation.

        Then the new incarnation is told of the push's steps, episodes and statistics, unless it has them already.
        `calls`: the parts if they are sent already; `sent` waits for the answers to them.
        """
        rolled_back = False
        for _ in range(_MAX_REGISTRATIONS + 1):
            if sent is None:
                calls = self._parts(common, gradient)
            answers, sent = self._call(calls) if sent is None else sent(), None
            if all(answer.message.discard != pb.DISCARD_INCARNATION for answer in answers):
                return answers, rolled_back
            if len(calls) > 1 and answers[0].message.discard != pb.DISCARD_INCARNATION:
                # Shard 0 may have answered before all returned to a checkpoint: does the checkpoint hold its part?
                answers = self._call(calls[:1])
            if answers[0].message.discard != pb.DISCARD_INCARNATION:
                common = pb.PushRequest()
            rolled_back, common.want_parameters, common.applied, gradient = True, True, False, None
            self._register_again()
        raise self._no_end_of_incarnations()

    def _register_again(self, because: str = "has begun a new incarnation") -> None:
        assert self._registration is not None, "register first"
        _log.warning("parameter server %s %s: registering again", self._links[0].address, because)
        self._received.roll_back()
        self.register(self._registration)

    def _see(self, global_step: int, finished: bool) -> None:
        self._global_step = global_step
        if finished:
            raise TrainingEnded(global_step)

    def _no_end_of_incarnations(self) -> ParameterServerError:
        return ParameterServerError(
            f"parameter server {self._links[0].address} forgot this worker {_MAX_REGISTRATIONS} times running"
        )


def registration_message(registration: Registration, worker_id: str) -> pb.RegisterRequest:
    """Return the question of a worker that wants to take part under this name."""
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
