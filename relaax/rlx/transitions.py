"""The table of the messages that are allowed in each state. The specification and the tests use it too."""

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

    __hash__ = object.__hash__  # Enum's own hash is slow, and each message needs two look-ups in the table


class State(enum.Enum):
    """The state of a connection, named after the message that it waits for."""

    AWAIT_HELLO = "await_hello"
    AWAIT_WELCOME = "await_welcome"
    AWAIT_INIT = "await_init"
    AWAIT_ACTIONS = "await_actions"
    AWAIT_STEP = "await_step"
    AWAIT_RETURNS = "await_returns"
    CLOSED = "closed"
    ERROR = "error"  # the peer broke the protocol: a server may send an error, a client a bye

    __hash__ = object.__hash__


_C, _S = Sender.CLIENT, Sender.SERVER
_ADMITTED = (State.AWAIT_INIT, State.AWAIT_ACTIONS, State.AWAIT_STEP, State.AWAIT_RETURNS)
_AFTER_HELLO = (State.AWAIT_WELCOME, *_ADMITTED)
_OPEN = (State.AWAIT_HELLO, *_AFTER_HELLO)
_SAME_STATE = None

# (states, sender, message, next state)
_RULES: tuple[tuple[tuple[State, ...], Sender, type[Message], State | None], ...] = (
    ((State.AWAIT_HELLO,), _C, Hello, State.AWAIT_WELCOME),
    ((State.AWAIT_WELCOME,), _S, Welcome, State.AWAIT_INIT),
    ((State.AWAIT_INIT,), _C, Init, State.AWAIT_ACTIONS),
    ((State.AWAIT_ACTIONS,), _S, Actions, State.AWAIT_STEP),
    ((State.AWAIT_STEP,), _C, Step, State.AWAIT_ACTIONS),
    ((State.AWAIT_STEP,), _C, Reset, State.AWAIT_RETURNS),
    ((State.AWAIT_RETURNS,), _S, EpisodeReturns, State.AWAIT_INIT),
    (_ADMITTED, _C, Metrics, _SAME_STATE),
    (_AFTER_HELLO, _C, Ping, _SAME_STATE),
    (_AFTER_HELLO, _C, Pong, _SAME_STATE),
    (_AFTER_HELLO, _S, Ping, _SAME_STATE),
    (_AFTER_HELLO, _S, Pong, _SAME_STATE),
    ((*_OPEN, State.ERROR), _C, Bye, State.CLOSED),
    (_OPEN, _S, Bye, State.CLOSED),
    ((*_OPEN, State.ERROR), _S, Error, State.CLOSED),
    (_OPEN, _S, TrainingFinished, State.CLOSED),
)

TRANSITIONS: dict[tuple[State, Sender, type[Message]], State] = {
    (state, sender, kind): state if after is _SAME_STATE else after
    for states, sender, kind, after in _RULES
    for state in states
}


def allowed(state: State, sender: Sender) -> list[type[Message]]:
    """Return the messages that `sender` may send in `state`, in the order of the table."""
    return [kind for from_state, by, kind in TRANSITIONS if (from_state, by) == (state, sender)]
