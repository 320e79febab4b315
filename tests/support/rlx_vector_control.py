"""The golden vectors of actions that the client chose, and of parameters of environments. Void rewards are 8."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

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

taking = partial(hello, chosen_actions=True)
asking = partial(hello, environment_parameters=True)
numbers = rewards  # the same form
TAKEN = replace(WELCOME, chosen_actions=True)
NAMED = replace(
    WELCOME, environment_parameters=True, parameter_names=("gravity", "size"), parameters=np.array([9.8, 4.0])
)


def chosen_actions() -> Iterator[Recording]:
    for codec in ("protobuf", "json"):
        yield Recording(
            f"chosen_actions_one_{codec}",
            "One environment, DISABLED. A person takes over for one step, and for the last one.",
            codec,
        ).sends(
            taking(),
            s(TAKEN),
            c(Init(points((0, 0)))),
            s(Actions(choices(0))),
            c(Step(rewards(1), points((0, 0.5)), chosen=mask(1), action=choices(2))),
            s(Actions(choices(1))),
            c(Step(rewards(1), points((0, 0.75)))),
            s(Actions(choices(1))),
            c(Reset(rewards(2), chosen=mask(1), action=choices(0))),
            s(EpisodeReturns(rewards(4))),
            c(Bye()),
        )
        yield Recording(
            f"chosen_actions_many_{codec}",
            "Three environments, SAME_STEP. The rows of action that are not chosen are not actions; a chosen action"
            " ends an episode.",
            codec,
        ).sends(
            taking(3, Autoreset.SAME_STEP),
            s(TAKEN),
            c(Init(points((0, 0), (0.25, 0), (0.5, 0)))),
            s(Actions(choices(0, 1, 2))),
            c(
                Step(
                    rewards(1, 1, 1),
                    points((0, 0.5), (0.25, 0.5), (0.5, 0.5)),
                    chosen=mask(0, 1, 0),
                    action=choices(-1, 2, 99),
                )
            ),
            s(Actions(choices(1, 1, 1))),
            c(
                Step(
                    rewards(1, 2, 1),
                    points((0, 0.5), (0.375, 0), (0.5, 0.5)),
                    terminated=mask(0, 1, 0),
                    chosen=mask(1, 1, 0),
                    action=choices(2, 0, 0),
                )
            ),
            s(Actions(choices(0, 0, 0))),
            c(
                Reset(
                    rewards(3, 1, 1),
                    truncated=mask(1, 0, 0),
                    final_observation=points((0, 1), (0.375, 1), (0.5, 1)),
                    chosen=mask(0, 0, 1),
                    action=choices(0, 0, 1),
                )
            ),
            s(EpisodeReturns(rewards(5, 1, 3))),
            c(Bye()),
        )
        yield Recording(
            f"chosen_actions_idle_{codec}",
            "Out of step, SAME_STEP: the chosen action of 1 is in progress for two steps and is marked at its end.",
            codec,
        ).sends(
            taking(2, Autoreset.SAME_STEP, out_of_step=True),
            s(replace(TAKEN, out_of_step=True)),
            c(Init(points((0, 0), (0.25, 0)))),
            s(Actions(choices(0, 1))),
            c(Step(rewards(1, 8), points((0, 0.5), NAN), idle=mask(0, 1), chosen=mask(1, 0), action=choices(2, 0))),
            s(Actions(choices(0, 1))),
            c(Step(rewards(1, 3), points((0, 0.75), (0.25, 0.5)), chosen=mask(0, 1), action=choices(0, 2))),
            s(Actions(choices(0, 1))),
            c(
                Step(
                    rewards(1, 3),
                    points((0, 1), NAN),
                    terminated=mask(0, 1),
                    idle=mask(0, 1),
                    chosen=mask(0, 1),
                    action=choices(0, 0),
                )
            ),
            s(Actions(choices(0, 1))),
            c(Bye()),
        )
    yield Recording("chosen_actions_next_step", "NEXT_STEP: no action is chosen in the step that is first.").sends(
        taking(2, Autoreset.NEXT_STEP),
        s(TAKEN),
        c(Init(points((0, 0), (0.25, 0)))),
        s(Actions(choices(0, 1))),
        c(
            Step(
                rewards(1, 2),
                points((0, 0.5), (0.25, 1)),
                truncated=mask(0, 1),
                chosen=mask(1, 1),
                action=choices(1, 2),
            )
        ),
        s(Actions(choices(0, 0))),
        c(
            Step(
                rewards(1, 8), points((0, 0.75), (0.375, 0)), first=mask(0, 1), chosen=mask(1, 0), action=choices(1, 0)
            )
        ),
        s(Actions(choices(0, 0))),
        c(Bye()),
    )
    yield Recording(
        "chosen_actions_unsupported",
        "The welcome lacks chosen_actions, which the hello asks for: not a mistake, but the client closes.",
    ).sends(taking(), s(WELCOME), c(Bye("actions of the client are not supported")))


def environment_parameters() -> Iterator[Recording]:
    for codec in ("protobuf", "json"):
        yield Recording(
            f"environment_parameters_one_{codec}",
            "One environment, DISABLED. The second episode has new values, which change once more before it begins;"
            " the third has the same.",
            codec,
        ).sends(
            asking(),
            s(NAMED),
            c(Init(points((0, 0)))),
            s(Actions(choices(0), (0,), numbers(1.6, 5))),
            c(Step(rewards(1), points((0, 0.5)))),
            s(Actions(choices(1))),
            c(Step(rewards(1), points((0, 0.75)))),
            s(Actions(choices(1), (0,), numbers(3.7, 6.5))),
            c(Reset(rewards(2))),
            s(EpisodeReturns(rewards(4))),
            c(Init(points((0, 0)))),
            s(Actions(choices(2))),
            c(Reset(rewards(1))),
            s(EpisodeReturns(rewards(1))),
            c(Init(points((0, 0)))),
            s(Actions(choices(2))),
            c(Bye()),
        )
        yield Recording(
            f"environment_parameters_many_{codec}",
            "Three environments, SAME_STEP: values for all of them with init, then for each that began an episode.",
            codec,
        ).sends(
            asking(3, Autoreset.SAME_STEP),
            s(replace(NAMED, parameters=numbers(1, 2, 3, 4, 5, 6))),
            c(Init(points((0, 0), (0.25, 0), (0.5, 0)))),
            s(Actions(choices(0, 1, 2), (0, 1, 2), numbers(11, 12, 13, 14, 15, 16))),
            c(Step(rewards(1, 1, 1), points((0, 0), (0.25, 0.5), (0.5, 0)), terminated=mask(1, 0, 1))),
            s(Actions(choices(0, 1, 2), (0, 2), numbers(-1e30, 22, 1e30, 0))),
            c(Step(rewards(1, 1, 1), points((0, 0), (0.25, 0.5), (0.5, 0)))),
            s(Actions(choices(0, 1, 2))),
            c(Bye()),
        )
    yield Recording(
        "environment_parameters_none", "The server supports parameters, and has none for this client."
    ).sends(
        asking(),
        s(replace(WELCOME, environment_parameters=True)),
        c(Init(points((0, 0)))),
        s(Actions(choices(0))),
        c(Bye()),
    )
    yield Recording(
        "environment_parameters_unsupported",
        "The welcome lacks environment_parameters, which the hello asks for: not a mistake, but the client closes.",
    ).sends(asking(), s(WELCOME), c(Bye("parameters of environments are not supported")))


def chosen_mistakes() -> Iterator[Recording]:
    """Yield mistakes of the client in `chosen` and `action`."""
    one, at = rewards(1), points((0, 0))
    unasked = Recording("step_chosen_unasked", "Chosen in a step, and no chosen_actions.").sends(c(HELLO), s(WELCOME))
    unasked.sends(c(Init(at)), s(Actions(choices(0))))
    yield unasked.errs("client", Step(one, at, chosen=mask(1), action=choices(0)), ErrorCode.INVALID_VALUE)
    for name, description, message in (
        ("step_chosen_length", "A mask of two.", Step(one, at, chosen=mask(1, 1), action=choices(0))),
        ("step_chosen_no_action", "Chosen, and no action.", Step(one, at, chosen=mask(1))),
        ("step_action_not_chosen", "An action, and nothing is chosen.", Step(one, at, action=choices(1))),
        (
            "step_action_range",
            "An action of 3 where 0 to 2 are valid.",
            Step(one, at, chosen=mask(1), action=choices(3)),
        ),
        (
            "step_action_shape",
            "Two actions for one environment.",
            Step(one, at, chosen=mask(1), action=choices(0, 1)),
        ),
        (
            "step_action_dtype",
            "An action of float32.",
            Step(one, at, chosen=mask(1), action=[np.array([1], np.float32)]),
        ),
        (
            "step_action_leaves",
            "Two leaves for one.",
            Step(one, at, chosen=mask(1), action=[*choices(1), *choices(1)]),
        ),
        ("reset_chosen_no_action", "Chosen in a reset, and no action.", Reset(one, chosen=mask(1))),
        ("reset_action_range", "An action of -1 in a reset.", Reset(one, chosen=mask(1), action=choices(-1))),
    ):
        recording = Recording(name, description).sends(taking(), s(TAKEN), c(Init(at)), s(Actions(choices(0))))
        yield recording.errs("client", message, ErrorCode.INVALID_VALUE)
    two, both = rewards(1, 1), points((0, 0), (0.25, 0))
    recording = Recording("step_chosen_idle", "The action is still in progress.").sends(
        taking(2, Autoreset.SAME_STEP, out_of_step=True),
        s(replace(TAKEN, out_of_step=True)),
        c(Init(both)),
        s(Actions(choices(0, 0))),
    )
    idle = Step(two, both, idle=mask(0, 1), chosen=mask(0, 1), action=choices(0, 1))
    yield recording.errs("client", idle, ErrorCode.INVALID_VALUE)
    for name, message in (
        ("step_chosen_first", Step(two, both, first=mask(0, 1), chosen=mask(0, 1), action=choices(0, 1))),
        ("reset_chosen_away", Reset(two, chosen=mask(0, 1), action=choices(0, 1))),
    ):
        recording = Recording(name, "NEXT_STEP, between two episodes: no action was taken.").sends(
            taking(2, Autoreset.NEXT_STEP),
            s(TAKEN),
            c(Init(both)),
            s(Actions(choices(0, 0))),
            c(Step(two, both, mask(0, 1))),
            s(Actions(choices(0, 0))),
        )
        yield recording.errs("client", message, ErrorCode.INVALID_VALUE)


def parameter_mistakes() -> Iterator[Recording]:
    """Yield mistakes of the server in welcomes and answers with parameters, and in capabilities."""
    for name in ("chosen_actions", "environment_parameters"):
        recording = Recording(f"server_welcome_{name}", f"A welcome with {name}, which the hello did not ask for.")
        yield recording.sends(c(HELLO)).errs("server", replace(WELCOME, **{name: True}), ErrorCode.INVALID_VALUE)
    invalid, limit = ErrorCode.INVALID_VALUE, ErrorCode.LIMIT_EXCEEDED
    for name, description, code, fields in (
        ("missing", "One value for two names.", invalid, {"parameters": numbers(1)}),
        ("nan", "A parameter is NaN.", invalid, {"parameters": numbers(1, np.nan)}),
        ("large", "A parameter of 1e31.", invalid, {"parameters": numbers(1, 1e31)}),
        ("name_twice", "A name twice.", invalid, {"parameter_names": ("size", "size")}),
        ("name_empty", "A name is empty.", invalid, {"parameter_names": ("size", "")}),
        ("name_long", "A name of 257 bytes.", limit, {"parameter_names": ("a", "b" * 257)}),
        (
            "many",
            "65 parameters.",
            limit,
            {"parameter_names": tuple(f"p{i}" for i in range(65)), "parameters": numbers(*range(65))},
        ),
        ("unasked", "Names, and no environment_parameters.", invalid, {"environment_parameters": False}),
    ):
        recording = Recording(f"server_welcome_parameters_{name}", description).sends(asking())
        yield recording.errs("server", replace(NAMED, **fields), code)  # type: ignore[arg-type]
    for name, description, of, values in (
        ("missing", "One value for two names.", (0,), numbers(1)),
        ("nan", "A parameter is NaN.", (0,), numbers(1, np.nan)),
        ("infinite", "A parameter is infinite.", (0,), numbers(-np.inf, 1)),
        ("order", "Environments in another order.", (1, 0), numbers(1, 2, 3, 4)),
        ("twice", "An environment twice.", (0, 0), numbers(1, 2, 3, 4)),
        ("environment", "Environment 2 of two.", (2,), numbers(1, 2)),
        ("of_none", "Values for no environment.", (), numbers(1, 2)),
    ):
        recording = Recording(f"server_parameters_{name}", description).sends(
            asking(2, Autoreset.SAME_STEP),
            s(replace(NAMED, parameters=numbers(1, 2, 3, 4))),
            c(Init(points((0, 0), (0.25, 0)))),
        )
        yield recording.errs("server", Actions(choices(0, 0), of, values), ErrorCode.INVALID_VALUE)
    unasked = Recording("server_parameters_unasked", "Parameters, and the welcome has no environment_parameters.")
    unasked.sends(c(HELLO), s(WELCOME), c(Init(points((0, 0)))))
    yield unasked.errs("server", Actions(choices(0), (0,), numbers(1)), ErrorCode.INVALID_VALUE)
