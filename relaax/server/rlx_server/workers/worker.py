"""A worker process, which serves one connection from its hello to its end."""

from __future__ import annotations

import contextlib
import logging
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from relaax import __version__, rlx
from relaax.algorithm_base import AgentBase, AgentContext, InvalidObservation
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
from relaax.server.rlx_server.connection.channel import PeerDisconnected
from relaax.server.rlx_server.connection.peer import (
    Peer,
    PeerSentBye,
    PeerTimeout,
    PlaceReclaimed,
    Revoked,
    ServerStopping,
)
from relaax.server.rlx_server.worker_reports import FAILED, PROVEN, WELCOMED, WorkerReports
from relaax.server.rlx_server.workers.client_entry import ClientAdmission, client_label
from relaax.server.rlx_server.workers.episode_parameters import EpisodeParameters
from relaax.server.rlx_server.workers.own_core import claim_core
from relaax.server.rlx_server.workers.plan import WorkerPlan
from relaax.server.rlx_server.workers.session import (
    AgentSession,
    WorkerMetrics,
    agent_failure,
    env_steps_of,
    record_client_metrics,
)
from relaax.transport.process_resources import share_one_arena

if TYPE_CHECKING:
    from relaax.demonstrations.recording import Recording

_log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
HOLD_SECONDS = 30.0
"""Maximum time to delay an agent's error while its client steps its environments."""
NO_INIT = "the client sent no init after its welcome, and other clients wait for its place: reconnect"
STOPPING = "this server is about to stop: reconnect, to another server if there are several"
RENAMED = "reconnect: the parameters of the environments have other names"
TIME_LIMIT = "reconnect: this server ends connections after"
FINISHED = "training has reached max_global_step"
INTERRUPT = signal.SIGUSR1
"""Signal from the heartbeat to the main thread of a busy worker that must end."""
MAX_RANGES = 8
_Result = TypeVar("_Result")
_REQUESTS = (rlx.Init, rlx.Step, rlx.Reset, rlx.Ping, rlx.Bye)  # these prove that the client reads, or has disconnected


