"""The configuration of a command: load it from all its sources, check it, and print it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from relaax.algorithm_base import ConfigBase
from relaax.configuration import (
    Configuration,
    ConfigurationError,
    LearnerSection,
    ParameterServerSection,
    ReplayServerSection,
    RlxServerSection,
    TensorBoardSection,
    find_configuration,
    format_configuration,
    load_configuration,
    redacted,
)
from relaax.configuration.roles import ENVIRONMENTS_TOKEN, REPLAY_TOKEN, WORKERS_TOKEN
from relaax.hosting.loader import load_config
from relaax.server.address import require_loopback, require_private
from relaax.server.command.hardware import load_tensorflow_quietly
from relaax.server.security.tokens import has_token

_HOGWILD = ("rms_prop", "momentum", "adagrad")


def configured(name: str, overrides: Sequence[str]) -> Configuration:
    """Load the configuration `name` with the environment variables and the overrides of the command line.

    Raises ConfigurationError.
    """
    load_tensorflow_quietly()  # if the algorithm's module imports it
    return load_configuration(find_configuration(name), overrides, os.environ, load_config)


def check_all(configuration: Configuration) -> Configuration:
    """Check the addresses and the sections against each other. Return the configuration.

    Raises ConfigurationError and AddressError.
    """
    require_private_ports(
        *(configuration.parameter_server, configuration.replay_server, configuration.rlx_server),
        *(configuration.learner, configuration.tensorboard),
    )
    configuration.algorithm_path  # noqa: B018 - raises if it is missing
    if isinstance(configuration.algorithm_config, ConfigBase):
        check_bridge(configuration.rlx_server, configuration.algorithm_config)
    return configuration


def check_bridge(settings: RlxServerSection, config: ConfigBase) -> None:
    """Refuse keys of the algorithm that the transport hogwild does not support. Raises ConfigurationError."""
    if settings.bridge != "hogwild":
        return
    refused = None
    if config.combine != "fifo":
        refused = f"algorithm.combine: {config.combine} requires ordered gradients: set it to fifo"
    elif config.update_patience is not None:
        refused = "algorithm.sync: all requires the mean of all gradients: set it to none"
    elif config.max_staleness is not None:
        refused = f"algorithm.max_staleness: {config.max_staleness} discards stale gradients: remove the key"
    elif config.optimizer not in _HOGWILD:
        refused = f"algorithm.optimizer: {config.optimizer} is not one of {', '.join(_HOGWILD)}: set one"
    if refused:
        raise ConfigurationError(f"relaax-rlx-server.bridge: hogwild has no locks; {refused}, or set bridge to auto")


def require_private_ports(
    *sections: ParameterServerSection | ReplayServerSection | RlxServerSection | LearnerSection | TensorBoardSection,
) -> None:
    """Refuse ports that other machines can reach without authentication, unless anonymous access is allowed.

    A required client certificate counts as authentication. Raises AddressError.
    """
    for section in sections:
        if isinstance(section, TensorBoardSection):
            require_private(section.bind, section.allow_anonymous, "relaax-tensorboard.bind")
            continue
        if not isinstance(section, LearnerSection):  # a learner has a status port only
            require_loopback(section.bind, section.allow_anonymous, _authenticates(section))
        require_private(section.status_bind, section.allow_anonymous)


def _authenticates(section: ParameterServerSection | ReplayServerSection | RlxServerSection) -> bool:
    if isinstance(section, RlxServerSection):
        return has_token(section.token_file, ENVIRONMENTS_TOKEN) or section.clients_file is not None
    variable = REPLAY_TOKEN if isinstance(section, ReplayServerSection) else WORKERS_TOKEN
    return has_token(section.token_file, variable) or section.tls_client_ca is not None


def show(name: str, configuration: Configuration, print_config: bool) -> None:
    """Print a checked configuration without secrets, or one line that it is valid."""
    if print_config:
        print(format_configuration(redacted(configuration.as_dict()), configuration.origins), end="")
    else:
        run = configuration.run
        environment = f", environment {run.environment} {run.name}" if run.environment and run.name else ""
        print(f"{name} is valid: algorithm {configuration.algorithm_path}{environment}")


def description(algorithm: str, config: ConfigBase) -> str:
    """Return canonical JSON of an algorithm and its configuration, as in a fingerprint but without secrets."""
    return json.dumps(
        {"algorithm": algorithm, "configuration": redacted(config.model_description())},
        sort_keys=True,
        separators=(",", ":"),
    )
