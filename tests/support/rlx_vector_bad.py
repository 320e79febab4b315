"""The golden vectors with a mistake of the client or of the server."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict

from relaax.rlx import (
    Actions,
    Autoreset,
    Bye,
    Discrete,
    Episode,
    EpisodeReturns,
    Error,
    ErrorCode,
    Init,
    Message,
    Metrics,
    Reset,
    Sender,
    Space,
    Step,
    Tuple,
    rlx_pb2,
)
from relaax.rlx.wire.encoding import to_wire

from .rlx_vector_recorder import (
    HELLO,
    LIMITS,
    WELCOME,
    Recording,
    c,
    choices,
    framed,
    mask,
    message_bytes,
    points,
    rewards,
    s,
)
from .rlx_vectors import message_to_json


def client_mistakes() -> Iterator[Recording]:
    yield from _bad_frames()
    yield from _bad_hellos()
    yield from _bad_steps()
    yield from _bad_moments()


def _bad_frames() -> Iterator[Recording]:
    malformed, large = ErrorCode.MALFORMED, ErrorCode.FRAME_TOO_LARGE
    yield Recording("malformed_protobuf", "No Protobuf.").errs("client", framed(b"\xff\xff\xff"), malformed)
    yield Recording("malformed_utf8", "A string that is no UTF-8.").errs(
        "client", framed(bytes.fromhex("0a05080112" + "01ff")), malformed
    )
    yield Recording("malformed_empty", "A frame of length 0.").errs("client", bytes(4), malformed)
    hello = message_bytes(HELLO)
    for name, description, payload in (
        ("malformed_two_messages", "A hello and a bye in one frame.", hello + message_bytes(Bye())),
        ("malformed_message_twice", "One hello twice in one frame, which Protobuf would merge.", hello * 2),
    ):
        yield Recording(name, description).errs("client", framed(payload), malformed)
    for name, payload in {
        "malformed_json": b'{"hello"',
        "malformed_json_twice": b'{"hello": {"mode": 1, "mode": 2}}',
        "malformed_json_two_messages": b'{"hello": {}, "bye": {}}',
        "malformed_json_deep": b'{"hello":' + b"[" * 2000 + b"]" * 2000 + b"}",
        "malformed_json_utf8": b'{"bye": {"reason": "\xff"}}',
        "malformed_json_array": b'{"bye": 3}',
        "malformed_json_list": b'{"bye": []}',
        "malformed_json_outermost": b'{"bye": {}}, {}',
        "malformed_json_two_names": b'{"hello": {"protocolVersion": 1, "clientName": "a", "client_name": "a"}}',
        "malformed_json_two_spaces": b'{"hello": {"protocolVersion": 1, "actionSpace": {"tuple": {}, "dict": {}}}}',
        "malformed_json_true": b'{"hello": {"protocolVersion": 1, "environments": true}}',
        "malformed_json_underscore": b'{"hello": {"protocolVersion": 1, "environments": "1_0"}}',
        "malformed_json_space": b'{"hello": {"protocolVersion": 1, "environments": " 1"}}',
        "malformed_json_nan": b'{"bye": {"colour": NaN}}',
    }.items():
        yield Recording(name, "No JSON of a message.", "json").errs("client", framed(payload), malformed)
    step = {"reward": [1], "observation": [{"dtype": "DTYPE_FLOAT32", "shape": [1, 2], "data": "AAAAAAAAAAA="}]}
    for name, field in (
        *(
            (f"malformed_json_reward_{kind}", {"reward": [one]})
            for kind, one in (("true", True), ("underscore", "1_0"))
        ),
        *(
            (f"malformed_json_base64_{kind}", {"observation": [{**step["observation"][0], "data": data}]})  # type: ignore[dict-item]
            for kind, data in (
                ("padding", "AAAAAAAAAAA"),
                ("alphabet", "AAAAAAAAAA_="),
                ("space", "AAAA AAAAAAA="),
                ("bits", "AAAAAAAAAAB="),
            )
        ),
    ):
        yield _opened(name, "No JSON of a message.", codec="json").errs(
            "client", framed(json.dumps({"step": {**step, **field}}).encode()), malformed
        )
    yield Recording("frame_too_large_hello", "Over 64 KiB before the welcome: refused by its length alone.").errs(
        "client", struct.pack(">I", 65537), large
    )
    yield Recording("frame_too_large_text", "What somebody might type: a length of over 1 GB.").errs(
        "client", b"hello, is anybody there?\r\n", large
    )
    yield (
        Recording("frame_too_large_later", "Over the welcome's limit.")
        .sends(c(HELLO), s(WELCOME))
        .errs("client", struct.pack(">I", LIMITS.max_frame_bytes + 1), large)
    )
    yield Recording("frame_too_large_json", "The fifth byte says that the answer is to be JSON.", "json").errs(
        "client", struct.pack(">I", 65537) + b"{", large
    )


def _bad_hellos() -> Iterator[Recording]:
    invalid, exceeded = ErrorCode.INVALID_VALUE, ErrorCode.LIMIT_EXCEEDED
    for codec in ("protobuf", "json"):
        yield Recording(f"unsupported_version_{codec}", "A version that is not spoken.", codec).errs(
            "client", replace(HELLO, protocol_version=2), ErrorCode.UNSUPPORTED_VERSION
        )
    yield Recording("unsupported_version_first", "The version is looked at before all else.").errs(
        "client", framed(bytes.fromhex("0a021007".replace("10", "08"))), ErrorCode.UNSUPPORTED_VERSION
    )
    for name, payload in (  # possible contents of a hello of version 2
        ("enumerators", b'"mode":"MODE_NEW","autoreset":["AUTORESET_NEW"]'),
        ("spaces", b'"observationSpace":{"graph":{}},"actionSpace":[]'),
        ("forms", b'"environments":{"count":3},"token":7'),
    ):
        yield Recording(f"unsupported_version_{name}_json", "The version is looked at before all else.", "json").errs(
            "client", framed(b'{"hello":{%s,"protocolVersion":2}}' % payload), ErrorCode.UNSUPPORTED_VERSION
        )
    for name, inner in (("text", "12 01 ff 08 02"), ("space", "08 02 42 03 0a 09 01")):
        part = bytes.fromhex(inner)
        yield Recording(f"unsupported_version_{name}_protobuf", "The version is looked at before all else.").errs(
            "client", framed(bytes([0x0A, len(part)]) + part), ErrorCode.UNSUPPORTED_VERSION
        )
    deep: Space = Discrete(2)
    for _ in range(16):
        deep = Tuple([deep])
    with_mode_9 = json.dumps({"hello": {**message_to_json(HELLO, Sender.CLIENT)["hello"], "mode": 9}}).encode()
    yield Recording("hello_unknown_mode", "An enumerator that is none.", "json").errs(
        "client", framed(with_mode_9), invalid
    )
    named = json.dumps({"hello": {**message_to_json(HELLO, Sender.CLIENT)["hello"], "autoreset": ["X"]}}).encode()
    yield Recording("hello_unknown_autoreset", "An enumerator that is none.", "json").errs(
        "client", framed(named), invalid
    )
    for name, description, hello, code in (
        ("hello_no_environments", "N = 0.", replace(HELLO, environments=0), invalid),
        ("hello_many_environments", "65,537 environments.", replace(HELLO, environments=65_537), exceeded),
        ("hello_frame_skip", "A frame_skip of 1,001.", replace(HELLO, frame_skip=1_001), exceeded),
        ("hello_absurd_environments", "N x observation over any frame.", replace(HELLO, environments=2**31), exceeded),
        (
            "hello_autoreset_count",
            "Neither one entry nor N.",
            replace(HELLO, environments=3, autoreset=(Autoreset.SAME_STEP,) * 2),
            invalid,
        ),
        ("hello_deep_space", "A space nested 17 deep.", None, exceeded),
        (
            "hello_many_leaves",
            "A space of 257 leaves.",
            replace(HELLO, observation_space=Tuple([Discrete(2)] * 257)),
            exceeded,
        ),
        ("hello_session_id", "A session id with a slash.", replace(HELLO, session_id="../x"), invalid),
    ):
        payload = framed(message_bytes(hello)) if hello else framed(_hello_with_observation(deep))
        yield Recording(name, description).errs("client", payload, code)
    huge = rlx_pb2.Space(box={"dtype": rlx_pb2.DTYPE_FLOAT32, "shape": [2**32 - 1] * 8})
    yield Recording("hello_huge_leaf", "A shape whose product overflows 64 bits.").errs(
        "client", framed(_hello_with_observation(huge)), exceeded
    )
    for name, description, space in (
        ("space_nothing", "A space that says nothing.", rlx_pb2.Space()),
        ("space_no_dtype", "A Box without dtype.", rlx_pb2.Space(box={"shape": [2]})),
        ("space_unknown_dtype", "A Box of an unknown dtype.", rlx_pb2.Space(box={"dtype": 99, "shape": [2]})),  # type: ignore[dict-item]
        ("space_zero_axis", "An axis of length 0.", rlx_pb2.Space(box={"dtype": rlx_pb2.DTYPE_UINT8, "shape": [0]})),
        (
            "space_nan_bound",
            "A bound that is NaN.",
            rlx_pb2.Space(box={"dtype": rlx_pb2.DTYPE_FLOAT32, "shape": [2], "low": [float("nan")]}),
        ),
        (
            "space_low_over_high",
            "A low above its high.",
            rlx_pb2.Space(box={"dtype": rlx_pb2.DTYPE_FLOAT32, "shape": [2], "low": [1], "high": [0]}),
        ),
        (
            "space_bounds_count",
            "Neither none, one nor one bound per element.",
            rlx_pb2.Space(box={"dtype": rlx_pb2.DTYPE_FLOAT32, "shape": [3], "low": [0, 0]}),
        ),
        ("space_discrete_none", "Discrete with n = 0.", rlx_pb2.Space(discrete={"n": 0})),
        (
            "space_discrete_overflow",
            "Discrete past 64 bits.",
            rlx_pb2.Space(discrete={"n": 2**63 - 1, "start": 2**63 - 1}),
        ),
        ("space_empty_tuple", "A Tuple without parts.", rlx_pb2.Space(tuple={})),
        (
            "space_key_twice",
            "A Dict with a key twice.",
            rlx_pb2.Space(dict={"entries": [{"key": "a", "space": {"discrete": {"n": 2}}}] * 2}),  # type: ignore[dict-item]
        ),
    ):
        yield Recording(name, description).errs("client", framed(_hello_with_observation(space)), invalid)


def _hello_with_observation(space: Space | rlx_pb2.Space) -> bytes:
    """Return a hello with an observation space that this project's encoder refuses."""
    envelope = rlx_pb2.ClientMessage.FromString(message_bytes(HELLO))
    envelope.hello.observation_space.Clear()
    target = envelope.hello.observation_space
    while isinstance(space, Tuple):
        target, space = target.tuple.spaces.add(), space.spaces[0]
    target.CopyFrom(rlx_pb2.Space(discrete={"n": 2}) if isinstance(space, Space) else space)
    return envelope.SerializeToString()


