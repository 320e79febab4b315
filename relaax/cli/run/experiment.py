"""One run, from its first process to its summary."""

from __future__ import annotations

import logging
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from relaax.bundled import bundled_folder
from relaax.checkpoint import CheckpointManager, Damaged, StoreError, manifest_key
from relaax.cli.reporting import resilient
from relaax.cli.run.environment_check import EnvironmentCheck, FirstConnection, check_spaces, never_connected_message
from relaax.cli.run.evaluations import Evaluations
from relaax.cli.run.live_page import LivePage, warnings_in_file
from relaax.cli.run.panel import ProgressView
from relaax.cli.run.plan import Plan, RunTokens, run_tokens
from relaax.cli.run.progress import Progress, ProgressReader, ReplayProgressReader
from relaax.cli.run.run_directory import RunDirectory, SummaryNotWritten
from relaax.cli.run.supervisor import Supervisor
from relaax.configuration import ConfigurationError
from relaax.console import print_error, shown
from relaax.supervision.host import Host, ThisMachine
from relaax.supervision.process import StartError, Supervised

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
KILL_AFTER_SECONDS = 3.0
EXIT_CODES = {
    "target_reached": 0,
    "max_steps": 0,
    "max_time": 0,
    "environments_done": 0,
    "environment_exited": 1,
    "interrupted": 130,
    "failed": 1,
}
TRACKED = {"interrupted": "KILLED", "failed": "FAILED", "environment_exited": "FAILED"}
"""Status of the tracker's run by that of this run; FINISHED for the others."""
MISSED_TARGET = 3
LAST_EVALUATION_SECONDS = 60.0
"""Maximum seconds that a finished run waits for its first evaluation."""


class SignalWatch:
    """A handler of SIGINT, SIGTERM and SIGHUP.

    The first signal stops the run. A signal more than KILL_AFTER_SECONDS later kills its processes. Signals before that
    are ignored: wrappers such as `timeout` repeat a signal that the terminal has already sent to all processes. This
    must not cost the last checkpoint.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self.event = supervisor.stopping
        self._supervisor = supervisor
        self._since = 0.0
        self.killed = False
        """Whether a later signal has killed the processes."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        if not self.event.is_set():
            self._since = time.monotonic()
            self.event.set()
        elif time.monotonic() - self._since > KILL_AFTER_SECONDS:
            self.killed = True
            self._supervisor.kill()


def experiment(
    plan: Plan,
    directory: RunDirectory,
    check: EnvironmentCheck,
    *,
    fresh: bool,
    progress: bool,
    summary: Path | None,
    remote: tuple[Host, RunTokens] | None = None,
    panel: Path | None = None,
) -> int:
    """Run an experiment, and return the exit code.

    `remote`: host and tokens of the processes if they do not run on this machine. `panel`: a file that also
    receives the progress panel (see `ProgressView`).

    Raises ConfigurationError and StartError for problems found before any start; the directory is then unchanged.
    """
    host, tokens = remote or (ThisMachine(), run_tokens(plan))
    refused = None
    LivePage.check(plan)
    with ProgressView(plan, progress, panel) as view, ExitStack() as stack:
        view.step(f"making one {plan.environment_name} as a check")
        check_spaces(plan, check.wait())
        if summary is not None:
            directory.check_summary_writable(summary)
        view.print_line(directory.open(fresh, plan.max_steps, plan.task))
        directory.write_configuration(plan)
        stack.enter_context(warnings_in_file(directory.logs / "run.log"))
        supervisor = Supervisor(plan, directory, tokens, host)
        interrupted = SignalWatch(supervisor)
        reader, memory = ProgressReader(tokens.status), ReplayProgressReader(tokens.replay)
        evaluated = Evaluations(plan, directory)
        page = LivePage(plan, directory, tokens)
        stack.callback(page.close)
        page.start()
        try:
            view.step("starting the servers (the first time on a machine they compile their kernels)")
            supervisor.start_servers()
            reader.poll(supervisor.parameter_server_address)
            view.step(f"starting {plan.run.clients} environment program{'s' * (plan.run.clients > 1)}")
            supervisor.start_clients()
            view.print_line(f"environments connect to {supervisor.rlx_server.address}; logs in {directory.logs}")
            if supervisor.tensorboard_url is not None:
                view.print_line(f"TensorBoard at {supervisor.tensorboard_url}")
            status = _watch(plan, supervisor, reader, memory, interrupted, view, evaluated, page)
            status = _await_evaluation(plan, status, interrupted, view, evaluated)
        except StartError as error:
            status = "interrupted" if interrupted.event.is_set() else "failed"
            refused = error.refused
            if status == "failed" and not refused:
                print_error("relaax run", error, resilient(sys.stderr))
        at_stop = reader.latest
        memory.close()
        evaluated.close()
        if plan.configuration.parameter_server.tracker:
            directory.write_outcome(TRACKED.get(status, "FINISHED"))
        supervisor.stop_training()
        if supervisor.parameter_server.exit_code() is None:
            final = reader.poll(supervisor.parameter_server_address)
        else:
            final = at_stop
        view.show(final, memory.latest)
        if final.checkpoint_error:
            _log.warning("retrying the last checkpoint for up to a minute: %s", final.checkpoint_error)
        supervisor.stop_parameter_server()
        reader.close()
    if refused and directory.restore_resumed():
        directory.close()
        raise ConfigurationError(refused)
    result = _summary(plan, directory, status, at_stop, final, evaluated.latest)
    lost = _lost_steps_error(result, final, supervisor.parameter_server, fresh) if reader.has_answered else None
    if lost is not None:
        print_error("relaax run", lost, resilient(sys.stderr))
        result["error"] = lost
        if not interrupted.killed:  # after a kill, the last checkpoint is missing as expected
            result["status"] = "failed"
    code = _exit_code(plan, result["status"])
    problem = _problem(result["status"], supervisor, evaluated)
    if result["status"] == "environments_done" and reader.has_answered and at_stop.seconds == 0:
        problem = never_connected_message(plan.environment_main)
    if problem is not None and lost is None:
        print_error("relaax run", problem, resilient(sys.stderr))
        result["error"] = problem
        code = code or EXIT_CODES["failed"]
    try:
        directory.write_summary(result, summary)
    except SummaryNotWritten as error:
        print_error("relaax run", error, resilient(sys.stderr))
        code = code or EXIT_CODES["failed"]
    directory.close()
    if progress:
        view.print_line(_conclusion(result, plan, directory))
    if refused:
        raise ConfigurationError(refused)
    return code


