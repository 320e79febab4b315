"""Hypothesis strategies: spaces, their values, and messages of every kind that fit a hello."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from relaax.rlx import (
    Actions,
    Autoreset,
    Box,
    Bye,
    Dict,
    Discrete,
    ElementarySpace,
    Episode,
    EpisodeReturns,
    Error,
    ErrorCode,
    Hello,
    Init,
    Limits,
    Message,
    Metrics,
    Mode,
    MultiBinary,
    MultiDiscrete,
    Ping,
    Pong,
    Reset,
    Space,
    Step,
    TrainingFinished,
    Tuple,
    Welcome,
)
from relaax.rlx.messages import MAX_FRAME_SKIP, MAX_NUMBER, MAX_REWARD
from relaax.rlx.wire.arrays import DTYPES

shapes = hnp.array_shapes(min_dims=0, max_dims=3, max_side=3)
finite = st.floats(allow_nan=False, allow_infinity=False, width=64)
moderate = st.floats(-MAX_NUMBER, MAX_NUMBER)
names = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, categories=["L", "N"]), max_size=20)
uint32 = st.integers(0, 2**32 - 1)


@st.composite
def boxes(draw: st.DrawFn, dtypes: st.SearchStrategy[Any] = st.sampled_from(list(DTYPES.values()))) -> Box:  # noqa: B008
    dtype, shape = draw(dtypes), draw(shapes)
    wide = st.floats(-100, 100)
    a, b = (draw(st.one_of(wide, hnp.arrays(np.float64, shape, elements=wide))) for _ in range(2))
    low = draw(st.sampled_from([np.minimum(a, b), -np.inf]))
    high = draw(st.sampled_from([np.maximum(a, b), np.inf]))
    try:
        return Box(low, high, shape, dtype)
    except ValueError:  # after rounding to whole numbers, low may exceed high
        return Box(shape=shape, dtype=dtype)


elementary: st.SearchStrategy[Space] = st.one_of(
    boxes(),
    st.builds(Discrete, st.integers(1, 2**62), st.integers(-(2**62), 2**62)),
    st.builds(MultiDiscrete, st.lists(st.integers(1, 2**63 - 1), min_size=1, max_size=4)),
    st.builds(MultiBinary, shapes),
)
spaces: st.SearchStrategy[Space] = st.recursive(
    elementary,
    lambda parts: st.one_of(
        st.builds(Tuple, st.lists(parts, min_size=1, max_size=3)),
        st.builds(Dict, st.dictionaries(st.text(max_size=5), parts, min_size=1, max_size=3)),
    ),
    max_leaves=5,
)


def leaf_values(element: ElementarySpace, environments: int) -> st.SearchStrategy[np.ndarray]:
    """Return valid values of one leaf with a leading axis N, within a Box's bounds."""
    shape = (environments, *element.shape)
    if isinstance(element, Discrete):
        return hnp.arrays(np.int64, shape, elements=st.integers(element.start, element.start + element.n - 1))
    if isinstance(element, MultiDiscrete):
        columns = [hnp.arrays(np.int64, environments, elements=st.integers(0, n - 1)) for n in element.nvec]
        return st.tuples(*columns).map(lambda c: np.stack(c, axis=1))
    if isinstance(element, MultiBinary):
        return hnp.arrays(np.int8, shape, elements=st.integers(0, 1))
    assert isinstance(element, Box)
    if element.dtype.kind != "f":
        free = hnp.arrays(element.dtype, shape)
        clip = [np.clip(b, -(2.0**52), 2.0**52) for b in (element.low, element.high)]
        if element.dtype.itemsize == 8 and (element.low > -(2.0**52)).all() | (element.high < 2.0**52).all():
            free = hnp.arrays(np.int32, shape).map(lambda a: a.astype(np.float64))
            return free.map(lambda a: np.clip(a, *clip).astype(element.dtype))
        return free if element.dtype.itemsize == 8 else free.map(lambda a: np.clip(a, *clip).astype(element.dtype))
    width: Any = element.dtype.itemsize * 8
    number = st.floats(allow_nan=False, allow_infinity=False, width=width)
    low, high = element.low.astype(element.dtype), element.high.astype(element.dtype)
    return hnp.arrays(element.dtype, shape, elements=number).map(lambda a: np.clip(a, low, high))


