"""The command `relaax keys`: creates tokens and certificates for a service."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from relaax.cli.reporting import exit_with_error

TOKEN, PARAMETER_SERVER_TOKEN, REPLAY_SERVER_TOKEN = "token", "parameter-server-token", "replay-server-token"
_TOKEN_BYTES = 32

_HINT = """\
{folder} holds

  token                      the token of environments for the RLX server
  parameter-server-token     the token of workers, learners and shards for the parameter server
  replay-server-token        the token of workers and learners for replay servers
  ca.pem                     the authority: clients verify the servers with it. Not secret
  ca-key.pem                 signs further certificates. No server needs it: keep it elsewhere
  server.pem, server-key.pem the certificate of all servers, for {hosts}
  worker.pem, worker-key.pem the certificate of workers and learners

The servers' configuration:

relaax-parameter-server:
{parameter_server_bind}  token-file: {yaml[parameter-server-token]}
  tls-certificate: {yaml[server.pem]}
  tls-key: {yaml[server-key.pem]}
  tls-client-ca: {yaml[ca.pem]}
  tls-ca: {yaml[ca.pem]}
relaax-rlx-server:
{rlx_server_bind}  token-file: {yaml[token]}
  tls-certificate: {yaml[server.pem]}
  tls-key: {yaml[server-key.pem]}
{parameter_server_caller}  # From here on: for algorithms with a replay memory.
{replay_server_caller}relaax-replay-server:
{replay_server_bind}  token-file: {yaml[replay-server-token]}
  tls-certificate: {yaml[server.pem]}
  tls-key: {yaml[server-key.pem]}
  tls-client-ca: {yaml[ca.pem]}
relaax-learner:
{parameter_server_caller}{replay_server_caller}
An environment's machine needs token and ca.pem, and its command two more options:

  --token-file {shell[token]} --tls-ca {shell[ca.pem]}
"""

_CLIENT_HINT = """\
Add these entries to the file that relaax-rlx-server.clients-file names; it is read again when it changes. Each entry
may set quotas: max-connections, max-environments, steps-per-second, bytes-per-second.

{lines}

Each client's machine needs its own file, and its command one more option:

{files}
"""


def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that does not exist yet or is empty.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or IP address of the servers as seen by others; repeatable. localhost is included."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=36500, help="Days for which the certificates are valid.")] = 730,
    client: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only make a token for a client of this name; repeatable. DIR may contain other tokens.",
        ),
    ] = None,
) -> None:
    """Make tokens and certificates, and print how to use them.

    Makes three tokens, an authority, and the certificates of servers and workers that it signs. With --client, makes
    only tokens of named clients. Only you can read the files. Existing files are never overwritten.
    """
    try:
        if client:
            _write_client_tokens(folder, list(dict.fromkeys(client)))
        else:
            _write_all(folder, host or [], days)
    except OSError as error:
        exit_with_error("relaax keys", f"{error.filename}: {error.strerror}")
    except ValueError as error:
        exit_with_error("relaax keys", error)


def _write_all(folder: Path, host: list[str], days: int) -> None:
    """Write all tokens and certificates, and print the configuration of the servers."""
    from relaax.server.security.certificates import LOCAL

    hosts = list(dict.fromkeys([*LOCAL, *host]))
    contents = _create(hosts, days)
    _write_files(folder, contents)
    paths = {name: str(folder.absolute() / name) for name in contents}
    yaml = {name: _in_yaml(path) for name, path in paths.items()}
    fields = {
        "folder": folder.absolute(),
        "yaml": yaml,
        "parameter_server_caller": _credential_keys("parameter-server", yaml),
        "replay_server_caller": _credential_keys("replay-server", yaml),
        "shell": {name: shlex.quote(path) for name, path in paths.items()},
        "hosts": ", ".join(hosts),
        # Needed for remote clients: without these lines the servers listen on this machine only.
        "parameter_server_bind": "  bind: 0.0.0.0:7000\n" if host else "",
        "rlx_server_bind": "  bind: 0.0.0.0:7001\n" if host else "",
        "replay_server_bind": "  bind: 0.0.0.0:7002\n" if host else "",
    }
    print(_HINT.format(**fields), end="")


def _credential_keys(server: str, yaml: Mapping[str, str]) -> str:
    """Return the configuration keys with the credentials of workers and learners for a server, as YAML."""
    files = {"token-file": f"{server}-token", "ca": "ca.pem", "certificate": "worker.pem", "key": "worker-key.pem"}
    return "".join(f"  {server}-{key}: {yaml[file]}\n" for key, file in files.items())


def _write_client_tokens(folder: Path, names: list[str]) -> None:
    """Write the tokens of clients, each to a file named after its client, and print the entries that admit them."""
    from relaax.server.security.tokens import CLIENT_NAME, CLIENT_NAME_RULE

    tokens = {name: _token() for name in names}
    for name in names:
        if not re.fullmatch(CLIENT_NAME, name):
            raise ValueError(f"{name!r} is not a client name: {CLIENT_NAME_RULE}")
        if (folder / f"{name}.token").exists():
            raise ValueError(f"{folder / name}.token exists and is not overwritten: choose another name")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, token in tokens.items():
        _write_new(folder / f"{name}.token", token)
    lines = [
        f'{_in_yaml(name)}:\n  token-sha256: "{hashlib.sha256(token.strip()).hexdigest()}"'
        for name, token in tokens.items()
    ]
    files = [f"  --token-file {shlex.quote(str(folder.absolute() / name))}.token" for name in names]
    print(_CLIENT_HINT.format(lines="\n".join(lines), files="\n".join(files)), end="")


def _create(hosts: list[str], days: int) -> dict[str, bytes]:
    """Create the tokens and certificates; return the contents of the files by name. Raises ValueError."""
    from relaax.server.security.certificates import Authority

    authority = Authority(days)
    server, server_key = authority.issue("RELAAX server", hosts)
    worker, worker_key = authority.issue("RELAAX worker")
    return {
        TOKEN: _token(),
        PARAMETER_SERVER_TOKEN: _token(),
        REPLAY_SERVER_TOKEN: _token(),
        "ca.pem": authority.certificate,
        "ca-key.pem": authority.key,
        "server.pem": server,
        "server-key.pem": server_key,
        "worker.pem": worker,
        "worker-key.pem": worker_key,
    }


def _in_yaml(path: str) -> str:
    """Return a path as YAML: plain if possible, otherwise quoted as in JSON."""
    return path if re.fullmatch(r"[\w/.,+=@~-]+", path) else json.dumps(path, ensure_ascii=False)


def _token() -> bytes:
    return secrets.token_urlsafe(_TOKEN_BYTES).encode() + b"\n"


def _write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write the files. Raises OSError, and ValueError if the folder is not empty."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty, and its files are not overwritten: name a new folder")
    folder.chmod(0o700)
    for name, content in contents.items():
        _write_new(folder / name, content)


def _write_new(path: Path, content: bytes) -> None:
    """Write a new file. Raises OSError, also if the file exists."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
