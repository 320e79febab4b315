from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax.rlx import (
    HANDSHAKE_FRAME_BYTES,
    Actions,
    Autoreset,
    Box,
    ClientConnection,
    Discrete,
    Episode,
    Error,
    ErrorCode,
    Hello,
    Init,
    Limits,
    LocalProtocolError,
    Metrics,
    RemoteProtocolError,
    Sender,
    ServerConnection,
    Step,
    Tuple,
    Welcome,
)
from relaax.rlx.handshake import limits_for
from relaax.rlx.messages import MAX_ENVIRONMENT_PARAMETERS
from relaax.rlx.wire.codecs import codec_named
from relaax.rlx.wire.framing import frame
from support.rlx_pair import Pair, batch, make_hello
from support.rlx_strategies import hellos


@settings(deadline=None, max_examples=40)
@given(hellos(), st.sampled_from(["protobuf", "json"]))
def test_both_sides_have_hello_welcome_and_codec(hello: Hello, codec: str) -> None:
    pair = Pair(codec)
    pair.open(hello)
    assert pair.server.hello == hello
    assert pair.client.welcome == pair.server.welcome
    assert pair.server.codec == pair.client.codec == codec


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"protocol_version": 2}, ErrorCode.UNSUPPORTED_VERSION),
        ({"protocol_version": 0}, ErrorCode.UNSUPPORTED_VERSION),
        ({"environments": 0}, ErrorCode.INVALID_VALUE),
        ({"environments": 2**32 - 1}, ErrorCode.LIMIT_EXCEEDED),
        ({"environments": 65_537}, ErrorCode.LIMIT_EXCEEDED),
        ({"frame_skip": 1_001}, ErrorCode.LIMIT_EXCEEDED),
        ({"environments": 2, "autoreset": (Autoreset.DISABLED,) * 3}, ErrorCode.INVALID_VALUE),
        ({"autoreset": ()}, ErrorCode.INVALID_VALUE),
        ({"session_id": "a/b"}, ErrorCode.INVALID_VALUE),
        ({"session_id": "x" * 129}, ErrorCode.INVALID_VALUE),
        ({"environment": "a\nb"}, ErrorCode.INVALID_VALUE),
        ({"host": "x" * 257}, ErrorCode.LIMIT_EXCEEDED),
        ({"token": "x" * 4097}, ErrorCode.LIMIT_EXCEEDED),
        ({"observation_space": Box(shape=(5000, 5000))}, ErrorCode.LIMIT_EXCEEDED),
        ({"action_space": Box(shape=(5000, 5000))}, ErrorCode.LIMIT_EXCEEDED),
        ({"observation_space": Tuple([Discrete(2)] * 257)}, ErrorCode.LIMIT_EXCEEDED),
    ],
)
def test_invalid_hello_is_refused_by_both_sides(fields: dict[str, Any], code: ErrorCode) -> None:
    hello, pair = make_hello(**fields), Pair()
    with pytest.raises(LocalProtocolError) as local:
        pair.client.send(hello)
    pair.server.receive_data(frame(codec_named("protobuf").encode(hello, Sender.CLIENT), 2**20))
    with pytest.raises(RemoteProtocolError) as remote:
        pair.server.next_event()
    assert local.value.code is remote.value.code is code
    assert pair.server.hello is None


def test_maximal_environments_and_frame_skip_are_accepted() -> None:
    assert Pair().open(environments=65_536, frame_skip=1_000).environments == 65_536


def test_frame_limit_includes_the_final_observation() -> None:
    limits = Limits(max_frame_bytes=1500)
    space = Box(shape=(1000,), dtype=np.uint8)
    Pair(limits=limits).greet(observation_space=space)
    with pytest.raises(RemoteProtocolError, match="2000 bytes; the limit is 1500"):
        Pair(limits=limits).greet(observation_space=space, autoreset=(Autoreset.SAME_STEP,))


