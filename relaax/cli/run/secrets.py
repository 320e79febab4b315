"""The tokens of a run: each process gets those that it needs, by its environment and never by its command line."""

from __future__ import annotations

from dataclasses import dataclass, field

from relaax.cli.run.plan import Plan
from relaax.configuration import ConfigurationError
from relaax.server.tls import parameter_server_token, rlx_server_token
from relaax.server.tokens import ENVIRONMENTS, WORKERS


@dataclass(frozen=True, slots=True)
class RunTokens:
    """Environment variables of the processes of each kind. `status` is what `relaax run` itself shows."""

    shard: dict[str, str] = field(repr=False)
    rlx_server: dict[str, str] = field(repr=False)
    client: dict[str, str] = field(repr=False)
    status: str = field(repr=False)


def run_tokens(plan: Plan) -> RunTokens:
    """As the configuration and this process's environment say. Raises ConfigurationError."""
    workers = parameter_server_token(plan.configuration.parameter_server)
    environments = rlx_server_token(plan.configuration.rlx_server)
    if plan.configuration.rlx_server.clients_file is not None and environments is None:
        raise ConfigurationError(
            "relaax-rlx-server.clients_file: the clients of `relaax run` have no name, and nobody without one would be "
            "let in: set token_file as well, or leave clients_file out"
        )
    shard = {WORKERS: workers} if workers else {}
    client = {ENVIRONMENTS: environments} if environments else {}
    return RunTokens(shard, {**shard, **client}, client, workers or "")