def _opened(
    name: str, description: str, *more: tuple[str, Message], codec: str = "protobuf", **hello: Any
) -> Recording:
    """Return a recording in which the client may step."""
    greeting = replace(HELLO, **hello)
    n = greeting.environments
    recording = Recording(name, description, codec).sends(c(greeting), s(WELCOME), c(Init(points(*[(0, 0)] * n))))
    return recording.sends(s(Actions(choices(*[0] * n))), *more)


def _bad_steps() -> Iterator[Recording]:
    invalid, exceeded = ErrorCode.INVALID_VALUE, ErrorCode.LIMIT_EXCEEDED
    same, next_step = (Autoreset.SAME_STEP,), (Autoreset.NEXT_STEP,)
    at, one = points((0, 0)), rewards(1)
    for name, description, hello, message in (
        ("step_nan_reward", "A reward that is NaN.", {}, Step(rewards(np.nan), at)),
        ("step_large_reward", "A reward of over 10^15.", {}, Step(rewards(np.nextafter(1e15, 2e15)), at)),
        ("step_very_large_reward", "A reward of 1.7 x 10^308.", {}, Step(rewards(1.7e308), at)),
        ("step_infinite_observation", "An observation that is infinite.", {}, Step(one, points((0, np.inf)))),
        ("step_two_rewards", "Two rewards for one environment.", {}, Step(rewards(1, 1), at)),
        ("step_no_leaf", "No leaf.", {}, Step(one, [])),
        ("step_two_leaves", "A leaf too many.", {}, Step(one, at + at)),
        ("step_dtype", "float64 where float32 was agreed on.", {}, Step(one, [np.zeros((1, 2))])),
        ("step_shape", "A wrong shape.", {}, Step(one, [np.zeros((1, 3), np.float32)])),
        ("step_no_axis_n", "The axis N is missing.", {}, Step(one, [np.zeros(2, np.float32)])),
        ("step_mask_length", "A mask of two for one environment.", {}, Step(one, at, truncated=mask(0, 1))),
        ("step_ends_disabled", "DISABLED environments end with reset.", {}, Step(one, at, terminated=mask(1))),
        (
            "step_no_final",
            "SAME_STEP, cut off, no final observation.",
            {"autoreset": same},
            Step(one, at, truncated=mask(1)),
        ),
        ("step_final_of_none", "A final observation, and no end.", {"autoreset": same}, Step(one, at, None, None, at)),
        (
            "step_final_of_next_step",
            "A final observation beside a NEXT_STEP end.",
            {"autoreset": next_step},
            Step(one, at, mask(1), None, at),
        ),
        (
            "step_nan_final",
            "A final observation that is NaN where it counts.",
            {"autoreset": same},
            Step(one, at, mask(1), None, points((0, np.nan))),
        ),
        (
            "step_first_of_none",
            "A first, and no end before it.",
            {"autoreset": next_step},
            Step(one, at, first=mask(1)),
        ),
        ("step_episodes_unsaid", "Episodes, and no reports_episodes.", {}, Step(one, at, episodes=(Episode(0, 1, 1),))),
        (
            "step_episode_of_none",
            "An episode of environment 1 of 1.",
            {"reports_episodes": True},
            Step(one, at, episodes=(Episode(1, 1, 1),)),
        ),
        ("reset_no_final", "A reset that says cut off, no final observation.", {}, Reset(one, mask(1))),
        (
            "step_large_return",
            "An episode's return of under -10^30.",
            {"reports_episodes": True},
            Step(one, at, episodes=(Episode(0, -2e30, 1),)),
        ),
        ("reset_nan_reward", "A reward that is NaN.", {}, Reset(rewards(-np.inf))),
        ("reset_large_reward", "A reward of under -10^15.", {}, Reset(rewards(-1.7e308))),
        ("metrics_no_name", "A metric without a name.", {}, Metrics((("", 1.0),))),
        ("metrics_value", "A metric that is infinite.", {}, Metrics((("a", np.inf),))),
        ("metrics_large_value", "A metric of over 10^30.", {}, Metrics((("a", 2e30),))),
    ):
        yield _opened(name, description, **hello).errs("client", message, invalid)  # type: ignore[arg-type]
    yield _opened("step_very_large_reward_json", "A reward of 1.7 x 10^308.", codec="json").errs(
        "client", Step(rewards(1.7e308), at), invalid
    )
    for name, description, message in (
        ("metrics_long_name", "A metric's name of 33 bytes; 32 were agreed on.", Metrics((("a" * 33, 1.0),))),
        ("metrics_many_names", "A third metric name; 2 were agreed on.", Metrics((("a", 1.0), ("b", 1.0), ("c", 1.0)))),
    ):
        yield _opened(name, description).errs("client", message, exceeded)
    ended = (c(Step(one, at, mask(1))), s(Actions(choices(0))))
    yield _opened("step_first_missing", "NEXT_STEP ended, and no first.", *ended, autoreset=next_step).errs(
        "client", Step(one, at), invalid
    )
    yield _opened("step_first_ends", "An episode starts and ends at once.", *ended, autoreset=next_step).errs(
        "client", Step(one, at, terminated=mask(1), first=mask(1)), invalid
    )
    yield _opened("reset_truncates_ended", "Cut off after its end.", *ended, autoreset=next_step).errs(
        "client", Reset(one, mask(1), at), invalid
    )
    for name, description, array in (
        ("array_short", "7 bytes of data for 8.", {"dtype": 11, "shape": [1, 2], "data": bytes(7)}),
        ("array_overflow", "A shape whose product is 2^64, and no data.", {"dtype": 11, "shape": [2**31, 2**31, 4]}),
        ("array_many_axes", "More axes than can be.", {"dtype": 11, "shape": [1] * 70, "data": bytes(4)}),
        ("array_no_dtype", "No dtype.", {"shape": [1, 2], "data": bytes(8)}),
        ("array_unknown_dtype", "A dtype that is not on the list.", {"dtype": 13, "shape": [1, 2], "data": bytes(8)}),
    ):
        envelope = rlx_pb2.ClientMessage(step={"reward": [1.0], "observation": [array]})  # type: ignore[list-item]
        yield _opened(name, description).errs("client", framed(envelope.SerializeToString()), invalid)


