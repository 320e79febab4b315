"""A worker process, which serves one connection from its hello to its end."""

from __future__ import annotations

import contextlib
import logging
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from relaax import __version__, rlx
from relaax.algorithm_base import AgentBase, AgentContext
from relaax.configuration import RlxServerSection
from relaax.hosting.fingerprint import fingerprint
from relaax.hosting.gradient_filters import agent_parameters
from relaax.metrics.system import Sampler
from relaax.parameters.interfaces import (
    EXPLOIT,
    TRAIN,
    MetricsRecorder,
    ParameterClientBase,
    ParameterServerError,
    ParameterServerUnauthenticated,
    ParameterServerUnavailable,
    ParameterServerUnusable,
    Registration,
    TrainingEnded,
)
from relaax.replay.interfaces import ReplayError, ReplayUnavailable
from relaax.rlx.messages import MAX_ENVIRONMENTS
from relaax.server.address import served_at
from relaax.server.command.logs import is_exception_unsafe
from relaax.server.rlx_server.child_process import EXIT_DONE, EXIT_FAILED, EXIT_TRAINING_FINISHED, GROUP_SIGNALS
from relaax.server.rlx_server.clients.accounts import NO_TLS, OPEN, Authentication, Identity
from relaax.server.rlx_server.clients.claims import REVOKED
from relaax.server.rlx_server.clients.meters import Meter, Meters
from relaax.server.rlx_server.connection.channel import PeerGone
from relaax.server.rlx_server.connection.peer import Peer, PeerLeft, PeerSilent, Revoked, ServerStopping, SlotTaken
from relaax.server.rlx_server.worker_reports import FAILED, GREETED, PROVEN, WorkerReports
from relaax.server.rlx_server.workers.client_entry import ClientEntrance, called
from relaax.server.rlx_server.workers.plan import WorkerPlan
from relaax.server.rlx_server.workers.session import AgentSession, WorkerMetrics, agent_failure, tell_metrics
from relaax.transport.process_resources import share_one_arena

_log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
HOLD_SECONDS = 30.0
"""Maximum time to hold an agent's error while its client steps its environments."""
NO_INIT = "the client has sent no init since its welcome, and others wait for its place: please reconnect"
LEAVES = "this server is about to stop: reconnect, to another one if there are several"
ENDS = "reconnect: this server ends connections after"
FINISHED = "training has reached max_global_step"
INTERRUPT = signal.SIGUSR1
"""Signal of a worker to itself: its heartbeat has noticed that it must end while it is busy."""
MAX_RANGES = 8
_Result = TypeVar("_Result")
_STEPS = (rlx.Step, rlx.Reset)
_ASKS = (rlx.Init, rlx.Step, rlx.Reset, rlx.Ping, rlx.Bye)  # a client that has sent one of these reads, or has gone


