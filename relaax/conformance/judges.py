"""How a client did in a run. Each judge returns a verdict and a sentence; an empty one stands for the rule's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from relaax import rlx
from relaax.conformance.client_talk import ended_by
from relaax.conformance.host import ClientRun
from relaax.conformance.report import Verdict
from relaax.rlx.errors import ErrorCode

Judgement = tuple[Verdict, str]
Judge = Callable[[ClientRun], Judgement]
PASSED, FAILED, NOT_SEEN = Verdict.PASSED, Verdict.FAILED, Verdict.NOT_SEEN

CLOCK_SECONDS = 0.01  # what two clocks may differ by in telling a wait
_ASKS = {"init", "step", "reset", "hello"}
_ANY_TIME = {"metrics", "ping", "pong"}  # may be sent before the client has read what has arrived


def handshake(run: ClientRun) -> Judgement:
    """Return the first connection's hello."""
    talk = run.talks[0]
    if talk.connection.hello is None:
        return FAILED, f"no hello was understood: {talk.note}; {run.end}"
    hello = talk.hello
    return PASSED, (
        f"{talk.codec}, {hello.environments} environment(s), observations {hello.observation_space}, "
        f"actions {hello.action_space}"
    )


def no_mistake_of(code: ErrorCode) -> Judge:
    """No connection of the run broke the protocol in this way."""

    def judge(run: ClientRun) -> Judgement:
        for talk in run.talks:
            if talk.mistake is not None and talk.mistake.code is code:
                return FAILED, talk.mistake.message
        if not any(talk.answers for talk in run.talks):
            return NOT_SEEN, f"nothing was answered: {run.talks[0].note}; {run.end}"
        return PASSED, ""

    return judge


def values(run: ClientRun) -> Judgement:
    """No connection of the run sent an invalid value. The sentence counts what was heard on the first one."""
    verdict, sentence = no_mistake_of(ErrorCode.INVALID_VALUE)(run)
    if verdict is PASSED:
        counts = Counter(type(message).__name__.lower() for message in run.talks[0].heard)
        sentence = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "nothing"
    return verdict, sentence


def limits(run: ClientRun) -> Judgement:
    """No connection of the run exceeded a limit, and some metrics were sent."""
    verdict, sentence = no_mistake_of(ErrorCode.LIMIT_EXCEEDED)(run)
    if verdict is PASSED and not any(talk.of(rlx.Metrics) for talk in run.talks):
        return NOT_SEEN, "it sent no metrics"
    return verdict, sentence


def episodes(run: ClientRun) -> Judgement:
    """Some episode ended and another began, on one connection."""
    for talk in run.talks:
        resets, inits = len(talk.of(rlx.Reset)), len(talk.of(rlx.Init))
        ends = sum(step.terminated is not None or step.truncated is not None for step in talk.of(rlx.Step))
        if min(resets, inits - 1) > 0 or ends > 0:
            return PASSED, f"{resets} resets, {ends} steps that ended episodes"
    return NOT_SEEN, f"no episode ended before another began in {run.talks[0].answers} answers"


def left(run: ClientRun) -> Judgement:
    """Check that the client closed its last connection in order and ended with exit code 0."""
    if (broken := _broken(run)) is not None:
        return FAILED, broken
    talk = run.talks[-1]
    if not talk.closed:
        return FAILED, f"it kept the connection open: {talk.note or 'training has finished'}"
    if run.code != 0:
        return FAILED, run.end
    return PASSED, "it said bye" if "bye" in talk.after or talk.of(rlx.Bye) else "it closed"


def went_on(run: ClientRun) -> Judgement:
    """Check that the client was answered to the end of the script, or left by itself, in order."""
    if (broken := _broken(run)) is not None:
        return FAILED, broken
    talk = run.talks[0]
    if talk.complete or (run.code == 0 and talk.answers and talk.closed):
        return PASSED, ""
    return FAILED, f"after {talk.answers} answers: {talk.note}; {run.end}"


def _at_its_point(judge: Judge) -> Judge:
    """Judge only runs that reached the point of their rule without breaking the protocol."""

    def judged(run: ClientRun) -> Judgement:
        talk = run.talks[0]
        if (broken := _broken(run)) is not None:
            return FAILED, broken
        if talk.over_at is None:
            return NOT_SEEN, f"it left before, after {talk.answers} answers: {talk.note}; {run.end}"
        return judge(run)

    return judged


