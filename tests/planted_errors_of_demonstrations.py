"""Planted errors of recorded episodes and of what is learned from them (see `planted_errors`)."""

from __future__ import annotations

from support.planting import planted

RECORDER_PY = "relaax/demonstrations/recorder.py"
READING_PY = "relaax/demonstrations/reading.py"
PLAYER_PY = "relaax/demonstrations/player.py"
TABLE_PY = "relaax/replay/table/table.py"
TRANSITIONS_PY = "relaax/algorithm_base/transitions.py"

RECORDER = "tests/demonstrations/test_recorder.py"
FILES = "tests/demonstrations/test_files.py"
COMMANDS = "tests/demonstrations/test_commands.py"
TABLE = "tests/replay/test_table.py"
AGENTS = "tests/algorithms/test_chosen_actions.py"

DEMONSTRATION_ERRORS = (
    planted(
        "recording-has-the-agents-action",
        "recorded episodes have the agent's action instead of the one that was taken",
        [(RECORDER_PY, "action = [leaf[index].copy() for leaf in step.actions]", "pass")],
        RECORDER,
    ),
    planted(
        "recording-has-the-next-observation",
        "a truncated episode is recorded with the first observation of the next one",
        [(RECORDER_PY, "for leaf in step.final_observations]", "for leaf in step.observations]")],
        RECORDER,
    ),
    planted(
        "recording-of-partial-episodes",
        "an episode that had begun before the connection is recorded as a whole one",
        [(RECORDER_PY, "None if partial is not None and partial[index] else _Episode()", "_Episode()")],
        RECORDER,
    ),
    planted(
        "reset-not-recorded",
        "the episodes that a reset ends are not recorded",
        [
            (
                "relaax/server/rlx_server/workers/session.py",
                "self._recorder.step(self._last_step(message, between, [], between, None))",
                "pass",
            )
        ],
        RECORDER,
    ),
    planted(
        "recorded-steps-in-any-order",
        "a recording whose steps are not in order is read",
        [(READING_PY, "if self._steps[row] != row - start", "if self._steps[row] < 0")],
        FILES,
    ),
    planted(
        "recorded-rewards-unchecked",
        "a recording with a reward that is not a number is read",
        [(READING_PY, "if not is_within(self._rewards, MAX_REWARD):", "if False:")],
        FILES,
    ),
    planted(
        "player-chooses-nothing",
        "the player of recorded episodes leaves the last action of each episode to the agent",
        [
            (
                PLAYER_PY,
                "client.reset(rewards, truncated, finals, actions=actions, chosen=everywhere)",
                "client.reset(rewards, truncated, finals)",
            )
        ],
        COMMANDS,
    ),
    planted(
        "demonstrations-without-a-floor",
        "updates of priorities are below the least priority of demonstrations",
        [(TABLE_PY, "np.maximum(priorities, least)", "priorities")],
        TABLE,
    ),
    planted(
        "margin-against-the-demonstration",
        "the margin of demonstrations makes their action worse than the best other one",
        [("relaax/algorithm_base/values.py", "by_values[rows, best] += weights", "by_values[rows, best] -= weights")],
        "tests/algorithm_base/test_value_loss.py",
    ),
    planted(
        "every-transition-is-a-demonstration",
        "the mark of a chosen action stays on the next transition in its row",
        [(TRANSITIONS_PY, "self._chosen[row] = 0.0, 0, True, False", "_ = 0.0, 0, True, False")],
        AGENTS,
    ),
)
