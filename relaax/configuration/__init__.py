"""Read configurations from files, environment variables and command lines; check, print and describe them."""

from relaax.configuration.configuration import (
    ALGORITHM,
    COMMAND_LINE,
    HERE,
    Configuration,
    assemble_configuration,
    find_configuration,
    load_configuration,
    overrides_of,
)
from relaax.configuration.environment import without_variables
from relaax.configuration.keys import KeyPath, nearest, unknown
from relaax.configuration.layers import printed
from relaax.configuration.resuming import Fixed, Free, Resume, resume_rules
from relaax.configuration.roles import SECTIONS
from relaax.configuration.secrets import redacted
from relaax.configuration.sections import (
    LearnerSection,
    ParameterServerSection,
    ReplayServerSection,
    RlxServerSection,
    RunSection,
    TensorBoardSection,
)
from relaax.configuration.validation import ConfigurationError, Section, validate_section

__all__ = [
    "ALGORITHM",
    "COMMAND_LINE",
    "Configuration",
    "ConfigurationError",
    "Fixed",
    "Free",
    "HERE",
    "KeyPath",
    "LearnerSection",
    "ParameterServerSection",
    "ReplayServerSection",
    "Resume",
    "RlxServerSection",
    "RunSection",
    "SECTIONS",
    "Section",
    "TensorBoardSection",
    "assemble_configuration",
    "find_configuration",
    "load_configuration",
    "nearest",
    "overrides_of",
    "printed",
    "redacted",
    "resume_rules",
    "unknown",
    "validate_section",
    "without_variables",
]