def _bad_moments() -> Iterator[Recording]:
    unexpected = ErrorCode.UNEXPECTED_MESSAGE
    at = points((0, 0))
    yield Recording("unexpected_init", "Init before hello.").errs("client", Init(at), unexpected)
    yield (
        Recording("unexpected_metrics", "Metrics before welcome.")
        .sends(c(HELLO))
        .errs("client", Metrics((("a", 1.0),)), unexpected)
    )
    yield (
        Recording("unexpected_step", "Step before init.")
        .sends(c(HELLO), s(WELCOME))
        .errs("client", Step(rewards(1), at), unexpected)
    )
    yield _opened("unexpected_hello", "A second hello.").errs("client", HELLO, unexpected)
    yield _opened("unexpected_second_step", "A step before the last one's answer.", c(Step(rewards(1), at))).errs(
        "client", Step(rewards(1), at), unexpected
    )
    yield Recording("unknown_message_protobuf", "A message of a newer client.").errs(
        "client", framed(bytes.fromhex("a23f00")), unexpected
    )
    yield Recording("unknown_message_json", "A message of a newer client.", "json").errs(
        "client", framed(b'{"fly": {"high": true}}'), unexpected
    )


def server_mistakes() -> Iterator[Recording]:
    """Yield mistakes that a client must detect. It then closes the connection, after an optional bye."""
    invalid, unexpected = ErrorCode.INVALID_VALUE, ErrorCode.UNEXPECTED_MESSAGE
    yield (
        Recording("server_welcome_version", "Another version than asked for.")
        .sends(c(HELLO))
        .errs("server", replace(WELCOME, protocol_version=2), ErrorCode.UNSUPPORTED_VERSION)
    )
    yield (
        Recording("server_welcome_limits", "A limit that no frame of this client fits.")
        .sends(c(HELLO))
        .errs("server", replace(WELCOME, limits=replace(LIMITS, max_frame_bytes=1)), ErrorCode.LIMIT_EXCEEDED)
    )
    yield (
        Recording("server_welcome_heartbeat", "A heartbeat that is no time.")
        .sends(c(HELLO))
        .errs("server", replace(WELCOME, limits=replace(LIMITS, heartbeat_seconds=0.0)), invalid)
    )
    yield (
        Recording("server_welcome_session_id", "A session id with a space in it.")
        .sends(c(HELLO))
        .errs("server", replace(WELCOME, session_id="session 1"), invalid)
    )
    yield (
        Recording("server_error_wait", "An error with a negative wait.")
        .sends(c(HELLO))
        .errs("server", Error(ErrorCode.UNAVAILABLE, "wait", True, -1.0), invalid)
    )
    yield (
        Recording("server_actions_early", "Actions that nobody asked for.")
        .sends(c(HELLO), s(WELCOME))
        .errs("server", Actions(choices(0)), unexpected)
    )
    for name, description, actions in (
        ("server_action_range", "An action outside the space.", choices(3)),
        ("server_action_dtype", "An action of a wrong dtype.", [np.zeros(1, np.int32)]),
        ("server_action_count", "Two actions for one environment.", choices(0, 0)),
        ("server_action_shape", "An action with an axis more than the space has.", [np.zeros((1, 1), np.int64)]),
        ("server_action_leaves", "Two leaves where the space has one.", [*choices(0), *choices(0)]),
    ):
        yield (
            Recording(name, description)
            .sends(c(HELLO), s(WELCOME), c(Init(points((0, 0)))))
            .errs("server", Actions(actions), invalid)
        )
    short = {"action": [{"dtype": 9, "shape": [1], "data": bytes(7)}]}
    yield (
        Recording("server_action_data", "An action of 7 bytes; 8 are due.")
        .sends(c(HELLO), s(WELCOME), c(Init(points((0, 0)))))
        .errs("server", framed(rlx_pb2.ServerMessage(actions=short).SerializeToString()), invalid)  # type: ignore[arg-type]
    )
    yield (
        Recording("server_actions_twice", "More actions behind the ones that were due.")
        .sends(c(HELLO), s(WELCOME), c(Init(points((0, 0)))), s(Actions(choices(0))))
        .errs("server", Actions(choices(0)), unexpected)
    )
    for name, description, returns in (
        ("server_returns_count", "Two returns for one environment.", rewards(1, 1)),
        ("server_returns_range", "A return of 2e30.", rewards(2e30)),
    ):
        yield (
            Recording(name, description)
            .sends(c(HELLO), s(WELCOME), c(Init(points((0, 0)))), s(Actions(choices(0))), c(Reset(rewards(1))))
            .errs("server", EpisodeReturns(returns), invalid)
        )
    yield (
        Recording("server_unknown_message", "A message of a newer server.")
        .sends(c(HELLO))
        .errs("server", framed(bytes.fromhex("a23f00")), unexpected)
    )
    yield (
        Recording("server_frame_too_large", "Over 64 KiB before the welcome.")
        .sends(c(HELLO))
        .errs("server", struct.pack(">I", 65537), ErrorCode.FRAME_TOO_LARGE)
    )
    yield (
        Recording("server_malformed_empty", "A frame of length 0.")
        .sends(c(HELLO), s(WELCOME), c(Init(points((0, 0)))))
        .errs("server", bytes(4), ErrorCode.MALFORMED)
    )
    actions = Actions(choices(0))
    for codec in ("protobuf", "json"):
        two = rlx_pb2.ServerMessage(ping={"nonce": 1}), to_wire(actions, Sender.SERVER)
        if codec == "protobuf":
            payload = b"".join(message.SerializeToString() for message in two)
        else:
            payload = json.dumps({k: v for message in two for k, v in MessageToDict(message).items()}).encode()
        yield (
            Recording(f"server_malformed_two_{codec}", "A ping and actions in one frame.", codec)
            .sends(c(HELLO), s(WELCOME), c(Init(points((0, 0)))))
            .errs("server", framed(payload), ErrorCode.MALFORMED)
        )
    yield (
        Recording("server_malformed", "JSON where Protobuf was agreed on.")
        .sends(c(HELLO))
        .errs("server", framed(b'{"ping":{}}'), ErrorCode.MALFORMED)
    )
    welcome = to_wire(WELCOME, Sender.SERVER)
    named = {"protobuf": welcome.SerializeToString(), "json": json.dumps(MessageToDict(welcome)).encode()}
    for codec, payload in named.items():
        yield (
            Recording(f"server_malformed_text_{codec}", "A name that is no UTF-8.", codec)
            .sends(c(HELLO))
            .errs("server", framed(payload.replace(b"da3c", b"da\xff\xfe")), ErrorCode.MALFORMED)
        )
    yield from _wrong_json(
        json.dumps(MessageToDict(welcome)), json.dumps(MessageToDict(to_wire(actions, Sender.SERVER)))
    )


def _wrong_json(welcome: str, answer: str) -> Iterator[Recording]:
    for name, description, right, wrong in JSON_KINDS:
        recording = Recording(f"server_malformed_json_{name}", description, "json").sends(c(HELLO))
        if right in answer:
            recording.sends(s(WELCOME), c(Init(points((0, 0)))))
        said = next(text for text in (welcome, answer, '{"ping": {"nonce": 1}}') if right in text)
        yield recording.errs("server", framed(said.replace(right, wrong).encode()), ErrorCode.MALFORMED)


JSON_KINDS = (
    ("bool", "true for a number.", '"heartbeatSeconds": 5.0', '"heartbeatSeconds": true'),
    ("number", "A number for a text.", '"session-1"', "1"),
    ("list", "A list for a message.", '{"nonce": 1}', "[]"),
    ("axis", "true for an axis.", '"shape": [1]', '"shape": [true]'),
    ("base64_padding", "base64 without its padding.", 'AAAAAAAAAAA="', 'AAAAAAAAAAA"'),
    ("base64_line", "base64 with a line end in it.", 'AAAAAAAAAAA="', 'AAAAAAAA\\nAAA="'),
)
