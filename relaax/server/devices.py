"""The device on which workers or a learner compute, by the configuration."""

from __future__ import annotations

from relaax.algorithm_base import ConfigBase
from relaax.configuration import ConfigurationError, LearnerSection, RlxServerSection
from relaax.server.targets import section_of


def device_of(settings: RlxServerSection | LearnerSection, config: ConfigBase) -> str:
    """Return the device: `algorithm.gpu` applies if the process's own section has none."""
    return settings.device or ("gpu" if config.gpu else "cpu")


def device_error(settings: RlxServerSection | LearnerSection, refusal: str) -> ConfigurationError:
    """Return the error for a device that cannot be used, with the key that chose it."""
    by = "" if settings.device else " (by algorithm.gpu)"
    return ConfigurationError(f"{section_of(settings)}.device{by}: {refusal}")
