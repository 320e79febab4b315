"""Check that a run starts the replay servers and learners that its algorithm needs, and no others."""

from __future__ import annotations

from relaax.configuration import Configuration, ConfigurationError
from relaax.hosting.loader import open_algorithm


def check_replay(configuration: Configuration) -> None:
    """Raise ConfigurationError if there are too few or too many.

    Of the algorithm its configuration, `Replay` and `Learner` are imported.
    """
    algorithm = open_algorithm(configuration.algorithm_path, configuration.folder)
    shards, learners = configuration.replay_server.shards, configuration.learner.learners
    name, wrong = algorithm.name, None
    if algorithm.Replay is None:
        if shards:
            wrong = f"relaax-replay-server.shards: {shards}, but {name} has no replay memory: set it to 0"
        elif learners:
            wrong = f"relaax-learner.learners: {learners}, but the workers of {name} learn themselves: set it to 0"
    elif not shards:
        wrong = f"relaax-replay-server.shards: 0, but {name} keeps experience in a replay memory: set it to 1 or more"
    elif algorithm.Replay.bundled(configuration.algorithm_config):
        if learners:
            wrong = (
                f"relaax-learner.learners: {learners}, but as {name} is configured, each worker learns from a memory "
                "of its own: set it to 0"
            )
    elif not learners:
        wrong = f"relaax-learner.learners: 0, but {name} has learners apart from its workers: set it to 1 or more"
    if wrong:
        raise ConfigurationError(wrong)
