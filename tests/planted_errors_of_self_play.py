"""Planted errors of opponents with older checkpoints, and of Connect Four (see `planted_errors`)."""

from __future__ import annotations

from support.planting import planted

OPPONENTS_PY = "relaax/server/rlx_server/workers/opponents.py"
SESSION_PY = "relaax/server/rlx_server/workers/session.py"
RATINGS_PY = "relaax/lessons/ratings.py"
CORE_PY = "relaax/server/parameter_server/service/core.py"
MANIFEST_PY = "relaax/checkpoint/manifest.py"
MANAGER_PY = "relaax/checkpoint/manager.py"
CHECKPOINTING_PY = "relaax/server/checkpoints/checkpointing.py"
BOARDS_PY = "environments/ConnectFour/boards.py"
GAMES_PY = "environments/ConnectFour/games.py"

OPPONENTS = "tests/server/rlx_server/test_opponents.py"
RATINGS = "tests/lessons/test_ratings.py"
GAMES = "tests/server/parameter_server/test_opponent_games.py"
MILESTONES = "tests/checkpoint/test_milestones.py"
CHECKPOINTING = "tests/server/parameter_server/test_checkpointing.py"
CONNECT_FOUR = "tests/environments/test_connect_four.py"

SELF_PLAY_ERRORS = (
    planted(
        "opponents-are-always-the-newest",
        "opponents act with the newest checkpoint only",
        [(OPPONENTS_PY, "self._ids[min(int(share * len(self._ids)), len(self._ids) - 1)]", "self._ids[-1]")],
        OPPONENTS,
    ),
    planted(
        "opponents-repeat-their-draw",
        "all episodes of an environment have the same opponent",
        [(OPPONENTS_PY, "number=of.number + 1", "number=of.number")],
        OPPONENTS,
    ),
    planted(
        "opponent-changes-within-an-episode",
        "an environment that waits for its next episode draws an opponent in each step",
        [
            (
                OPPONENTS_PY,
                "restart = step.restart if step.unwanted is None else step.restart & ~step.unwanted",
                "restart = step.restart",
            )
        ],
        OPPONENTS,
    ),
    planted(
        "episode-keeps-the-state-of-another-one",
        "an environment begins with the frames and the LSTM state of the one that had its place before",
        [(OPPONENTS_PY, "first=restart[taken] | ~used,", "first=~used,")],
        OPPONENTS,
    ),
    planted(
        "actions-go-to-other-environments",
        "the actions of a group are in the order of its places, not of its environments",
        [(OPPONENTS_PY, "                leaf[rows] = part\n", "                leaf[np.sort(rows)] = part\n")],
        OPPONENTS,
    ),
    planted(
        "old-parameters-stay-in-memory",
        "the parameters of checkpoints that are no longer opponents stay in memory",
        [
            (
                OPPONENTS_PY,
                "        self._loaded = {one: self._loaded[one] for one in self._ids if one in self._loaded}\n",
                "",
            )
        ],
        OPPONENTS,
    ),
    planted(
        "games-with-the-newest-parameters-count",
        "games against the parameters in training are reported",
        [
            (
                SESSION_PY,
                "if self._opponent_of is not None and (checkpoint_id := self._opponent_of(environment)):",
                "if self._opponent_of is not None:\n                checkpoint_id = self._opponent_of(environment)",
            )
        ],
        OPPONENTS,
    ),
    planted(
        "opponents-victory-counts-for-the-policy",
        "a game that the opponent has won counts as won by the policy",
        [(RATINGS_PY, "float(episode_return < 0)", "float(episode_return > 0)")],
        RATINGS,
    ),
    planted(
        "expected-score-reversed",
        "a victory over a weaker opponent gives more points than one over a stronger opponent",
        [(RATINGS_PY, "difference = min(max(other - rating,", "difference = min(max(rating - other,")],
        RATINGS,
    ),
    planted(
        "opponent-keeps-its-rating",
        "only the rating of the policy changes after a game",
        [(RATINGS_PY, "self._opponents[checkpoint_id] = known - points", "self._opponents[checkpoint_id] = known")],
        RATINGS,
    ),
    planted(
        "new-opponent-begins-at-1200",
        "a checkpoint does not take the rating of the policy",
        [(RATINGS_PY, "self._opponents[checkpoint_id] = self._rating", "self._opponents[checkpoint_id] = INITIAL")],
        RATINGS,
    ),
    planted(
        "checkpoint-without-ratings",
        "checkpoints do not contain the ratings",
        [(CORE_PY, "            manifest[OPPONENTS] = self._ratings.as_json()\n", "            pass\n")],
        GAMES,
    ),
    planted(
        "restored-checkpoint-is-not-rated",
        "the checkpoint from which a server restarts has no rating",
        [(CORE_PY, 'checkpoint.checkpoint_id, checkpoint.manifest["global_step"])', "checkpoint.checkpoint_id, 0)")],
        GAMES,
    ),
    planted(
        "every-checkpoint-is-a-milestone",
        "opponents are the newest checkpoints, however close they are",
        [(MANIFEST_PY, "            passed = count\n", "")],
        MILESTONES,
    ),
    planted(
        "milestones-are-deleted",
        "checkpoints of opponents are deleted like others",
        [(MANAGER_PY, "self._milestones.among(good) if self._milestones else []", "[]")],
        MILESTONES,
    ),
    planted(
        "multiple-of-steps-is-missed",
        "no checkpoint is saved when the step passes a multiple",
        [
            (
                CHECKPOINTING_PY,
                "return after if self._every is None else min(after, (step // self._every + 1) * self._every)",
                "return after",
            )
        ],
        CHECKPOINTING,
    ),
    planted(
        "diagonal-is-no-line",
        "four stones in a falling diagonal do not win",
        [(BOARDS_PY, "((0, 1), (1, 0), (1, 1), (1, -1))", "((0, 1), (1, 0), (1, 1))")],
        CONNECT_FOUR,
    ),
    planted(
        "defeat-is-not-reported",
        "the player gets no reward when the rival wins",
        [(GAMES_PY, "1.0 * won - self._won, ended", "1.0 * won, ended")],
        CONNECT_FOUR,
    ),
)
