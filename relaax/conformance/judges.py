"""Judges of a client's run. Each returns a verdict and a sentence; an empty sentence means the rule's description."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from relaax import rlx
from relaax.conformance.client_session import ended_by
from relaax.conformance.host import ClientRun
from relaax.conformance.report import Verdict
from relaax.rlx.errors import ErrorCode

Judgement = tuple[Verdict, str]
Judge = Callable[[ClientRun], Judgement]
PASSED, FAILED, NOT_SEEN = Verdict.PASSED, Verdict.FAILED, Verdict.NOT_SEEN

CLOCK_SECONDS = 0.01  # tolerance for a wait that two clocks measure
_REQUESTS = {"init", "step", "reset", "hello"}
_ANY_TIME = {"metrics", "ping", "pong"}  # a client may send these before it reads the last message


def handshake(run: ClientRun) -> Judgement:
    """Pass if the first connection has a valid hello. The sentence describes it."""
    session = run.sessions[0]
    if session.connection.hello is None:
        return FAILED, f"no valid hello was received: {session.end_reason}; {run.end}"
    hello = session.hello
    return PASSED, (
        f"{session.codec}, {hello.environments} environment(s), observations {hello.observation_space}, "
        f"actions {hello.action_space}"
    )


def no_mistake_of(code: ErrorCode) -> Judge:
    """Return a judge that passes if no connection has an error with this code."""

    def judge(run: ClientRun) -> Judgement:
        for session in run.sessions:
            if session.mistake is not None and session.mistake.code is code:
                return FAILED, session.mistake.message
        if not any(session.answers for session in run.sessions):
            return NOT_SEEN, f"no message was answered: {run.sessions[0].end_reason}; {run.end}"
        return PASSED, ""

    return judge


def values(run: ClientRun) -> Judgement:
    """Pass if no value was invalid. The sentence counts the messages of the first connection."""
    verdict, sentence = no_mistake_of(ErrorCode.INVALID_VALUE)(run)
    if verdict is PASSED:
        counts = Counter(type(message).__name__.lower() for message in run.sessions[0].received)
        sentence = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "no messages"
    return verdict, sentence


def limits(run: ClientRun) -> Judgement:
    """Pass if no limit was exceeded and metrics were sent."""
    verdict, sentence = no_mistake_of(ErrorCode.LIMIT_EXCEEDED)(run)
    if verdict is PASSED and not any(session.messages_of(rlx.Metrics) for session in run.sessions):
        return NOT_SEEN, "it sent no metrics"
    return verdict, sentence


def episodes(run: ClientRun) -> Judgement:
    """Pass if on one connection an episode ended and another began."""
    for session in run.sessions:
        resets, inits = len(session.messages_of(rlx.Reset)), len(session.messages_of(rlx.Init))
        ends = sum(step.terminated is not None or step.truncated is not None for step in session.messages_of(rlx.Step))
        if min(resets, inits - 1) > 0 or ends > 0:
            return PASSED, f"{resets} resets, {ends} steps that ended episodes"
    return NOT_SEEN, f"no episode followed another in {run.sessions[0].answers} answers"


def marks(capability: str, mask: str) -> Judge:
    """Return a judge that passes if the client marked environments in `mask` and no value was invalid."""

    def judge(run: ClientRun) -> Judgement:
        session = run.sessions[0]
        if session.connection.hello is not None and not getattr(session.hello, capability):
            return Verdict.NOT_APPLICABLE, f"it does not ask for {capability}"
        verdict, sentence = no_mistake_of(ErrorCode.INVALID_VALUE)(run)
        if verdict is not PASSED:
            return verdict, sentence
        sent = session.messages_of(rlx.Init, rlx.Step, rlx.Reset)
        marked = sum(getattr(message, mask, None) is not None for message in sent)
        if not marked:
            return NOT_SEEN, f"it marked no environment in {mask} in {session.answers} answers"
        begun = sum(step.first is not None for step in session.messages_of(rlx.Step))
        return PASSED, f"{marked} messages with {mask}, {begun} steps in which episodes began"

    return judge


def closed_in_order(run: ClientRun) -> Judgement:
    """Pass if the client closed its last connection, broke no rule, and ended with exit code 0."""
    if (violation := _first_violation(run)) is not None:
        return FAILED, violation
    session = run.sessions[-1]
    if not session.closed:
        return FAILED, f"it kept the connection open: {session.end_reason or 'training_finished was sent'}"
    if run.exit_code != 0:
        return FAILED, run.end
    return PASSED, "it sent bye" if "bye" in session.received_after or session.messages_of(rlx.Bye) else "it closed"


def continued(run: ClientRun) -> Judgement:
    """Pass if the script ran to its end, or if the client closed the connection earlier, with exit code 0."""
    if (violation := _first_violation(run)) is not None:
        return FAILED, violation
    session = run.sessions[0]
    if session.complete or (run.exit_code == 0 and session.answers and session.closed):
        return PASSED, ""
    return FAILED, f"after {session.answers} answers: {session.end_reason}; {run.end}"


def _if_reached(judge: Judge) -> Judge:
    """Return `judge` for runs that reached the server's last message without an error; other runs do not pass."""

    def judged(run: ClientRun) -> Judgement:
        session = run.sessions[0]
        if (violation := _first_violation(run)) is not None:
            return FAILED, violation
        if session.last_sent_at is None:
            return (
                NOT_SEEN,
                f"it closed before this rule applied, after {session.answers} answers: {session.end_reason}; {run.end}",
            )
        return judge(run)

    return judged


