"""Tests that every algorithm must pass, and fakes for an algorithm's own tests. Begin reading with `compliance.py`.

    from pathlib import Path
    from relaax.algorithm_base import Box, Discrete
    from relaax.hosting.loader import load_algorithm
    from relaax.algorithm_base.testing import AgentCompliance

    class TestMine(AgentCompliance):
        algorithm = load_algorithm("my_algorithm", Path(__file__).parent)
        config_section = {"path": "my_algorithm", "episode_len": 4}
        observation_space = Box(-1, 1, shape=(3,))
        action_space = Discrete(2)
        impossible_spaces = ((observation_space, Box(-1, 1, shape=(1,))),)

pytest finds the tests in `TestMine`; this package does not import pytest. For other tests, `make_agent` makes an agent
with a `FakeParameters`, `RandomEnvironments` simulates its environments, and `live` runs the agent in them.
"""

from relaax.algorithm_base.testing.compliance import AgentCompliance
from relaax.algorithm_base.testing.fake_parameters import ContractBroken, FakeParameters, RecordedPush
from relaax.algorithm_base.testing.harness import live, make_agent
from relaax.algorithm_base.testing.random_environments import RandomEnvironments, sample

__all__ = [
    "AgentCompliance",
    "ContractBroken",
    "FakeParameters",
    "RandomEnvironments",
    "RecordedPush",
    "live",
    "make_agent",
    "sample",
]
