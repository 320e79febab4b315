"""The golden vectors of environments out of step. Void observations are NaN, and void rewards are 8."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from relaax.rlx import (
    Actions,
    Autoreset,
    Bye,
    EpisodeReturns,
    ErrorCode,
    Init,
    Reset,
    Step,
)

from .rlx_vector_recorder import HELLO, NAN, WELCOME, Recording, c, choices, hello, mask, points, rewards, s

asked = partial(hello, out_of_step=True)
ADMITTED = s(replace(WELCOME, out_of_step=True))


def out_of_step() -> Iterator[Recording]:
    for codec in ("protobuf", "json"):
        yield Recording(
            f"out_of_step_same_step_{codec}",
            "Two players take turns, SAME_STEP. Both leave with the end of the game, stay away for a step, and come"
            " together. Then 1 leaves alone, cut off. A reset ends the episode of 0; all are idle in the next init.",
            codec,
        ).sends(
            asked(2, Autoreset.SAME_STEP),
            ADMITTED,
            c(Init(points((0, 0), NAN), idle=mask(0, 1))),
            s(Actions(choices(0, 1))),
            c(Step(rewards(8, 8), points(NAN, (0.25, 0)), first=mask(0, 1), idle=mask(1, 0))),
            s(Actions(choices(1, 2))),
            c(Step(rewards(0.5, 8), points((0, 0.5), NAN), idle=mask(0, 1))),
            s(Actions(choices(2, 0))),
            c(Step(rewards(1, -1), points(NAN, NAN), terminated=mask(1, 1), idle=mask(1, 1))),
            s(Actions(choices(0, 0))),
            c(Step(rewards(8, 8), points(NAN, NAN), idle=mask(1, 1))),
            s(Actions(choices(0, 0))),
            c(Step(rewards(8, 8), points((0, 0), (0.25, 0)), first=mask(1, 1))),
            s(Actions(choices(1, 1))),
            c(Step(rewards(2, 8), points((0, 0.5), NAN), idle=mask(0, 1))),
            s(Actions(choices(2, 0))),
            c(
                Step(
                    rewards(1, 3),
                    points((0, 1), NAN),
                    truncated=mask(0, 1),
                    final_observation=points(NAN, (0.25, 1)),
                    idle=mask(0, 1),
                )
            ),
            s(Actions(choices(1, 0))),
            c(Reset(rewards(4, 8), truncated=mask(1, 0), final_observation=points((0, 1), (0.25, 1)))),
            s(EpisodeReturns(rewards(7, 0))),
            c(Init(points(NAN, NAN), idle=mask(1, 1))),
            s(Actions(choices(0, 0))),
            c(Step(rewards(8, 8), points((0, 0), NAN), first=mask(1, 0), idle=mask(0, 1))),
            s(Actions(choices(2, 0))),
            c(Bye()),
        )
        yield Recording(
            f"out_of_step_next_step_{codec}",
            "Three environments, NEXT_STEP. 2 comes late. 1 leaves with its final observation and comes later than in"
            " the next step; 0 ends and begins as without idle. The reset ends an action that was in progress.",
            codec,
        ).sends(
            asked(3, Autoreset.NEXT_STEP),
            ADMITTED,
            c(Init(points((0, 0), (0.25, 0), NAN), idle=mask(0, 0, 1))),
            s(Actions(choices(0, 1, 2))),
            c(Step(rewards(1, 8, 8), points((0, 0.5), NAN, NAN), idle=mask(0, 1, 1))),
            s(Actions(choices(1, 0, 0))),
            c(
                Step(
                    rewards(1, 5, 8),
                    points((0, 0.75), (0.25, 1), NAN),
                    terminated=mask(0, 1, 0),
                    idle=mask(0, 1, 1),
                )
            ),
            s(Actions(choices(2, 0, 0))),
            c(Step(rewards(1, 8, 8), points((0, 1), NAN, NAN), truncated=mask(1, 0, 0), idle=mask(0, 1, 1))),
            s(Actions(choices(0, 0, 0))),
            c(
                Step(
                    rewards(8, 8, 8),
                    points((0.125, 0), NAN, (0.5, 0)),
                    first=mask(1, 0, 1),
                    idle=mask(0, 1, 0),
                )
            ),
            s(Actions(choices(1, 0, 1))),
            c(
                Step(
                    rewards(8, 8, 3),
                    points(NAN, (0.375, 0), (0.5, 0.5)),
                    first=mask(0, 1, 0),
                    idle=mask(1, 0, 0),
                )
            ),
            s(Actions(choices(0, 2, 2))),
            c(
                Reset(
                    rewards(2, 4, 1),
                    truncated=mask(1, 0, 1),
                    final_observation=points((0.125, 1), (0.375, 1), (0.5, 1)),
                )
            ),
            s(EpisodeReturns(rewards(2, 4, 4))),
            c(Init(points((0, 0), (0.25, 0), (0.5, 0)))),
            s(Actions(choices(0, 0, 0))),
            c(Bye()),
        )
        yield Recording(
            f"out_of_step_partial_{codec}",
            "A reconnect, DISABLED: 0 resets, the episode of 1 is in progress but wants no action yet (partial and"
            " idle), 2 is away until the end.",
            codec,
        ).sends(
            asked(3, Autoreset.DISABLED, session_id="session-1"),
            ADMITTED,
            c(Init(points((0, 0), NAN, NAN), partial=mask(0, 1, 0), idle=mask(0, 1, 1))),
            s(Actions(choices(0, 1, 2))),
            c(Step(rewards(1, 8, 8), points((0, 0.5), (0.25, 0.5), NAN), first=mask(0, 1, 0), idle=mask(0, 0, 1))),
            s(Actions(choices(1, 0, 0))),
            c(Step(rewards(8, 2, 8), points(NAN, (0.25, 0.75), NAN), idle=mask(1, 0, 1))),
            s(Actions(choices(0, 2, 0))),
            c(
                Reset(
                    rewards(3, 1, 8),
                    truncated=mask(1, 1, 0),
                    final_observation=points((0, 1), (0.25, 1), (0.5, 0)),
                )
            ),
            s(EpisodeReturns(rewards(4, 3, 0))),
            c(Bye()),
        )
    yield Recording(
        "out_of_step_mixed", "Environment 0 says SAME_STEP, 1 NEXT_STEP, 2 DISABLED; the first two leave together."
    ).sends(
        asked(3, Autoreset.SAME_STEP, Autoreset.NEXT_STEP, Autoreset.DISABLED),
        ADMITTED,
        c(Init(points((0, 0), (0.25, 0), NAN), idle=mask(0, 0, 1))),
        s(Actions(choices(0, 1, 2))),
        c(
            Step(
                rewards(1, 2, 8),
                points(NAN, (0.25, 1), (0.5, 0)),
                truncated=mask(1, 1, 0),
                final_observation=points((0, 1), NAN, NAN),
                first=mask(0, 0, 1),
                idle=mask(1, 1, 0),
            )
        ),
        s(Actions(choices(0, 0, 0))),
        c(Step(rewards(8, 8, 3), points((0.125, 0), (0.375, 0), (0.5, 0.5)), first=mask(1, 1, 0))),
        s(Actions(choices(0, 0, 0))),
    )
    yield Recording(
        "out_of_step_unsupported",
        "The welcome lacks out_of_step, which the hello asks for: not a mistake, but the client closes.",
    ).sends(asked(1, Autoreset.DISABLED), s(WELCOME), c(Bye("environments out of step are not supported")))


def idle_mistakes() -> Iterator[Recording]:
    """Yield mistakes of the client in `idle` and with it. Environment 1 is away."""
    same, following = Autoreset.SAME_STEP, Autoreset.NEXT_STEP
    at, two = points((0, 0), (0.25, 0)), rewards(1, 1)
    away = {"idle": mask(0, 1)}
    unasked = Recording("init_idle_unasked", "Idle in init, and no out_of_step.").sends(c(HELLO), s(WELCOME))
    yield unasked.errs("client", Init(points((0, 0)), idle=mask(1)), ErrorCode.INVALID_VALUE)
    unasked = Recording("step_idle_unasked", "Idle in a step, and no out_of_step.").sends(c(HELLO), s(WELCOME))
    unasked.sends(c(Init(points((0, 0)))), s(Actions(choices(0))))
    yield unasked.errs("client", Step(rewards(1), points((0, 0)), idle=mask(1)), ErrorCode.INVALID_VALUE)
    for name, description, first in (
        ("init_idle_length", "A mask of three for two environments.", Init(at, idle=mask(0, 0, 1))),
        ("init_idle_nan", "NaN where init is not idle.", Init(points(NAN, NAN), idle=mask(0, 1))),
    ):
        recording = Recording(name, description).sends(asked(2, same), ADMITTED)
        yield recording.errs("client", first, ErrorCode.INVALID_VALUE)
    for name, description, mode, message in (
        ("step_idle_length", "A mask of one for two environments.", same, Step(two, at, idle=mask(1))),
        ("step_first_missing_of_coming", "It comes, and no first.", same, Step(two, at)),
        ("step_first_of_idle", "It stays away, and first.", same, Step(two, at, first=mask(0, 1), **away)),
        (
            "step_first_of_playing",
            "One comes, and first marks the other too.",
            same,
            Step(two, at, first=mask(1, 1)),
        ),
        ("step_ends_away", "An end without an episode.", same, Step(two, at, mask(0, 1), **away)),
        (
            "step_ends_coming",
            "An episode starts and ends at once.",
            same,
            Step(two, at, mask(0, 1), first=mask(0, 1)),
        ),
        (
            "step_idle_ends_disabled",
            "DISABLED, idle, and an end.",
            Autoreset.DISABLED,
            Step(two, at, mask(1, 0), idle=mask(1, 1)),
        ),
        (
            "step_leaves_no_final",
            "SAME_STEP leaves, cut off, and no final observation.",
            same,
            Step(two, at, None, mask(1, 0), idle=mask(1, 1)),
        ),
        (
            "step_leaves_nan_final",
            "SAME_STEP leaves with a final observation that is NaN.",
            same,
            Step(two, at, None, mask(1, 0), points(NAN, (0, 0)), idle=mask(1, 1)),
        ),
        (
            "step_leaves_nan",
            "NEXT_STEP leaves with a final observation that is NaN.",
            following,
            Step(two, points(NAN, (0, 0)), mask(1, 0), idle=mask(1, 1)),
        ),
        (
            "step_comes_nan",
            "An episode starts with NaN.",
            same,
            Step(two, points((0, 0), NAN), first=mask(0, 1)),
        ),
        ("reset_truncates_away", "Cut off without an episode.", same, Reset(two, mask(0, 1), at)),
        ("reset_nan_of_away", "NaN in the row of one that is away.", same, Reset(two, mask(1, 0), points((0, 0), NAN))),
    ):
        recording = Recording(name, description).sends(
            asked(2, mode),
            ADMITTED,
            c(Init(at, idle=mask(0, 1))),
            s(Actions(choices(0, 0))),
        )
        yield recording.errs("client", message, ErrorCode.INVALID_VALUE)
    for codec in ("protobuf", "json"):
        recording = Recording(f"step_end_of_left_{codec}", "It has left, and ends again.", codec).sends(
            asked(2, same),
            ADMITTED,
            c(Init(at)),
            s(Actions(choices(0, 0))),
            c(Step(two, at, mask(0, 1), **away)),
            s(Actions(choices(0, 0))),
        )
        yield recording.errs("client", Step(two, at, mask(0, 1), **away), ErrorCode.INVALID_VALUE)


def unasked_welcome() -> Iterator[Recording]:
    recording = Recording("server_welcome_out_of_step", "A welcome with out_of_step, which the hello did not ask for.")
    yield recording.sends(c(HELLO)).errs("server", replace(WELCOME, out_of_step=True), ErrorCode.INVALID_VALUE)
