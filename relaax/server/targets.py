"""Targets of connections to parameter and replay servers: addresses, tokens and certificates of the configuration."""

from __future__ import annotations

from collections.abc import Sequence

from relaax.configuration import ConfigurationError, LearnerSection, ParameterServerSection, RlxServerSection
from relaax.configuration.roles import REPLAY_TOKEN, WORKERS_TOKEN, section_of
from relaax.parameters.channel import Target
from relaax.parameters.moving import FILE, Moving, read_addresses
from relaax.server.security.tls import PARAMETER_SERVER, authority, key_pair, parameter_server_token
from relaax.server.security.tokens import read_token


def targets(settings: RlxServerSection | LearnerSection) -> list[Target]:
    """Return the targets of all shards of the parameter server, for workers or a learner. Raises ConfigurationError."""
    files = settings.parameter_server_certificate, settings.parameter_server_key
    target = _target(
        f"{section_of(settings)}.parameter_server",
        settings.parameter_server_token_file,
        WORKERS_TOKEN,
        settings.parameter_server_ca,
        files,
    )
    return placed(target, settings.parameter_server, f"{section_of(settings)}.parameter_server")


def replay_targets(settings: RlxServerSection | LearnerSection) -> list[Target]:
    """Return the targets of all replay servers, for workers or a learner. Raises ConfigurationError."""
    target = replay_target(settings)
    return placed(target, settings.replay_server, f"{section_of(settings)}.replay_server")


def placed(target: Target, addresses: Sequence[str], key: str) -> list[Target]:
    """Return a target for each address, or for each line of `@FILE`, which is followed. Raises ConfigurationError."""
    if not (addresses and addresses[0].startswith(FILE)):
        return [target.at(address) for address in addresses]
    try:
        return [target.following(Moving(addresses[0], index)) for index, _ in enumerate(read_addresses(addresses[0]))]
    except ValueError as error:
        raise ConfigurationError(f"{key}: {error}") from None


def replay_target(settings: RlxServerSection | LearnerSection) -> Target:
    """Return the target of a replay server, without an address. Raises ConfigurationError."""
    files = settings.replay_server_certificate, settings.replay_server_key
    return _target(
        f"{section_of(settings)}.replay_server",
        settings.replay_server_token_file,
        REPLAY_TOKEN,
        settings.replay_server_ca,
        files,
        "replay server",
    )


def _target(
    keys: str,
    token_file: str | None,
    variable: str,
    ca_file: str | None,
    files: tuple[str | None, str | None],
    service: str = "parameter server",
) -> Target:
    """Return a target without an address. `keys`: what the names of its keys begin with. Raises ConfigurationError."""
    token = read_token(token_file, f"{keys}_token_file", variable)
    ca = authority(ca_file, f"{keys}_ca")
    pair = key_pair(*files, f"{keys}_certificate", f"{keys}_key")
    if pair and ca is None:
        raise ConfigurationError(f"{keys}_certificate: is shown over TLS only: set {keys}_ca")
    certificate, key = pair or (None, None)
    return Target("", token or "", ca, certificate, key, service=service, keys=keys)


def shard_target(settings: ParameterServerSection, address: str | None = None) -> Target:
    """Return the target of a parameter server, by default the first shard, using a parameter server's own secrets.

    Raises ConfigurationError.
    """
    pair = key_pair(
        settings.tls_certificate,
        settings.tls_key,
        f"{PARAMETER_SERVER}.tls_certificate",
        f"{PARAMETER_SERVER}.tls_key",
    )
    ca = authority(settings.tls_ca, f"{PARAMETER_SERVER}.tls_ca")
    if pair and ca is None:
        raise ConfigurationError(
            f"{PARAMETER_SERVER}.tls_ca: is needed to reach a parameter server that uses TLS: set it to the "
            "authority that signed its certificate"
        )
    token = parameter_server_token(settings)
    found = Target("", token or "", *((ca, *pair) if pair else (None, None, None)))
    return placed(found, [address or settings.first_shard], f"{PARAMETER_SERVER}.first_shard")[0]