@pytest.mark.parametrize("autoreset", [Autoreset.DISABLED, Autoreset.SAME_STEP])
def test_frame_limit_counts_encoded_bytes(autoreset: Autoreset) -> None:
    """A hello whose steps do not fit a frame is refused. In JSON the size of the base64 counts."""
    space = Box(shape=(900,), dtype=np.uint8)
    fields = {"observation_space": space, "autoreset": (autoreset,)}
    data = 900 * (2 if autoreset is Autoreset.SAME_STEP else 1)
    for codec, least in (("protobuf", data), ("json", data * 4 // 3)):
        Pair(codec, limits=Limits(max_frame_bytes=least)).greet(**fields)
        with pytest.raises(RemoteProtocolError, match=f"{least} bytes; the limit is {least - 1}") as caught:
            Pair(codec, limits=Limits(max_frame_bytes=least - 1)).greet(**fields)
        assert caught.value.code is ErrorCode.LIMIT_EXCEEDED


def test_frame_limit_grows_after_the_welcome() -> None:
    pair = Pair()
    big = Box(shape=(2 * HANDSHAKE_FRAME_BYTES,), dtype=np.uint8)
    many_bounds = Box(np.arange(10_000.0), np.inf, dtype=np.float64)
    with pytest.raises(LocalProtocolError) as caught:
        pair.client.send(make_hello(observation_space=many_bounds))
    assert caught.value.code is ErrorCode.FRAME_TOO_LARGE
    pair.open(observation_space=big, action_space=big)
    pair.client_sends(Init(batch(big, 1)))
    pair.server_sends(Actions(batch(big, 1)))


@settings(deadline=None, max_examples=10)
@given(hellos(), st.sampled_from(["protobuf", "json"]))
def test_announced_limit_fits_the_longest_step(hello: Hello, codec: str) -> None:
    hello = replace(hello, reports_episodes=True)
    n = hello.environments
    at = batch(hello.observation_space, n)
    longest = Step(
        np.full(n, -1.2345678901234567e-300), at, np.ones(n, bool), np.ones(n, bool), at, np.ones(n, bool),
        [Episode(2**32 - 1, -1.2345678901234567e-300, 2**32 - 1)] * n, np.ones(n, bool),
    )  # fmt: skip
    size = len(codec_named(codec).encode(longest, Sender.CLIENT))
    tailored = limits_for(hello, Limits())
    assert size <= tailored.max_frame_bytes <= 2**20
    large = replace(hello, observation_space=Box(shape=(1000, 1000)), environments=3, autoreset=(Autoreset.SAME_STEP,))
    at = batch(large.observation_space, 3)
    size = len(codec_named(codec).encode(Step(np.ones(3), at, final_observation=at), Sender.CLIENT))
    assert size <= limits_for(large, Limits()).max_frame_bytes <= 2 * size * 4 // 3


def test_clients_own_lower_limit_is_applied() -> None:
    pair = Pair(max_frame_bytes=1000)
    pair.open(limits=Limits())
    with pytest.raises(LocalProtocolError, match="the limit is 1000"):
        pair.client.send(Metrics([(f"m{i}", 1.0) for i in range(100)]))


def test_metric_names_are_counted_over_the_connection() -> None:
    pair = Pair()
    pair.open(limits=Limits(max_metric_names=3))
    for name in ("a", "b", "c", "a", "b"):
        pair.client_sends(Metrics(((name, 1.0),)))
    with pytest.raises(LocalProtocolError, match="more than 3 different metric names"):
        pair.client.send(Metrics((("d", 1.0),)))
    pair.client_sends(Metrics((("c", 2.0), ("c", 3.0))))


def test_metric_without_name_is_refused() -> None:
    pair = Pair()
    pair.open()
    with pytest.raises(LocalProtocolError, match=r"scalars\[0\].name is missing"):
        pair.client.send(Metrics((("", 1.0),)))


def test_metric_limits_use_normalized_count_and_sent_length() -> None:
    pair = Pair()
    pair.open(limits=Limits(max_metric_names=1, max_metric_name_bytes=4))
    for name in ("a b", "a_b", "a\nb", "aéb"):
        pair.client_sends(Metrics(((name, 1.0),)))
    for name, text in (("a", "more than 1 different metric names"), ("éé_", "5 bytes")):
        with pytest.raises(LocalProtocolError, match=text):
            pair.client.send(Metrics(((name, 1.0),)))


@pytest.mark.parametrize("codec", ["protobuf", "json"])
def test_early_refusal_uses_the_clients_codec(codec: str) -> None:
    data = Pair(codec).client.send(make_hello())
    server = ServerConnection()
    server.receive_data(data[:5])
    server.next_event()
    assert server.codec == codec
    pair = Pair(codec)
    pair.client.send(make_hello())
    pair.client.receive_data(server.send(Error(ErrorCode.OVERLOADED, "full", retry_after_seconds=2.0)))
    assert pair.client.next_event() == Error(ErrorCode.OVERLOADED, "full", True, 2.0)


def test_space_with_maximal_axes_is_played() -> None:
    pair = Pair()
    pair.play(environments=2, observation_space=Box(shape=(1,) * 8), action_space=Box(shape=(1,) * 8))
    pair.step()


def test_welcome_with_too_small_frame_limit_is_not_sent() -> None:
    pair = Pair()
    pair.greet(observation_space=Box(shape=(100,)))
    with pytest.raises(LocalProtocolError, match="max_frame_bytes is 10"):
        pair.server.send(Welcome("id", "da3c", Limits(max_frame_bytes=10)))
    pair.server_sends(Welcome("id", "da3c", pair.server.limits))


@pytest.mark.parametrize("codec", ["protobuf", "json"])
def test_welcome_may_have_out_of_step_only_if_the_hello_has(codec: str) -> None:
    pair = Pair(codec)
    pair.greet()
    wrong = Welcome("id", "da3c", pair.server.limits, out_of_step=True)
    with pytest.raises(
        LocalProtocolError, match="out_of_step is true in the welcome, and the hello did not ask for it"
    ):
        pair.server.send(wrong)
    pair.client.receive_data(frame(codec_named(codec).encode(wrong, Sender.SERVER), HANDSHAKE_FRAME_BYTES))
    with pytest.raises(RemoteProtocolError) as caught:
        pair.client.next_event()
    assert caught.value.code is ErrorCode.INVALID_VALUE


@pytest.mark.parametrize("codec", ["protobuf", "json"])
def test_client_learns_whether_it_may_mark_idle(codec: str) -> None:
    for admitted in (True, False):
        pair = Pair(codec)
        pair.greet(out_of_step=True)
        pair.server_sends(Welcome("id", "da3c", pair.server.limits, out_of_step=admitted))
        assert pair.client.welcome is not None
        assert pair.client.welcome.out_of_step is admitted
        idle = Init(batch(Box(shape=(2,)), 1), idle=np.array([True]))
        if admitted:
            pair.client_sends(idle)
        else:
            with pytest.raises(LocalProtocolError, match="idle marks the environment, and the welcome has no"):
                pair.client.send(idle)


@pytest.mark.parametrize("codec", ["protobuf", "json"])
@pytest.mark.parametrize("environments", [1, 300])
def test_longest_parameters_fit_the_welcome(codec: str, environments: int) -> None:
    pair = Pair(codec)
    pair.greet(environments=environments, environment_parameters=True)
    names = tuple(f"{number:0256}" for number in range(MAX_ENVIRONMENT_PARAMETERS))
    values = np.full(environments * len(names), -2.2250738585072014e-308)
    assert len(repr(float(values[0]))) == 24, "the longest text of a double"
    limits = pair.server.limits
    pair.server_sends(
        Welcome("id", "da3c", limits, environment_parameters=True, parameter_names=names, parameters=values)
    )
    assert pair.client.welcome is not None
    assert pair.client.welcome.parameter_names == names
    assert pair.client.welcome.parameters is not None
    assert np.array_equal(pair.client.welcome.parameters, values)


def test_error_with_long_message_fits_a_frame() -> None:
    pair = Pair("json")
    pair.greet()
    pair.server_sends(Error(ErrorCode.UNSUPPORTED_SPACE, "\U0001f600" * 100_000))


def test_remove_token_deletes_the_token_from_the_hello() -> None:
    client, server = ClientConnection(), ServerConnection()
    server.receive_data(client.send(make_hello(token="a secret of sixteen")))
    hello = server.next_event()
    assert isinstance(hello, Hello)
    assert hello.token == "a secret of sixteen"
    assert "secret" not in repr(hello)
    assert server.remove_token() == make_hello()
    assert server.hello == make_hello()


@pytest.mark.parametrize("codec", ["protobuf", "json"])
@pytest.mark.parametrize("environments", [1, 4096])
def test_welcome_with_a_million_names_is_refused(codec: str, environments: int) -> None:
    """It is too long for one environment. For many it is read, and refused before the names are compared."""
    pair = Pair(codec)
    pair.greet(make_hello(environments=environments, environment_parameters=True))
    welcome = Welcome("id", "da3c", Limits(), environment_parameters=True, parameter_names=("p",) * 1_000_000)
    pair.client.receive_data(frame(codec_named(codec).encode(welcome, Sender.SERVER), 2**24))
    with pytest.raises(RemoteProtocolError) as refused:
        pair.client.next_event()
    wanted = ErrorCode.FRAME_TOO_LARGE if environments == 1 else ErrorCode.LIMIT_EXCEEDED
    assert refused.value.code is wanted