def _exit_code(plan: Plan, status: str) -> int:
    wanted = [plan.target_return, plan.run.target_evaluation]
    if status == "environments_done":  # then these limits were not reached either
        wanted += [plan.run.max_steps, plan.run.max_time]
    missed = status in ("max_steps", "max_time", "environments_done") and any(limit is not None for limit in wanted)
    return MISSED_TARGET if missed else EXIT_CODES[status]


def _await_evaluation(
    plan: Plan, status: str, interrupted: SignalWatch, view: ProgressView, evaluated: Evaluations
) -> str:
    """If the first evaluation is running, wait for it. Return the status, which the result may change."""
    if evaluated.latest is not None or not evaluated.is_running() or interrupted.event.is_set():
        return status
    view.step(f"waiting up to {LAST_EVALUATION_SECONDS:g} s for the first evaluation")
    deadline = time.monotonic() + LAST_EVALUATION_SECONDS
    while evaluated.is_running() and time.monotonic() < deadline and not interrupted.event.wait(POLL_SECONDS):
        if sentence := evaluated.finish_if_ended():
            view.print_line(sentence)
    view.step("ending the run")
    return "target_reached" if _evaluation_reached(plan, evaluated.latest) else status


def _problem(status: str, supervisor: Supervisor, evaluated: Evaluations) -> str | None:
    """Return an error of a run whose steps are all saved: an exited environment or failed evaluations; or None."""
    exited = supervisor.exited_client
    if status == "environment_exited" and exited is not None:
        return f"{exited.name}: the environment ended its program:\n{exited.log_tail()}"
    if status not in ("interrupted", "failed"):
        return evaluated.problem
    return None


def _lost_steps_error(result: dict[str, Any], final: Progress, server: Supervised, fresh: bool) -> str | None:
    """Return a message about lost steps, the reason and a remedy; None if the last checkpoint has every step."""
    code, steps = server.exit_code(), result["lost_steps"]
    if not steps and code == 0:
        return None
    if code == 0 or server.failed:
        why = server.failed or final.checkpoint_error or "it cannot be read"
    else:
        how = "was no longer running" if code is None else f"ended with {_exit_text(code)}"
        why = f"the parameter server {how}" + (
            f"; error before that: {final.checkpoint_error}" if final.checkpoint_error else ""
        )
    lost = f"{steps:,} of {result['env_steps']:,} steps are lost" if steps else "steps may be lost"
    if result["checkpoint"] is None:
        next_start = "there is no earlier checkpoint, so it starts over"
    else:
        next_start = f"it resumes at step {result['env_steps'] - steps:,}, from {result['checkpoint']}"
    again = "the same command without --fresh" if fresh else "the same command"
    return (
        f"{lost}, because the last checkpoint could not be written: {why}. Fix that (free space in "
        f"{result['run_dir']}, if it is full), and repeat {again}: {next_start}"
    )


