"""Planted errors of actions that clients chose, and of lessons (see `planted_errors`)."""

from __future__ import annotations

from support.planting import planted

LOSS_PY = "algorithms/da3c/loss.py"
SESSION_PY = "relaax/server/rlx_server/workers/session.py"
PARAMETERS_PY = "relaax/server/rlx_server/workers/episode_parameters.py"
CURRICULUM_PY = "relaax/lessons/curriculum.py"
CORE_PY = "relaax/server/parameter_server/service/core.py"

LOSS = "tests/algorithms/da3c/test_loss.py"
CLIPPED_LOSS = "tests/algorithms/ppo/test_loss.py"
AGENTS = "tests/algorithms/test_chosen_actions.py"
SESSION = "tests/server/rlx_server/test_chosen_actions.py"
PARAMETERS = "tests/server/rlx_server/test_environment_parameters.py"
CURRICULUM = "tests/lessons/test_curriculum.py"
LESSONS = "tests/server/parameter_server/test_lessons.py"

TAKEOVER_ERRORS = (
    planted(
        "chosen-actions-in-policy-gradient",
        "the policy gradient includes actions that the client chose",
        [(LOSS_PY, "np.where(self._chosen, np.float32(0), weights)", "weights")],
        LOSS,
    ),
    planted(
        "cloning-away-from-the-action",
        "the cloning term makes the client's action less likely",
        [(LOSS_PY, "-advantages - self._cloned(", "-advantages + self._cloned(")],
        LOSS,
    ),
    planted(
        "clipped-cloning-away-from-the-action",
        "ppo's cloning term makes the client's action less likely",
        [
            (
                "algorithms/ppo/clipped_loss.py",
                "by_log_probability -= self._cloned(",
                "by_log_probability += self._cloned(",
            )
        ],
        CLIPPED_LOSS,
    ),
    planted(
        "advantages-normalized-over-chosen",
        "ppo normalises the advantages over the client's actions too",
        [("algorithms/ppo/clipped_loss.py", "shares = self._own / self._own.sum()", "shares = self._weights")],
        CLIPPED_LOSS,
    ),
    planted(
        "memory-has-the-agents-action",
        "transitions have the agent's action instead of the one that was taken",
        [("algorithms/_replay/agent.py", "self._replace_actions(step.chosen, step.actions)", "pass")],
        AGENTS,
    ),
    planted(
        "rollout-has-the-agents-action",
        "rollouts of values have the agent's action instead of the one that was taken",
        [
            (
                "algorithms/_value_based/agent.py",
                "self._rollout.replace_actions(step.chosen, step.actions[0] - self._first_action)",
                "pass",
            )
        ],
        AGENTS,
    ),
    planted(
        "chosen-action-without-start",
        "the first action of a Discrete is not subtracted",
        [("algorithms/gorila/agent.py", "actions[0] - self._first_action, 0)", "actions[0], 0)")],
        AGENTS,
    ),
    planted(
        "chosen-marks-outlive-the-step",
        "a place of a ragged rollout keeps the mark of an earlier step",
        [("relaax/algorithm_base/ragged.py", "restart[acting], False", "restart[acting], self._chosen[at]")],
        AGENTS,
    ),
    planted(
        "chosen-share-of-all-environments",
        "the share of chosen actions counts environments that did not act",
        [
            (
                SESSION_PY,
                "self._metrics.scalar(CHOSEN, chosen / acted)",
                "self._metrics.scalar(CHOSEN, chosen / len(self._none))",
            )
        ],
        SESSION,
    ),
    planted(
        "end-without-chosen-action",
        "the action that was taken last in an episode is lost",
        [(SESSION_PY, "        _add_chosen(step, reset)\n", "")],
        SESSION,
    ),
    planted(
        "numbers-of-one-episode-later",
        "an episode is recorded with the numbers of the next one",
        [(PARAMETERS_PY, "return self._current[environment]", "return self._next[environment]")],
        PARAMETERS,
    ),
    planted(
        "new-edition-is-not-sent",
        "environments get new values only after their next episode",
        [(PARAMETERS_PY, "            self._to_send.update(range(len(self._draws)))\n", "")],
        PARAMETERS,
    ),
    planted(
        "episodes-repeat-their-numbers",
        "all episodes of an environment have the same random numbers",
        [(PARAMETERS_PY, "before.number + 1)", "before.number)")],
        PARAMETERS,
    ),
    planted(
        "lesson-counts-earlier-episodes",
        "episodes of an earlier lesson count for the end of a lesson",
        [(CURRICULUM_PY, "if edition == self._number:", "if edition <= self._number:")],
        CURRICULUM,
    ),
    planted(
        "lesson-ends-at-first-episode",
        "a lesson ends before it has enough episodes",
        [(CURRICULUM_PY, " or len(returns) < lesson.episodes:", " or not returns:")],
        CURRICULUM,
    ),
    planted(
        "restored-edition-may-repeat",
        "episodes of the time that was lost count after a restart",
        [(CURRICULUM_PY, "max(number, self._number) + RESTORED", "number")],
        CURRICULUM,
    ),
    planted(
        "checkpoint-without-lesson",
        "checkpoints do not contain the lesson",
        [(CORE_PY, "            manifest[CURRICULUM] = self._curriculum.as_json()\n", "            pass\n")],
        LESSONS,
    ),
)
