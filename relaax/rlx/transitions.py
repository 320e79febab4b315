"""The one table of which message may be sent when. Connections, specification and tests use it."""

from __future__ import annotations

import enum

from relaax.rlx.messages import (
    Actions,
    Bye,
    EpisodeReturns,
    Error,
    Hello,
    Init,
    Message,
    Metrics,
    Ping,
    Pong,
    Reset,
    Step,
    TrainingFinished,
    Welcome,
)


class Sender(enum.Enum):
    """The sender of a message."""

    CLIENT = "client"
    SERVER = "server"

    __hash__ = object.__hash__  # that of Enum is Python's, and slow: the table is asked twice for each message


class State(enum.Enum):
    """The state of a conversation, named after what comes next."""

    AWAIT_HELLO = "await_hello"
    AWAIT_WELCOME = "await_welcome"
    AWAIT_INIT = "await_init"
    AWAIT_ACTIONS = "await_actions"
    AWAIT_STEP = "await_step"
    AWAIT_RETURNS = "await_returns"
    CLOSED = "closed"
    ERROR = "error"  # this side found the peer at fault; it may say so, and nothing else

    __hash__ = object.__hash__


_C, _S = Sender.CLIENT, Sender.SERVER
_ADMITTED = (State.AWAIT_INIT, State.AWAIT_ACTIONS, State.AWAIT_STEP, State.AWAIT_RETURNS)
_GREETED = (State.AWAIT_WELCOME, *_ADMITTED)
_OPEN = (State.AWAIT_HELLO, *_GREETED)
_STAY = None

# states, who speaks, what is said, the state after it
_ROWS: tuple[tuple[tuple[State, ...], Sender, type[Message], State | None], ...] = (
    ((State.AWAIT_HELLO,), _C, Hello, State.AWAIT_WELCOME),
    ((State.AWAIT_WELCOME,), _S, Welcome, State.AWAIT_INIT),
    ((State.AWAIT_INIT,), _C, Init, State.AWAIT_ACTIONS),
    ((State.AWAIT_ACTIONS,), _S, Actions, State.AWAIT_STEP),
    ((State.AWAIT_STEP,), _C, Step, State.AWAIT_ACTIONS),
    ((State.AWAIT_STEP,), _C, Reset, State.AWAIT_RETURNS),
    ((State.AWAIT_RETURNS,), _S, EpisodeReturns, State.AWAIT_INIT),
    (_ADMITTED, _C, Metrics, _STAY),
    (_GREETED, _C, Ping, _STAY),
    (_GREETED, _C, Pong, _STAY),
    (_GREETED, _S, Ping, _STAY),
    (_GREETED, _S, Pong, _STAY),
    ((*_OPEN, State.ERROR), _C, Bye, State.CLOSED),
    (_OPEN, _S, Bye, State.CLOSED),
    ((*_OPEN, State.ERROR), _S, Error, State.CLOSED),
    (_OPEN, _S, TrainingFinished, State.CLOSED),
)

TRANSITIONS: dict[tuple[State, Sender, type[Message]], State] = {
    (state, sender, kind): state if after is _STAY else after
    for states, sender, kind, after in _ROWS
    for state in states
}


def allowed(state: State, sender: Sender) -> list[type[Message]]:
    """Return what `sender` may say in `state`, in the table's order."""
    return [kind for where, who, kind in TRANSITIONS if (where, who) == (state, sender)]