def reconnected(wait: float) -> Judge:
    """Return a judge that passes if the client reconnected after at least `wait` seconds."""

    @_if_reached
    def judge(run: ClientRun) -> Judgement:
        if len(run.sessions) == 1:
            return NOT_SEEN, f"it should reconnect, but did not; {run.end}"
        took = _reconnect_seconds(run)
        if took < wait - CLOCK_SECONDS:
            return FAILED, f"it reconnected after {took:.2f} s; retry_after_seconds was {wait:g}"
        return PASSED, f"it waited {took:.1f} s before it reconnected"

    return judge


def sent_session_id(run: ClientRun) -> Judgement:
    """Pass if the client reconnected with its session id."""
    if len(run.sessions) < 2 or run.sessions[1].connection.hello is None:
        return NOT_SEEN, "there was no second hello"
    given = run.sessions[0].connection.welcome
    found = run.sessions[1].hello.session_id
    if given is None or found != given.session_id:
        return FAILED, f"the session id was {given.session_id if given else ''!r}; the next hello had {found!r}"
    return PASSED, ""


@_if_reached
def did_not_reconnect(run: ClientRun) -> Judgement:
    """Pass if the client did not reconnect after an error that is not retryable."""
    return (
        (FAILED, f"it reconnected {_reconnect_seconds(run):.1f} s later, which it must not")
        if len(run.sessions) > 1
        else (PASSED, "")
    )


def exited_cleanly(run: ClientRun) -> Judgement:
    """Pass if the client ended with exit code 0 and did not reconnect."""
    if (verdict := did_not_reconnect(run))[0] is not PASSED:
        return verdict
    if not run.sessions[0].closed or run.exit_code is None:
        return FAILED, "it kept running"
    return (PASSED, "") if run.exit_code == 0 else (FAILED, run.end)


def exited_with_failure(run: ClientRun) -> Judgement:
    """Pass if the client ended with an exit code other than 0."""
    if (verdict := did_not_reconnect(run))[0] is not PASSED:
        return verdict
    return (FAILED, "it ended with exit code 0") if run.exit_code == 0 else (PASSED, "")


@_if_reached
def closed_without_message(run: ClientRun) -> Judgement:
    """Pass if the client closed after the server's last message without sending one of its own."""
    sent = [kind for kind in run.sessions[0].received_after if kind not in _ANY_TIME]
    return _judge_closed(run, f"it sent {sent[0]} after the server's last message" if sent else "")


@_if_reached
def closed(run: ClientRun) -> Judgement:
    """Pass if the client closed without another init, step, reset or hello."""
    sent = [kind for kind in run.sessions[0].received_after if kind in _REQUESTS]
    return _judge_closed(run, f"it continued with {sent[0]}" if sent else "")


def closed_and_gave_up(run: ClientRun) -> Judgement:
    """Pass if the client closed and did not reconnect. It must not, because no init was answered before the mistake."""
    return verdict if (verdict := closed(run))[0] is not PASSED else did_not_reconnect(run)


@_if_reached
def resumed_between_episodes(run: ClientRun) -> Judgement:
    """Pass if no episode begins with the final observation of the previous one. `Checker` checks `first`."""
    inits = [init for session in run.sessions[1:] for init in session.messages_of(rlx.Init)]
    if not inits:
        return NOT_SEEN, f"there was no init on a second connection; {run.end}"
    first, init = run.sessions[0], inits[0]
    lost = first.received[-1]
    assert isinstance(lost, rlx.Step), "the script ends after a step"
    begun = [one.observation for one in first.messages_of(rlx.Init)]
    begins = np.ones(len(lost.reward), np.bool_) if init.idle is None else ~init.idle
    for row in np.flatnonzero(ended_by(lost) & first.next_step & begins):
        final = [leaf[row].tolist() for leaf in lost.observation]
        shown = [leaf[row].tolist() for leaf in init.observation]
        seen = any(final == [leaf[row].tolist() for leaf in leaves] for leaves in begun)
        if shown == final and not seen and (init.partial is None or not init.partial[row]):
            return (
                FAILED,
                f"its init begins an episode of environment {row} with the final observation of the previous episode",
            )
    return PASSED, ""


def _judge_closed(run: ClientRun, mistake: str) -> Judgement:
    if mistake:
        return FAILED, mistake
    return (PASSED, "") if run.sessions[0].closed else (FAILED, "it did not close the connection")


def _first_violation(run: ClientRun) -> str | None:
    """Return the first breach of the protocol on any connection, or None."""
    return next((session.end_reason for session in run.sessions if session.mistake is not None), None)


def _reconnect_seconds(run: ClientRun) -> float:
    first, second, *_ = run.sessions
    assert first.last_sent_at is not None, "`_if_reached` has checked it"
    return second.started - first.last_sent_at
