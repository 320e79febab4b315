"""How a client did in a run. Each judge returns a verdict and a sentence; an empty one stands for the rule's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from relaax import rlx
from relaax.conformance.client_talk import ClientTalk, ended_by
from relaax.conformance.host import ClientRun
from relaax.conformance.report import Verdict
from relaax.rlx.errors import ErrorCode

Judgement = tuple[Verdict, str]
PASSED, FAILED, NOT_SEEN = Verdict.PASSED, Verdict.FAILED, Verdict.NOT_SEEN

CLOCK_SECONDS = 0.01  # what two clocks may differ by in telling a wait
_ASKS = {"init", "step", "reset", "hello"}
_ANY_TIME = {"metrics", "ping", "pong"}  # may be sent before the client has read what has arrived


def _heard(talk: ClientTalk) -> str:
    counts = Counter(type(message).__name__.lower() for message in talk.heard)
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "nothing"


def _broken(run: ClientRun) -> str | None:
    """Return the first breach of the protocol, on whichever connection."""
    return next((talk.note for talk in run.talks if talk.mistake is not None), None)


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


def no_mistake_of(code: ErrorCode) -> Callable[[ClientRun], Judgement]:
    """No connection of the run broke the protocol in this way."""

    def judge(run: ClientRun) -> Judgement:
        for talk in run.talks:
            if talk.mistake is not None and talk.mistake.code is code:
                return FAILED, talk.mistake.message
        if not any(talk.answers for talk in run.talks):
            return NOT_SEEN, f"nothing was answered: {run.talks[0].note}; {run.end}"
        if code is ErrorCode.LIMIT_EXCEEDED and not any(talk.of(rlx.Metrics) for talk in run.talks):
            return NOT_SEEN, "it sent no metrics"
        return PASSED, _heard(run.talks[0]) if code is ErrorCode.INVALID_VALUE else ""

    return judge


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


def returned(wait: float) -> Callable[[ClientRun], Judgement]:
    """Check that the client came back, and not before `wait` seconds were over."""

    def judge(run: ClientRun) -> Judgement:
        if (verdict := _not_so_far(run)) is not None:
            return verdict
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


def stayed_away(run: ClientRun) -> Judgement:
    """Check that the client did not come back after an error that is not retryable."""
    if (verdict := _not_so_far(run)) is not None:
        return verdict
    if len(run.talks) > 1:
        return FAILED, f"it came back after {_seconds_away(run):.1f} s"
    return PASSED, ""


def ended_cleanly(run: ClientRun) -> Judgement:
    """Check that the client ended with exit code 0, and did not come back."""
    verdict, sentence = stayed_away(run)
    if verdict is not PASSED:
        return verdict, sentence
    if not run.talks[0].closed or run.code is None:
        return FAILED, "it went on running"
    return (PASSED, "") if run.code == 0 else (FAILED, run.end)


def gave_up(run: ClientRun) -> Judgement:
    """Check that the client ended with an exit code other than 0."""
    if (verdict := stayed_away(run))[0] is not PASSED:
        return verdict
    return (FAILED, "it ended with exit code 0") if run.code == 0 else (PASSED, "")


def silent(run: ClientRun) -> Judgement:
    """Check that the client sent nothing after the server's last message, and closed."""
    if (verdict := _not_so_far(run)) is not None:
        return verdict
    first = run.talks[0]
    sent = [kind for kind in first.after if kind not in _ANY_TIME]
    if sent:
        return FAILED, f"it sent {sent[0]} after the server's last message"
    return (PASSED, "") if first.closed else (FAILED, "it kept the connection open")


def resumed_between_episodes(run: ClientRun) -> Judgement:
    """Check that no episode begins with the observation that ended the last one. The protocol checks `first`."""
    if (verdict := _not_so_far(run)) is not None:
        return verdict
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


def noticed(run: ClientRun) -> Judgement:
    """Check that the client closed, and sent at most a bye."""
    if (verdict := _not_so_far(run)) is not None:
        return verdict
    first = run.talks[0]
    said = [kind for kind in first.after if kind in _ASKS]
    if said:
        return FAILED, f"it went on with {said[0]}"
    return (PASSED, "") if first.closed else (FAILED, "it kept the connection open")


def noticed_for_good(run: ClientRun) -> Judgement:
    """Check that the client closed and gave up, because no init was answered before."""
    if (verdict := noticed(run))[0] is not PASSED:
        return verdict
    return (PASSED, "") if len(run.talks) == 1 else (FAILED, f"it came back after {_seconds_away(run):.1f} s")


def _seconds_away(run: ClientRun) -> float:
    first, second, *_ = run.talks
    assert first.over_at is not None, "`_not_so_far` was asked before"
    return second.began - first.over_at


def _not_so_far(run: ClientRun) -> Judgement | None:
    """Return the judgement of a run that broke the protocol, or left before the point of its rule; else None."""
    talk = run.talks[0]
    if (broken := _broken(run)) is not None:
        return FAILED, broken
    if talk.over_at is not None:
        return None
    return NOT_SEEN, f"it left before, after {talk.answers} answers: {talk.note}; {run.end}"
