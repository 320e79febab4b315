"""The addresses and credentials of a running service, from an address, a configuration or a run directory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from relaax.configuration import ConfigurationError, RlxServerSection
from relaax.configuration.roles import PARAMETER_SERVER, REPLAY_SERVER, RLX_SERVER, Role

_LISTENING = re.compile(r" listening on (\S+:\d+)")


def section_of_service(
    where: str, replay: str | None, token_file: Path | None, tls_ca: Path | None
) -> RlxServerSection:
    """Return a section with the addresses and credentials of the servers. Raises ConfigurationError."""
    run = Path(where)
    if is_address(where):
        return _section(where, replay or "", token_file, tls_ca)
    if replay is not None:
        raise ConfigurationError(
            "--replay-server is for HOST:PORT: a configuration or a run names its own replay servers"
        )
    if run.is_dir():
        if not (run / "logs").is_dir():
            raise ConfigurationError(f"{where} is not a run directory: it has no logs")
        known, memory = (_logged_addresses(run, role) for role in (PARAMETER_SERVER, REPLAY_SERVER))
        if not known:
            raise ConfigurationError(f"{run / 'logs'}: no log has the address of a parameter server")
        return _section(known, memory, token_file, tls_ca)
    if token_file is not None or tls_ca is not None:
        raise ConfigurationError("--token-file and --tls-ca are for HOST:PORT: a configuration names its own files")
    from relaax.server.command.configuration import configured

    return configured(where, []).rlx_server


def rlx_address_of(where: str) -> str:
    """Return the addresses of RLX servers: `where` itself, of a configuration, or of a run. Raises ConfigurationError.

    `where` is HOST:PORT, a configuration, or the directory of an active run.
    """
    if is_address(where):
        return where
    if not Path(where).is_dir():
        from relaax.server.command.configuration import configured

        return configured(where, []).rlx_server.bind
    if (Path(where) / "summary.json").is_file():
        raise ConfigurationError(f"{where} is not active: its run has ended")
    found = _logged_addresses(Path(where), RLX_SERVER) if (Path(where) / "logs").is_dir() else ""
    if not found:
        raise ConfigurationError(f"{where}: no log has the address of an RLX server: is it the directory of a run?")
    return found


def is_address(where: str) -> bool:
    """Return whether `where` is HOST:PORT, or several separated by commas."""
    return re.search(r":\d+(,|$)", where) is not None


def _section(addresses: str, replay: str, token_file: Path | None, tls_ca: Path | None) -> RlxServerSection:
    """Return a section with these addresses and files. Raises ConfigurationError."""
    from relaax.configuration.validation import validate_section

    files = {
        "parameter_server_token_file": token_file,
        "parameter_server_ca": tls_ca,
        "replay_server_ca": tls_ca if replay else None,
    }
    given: dict[str, Any] = {key: str(file) for key, file in files.items() if file is not None}
    given |= {"parameter_server": addresses, "replay_server": replay or []}
    return validate_section(RlxServerSection, given, RLX_SERVER.section)


def _logged_addresses(run: Path, role: Role) -> str:
    """Return the last listening address in each log of a role, by process number, separated by commas."""
    logs = sorted((run / "logs").glob(f"{role.name}*.log"), key=lambda log: (len(log.name), log.name))
    found = [_LISTENING.findall(log.read_text(encoding="utf-8", errors="replace")) for log in logs]
    return ",".join(addresses[-1] for addresses in found if addresses)
