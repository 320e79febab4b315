"""Targets of connections to other servers: addresses, tokens and certificates of the configuration."""

from __future__ import annotations

from relaax.configuration import ConfigurationError, LearnerSection, ParameterServerSection, RlxServerSection
from relaax.configuration.roles import REPLAY_TOKEN, WORKERS_TOKEN
from relaax.parameters.channel import Target
from relaax.server.tls import LEARNER, PARAMETER_SERVER, RLX_SERVER, authority, key_pair, parameter_server_token
from relaax.server.tokens import read_token


def targets(settings: RlxServerSection) -> list[Target]:
    """Return the targets of all shards for an RLX server's workers. Raises ConfigurationError."""
    where = f"{RLX_SERVER}.parameter_server"
    token = read_token(settings.parameter_server_token_file, f"{where}_token_file", WORKERS_TOKEN)
    files = settings.parameter_server_certificate, settings.parameter_server_key
    ca = authority(settings.parameter_server_ca, f"{where}_ca")
    pair = key_pair(*files, f"{where}_certificate", f"{where}_key")
    if pair and ca is None:
        raise ConfigurationError(f"{where}_certificate: is shown over TLS only: set {where}_ca")
    target = Target("", token or "", ca, *(pair or (None, None)))
    return [target.at(address) for address in settings.parameter_server]


def replay_targets(settings: RlxServerSection | LearnerSection) -> list[Target]:
    """Return the targets of all replay servers for workers or a learner; none if there are none.

    Raises ConfigurationError.
    """
    where = f"{LEARNER if isinstance(settings, LearnerSection) else RLX_SERVER}.replay_server"
    token = read_token(settings.replay_server_token_file, f"{where}_token_file", REPLAY_TOKEN)
    files = settings.replay_server_certificate, settings.replay_server_key
    ca = authority(settings.replay_server_ca, f"{where}_ca")
    pair = key_pair(*files, f"{where}_certificate", f"{where}_key")
    if pair and ca is None:
        raise ConfigurationError(f"{where}_certificate: is shown over TLS only: set {where}_ca")
    certificate, key = pair or (None, None)
    target = Target("", token or "", ca, certificate, key, service="replay server", keys=where)
    return [target.at(address) for address in settings.replay_server]


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
    return Target(address or settings.first_shard, token or "", *((ca, *pair) if pair else (None, None, None)))
