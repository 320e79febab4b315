from pathlib import Path

from relaax.algorithm_base import Box, Discrete, load_algorithm
from relaax.algorithm_base.testing import AgentCompliance


class TestAlgorithm(AgentCompliance):
    algorithm = load_algorithm("reinforce.py", Path(__file__).parent)
    config_section = {"path": "reinforce.py", "episodes_per_update": 2}
    observation_space = Box(-1, 1, shape=(4,))
    action_space = Discrete(3, start=1)
    impossible_spaces = (
        (observation_space, Box(-1, 1, shape=(1,))),
        (Box(0, 255, shape=(8, 8), dtype="uint8"), action_space),
    )
    bootstraps = False
