"""What an algorithm author implements: `Config`, `Agent` and `ParameterServer`."""

from relaax.algorithm_base.agent import AgentBase, AgentContext
from relaax.algorithm_base.config import AdamConfig, ConfigBase, RMSPropConfig, size_mismatch, space_size
from relaax.algorithm_base.fingerprint import fingerprint, first_difference, parse_fingerprint, without_bounds
from relaax.algorithm_base.loader import Algorithm, find_algorithm, load_algorithm
from relaax.algorithm_base.parameter_server import ParameterServerBase
from relaax.algorithm_base.step import Leaves, Mask, Step
from relaax.bridge.base import (
    BridgeBase,
    BridgeError,
    BridgeUnavailable,
    FlatVector,
    Pulled,
    Pushed,
    Registered,
    Registration,
    TrainingEnded,
)
from relaax.bridge.moments import Moments
from relaax.bridge.options import MAX_PARAMETERS, MAX_STATISTICS
from relaax.configuration import Section
from relaax.rlx import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

__all__ = [
    "AdamConfig",
    "AgentBase",
    "AgentContext",
    "Algorithm",
    "Box",
    "BridgeBase",
    "BridgeError",
    "BridgeUnavailable",
    "ConfigBase",
    "Dict",
    "Discrete",
    "FlatVector",
    "Leaves",
    "MAX_PARAMETERS",
    "MAX_STATISTICS",
    "Mask",
    "Moments",
    "MultiBinary",
    "MultiDiscrete",
    "ParameterServerBase",
    "Pulled",
    "Pushed",
    "RMSPropConfig",
    "Registered",
    "Registration",
    "Section",
    "Space",
    "Step",
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
