"""Base classes for algorithm authors: `Config`, `Agent`, `ParameterServer`, and for replay `Replay` and `Learner`.

Begin reading with `agent.py`; `algorithms/da3c` is an example. `testing` has the tests that every algorithm must pass.
"""

from typing import TYPE_CHECKING

from relaax.algorithm_base.agent import AgentBase, AgentContext, InvalidObservation, Leaves, Mask, StepResult
from relaax.algorithm_base.config import ConfigBase
from relaax.algorithm_base.declarations import ParameterServerBase, ReplayBase, TargetInterval
from relaax.algorithm_base.learner import LearnerBase, LearnerContext
from relaax.configuration import Fixed, Free, Section
from relaax.libraries import lazy_exports
from relaax.parameters.interfaces import Pulled, Pushed
from relaax.replay.interfaces import Sampled
from relaax.replay.spec import TableDeclaration
from relaax.rlx import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

if TYPE_CHECKING:
    from relaax.hosting.loader import load_algorithm

__all__ = [
    "AgentBase",
    "AgentContext",
    "Box",
    "ConfigBase",
    "Dict",
    "Discrete",
    "Fixed",
    "Free",
    "InvalidObservation",
    "LearnerBase",
    "LearnerContext",
    "Leaves",
    "Mask",
    "MultiBinary",
    "MultiDiscrete",
    "ParameterServerBase",
    "Pulled",
    "Pushed",
    "ReplayBase",
    "Sampled",
    "Section",
    "Space",
    "StepResult",
    "TableDeclaration",
    "TargetInterval",
    "Tuple",
    "lazy_exports",
    "load_algorithm",
]
__getattr__ = lazy_exports(__name__, {"load_algorithm": "relaax.hosting.loader"})
