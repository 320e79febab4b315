"""Access to the parameter and replay servers of the configuration: addresses, tokens, certificates, replay memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from relaax.algorithm_base import ConfigBase, Space
from relaax.configuration import ConfigurationError, LearnerSection, ParameterServerSection, RlxServerSection
from relaax.configuration.roles import REPLAY_TOKEN, WORKERS_TOKEN, section_of
from relaax.hosting.loader import Algorithm
from relaax.server.security.tls import PARAMETER_SERVER, authority, key_pair, parameter_server_token
from relaax.server.security.tokens import read_token
from relaax.transport.channel import FILE, MovingAddress, Target, read_addresses


def targets(settings: RlxServerSection | LearnerSection) -> list[Target]:
    """Return the targets of all shards of the parameter server, for workers or a learner. Raises ConfigurationError."""
    target = _target(settings, "parameter_server", WORKERS_TOKEN)
    return targets_at(target, settings.parameter_server, target.keys)


def replay_targets(settings: RlxServerSection | LearnerSection) -> list[Target]:
    """Return the targets of all replay servers, for workers or a learner. Raises ConfigurationError."""
    target = replay_target(settings)
    return targets_at(target, settings.replay_server, target.keys)


def replay_target(settings: RlxServerSection | LearnerSection) -> Target:
    """Return the target of a replay server, without an address. Raises ConfigurationError."""
    return _target(settings, "replay_server", REPLAY_TOKEN)


def _target(settings: RlxServerSection | LearnerSection, name: str, variable: str) -> Target:
    """Return a target without an address, from the keys that begin with `name`. Raises ConfigurationError."""
    keys = f"{section_of(settings)}.{name}"
    token_file, ca_file, certificate_file, key_file = (
        getattr(settings, f"{name}_{what}") for what in ("token_file", "ca", "certificate", "key")
    )
    token = read_token(token_file, f"{keys}_token_file", variable)
    ca = authority(ca_file, f"{keys}_ca")
    pair = key_pair(certificate_file, key_file, f"{keys}_certificate", f"{keys}_key")
    if pair and ca is None:
        raise ConfigurationError(f"{keys}_certificate: a certificate needs TLS: set {keys}_ca")
    certificate, key = pair or (None, None)
    return Target("", token or "", ca, certificate, key, service=name.replace("_", " "), keys=keys)


def targets_at(target: Target, addresses: Sequence[str], key: str) -> list[Target]:
    """Return a target for each address. If the only address is `@FILE`, return a target for each line of the file.

    A target of a line follows later changes of the line. Raises ConfigurationError.
    """
    if not (addresses and addresses[0].startswith(FILE)):
        return [target.at(address) for address in addresses]
    try:
        return [
            target.following(MovingAddress(addresses[0], index)) for index, _ in enumerate(read_addresses(addresses[0]))
        ]
    except ValueError as error:
        raise ConfigurationError(f"{key}: {error}") from None


def shard_target(settings: ParameterServerSection, address: str | None = None) -> Target:
    """Return the target of a parameter server, by default the first shard, with a parameter server's own secrets.

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
            f"{PARAMETER_SERVER}.tls_ca: required to reach a parameter server that uses TLS: set it to the "
            "authority that signed its certificate"
        )
    token = parameter_server_token(settings)
    found = Target("", token or "", *((ca, *pair) if pair else (None, None, None)))
    return targets_at(found, [address or settings.first_shard], f"{PARAMETER_SERVER}.first_shard")[0]


if TYPE_CHECKING:
    from relaax.configuration.sections import LearnerSection, RlxServerSection
    from relaax.replay.interfaces import ReplayMemory
    from relaax.replay.spec import TableDeclaration
    from relaax.transport.channel import Target


@dataclass(frozen=True, slots=True)
class ReplayUse:
    """The table of replay memory that a process uses, and the actor indices of its environments (empty for a learner).

    session, client, seed: see `ReplayClient`.
    """

    declaration: TableDeclaration
    actors: Sequence[int] = ()
    session: str = ""
    seed: int = 0
    client: str = ""


MakeReplay = Callable[[ReplayUse], "ReplayMemory"]
"""Connect to the replay servers. Called in the process that uses them: gRPC does not survive a fork."""


def replay_use(
    algorithm: Algorithm,
    config: ConfigBase,
    spaces: tuple[Space, Space],
    *,
    actors: Sequence[int] = (),
    session: str = "",
    number: int = 0,
    client: str = "",
) -> ReplayUse:
    """Return how a worker or learner uses the replay memory that an algorithm declares for these spaces.

    If each worker learns from a table of its own, the table belongs to `session`. `number` distinguishes learners: it
    is part of the seed.
    """
    assert algorithm.Replay is not None
    bundled = algorithm.Replay.bundled(config)
    seed = int(np.random.SeedSequence([config.seed, number, *actors]).generate_state(1)[0])
    return ReplayUse(algorithm.Replay(config, *spaces).table(), actors, session if bundled else "", seed, client)


def replay_source(settings: RlxServerSection, algorithm: Algorithm) -> MakeReplay | None:
    """Return the function that connects a worker to its replay memory.

    Return None if the algorithm has none or the worker only acts. Raises ConfigurationError.
    """
    if algorithm.Replay is None or settings.only_acts:
        return None
    if not settings.replay_server:
        raise ConfigurationError(
            f"relaax-rlx-server.replay_server: {algorithm.name} keeps experience in a replay memory, but this key "
            "is empty: set it to the addresses of the replay servers in the order of their shards, such as "
            "localhost:7002"
        )
    return make_replay(settings)


def make_replay(settings: RlxServerSection | LearnerSection) -> MakeReplay:
    """Return the function that connects to the replay servers of a section. Raises ConfigurationError."""
    servers, patience = replay_targets(settings), settings.replay_server_patience
    share_memory = settings.bridge != "grpc"
    return lambda use: _connected(servers, use, patience, share_memory)


def _connected(servers: Sequence[Target], use: ReplayUse, patience: float, share_memory: bool) -> ReplayMemory:
    from relaax.replay.client.client import ReplayClient

    return ReplayClient(
        servers,
        use.declaration,
        actors=use.actors,
        session=use.session,
        seed=use.seed,
        client=use.client,
        patience=patience,
        share_memory=share_memory,
        ahead=not use.actors,
    )