def returned(wait: float) -> Judge:
    """Check that the client came back, and not before `wait` seconds were over."""

    @_at_its_point
    def judge(run: ClientRun) -> Judgement:
        if len(run.talks) == 1:
            return NOT_SEEN, f"it did not come back, which it should; {run.end}"
        took = _seconds_away(run)
        if took < wait - CLOCK_SECONDS:
            return FAILED, f"it came back after {took:.2f} s; the error said {wait:g} s"
        return PASSED, f"it came back after {took:.1f} s"

    return judge


def restored(run: ClientRun) -> Judgement:
    """Check that the client came back with its session id."""
    if len(run.talks) < 2 or run.talks[1].connection.hello is None:
        return NOT_SEEN, "it did not come back"
    given = run.talks[0].connection.welcome
    found = run.talks[1].hello.session_id
    if given is None or found != given.session_id:
        return FAILED, f"the session id was {given.session_id if given else ''!r}, it came back with {found!r}"
    return PASSED, ""


@_at_its_point
def stayed_away(run: ClientRun) -> Judgement:
    """Check that the client did not come back after an error that is not retryable."""
    return (FAILED, f"it came back after {_seconds_away(run):.1f} s") if len(run.talks) > 1 else (PASSED, "")


def ended_cleanly(run: ClientRun) -> Judgement:
    """Check that the client ended with exit code 0, and did not come back."""
    if (verdict := stayed_away(run))[0] is not PASSED:
        return verdict
    if not run.talks[0].closed or run.code is None:
        return FAILED, "it went on running"
    return (PASSED, "") if run.code == 0 else (FAILED, run.end)


def gave_up(run: ClientRun) -> Judgement:
    """Check that the client ended with an exit code other than 0."""
    if (verdict := stayed_away(run))[0] is not PASSED:
        return verdict
    return (FAILED, "it ended with exit code 0") if run.code == 0 else (PASSED, "")


@_at_its_point
def silent(run: ClientRun) -> Judgement:
    """Check that the client sent nothing after the server's last message, and closed."""
    sent = [kind for kind in run.talks[0].after if kind not in _ANY_TIME]
    return _closed(run, f"it sent {sent[0]} after the server's last message" if sent else "")


@_at_its_point
def noticed(run: ClientRun) -> Judgement:
    """Check that the client closed, and sent at most a bye."""
    said = [kind for kind in run.talks[0].after if kind in _ASKS]
    return _closed(run, f"it went on with {said[0]}" if said else "")


def noticed_for_good(run: ClientRun) -> Judgement:
    """Check that the client closed and gave up, because no init was answered before."""
    return verdict if (verdict := noticed(run))[0] is not PASSED else stayed_away(run)


@_at_its_point
def resumed_between_episodes(run: ClientRun) -> Judgement:
    """Check that no episode begins with the observation that ended the last one. The protocol checks `first`."""
    inits = [init for talk in run.talks[1:] for init in talk.of(rlx.Init)]
    if not inits:
        return NOT_SEEN, f"it did not come back; {run.end}"
    first, init = run.talks[0], inits[0]
    lost = first.heard[-1]
    assert isinstance(lost, rlx.Step), "the script ends with one"
    begun = [one.observation for one in first.of(rlx.Init)]
    for row in np.flatnonzero(ended_by(lost) & first.next_step):
        final = [leaf[row].tolist() for leaf in lost.observation]
        shown = [leaf[row].tolist() for leaf in init.observation]
        seen = any(final == [leaf[row].tolist() for leaf in leaves] for leaves in begun)
        if shown == final and not seen and (init.partial is None or not init.partial[row]):
            return FAILED, f"its init begins an episode of environment {row} with the observation that ended the last"
    return PASSED, ""


def _closed(run: ClientRun, mistake: str) -> Judgement:
    if mistake:
        return FAILED, mistake
    return (PASSED, "") if run.talks[0].closed else (FAILED, "it kept the connection open")


def _broken(run: ClientRun) -> str | None:
    """Return the first breach of the protocol, on whichever connection."""
    return next((talk.note for talk in run.talks if talk.mistake is not None), None)


def _seconds_away(run: ClientRun) -> float:
    first, second, *_ = run.talks
    assert first.over_at is not None, "judges of it come after `_at_its_point`"
    return second.began - first.over_at
