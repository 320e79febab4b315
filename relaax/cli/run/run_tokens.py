"""The tokens of a run: each process gets those it needs in its environment, never on its command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from relaax.cli.run.plan import Plan
from relaax.configuration import ConfigurationError
from relaax.configuration.roles import ENVIRONMENTS_TOKEN, REPLAY_TOKEN, WORKERS_TOKEN, Role
from relaax.server.security.tls import parameter_server_token, replay_server_token, rlx_server_token


@dataclass(frozen=True, slots=True)
class RunTokens:
    """The tokens by environment variable. `status` and `replay` are those that `relaax run` itself sends."""

    tokens: Mapping[str, str] = field(repr=False)

    @property
    def status(self) -> str:
        """Return the parameter server's token, or an empty text."""
        return self.tokens.get(WORKERS_TOKEN, "")

    @property
    def replay(self) -> str:
        """Return the replay servers' token, or an empty text."""
        return self.tokens.get(REPLAY_TOKEN, "")

    def of(self, role: Role) -> dict[str, str]:
        """Return the environment variables of a role's processes."""
        return {variable: token for variable, token in self.tokens.items() if variable in role.tokens}


def run_tokens(plan: Plan) -> RunTokens:
    """Read the tokens from the configuration and this process's environment. Raises ConfigurationError."""
    workers = parameter_server_token(plan.configuration.parameter_server)
    replay = replay_server_token(plan.configuration.replay_server)
    environments = rlx_server_token(plan.configuration.rlx_server)
    if plan.configuration.rlx_server.clients_file is not None and environments is None:
        raise ConfigurationError(
            "relaax-rlx-server.clients_file: the clients of `relaax run` have no name, and would not be admitted: "
            "set token_file as well, or omit clients_file"
        )
    found = {WORKERS_TOKEN: workers, REPLAY_TOKEN: replay, ENVIRONMENTS_TOKEN: environments}
    return RunTokens({variable: token for variable, token in found.items() if token})
