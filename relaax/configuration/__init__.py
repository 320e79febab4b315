"""Configuration files: reading, checking, overriding."""

from relaax.configuration.configuration import Configuration, find_configuration, load_configuration, overrides_of
from relaax.configuration.sections import ParameterServerSection, RlxServerSection, RunSection
from relaax.configuration.validation import ConfigurationError, Section, nearest, unknown, validate_section

__all__ = [
    "Configuration",
    "ConfigurationError",
    "ParameterServerSection",
    "RlxServerSection",
    "RunSection",
    "Section",
    "find_configuration",
    "load_configuration",
    "nearest",
    "overrides_of",
    "unknown",
    "validate_section",
]
