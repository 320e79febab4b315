"""What an algorithm author implements: `Config`, `Agent`, `ParameterServer`, and with replay `Replay`, `Learner`."""

from relaax.algorithm_base.agent import AgentBase, AgentContext
from relaax.algorithm_base.config import ConfigBase, size_mismatch, space_size
from relaax.algorithm_base.fingerprint import fingerprint, first_difference, parse_fingerprint, without_bounds
from relaax.algorithm_base.learner import LearnerBase, LearnerContext
from relaax.algorithm_base.loader import Algorithm, find_algorithm, load_algorithm
from relaax.algorithm_base.optimizer_config import (
    AdaGradConfig,
    AdamConfig,
    MomentumConfig,
    OptimizerConfig,
    RMSPropConfig,
)
from relaax.algorithm_base.parameter_server import ParameterServerBase
from relaax.algorithm_base.policy_graph import (
    GreedyAction,
    LargestOutput,
    LargestOutputs,
    PolicyGraph,
    PositiveOutputs,
    ScaledOutput,
)
from relaax.algorithm_base.replay_tables import ReplayBase
from relaax.algorithm_base.schedule import Schedule
from relaax.algorithm_base.step import Leaves, Mask, StepResult
from relaax.algorithm_base.target_interval import TargetInterval
from relaax.configuration import Fixed, Free, Section
from relaax.parameters.interfaces import (
    FlatVector,
    ParameterServerError,
    ParameterServerUnauthenticated,
    ParameterServerUnavailable,
    ParameterServerUnusable,
    Pulled,
    Pushed,
    Registered,
    Registration,
    TrainingEnded,
)
from relaax.parameters.moments import Moments
from relaax.replay.interfaces import ReplayError, ReplayMemory, ReplayUnavailable, Sampled
from relaax.replay.spec import TableDeclaration
from relaax.rlx import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from relaax.transport.grpc_options import MAX_PARAMETERS, MAX_STATISTICS

__all__ = [
    "AdaGradConfig",
    "AdamConfig",
    "AgentBase",
    "AgentContext",
    "Algorithm",
    "Box",
    "ParameterServerError",
    "ParameterServerUnauthenticated",
    "ParameterServerUnavailable",
    "ParameterServerUnusable",
    "ConfigBase",
    "Dict",
    "Discrete",
    "Fixed",
    "FlatVector",
    "Free",
    "GreedyAction",
    "LargestOutput",
    "LargestOutputs",
    "LearnerBase",
    "LearnerContext",
    "Leaves",
    "MAX_PARAMETERS",
    "MAX_STATISTICS",
    "Mask",
    "Moments",
    "MomentumConfig",
    "MultiBinary",
    "MultiDiscrete",
    "OptimizerConfig",
    "ParameterServerBase",
    "PolicyGraph",
    "PositiveOutputs",
    "Pulled",
    "Pushed",
    "RMSPropConfig",
    "Registered",
    "ReplayBase",
    "ReplayError",
    "ReplayMemory",
    "ReplayUnavailable",
    "Sampled",
    "Registration",
    "ScaledOutput",
    "Schedule",
    "Section",
    "Space",
    "StepResult",
    "TableDeclaration",
    "TargetInterval",
    "TrainingEnded",
    "Tuple",
    "find_algorithm",
    "fingerprint",
    "first_difference",
    "load_algorithm",
    "parse_fingerprint",
    "without_bounds",
    "size_mismatch",
    "space_size",
]