class Worker:
    """Serve one connection, and report by `reports` whether its client has been admitted.

    `load` returns the plan, and is called once the claim of the client is granted: it may take seconds of importing,
    which a worker that only refuses saves, and which do not count toward the client's deadline.
    """

    def __init__(
        self,
        settings: RlxServerSection,
        load: Callable[[], WorkerPlan],
        sock: socket.socket,
        lifeline: int,
        reports: WorkerReports,
        meters: Meters,
        authentication: Authentication = OPEN,
    ) -> None:
        self._settings = settings
        self._authentication = authentication
        self._meters = meters
        self._load = load
        self._limits = rlx.Limits(
            max_frame_bytes=int(settings.max_frame_megabytes * 2**20),
            idle_timeout_seconds=settings.idle_timeout,
            heartbeat_seconds=settings.heartbeat,
            max_environments=min(settings.max_environments, MAX_ENVIRONMENTS),
        )
        self._peer = Peer(sock, rlx.ServerConnection(self._limits), lifeline, authentication.origins)
        self._reports = reports
        self._entrance = ClientEntrance(self._peer, authentication, reports, lifeline)
        self._server = served_at(sock)
        self._meter: Meter
        self._environments = 0
        self._works = False
        self._source = Path()  # of the algorithm, once it is loaded

    def run(self, refusal: str | None, training_finished: bool) -> int:
        """Serve as all that this process does (see `serve`)."""
        signal.set_wakeup_fd(-1)
        for number in (*GROUP_SIGNALS, signal.SIGHUP):  # SIGHUP makes the server read a file again
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        share_one_arena()
        return self.serve(refusal, training_finished)

    def serve(self, refusal: str | None, training_finished: bool) -> int:
        """Serve until the connection ends. Returns the process's exit code.

        `refusal`: why there is no room, if so. `training_finished`: whether another worker has already reported that.
        """
        if threading.current_thread() is threading.main_thread():
            signal.signal(INTERRUPT, self._on_interrupt)
            self._peer.interrupt = partial(signal.pthread_kill, threading.get_ident(), INTERRUPT)
        try:
            return self._serve(refusal, training_finished)
        except PeerGone:
            _log.info("the client has gone")
        except PeerLeft:
            _log.info("the client has left before it was answered")
        except PeerSilent:
            self._peer.refuse(rlx.ErrorCode.TIMEOUT, "nothing was received from the client for too long")
        except ServerStopping:
            self._peer.refuse(rlx.ErrorCode.UNAVAILABLE, "the server is stopping", RETRY_SECONDS)
        except SlotTaken:
            _log.info("the client has sent no init since its welcome, and others wait")
            self._peer.refuse(rlx.ErrorCode.OVERLOADED, NO_INIT, RETRY_SECONDS)
        except Revoked:
            _log.warning("the client's token is no longer valid")
            self._peer.refuse(rlx.ErrorCode.UNAUTHENTICATED, REVOKED)
        except rlx.RemoteProtocolError as error:
            self._reports.say(FAILED)
            tls = self._peer.begins_with_tls and self._authentication.tls is None
            wrong = (rlx.ErrorCode.MALFORMED, NO_TLS) if tls else (error.code, error.message)
            _log.warning("the client broke the protocol: %s", wrong[1])
            self._peer.refuse(*wrong)
        except TrainingEnded as end:
            self._finish(end.global_step)
            return EXIT_TRAINING_FINISHED
        except (ParameterServerUnavailable, ReplayUnavailable) as error:
            _log.warning("%s", error)
            self._peer.refuse(rlx.ErrorCode.UNAVAILABLE, str(error), RETRY_SECONDS)
        except (ParameterServerUnauthenticated, ParameterServerUnusable, ReplayError) as error:
            _log.error("%s", error)
            what = "replay memory" if isinstance(error, ReplayError) else "parameter server"
            self._peer.refuse(rlx.ErrorCode.AGENT_FAILED, f"this server cannot use its {what}: {error}")
        except ParameterServerError as error:
            _log.warning("the parameter server refused: %s", error)
            self._peer.refuse(rlx.ErrorCode.SPACE_MISMATCH, str(error))
        except Exception as error:
            _log.exception("the agent failed")
            self._peer.refuse(rlx.ErrorCode.AGENT_FAILED, agent_failure(error, self._source))
            return EXIT_FAILED
        finally:
            self._reports.close()  # closing runs at the client's pace, and holds no place
            self._peer.close()
        return EXIT_DONE

    def _on_interrupt(self, _number: int, frame: FrameType | None) -> None:
        if self._works and not is_exception_unsafe(frame):  # the heartbeat interrupts again in a second
            self._peer.raise_end()

    def _work(self, what: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call `what`, which may take long: errors that the heartbeat notices are raised in it."""
        self._works = True
        try:
            return what(*arguments)
        finally:
            self._works = False

    def _serve(self, refusal: str | None, training_finished: bool) -> int:
        let_in = self._entrance.let_in(self._settings.handshake_timeout)
        if let_in is None:
            return EXIT_DONE
        hello, who = let_in
        if training_finished:
            self._finish(0)
            return EXIT_TRAINING_FINISHED
        granted = self._entrance.granted(hello, who, refusal, self._settings.only_acts)
        if granted is None:
            return EXIT_DONE
        self._meter = self._peer.meter = self._meters.meter(*granted)
        self._environments = hello.environments
        self._peer.start_heartbeat(self._limits.heartbeat_seconds)
        plan = self._work(self._load)
        self._source = plan.algorithm.source
        refused = plan.algorithm.refusal(plan.config, hello.observation_space, hello.action_space)
        if refused is not None:
            _log.info("refused %s of %s: %s", hello.environment, called(hello, who), refused.sentence)
            code = rlx.ErrorCode.SPACE_MISMATCH if refused.supported else rlx.ErrorCode.UNSUPPORTED_SPACE
            self._peer.refuse(code, refused.sentence)
            return EXIT_DONE
        self._reports.admitted()
        sampler = Sampler()
        self._peer.beat = sampler.beat
        from relaax.nn.devices import use_device  # not at module level: a server that spawns loads no network

        use_device(plan.device)
        client = plan.make_client()
        try:
            return self._train(plan, hello, who, client, sampler)
        finally:
            client.close()

    def _train(
        self, plan: WorkerPlan, hello: rlx.Hello, who: Identity, client: ParameterClientBase, sampler: Sampler
    ) -> int:
        exploit = hello.mode == rlx.Mode.EXPLOIT
        session_id = hello.session_id or secrets.token_hex(16)
        registered = self._work(
            client.register,
            Registration(
                fingerprint=fingerprint(plan.algorithm.name, plan.config, hello.observation_space, hello.action_space),
                session_id=session_id,
                environments=hello.environments,
                purpose=EXPLOIT if exploit else TRAIN,
                frame_skip=hello.frame_skip,
                environment=hello.environment,
                host=hello.host,
                server=self._server,
                client=who.name,
            ),
        )
        guest, actors = called(hello, who), _ranges(registered.actors)
        _log.info("%s of %s: actors [%s]", hello.environment or "an environment", guest, actors)
        limits = self._peer.connection.limits  # reduced to what the spaces of the hello need
        self._peer.answer(rlx.Welcome(session_id, plan.algorithm.name, limits, server_version=__version__))
        init = self._proof(client.metrics)
        if init is None:
            return EXIT_DONE
        with contextlib.ExitStack() as ended:
            replay = self._work(plan.replay_of, hello, session_id, registered.actors, who.name)
            if replay is not None:
                ended.callback(replay.close)
            context = AgentContext(
                observation_space=hello.observation_space,
                action_space=hello.action_space,
                environments=hello.environments,
                actors=registered.actors,
                seed=plan.config.seed,
                exploit=exploit,
                parameters=agent_parameters(client, plan.config),
                metrics=client.metrics,
                replay=replay,
                client=guest,
            )
            agent = self._work(plan.algorithm.Agent, plan.config, context)
            ended.callback(agent.close)
            measures = WorkerMetrics(client.metrics, sampler)
            ended.callback(measures.tell)
            session = AgentSession(self._peer.connection, agent, client.metrics)
            return self._loop(init, session, agent, measures, client if exploit else None)

    def _proof(self, metrics: MetricsRecorder) -> rlx.Init | None:
        """Return the first init, until which the client has no agent and may lose its place; None if it leaves."""
        self._reports.say(GREETED)
        self._peer.watch_reports(self._reports.descriptor)
        while True:
            message = self._receive(0)
            if isinstance(message, rlx.Init):
                self._peer.may_lose_place = False
                self._reports.say(PROVEN)
                return message
            if isinstance(message, rlx.Bye):
                return None
            if isinstance(message, rlx.Metrics):
                tell_metrics(message, metrics)
            elif isinstance(message, rlx.Ping):
                self._peer.send(rlx.Pong(message.nonce))

    def _receive(self, environments: int) -> rlx.Message:
        """Return the next message once the client's quota allows it; a step counts for each of `environments`.

        Until then the client gets no answer, and so sends no more; the heartbeat keeps the connection alive.
        """
        message = self._peer.receive(self._limits.idle_timeout_seconds)
        steps = environments if type(message) in _STEPS else 0
        wait = self._meter.pay(steps, self._peer.transferred)
        if wait:
            self._peer.throttled = True
            self._work(self._meter.pause, wait)
            self._peer.throttled = False
        return message

    def _loop(
        self,
        message: rlx.Message,
        session: AgentSession,
        agent: AgentBase,
        measures: WorkerMetrics,
        to_flush: ParameterClientBase | None,
    ) -> int:
        """Answer `message` and all later ones. `to_flush`: the client, if no push will carry the collected metrics."""
        timeout = self._settings.timeout
        ends_at = time.monotonic() + timeout if timeout else float("inf")
        learns = type(agent).learn is not AgentBase.learn
        environments = self._environments
        while not isinstance(message, rlx.Bye):
            answer = self._work(session.answer, message)
            if answer is not None:
                self._peer.answer(answer)
                measures.answered(message, answer, self._peer.read_at, time.monotonic())
            if learns and isinstance(answer, rlx.Actions):
                self._meanwhile(agent.learn)
            if to_flush is not None:
                self._meanwhile(to_flush.flush)
            if session.episode_ended and (self._meter.leaves or time.monotonic() > ends_at):
                self._peer.refuse(rlx.ErrorCode.REBALANCING, LEAVES if self._meter.leaves else f"{ENDS} {timeout:g} s")
                break
            message = self._receive(environments)
        return EXIT_DONE

    def _meanwhile(self, work: Callable[[], None]) -> None:
        """Do `work` while the environments step; hold its errors until the client asks for more, or is silent for long.

        An earlier error would be lost: the client is stepping, and what it sends next would reset the closed socket.
        """
        try:
            self._work(work)
        except (PeerGone, PeerLeft, rlx.RemoteProtocolError, ServerStopping, Revoked):
            raise
        except Exception:
            until = time.monotonic() + min(HOLD_SECONDS, self._limits.idle_timeout_seconds)
            with contextlib.suppress(PeerGone, PeerSilent, ServerStopping, rlx.RemoteProtocolError):
                while not isinstance(self._peer.receive(max(0.0, until - time.monotonic())), _ASKS):
                    pass
            raise

    def _finish(self, global_step: int) -> None:
        try:
            self._peer.send(rlx.TrainingFinished(FINISHED, global_step))
        except (PeerGone, rlx.LocalProtocolError):
            _log.info("the client has gone before it could hear that training has finished")


def _ranges(numbers: Iterable[int]) -> str:
    """Format ascending numbers as ranges: 0-3, 7, 9-12. Numbers beyond `MAX_RANGES` ranges are only counted."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    said = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found[:MAX_RANGES])
    more = sum(last - first + 1 for first, last in found[MAX_RANGES:])
    return f"{said} and {more} more" if more else said