def leaves(space: Space, environments: int) -> st.SearchStrategy[list[np.ndarray]]:
    return st.tuples(*(leaf_values(e, environments) for e in space.elements())).map(list)


@st.composite
def hellos(draw: st.DrawFn, space: st.SearchStrategy[Space] = spaces) -> Hello:
    environments = draw(st.integers(1, 3))
    kinds = st.sampled_from(Autoreset)
    autoreset = draw(st.one_of(kinds.map(lambda a: (a,)), st.tuples(*[kinds] * environments)))
    return Hello(
        observation_space=draw(space),
        action_space=draw(space),
        environments=environments,
        autoreset=autoreset,
        mode=draw(st.sampled_from(Mode)),
        client_name=draw(names),
        client_version=draw(names),
        token=draw(names),
        environment=draw(names),
        host=draw(names),
        frame_skip=draw(st.integers(1, MAX_FRAME_SKIP)),
        session_id=draw(st.from_regex(r"[A-Za-z0-9_-]{0,10}", fullmatch=True)),
        reports_episodes=draw(st.booleans()),
        out_of_step=draw(st.booleans()),
        chosen_actions=draw(st.booleans()),
        environment_parameters=draw(st.booleans()),
    )


limits = st.builds(
    Limits,
    max_frame_bytes=st.integers(2**16, 2**32 - 1),
    idle_timeout_seconds=st.floats(0.1, 1e6),
    heartbeat_seconds=st.floats(0.1, 1e6),
    max_metric_name_bytes=uint32,
    max_metric_names=uint32,
    max_environments=uint32,
)


def masks(environments: int) -> st.SearchStrategy[np.ndarray | None]:
    """Return masks. A mask without a true element is None, as in decoded messages."""
    return hnp.arrays(np.bool_, environments).map(lambda m: m if m.any() else None)


def rewards(environments: int) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.float64, environments, elements=st.floats(-MAX_REWARD, MAX_REWARD))


def episodes(environments: int) -> st.SearchStrategy[tuple[Episode, ...]]:
    one = st.builds(Episode, st.integers(0, environments - 1), moderate, st.integers(1, 2**32 - 1))
    return st.lists(one, max_size=environments, unique_by=lambda e: e.environment).map(tuple)


def client_messages(hello: Hello) -> st.SearchStrategy[Message]:
    """Return messages with types and shapes that fit the hello. The masks may violate the rules of autoreset."""
    n, observation = hello.environments, leaves(hello.observation_space, hello.environments)
    maybe = st.one_of(st.none(), observation)
    action = st.one_of(st.none(), leaves(hello.action_space, n))
    own = masks(n), action
    return st.one_of(
        st.builds(Init, observation, masks(n), masks(n)),
        st.builds(Step, rewards(n), observation, masks(n), masks(n), maybe, masks(n), episodes(n), masks(n), *own),
        st.builds(Reset, rewards(n), masks(n), maybe, episodes(n), *own),
        st.builds(
            Metrics,
            st.lists(st.tuples(st.from_regex(r"[a-z][a-z/]{0,5}", fullmatch=True), moderate), max_size=3).map(tuple),
        ),
        st.builds(Ping, uint32),
        st.builds(Pong, uint32),
        st.builds(Bye, names),
    )


def server_messages(hello: Hello) -> st.SearchStrategy[Message]:
    n = hello.environments
    numbers = st.one_of(st.none(), hnp.arrays(np.float64, st.integers(1, 6), elements=moderate))
    return st.one_of(
        st.builds(
            Welcome,
            st.just("id-1"),
            names,
            limits,
            server_version=names,
            out_of_step=st.booleans(),
            chosen_actions=st.booleans(),
            environment_parameters=st.booleans(),
            parameter_names=st.lists(names, max_size=3).map(tuple),
            parameters=numbers,
        ),
        st.builds(Actions, leaves(hello.action_space, n), st.lists(uint32, max_size=3).map(tuple), numbers),
        st.builds(EpisodeReturns, rewards(n)),
        st.builds(
            Error,
            st.sampled_from([code for code in ErrorCode if code]),
            names,
            st.one_of(st.none(), st.booleans()),
            st.floats(0, 1e6),
        ),
        st.builds(TrainingFinished, names, st.integers(0, 2**64 - 1)),
        st.builds(Ping, uint32),
        st.builds(Pong, uint32),
        st.builds(Bye, names),
    )