class Worker:
    """A worker of one connection, which reports the state of its client to the server with `reports`.

    `load` returns the plan. It is called after the client's claim is granted, because its imports may take seconds.
    So workers that refuse their client save this time, and it does not count toward the client's deadline.
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
        self._admission = ClientAdmission(self._peer, authentication, reports, lifeline)
        self._server = served_at(sock)
        self._meter: Meter
        self._environments = 0
        self._is_interruptible = False
        self._has_process = False
        self._core: socket.socket | None = None
        self._source = Path()  # folder of the algorithm, once it is loaded

    def run(self, refusal: str | None, training_finished: bool) -> int:
        """Prepare the signals of this process, then serve (see `serve`)."""
        signal.set_wakeup_fd(-1)
        for number in (*GROUP_SIGNALS, signal.SIGHUP):  # SIGHUP makes the server reload its file of clients
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        share_one_arena()
        self._has_process = True
        return self.serve(refusal, training_finished)

    def serve(self, refusal: str | None, training_finished: bool) -> int:
        """Serve until the connection ends. Return the exit code of the process.

        `refusal`: why there is no room, or None. `training_finished`: whether another worker has reported this.
        """
        if threading.current_thread() is threading.main_thread():
            signal.signal(INTERRUPT, self._on_interrupt)
            self._peer.interrupt = partial(signal.pthread_kill, threading.get_ident(), INTERRUPT)
        try:
            return self._serve(refusal, training_finished)
        except PeerDisconnected:
            _log.info("the client disconnected without a bye")
        except PeerSentBye:
            _log.info("the client sent a bye before its answer")
        except PeerTimeout:
            self._peer.refuse(rlx.ErrorCode.TIMEOUT, "the server received no message from the client in time")
        except ServerStopping:
            self._peer.refuse(rlx.ErrorCode.UNAVAILABLE, "the RLX server is stopping", RETRY_SECONDS)
        except PlaceReclaimed:
            _log.info("evicted the client: it sent no init after its welcome, and others wait")
            self._peer.refuse(rlx.ErrorCode.OVERLOADED, NO_INIT, RETRY_SECONDS)
        except Revoked:
            _log.warning("disconnected the client: its token is no longer valid")
            self._peer.refuse(rlx.ErrorCode.UNAUTHENTICATED, REVOKED)
        except rlx.RemoteProtocolError as error:
            self._reports.send(FAILED)
            tls = self._peer.begins_with_tls and self._authentication.tls is None
            wrong = (rlx.ErrorCode.MALFORMED, NO_TLS) if tls else (error.code, error.message)
            _log.warning("the client broke the protocol: %s", wrong[1])
            self._peer.refuse(*wrong)
        except TrainingEnded as end:
            self._finish(end.global_step)
            return EXIT_TRAINING_FINISHED
        except (ParameterServerUnavailable, ReplayUnavailable) as error:
            _log.warning("disconnected the client, as a server is unavailable: %s", error)
            self._peer.refuse(rlx.ErrorCode.UNAVAILABLE, str(error), RETRY_SECONDS)
        except (ParameterServerUnauthenticated, ParameterServerUnusable, ReplayError) as error:
            _log.error("disconnected the client, as a server is unusable: %s", error)
            what = "replay memory" if isinstance(error, ReplayError) else "parameter server"
            self._peer.refuse(rlx.ErrorCode.AGENT_FAILED, f"this server cannot use its {what}: {error}")
        except ParameterServerError as error:
            _log.warning("the parameter server refused this worker: %s", error)
            self._peer.refuse(rlx.ErrorCode.SPACE_MISMATCH, str(error))
        except InvalidObservation as error:
            self._reports.send(FAILED)
            _log.warning("disconnected the client: %s", error)
            self._peer.refuse(rlx.ErrorCode.INVALID_VALUE, str(error))
        except Exception as error:
            _log.exception("the agent of this worker failed")
            self._peer.refuse(rlx.ErrorCode.AGENT_FAILED, agent_failure(error, self._source))
            return EXIT_FAILED
        finally:
            self._peer.stop_heartbeat()  # it uses the report sockets too
            self._reports.close()  # before `close`, which may be slow: this worker needs no place meanwhile
            self._peer.close()
        return EXIT_DONE

    def _on_interrupt(self, _number: int, frame: FrameType | None) -> None:
        # If an exception is unsafe here, the heartbeat interrupts again in a second.
        if self._is_interruptible and not is_exception_unsafe(frame):
            self._peer.raise_pending_error()

    def _run_interruptibly(self, what: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call `what`, which may be slow. Errors that the heartbeat detects interrupt it."""
        self._is_interruptible = True
        try:
            return what(*arguments)
        finally:
            self._is_interruptible = False

    def _serve(self, refusal: str | None, training_finished: bool) -> int:
        authenticated = self._admission.authenticate(self._settings.handshake_timeout)
        if authenticated is None:
            return EXIT_DONE
        hello, who = authenticated
        if training_finished:
            self._finish(0)
            return EXIT_TRAINING_FINISHED
        granted = self._admission.request_grant(hello, who, refusal, self._settings.only_acts)
        if granted is None:
            return EXIT_DONE
        self._meter = self._peer.meter = self._meters.meter(*granted)
        self._environments = hello.environments
        self._peer.start_heartbeat(self._limits.heartbeat_seconds)
        plan = self._run_interruptibly(self._load)
        self._source = plan.algorithm.source
        refused = plan.algorithm.refusal(plan.config, hello.observation_space, hello.action_space)
        if refused is not None:
            _log.info(
                "refused the spaces of %s from %s: %s", hello.environment, client_label(hello, who), refused.sentence
            )
            code = rlx.ErrorCode.SPACE_MISMATCH if refused.supported else rlx.ErrorCode.UNSUPPORTED_SPACE
            self._peer.refuse(code, refused.sentence)
            return EXIT_DONE
        self._reports.admitted()
        sampler = Sampler()
        self._peer.beat = sampler.beat
        # Not at module level: a server that spawns loads no network.
        from relaax.nn.devices import CPU, use_device

        is_shared = plan.shares_inference(hello.mode)
        use_device(CPU if is_shared else plan.device)
        if self._has_process and self._settings.pin_workers and plan.device == CPU and not is_shared:
            self._core = claim_core()
        client = plan.make_client()
        try:
            return self._serve_agent(plan, hello, who, client, sampler)
        finally:
            client.close()

    def _serve_agent(
        self, plan: WorkerPlan, hello: rlx.Hello, who: Identity, client: ParameterClientBase, sampler: Sampler
    ) -> int:
        exploit = hello.mode == rlx.Mode.EXPLOIT
        session_id = hello.session_id or secrets.token_hex(16)
        described = fingerprint(plan.algorithm.name, plan.config, hello.observation_space, hello.action_space)
        registered = self._run_interruptibly(
            client.register,
            Registration(
                fingerprint=described,
                session_id=session_id,
                environments=hello.environments,
                purpose=EXPLOIT if exploit else TRAIN,
                frame_skip=hello.frame_skip,
                environment=hello.environment,
                host=hello.host,
                server=self._server,
                client=who.name,
                wants_target=not plan.algorithm.learns_separately(plan.config),
                wants_parameters=not plan.shares_inference(hello.mode),
            ),
        )
        if plan.shares_inference(hello.mode):
            self._share_actors(plan, described, client.metrics)
        label, actors = client_label(hello, who), _ranges(registered.actors)
        _log.info("%s of %s: actors [%s]", hello.environment or "an environment", label, actors)
        limits = self._peer.connection.limits  # reduced to what the spaces of the hello need
        out_of_step = hello.out_of_step and bool(plan.algorithm.Agent.out_of_step)
        if hello.out_of_step and not out_of_step:
            _log.info("%s needs environments out of step; the algorithm %s has none", label, plan.algorithm.name)
        chosen_actions = hello.chosen_actions and bool(plan.algorithm.Agent.chosen_actions)
        parameters = None
        if hello.environment_parameters:
            joined, seed = registered.global_step, plan.config.seed
            parameters = EpisodeParameters(lambda: client.edition, seed, joined, registered.actors)
        elif client.edition is not None:
            _log.warning("%s does not use the parameters of its environments: %s", label, client.edition)
        if hello.chosen_actions and not chosen_actions:
            _log.info("%s chooses actions; the algorithm %s does not learn from them", label, plan.algorithm.name)
        self._peer.answer(
            rlx.Welcome(
                session_id,
                plan.algorithm.name,
                limits,
                server_version=__version__,
                out_of_step=out_of_step,
                chosen_actions=chosen_actions,
                environment_parameters=parameters is not None,
                parameter_names=parameters.names if parameters else (),
                parameters=parameters.first() if parameters else None,
            )
        )
        init = self._await_init(client.metrics)
        if init is None:
            return EXIT_DONE
        with contextlib.ExitStack() as ended:
            replay = self._run_interruptibly(plan.replay_of, hello, session_id, registered.actors, who.name)
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
                client=label,
                out_of_step=out_of_step,
            )
            opponent_of: Callable[[int], str] | None = None
            agent: AgentBase
            if exploit and plan.opponents is not None:
                agent = opponent = plan.opponents.agent(
                    plan.algorithm.Agent,
                    plan.config,
                    context,
                    described,
                    registered.global_step,
                    lambda: client.global_step,
                )
                opponent_of = opponent.checkpoint_of
                _log.info("%s plays with older checkpoints", label)
            else:
                agent = self._run_interruptibly(plan.algorithm.Agent, plan.config, context)
            ended.callback(agent.close)
            measures = WorkerMetrics(client.metrics, sampler)
            ended.callback(measures.report)
            recording = None if plan.settings.record is None else _recording(Path(plan.settings.record), hello)
            if recording is not None:
                ended.callback(recording.files.write)
            session = AgentSession(
                self._peer.connection,
                agent,
                client.metrics,
                parameters=parameters,
                recorder=recording.recorder if recording else None,
                opponent_of=opponent_of,
            )
            between = [*([client.flush] if exploit else []), *([recording.files.write_if_due] if recording else [])]
            return self._answer_messages(init, session, agent, measures, between)

    def _share_actors(self, plan: WorkerPlan, described: str, metrics: MetricsRecorder) -> None:
        """Let the inference process compute the actions of this worker."""
        from relaax.nn.engine import share_actors
        from relaax.server.rlx_server.inference.shared_actor import SharedActor

        assert plan.inference is not None, "without an inference process, workers compute themselves"
        patience = self._settings.parameter_server_patience
        share_actors(partial(SharedActor, plan.inference, patience, described, metrics))

    def _await_init(self, metrics: MetricsRecorder) -> rlx.Init | None:
        """Return the client's first init; None if it sends a bye. Until then it has no agent and may lose its place."""
        self._reports.send(WELCOMED)
        self._peer.watch_reports(self._reports.descriptor)
        while True:
            message = self._receive()
            if isinstance(message, rlx.Init):
                self._peer.may_lose_place = False
                self._reports.send(PROVEN)
                return message
            if isinstance(message, rlx.Bye):
                return None
            if isinstance(message, rlx.Metrics):
                record_client_metrics(message, metrics)
            elif isinstance(message, rlx.Ping):
                self._peer.send(rlx.Pong(message.nonce))

    def _receive(self) -> rlx.Message:
        """Return the next message, after a pause if the client exceeds its quota.

        During the pause the client waits for its answer, and the heartbeat keeps the connection alive.
        """
        message = self._peer.receive(self._limits.idle_timeout_seconds)
        steps = env_steps_of(message, self._environments, self._peer.connection)
        wait = self._meter.charge(steps, self._peer.transferred)
        if wait:
            self._peer.throttled = True
            self._run_interruptibly(self._meter.pause, wait)
            self._peer.throttled = False
        return message

    def _answer_messages(
        self,
        message: rlx.Message,
        session: AgentSession,
        agent: AgentBase,
        measures: WorkerMetrics,
        between: Sequence[Callable[[], None]],
    ) -> int:
        """Answer `message` and all later messages. `between`: the work to do after each answer."""
        timeout = self._settings.timeout
        ends_at = time.monotonic() + timeout if timeout else float("inf")
        learns = type(agent).learn is not AgentBase.learn
        while not isinstance(message, rlx.Bye):
            answer = self._run_interruptibly(session.answer, message)
            void = isinstance(answer, rlx.Actions) and session.is_void(answer)
            if answer is not None:
                self._peer.answer(answer)
                measures.record_answer(message, answer, self._peer.read_at, time.monotonic(), void)
            if learns and isinstance(answer, rlx.Actions) and not void:
                self._run_between_messages(agent.learn)
            for work in between:
                self._run_between_messages(work)
            if session.episode_ended and (reason := self._end_of_connection(session, ends_at)):
                self._peer.refuse(rlx.ErrorCode.REBALANCING, reason)
                break
            message = self._receive()
        return EXIT_DONE

    def _end_of_connection(self, session: AgentSession, ends_at: float) -> str:
        """Return why the client shall reconnect between two episodes; an empty text if it need not."""
        if self._meter.must_disconnect:
            return STOPPING
        if session.must_reconnect:
            return RENAMED
        return f"{TIME_LIMIT} {self._settings.timeout:g} s" if time.monotonic() > ends_at else ""

    def _run_between_messages(self, work: Callable[[], None]) -> None:
        """Do `work` while the client steps. Delay its errors until the client sends a request or a timeout passes.

        An error sent earlier would be lost: the client's next message would reset the closed socket.
        """
        try:
            self._run_interruptibly(work)
        except (PeerDisconnected, PeerSentBye, rlx.RemoteProtocolError, ServerStopping, Revoked):
            raise
        except Exception:
            until = time.monotonic() + min(HOLD_SECONDS, self._limits.idle_timeout_seconds)
            with contextlib.suppress(PeerDisconnected, PeerTimeout, ServerStopping, rlx.RemoteProtocolError):
                while not isinstance(self._peer.receive(max(0.0, until - time.monotonic())), _REQUESTS):
                    pass
            raise

    def _finish(self, global_step: int) -> None:
        try:
            self._peer.send(rlx.TrainingFinished(FINISHED, global_step))
        except (PeerDisconnected, rlx.LocalProtocolError):
            _log.info("the client disconnected before it received that training has finished")


def _recording(folder: Path, hello: rlx.Hello) -> Recording:
    from relaax.demonstrations.recording import Recording  # Arrow's import starts threads, so it is not before the fork

    return Recording(folder, hello)


def _ranges(numbers: Iterable[int]) -> str:
    """Format ascending numbers as ranges, such as 0-3, 7, 9-12. Numbers after `MAX_RANGES` ranges are counted."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found[:MAX_RANGES])
    more = sum(last - first + 1 for first, last in found[MAX_RANGES:])
    return f"{text} and {more} more" if more else text
