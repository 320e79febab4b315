"""Read configurations from files, environment variables and command lines; check, print and describe them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from relaax.configuration.errors import ConfigurationError, nearest, overrides_of, unknown
from relaax.configuration.secrets import redacted

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
    from relaax.configuration.environment import without_variables
    from relaax.configuration.keys import KeyPath
    from relaax.configuration.layers import printed
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
    from relaax.configuration.validation import Section, validate_section

_LAZY = {
    "configuration": "ALGORITHM COMMAND_LINE HERE Configuration assemble_configuration find_configuration "
    "load_configuration",
    "environment": "without_variables",
    "keys": "KeyPath",
    "layers": "printed",
    "resuming": "Fixed Free Resume resume_rules",
    "roles": "SECTIONS",
    "sections": "LearnerSection ParameterServerSection ReplayServerSection RlxServerSection RunSection "
    "TensorBoardSection",
    "validation": "Section validate_section",
}
_MODULES = {name: module for module, names in _LAZY.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import an export when it is first used (PEP 562): completion needs errors alone, and pydantic takes 0.2 s."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


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