def _exit_text(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _watch(
    plan: Plan,
    supervisor: Supervisor,
    reader: ProgressReader,
    memory: ReplayProgressReader,
    interrupted: SignalWatch,
    view: ProgressView,
    evaluated: Evaluations,
    live: LivePage,
) -> str:
    """Poll the run until it must stop, and return its status. Raises StartError."""
    shown_pages: list[str] = []
    connection = FirstConnection(plan)
    while not interrupted.event.wait(POLL_SECONDS):
        for page in supervisor.pages:
            if page not in shown_pages:
                shown_pages.append(page)
                view.print_line(f"open {page} in a browser: the environments are played there")
                view.step(f"waiting for {page} to be opened")
        if sentence := live.poll():
            view.print_line(sentence)
        progress = reader.poll(supervisor.parameter_server_address)
        view.show(progress, memory.poll(supervisor.replay_addresses, progress.updates))
        if supervisor.clients and not shown_pages:
            late = connection.overdue(progress.seconds > 0, supervisor.clients[0], supervisor.rlx_server.address)
            if late is not None:
                _log.warning("%s", late)
        sentence = evaluated.poll()
        if sentence is not None:
            view.print_line(sentence)
        if _reached(plan, progress, evaluated.latest):
            return "target_reached"
        if plan.run.max_steps is not None and progress.global_step >= plan.run.max_steps:
            return "max_steps"
        ended = supervisor.clients_have_ended
        if ended:  # training may have finished since the last poll
            progress = reader.poll(supervisor.parameter_server_address)
        if progress.finished or supervisor.parameter_server.exit_code() == 0:  # max_global_step is a limit too
            return "max_steps"
        if ended and reader.is_connected:
            return "environments_done" if supervisor.exited_client is None else "environment_exited"
        if plan.run.max_time is not None and progress.seconds >= plan.run.max_time:
            return "max_time"
        supervisor.watch()
    return "interrupted"


def _reached(plan: Plan, progress: Progress, evaluation: float | None) -> bool:
    if _evaluation_reached(plan, evaluation):
        return True
    return plan.target_return is not None and progress.reaches(plan.target_return)


def _evaluation_reached(plan: Plan, evaluation: float | None) -> bool:
    wanted = plan.run.target_evaluation
    return wanted is not None and evaluation is not None and evaluation >= wanted


def _summary(
    plan: Plan,
    directory: RunDirectory,
    status: str,
    at_stop: Progress,
    final: Progress,
    evaluation: float | None = None,
) -> dict[str, Any]:
    """Return the summary: returns as of the decision to stop, counters as of the last checkpoint.

    `evaluation`: mean return of the last evaluation. The checkpoint may have later counters than the last poll of the
    parameter server.
    """
    checkpoint, manifest = _newest_checkpoint(directory)
    saved = manifest.get("global_step", 0)
    if saved > final.global_step:
        counted = {key: manifest[key] for key in ("global_step", "frames", "updates") if key in manifest}
        final = replace(final, **counted)
    return {
        "status": status,
        "env_steps": final.global_step,
        "frames": final.frames,
        "updates": final.updates,
        "seconds": round(at_stop.seconds, 3),
        "steps_per_second": round(at_stop.steps_per_second, 1),
        "episodes": at_stop.episodes,
        "mean_return_100": at_stop.mean_return_100,
        "best_mean_return_100": at_stop.best_mean_return_100,
        "evaluation": evaluation,
        "seed": plan.seed,
        "checkpoint": checkpoint,
        "run_dir": str(directory.path),
        "lost_steps": final.global_step - saved,
        "error": None,
    }


def _newest_checkpoint(directory: RunDirectory) -> tuple[str | None, Mapping[str, Any]]:
    """Return path and contents of the newest readable manifest; None and an empty mapping if none is readable.

    The next start resumes from the same checkpoint.
    """
    try:
        manager = CheckpointManager(directory.store())
        for checkpoint_id in manager.published():
            try:
                return f"{directory.location}/{manifest_key(checkpoint_id)}", manager.manifest(checkpoint_id)
            except Damaged as damage:
                _log.warning("the last checkpoint cannot be read: %s", damage)
    except StoreError as error:
        _log.warning("the checkpoints cannot be read: %s", error)
    return None, {}


def _conclusion(result: dict[str, Any], plan: Plan, directory: RunDirectory) -> str:
    mean = result["mean_return_100"]
    reached = "no episode has ended" if mean is None else f"mean return of the last 100 episodes {shown(mean)}"
    if plan.target_return is not None:
        reached += f" (target {plan.target_return:g})"
    if result["evaluation"] is not None:
        reached += f", last evaluation {shown(result['evaluation'])}"
    lines = [
        f"{result['status']}: {reached}; {result['env_steps']:,} steps in {result['seconds']:.1f} s, "
        f"{result['steps_per_second']:,.0f} steps/s"
    ]
    if result["checkpoint"] is not None:
        lines.append(f"checkpoint {result['checkpoint']}")
        scored = plan.environment_main.is_relative_to(
            bundled_folder("environments")
        )  # other programs may not support `relaax eval`
        if scored and result["status"] != "failed":
            lines.append(f"score it: {shlex.join(['relaax', 'eval', *directory.eval_arguments])}")
    metrics = Path(result["run_dir"]) / "metrics"
    if metrics.is_dir() and any(metrics.iterdir()):
        lines.append(shlex.join(["tensorboard", "--logdir", str(metrics)]))
    return "\n".join(lines)
