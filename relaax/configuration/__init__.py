"""Configurations from files, environment variables and command lines: loaded, checked, printed and described.

Begin with `load_configuration` in `configuration`; `sections` declares the keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relaax.configuration.errors import ConfigurationError, nearest, overrides_of, unknown
from relaax.configuration.secrets import redacted
from relaax.libraries import lazy_exports

if TYPE_CHECKING:
    from relaax.configuration.configuration import (
        ALGORITHM,
        COMMAND_LINE,
        HERE,
        Configuration,
        assemble_configuration,
        find_configuration,
        load_configuration,
    )
    from relaax.configuration.layers import format_configuration, without_variables
    from relaax.configuration.resuming import Fixed, Free, Resume, resume_rules
    from relaax.configuration.roles import SECTIONS
    from relaax.configuration.sections import (
        LearnerSection,
        ParameterServerSection,
        ReplayServerSection,
        RlxServerSection,
        RunSection,
        TensorBoardSection,
    )
    from relaax.configuration.validation import KeyPath, Section, validate_section

_LAZY = {
    "configuration": "ALGORITHM COMMAND_LINE HERE Configuration assemble_configuration find_configuration "
    "load_configuration",
    "layers": "format_configuration without_variables",
    "resuming": "Fixed Free Resume resume_rules",
    "roles": "SECTIONS",
    "sections": "LearnerSection ParameterServerSection ReplayServerSection RlxServerSection RunSection "
    "TensorBoardSection",
    "validation": "KeyPath Section validate_section",
}
__getattr__ = lazy_exports(__name__, {name: f".{module}" for module, names in _LAZY.items() for name in names.split()})

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
    "format_configuration",
    "redacted",
    "resume_rules",
    "unknown",
    "validate_section",
    "without_variables",
]
