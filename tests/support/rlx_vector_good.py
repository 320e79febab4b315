"""The golden vectors without mistakes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from relaax.rlx import (
    Actions,
    Autoreset,
    Box,
    Bye,
    Dict,
    Discrete,
    Episode,
    EpisodeReturns,
    Error,
    ErrorCode,
    Hello,
    Init,
    Metrics,
    Mode,
    MultiBinary,
    MultiDiscrete,
    Ping,
    Pong,
    Reset,
    Sender,
    Step,
    TrainingFinished,
    Tuple,
)

from .rlx_vector_recorder import (
    HELLO,
    WELCOME,
    Recording,
    c,
    choices,
    mask,
    message_bytes,
    points,
    rewards,
    s,
    varint,
)
from .rlx_vectors import message_to_json


def plain() -> Iterator[Recording]:
    for codec in ("protobuf", "json"):
        yield Recording(
            f"plain_{codec}", "One environment, two steps, a reset, a second episode begun, bye.", codec
        ).sends(
            c(HELLO),
            s(WELCOME),
            c(Init(points((0.5, -0.25)))),
            s(Actions(choices(2))),
            c(Step(rewards(1), points((0.75, 0)))),
            s(Actions(choices(0))),
            c(Step(rewards(-0.5), points((1, 1)))),
            s(Actions(choices(1))),
            c(Reset(rewards(2))),
            s(EpisodeReturns(rewards(2.5))),
            c(Init(points((0, 0)))),
            s(Actions(choices(1))),
            c(Bye("done")),
        )
    yield Recording(
        "reset_truncated", "A reset that says that the episode was cut off, with the final observation."
    ).sends(
        c(HELLO),
        s(WELCOME),
        c(Init(points((0, 0)))),
        s(Actions(choices(2))),
        c(Reset(rewards(1), mask(1), points((0.5, 0.5)))),
        s(EpisodeReturns(rewards(1))),
    )
    yield Recording("largest_rewards", "The largest rewards that there are, and their sum.").sends(
        c(HELLO),
        s(WELCOME),
        c(Init(points((0, 0)))),
        s(Actions(choices(2))),
        c(Step(rewards(1e15), points((0.5, 0.5)))),
        s(Actions(choices(2))),
        c(Reset(rewards(1e15))),
        s(EpisodeReturns(rewards(2e15))),
    )
    yield Recording(
        "reconnect", "A session id is restored; the episode was already under way (partial); exploit."
    ).sends(
        c(replace(HELLO, session_id="session-1", mode=Mode.EXPLOIT, token="secret", frame_skip=4)),
        s(WELCOME),
        c(Init(points((0, 0)), partial=mask(1))),
        s(Actions(choices(2))),
        c(Bye()),
    )


def episodes() -> Iterator[Recording]:
    same = replace(HELLO, environments=3, autoreset=(Autoreset.SAME_STEP,), reports_episodes=True)
    for codec in ("protobuf", "json"):
        yield Recording(
            f"same_step_{codec}",
            "Three environments, SAME_STEP: 0 ends by the task's rule and 2 is cut off in one step; their final"
            " observations come beside the new episodes' first ones.",
            codec,
        ).sends(
            c(same),
            s(WELCOME),
            c(Init(points((0, 0), (0.25, 0), (0.5, 0)))),
            s(Actions(choices(0, 1, 2))),
            c(Step(rewards(1, 2, 3), points((0, 0.5), (0.25, 0.5), (0.5, 0.5)))),
            s(Actions(choices(2, 1, 0))),
            c(
                Step(
                    rewards(1, 2, 3),
                    points((0.125, 0), (0.25, 1), (0.625, 0)),
                    terminated=mask(1, 0, 0),
                    truncated=mask(0, 0, 1),
                    final_observation=points((0, 1), (0, 0), (0.5, 1)),
                    episodes=(Episode(0, 2.0, 2), Episode(2, 6.0, 2)),
                )
            ),
            s(Actions(choices(0, 0, 0))),
            c(Step(rewards(1, 2, 3), points((0, 0.5), (0.25, 0.5), (0.5, 0.5)))),
            s(Actions(choices(0, 0, 0))),
            c(Bye()),
        )
    next_step = replace(HELLO, environments=2, autoreset=(Autoreset.NEXT_STEP,))
    for codec in ("protobuf", "json"):
        yield Recording(
            f"next_step_{codec}",
            "Two environments, NEXT_STEP: 1 ends with its final observation; the next step marks the new episode's"
            " first observation, whose reward is void; then 0 is cut off, and a reset comes in between.",
            codec,
        ).sends(
            c(next_step),
            s(WELCOME),
            c(Init(points((0, 0), (0.25, 0)))),
            s(Actions(choices(0, 1))),
            c(Step(rewards(1, 2), points((0, 0.5), (0.25, 0.5)), terminated=mask(0, 1))),
            s(Actions(choices(2, 1))),
            c(Step(rewards(1, 0), points((0, 0.75), (0.125, 0)), first=mask(0, 1))),
            s(Actions(choices(0, 0))),
            c(Step(rewards(1, 2), points((0, 1), (0.125, 0.5)), truncated=mask(1, 0))),
            s(Actions(choices(0, 0))),
            c(Reset(rewards(0, 2), truncated=mask(0, 1), final_observation=points((0, 1), (0.125, 1)))),
            s(EpisodeReturns(rewards(0, 4))),
            c(Init(points((0, 0), (0.25, 0)))),
            s(Actions(choices(0, 0))),
            c(Step(rewards(1, 2), points((0, 0.5), (0.25, 0.5)))),
        )
    yield Recording(
        "next_step_reconnect",
        "A reconnect between two episodes of 1: init shows its final observation, and both are partial. After the step"
        " in which 1 resets itself, a reset ends both episodes; in the next init 0 is partial.",
    ).sends(
        c(replace(next_step, session_id="session-1")),
        s(WELCOME),
        c(Init(points((0, 0.5), (0.25, 1)), partial=mask(1, 1))),
        s(Actions(choices(0, 1))),
        c(Reset(rewards(1, 0), truncated=mask(1, 0), final_observation=points((0, 0.75), (0.25, 1)))),
        s(EpisodeReturns(rewards(1, 0))),
        c(Init(points((0, 0.75), (0.125, 0)), partial=mask(1, 0))),
        s(Actions(choices(2, 1))),
        c(Step(rewards(1, 2), points((0, 1), (0.125, 0.5)))),
    )
    yield Recording(
        "mixed_habits", "Environment 0 says SAME_STEP, 1 NEXT_STEP, 2 DISABLED; the first two end together."
    ).sends(
        c(replace(HELLO, environments=3, autoreset=(Autoreset.SAME_STEP, Autoreset.NEXT_STEP, Autoreset.DISABLED))),
        s(WELCOME),
        c(Init(points((0, 0), (0.25, 0), (0.5, 0)))),
        s(Actions(choices(0, 1, 2))),
        c(
            Step(
                rewards(1, 2, 3),
                points((0.125, 0), (0.25, 1), (0.5, 0.5)),
                truncated=mask(1, 1, 0),
                final_observation=points((0, 1), (0, 0), (0, 0)),
            )
        ),
        s(Actions(choices(0, 0, 0))),
        c(Step(rewards(1, 0, 3), points((0, 0.5), (0.375, 0), (0.5, 0.75)), first=mask(0, 1, 0))),
        s(Actions(choices(0, 0, 0))),
    )


def spaces() -> Iterator[Recording]:
    observation = Dict(
        {
            "z": Discrete(4, start=-1),
            "a": Tuple([Box(0, 255, (2, 2), np.uint8), MultiBinary(3)]),
            "Z": MultiDiscrete([2, 5]),
        }
    )
    action = Tuple([Discrete(2), Box([-1, 0], [1, 2], dtype=np.float64)])
    for codec in ("protobuf", "json"):
        yield Recording(
            f"nested_spaces_{codec}",
            'Leaves of nested spaces: the observation\'s are those of "Z", "a"[0], "a"[1], "z", in this order.',
            codec,
        ).sends(
            c(Hello(observation, action, 2, environment="Nested-v0")),
            s(WELCOME),
            c(
                Init(
                    [
                        np.array([[1, 4], [0, 0]]),
                        np.arange(8, dtype=np.uint8).reshape(2, 2, 2),
                        np.array([[0, 1, 1], [1, 0, 0]], np.int8),
                        np.array([-1, 2]),
                    ]
                )
            ),
            s(Actions([np.array([0, 1]), np.array([[-1.0, 0.0], [0.5, 2.0]])])),
        )
    for codec in ("protobuf", "json"):
        keys = Dict(
            {"\U0001f600": Discrete(2), "\uffff": Discrete(3), "\U00010000": Discrete(4), "\ue000": Discrete(5)}
        )
        yield Recording(
            f"key_order_{codec}",
            "Keys sorted by code point, not by UTF-16: U+E000, U+FFFF, U+10000, U+1F600.",
            codec,
        ).sends(
            c(Hello(keys, Discrete(3), environment="Keys-v0")),
            s(WELCOME),
            c(Init([np.array([n]) for n in (4, 2, 3, 1)])),
            s(Actions(choices(0))),
        )
    yield Recording(
        "every_dtype", "One Box of every element type, bounds given one by one, for all, and not at all."
    ).sends(
        c(
            Hello(
                Tuple(
                    [Box(0, 1, (1,), np.bool_)]
                    + [Box(0, 100, (2,), t) for t in (np.uint8, np.uint16, np.uint32, np.uint64)]
                    + [Box([-1, -2], [1, 2], dtype=t) for t in (np.int8, np.int16, np.int32, np.int64)]
                    + [Box(shape=(), dtype=t) for t in (np.float16, np.float32, np.float64)]
                ),
                Box([-np.inf, 0], np.inf, dtype=np.float32),
            )
        ),
        s(WELCOME),
        c(
            Init(
                [np.array([[True]])]
                + [np.array([[1, 2]], t) for t in (np.uint8, np.uint16, np.uint32, np.uint64)]
                + [np.array([[-1, 2]], t) for t in (np.int8, np.int16, np.int32, np.int64)]
                + [np.array([-1.5], t) for t in (np.float16, np.float32, np.float64)]
            )
        ),
        s(Actions([np.array([[-1.5, 1.5]], np.float32)])),
    )


def control() -> Iterator[Recording]:
    for codec in ("protobuf", "json"):
        yield Recording(
            f"metrics_ping_bye_{codec}",
            "Metrics; pings of both sides, also while an answer is awaited; the server's bye.",
            codec,
        ).sends(
            c(HELLO),
            s(Ping(1)),
            c(Pong(1)),
            s(WELCOME),
            c(Metrics((("speed", 0.5), ("goals/left", 3.0)))),
            c(Ping(4294967295)),
            s(Pong(4294967295)),
            c(Init(points((0, 0)))),
            s(Ping(2)),
            c(Metrics((("speed", 0.75),))),
            c(Pong(2)),
            s(Actions(choices(1))),
            s(Bye("the server is stopping")),
        )
        yield Recording(
            f"metrics_names_{codec}", "Names of metrics as people write them; two come to be one (section 7).", codec
        ).sends(
            c(HELLO),
            s(WELCOME),
            c(Metrics((("act latency on client", 0.5), ("act_latency_on_client", 0.25)))),
            c(Metrics((("1er étage", 3.0),))),
            c(Init(points((0, 0)))),
            s(Actions(choices(1))),
            c(Bye("done")),
        )
        yield Recording(f"training_finished_{codec}", "Training ends while the client awaits actions.", codec).sends(
            c(HELLO),
            s(WELCOME),
            c(Init(points((0, 0)))),
            s(TrainingFinished("Training has reached its last step.", 20_000_000_000)),
        )
    yield Recording("refused_token", "The server does not let the client in.").sends(
        c(replace(HELLO, token="wrong")), s(Error(ErrorCode.UNAUTHENTICATED, "The token is not the right one."))
    )
    yield Recording("overloaded", "The server has no room now: retryable, after a wait.").sends(
        c(HELLO), s(Error(ErrorCode.OVERLOADED, "No memory for another worker.", True, 2.5))
    )
    yield (
        Recording("end_of_stream", "The client's stream ends without a bye.")
        .sends(c(HELLO), s(WELCOME), c(Init(points((0, 0)))))
        .ends("client")
    )
    recording = Recording("unknown_fields_protobuf", "Fields of a newer peer are skipped, wherever they are.")
    wire = message_bytes(HELLO)
    inner = wire[2:] + bytes([0x92, 0x3F, 2]) + b"hi"  # field 1010, length-delimited
    recording.as_other_bytes(
        "client", b"\x0a" + varint(len(inner)) + inner + b"\xa0\x3f\x07", HELLO
    )  # field 1012, varint
    yield recording.sends(s(WELCOME))
    recording = Recording(
        "unknown_fields_json", "The same in JSON; names of fields may also be those of the .proto.", "json"
    )
    tree = message_to_json(HELLO, Sender.CLIENT)
    tree["hello"]["colour"] = {"red": [1, None]}
    tree["hello"]["client_name"] = tree["hello"].pop("clientName")
    recording.as_other_bytes("client", json.dumps({**tree, "hue": 7}, indent=1).encode(), HELLO)
    yield recording.sends(s(WELCOME))
    recording = Recording(
        "unknown_fields_odd_json", "Names and numbers that parsers trip over, in fields that nobody knows.", "json"
    )
    tree = message_to_json(HELLO, Sender.CLIENT)
    tree["hello"] |= {"[x.y]": [1], "long": 0}
    text = json.dumps({**tree, "[a/b.c]": None}).replace('"long": 0', f'"long": {"9" * 5000}')
    recording.as_other_bytes("client", text.encode(), HELLO)
    yield recording.sends(s(WELCOME))
