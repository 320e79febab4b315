"""The command `relaax conformance`."""

from __future__ import annotations

import contextlib
import json
import shlex
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from relaax.cli.reporting import console_of, exit_with_error
from relaax.console import log_to_stderr
from relaax.files import read_bounded_text
from relaax.tls import client_context, reason_of

if TYPE_CHECKING:
    from relaax.client.connection.address import Endpoint
    from relaax.conformance.adaptation import Settings

HELP = """Check a client or a server, in any language, against RLX. `relaax docs RLX` shows the rules.

With --server HOST:PORT, this command is the client and sends the golden message sequences of protocol/vectors.
A URL such as ws://HOST:PORT/PATH or wss://HOST/ selects WebSocket. Values that a server may choose are not compared:
session id, limits, actions within their space, texts of errors. Use a disposable server: the messages train its agent
on meaningless data, unless --exploit requests an agent that does not learn.

A server may support only some spaces, or only those of its first client. Rules without spaces are checked first. Then
follow rules with a Box of two numbers and a Discrete of 3, or with the spaces that --observation-space and
--action-space give (JSON of rlx.v1.Space). Rules with other spaces are last. If the server refuses a sequence for its
own reasons, the rule is "not applicable", and the report quotes the server's message.

With --client COMMAND, this command is the server and runs COMMAND once for each of about fifty server behaviors.
{address} in COMMAND becomes HOST:PORT; if it is absent, the address is appended. The client chooses its spaces,
observations and episodes; it should play at least 300 steps, and reconnect after an error that permits a retry. A rule
that the client never exercises is "not seen".

Exit code 0: no rule failed; 1: a rule failed; 2: the options are invalid, or the server or client is unreachable.

\b
  relaax conformance --server localhost:7001 \\
    --observation-space '{"box":{"dtype":"DTYPE_FLOAT32","shape":[4]}}' \\
    --action-space '{"discrete":{"n":"2"}}'
  relaax conformance --client 'node cartpole.js {address}' --json report.json
"""


def conformance(
    client: Annotated[str | None, typer.Option(metavar="COMMAND", help="The client's command line.")] = None,
    server: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The server's address.")] = None,
    only: Annotated[str, typer.Option(metavar="PATTERN", help="Names of rules, as in 'step_*'.")] = "*",
    list_: Annotated[bool, typer.Option("--list", help="List the rules and check nothing.")] = False,
    json_: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the report to this file.")] = None,
    deadline: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for a reply.")] = 20.0,
    jobs: Annotated[int, typer.Option(min=1, help="Clients: number to run in parallel.")] = 1,
    token_file: Annotated[Path | None, typer.Option(help="Servers: a file with the token.")] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="Servers: use TLS, with this authority (a PEM file).")] = None,
    codec: Annotated[str | None, typer.Option(help="Servers: protobuf or json; by default both.")] = None,
    exploit: Annotated[bool, typer.Option("--exploit", help="Servers: request an agent that does not learn.")] = False,
    observation_space: Annotated[str | None, typer.Option(metavar="JSON", help="Servers: supported space.")] = None,
    action_space: Annotated[str | None, typer.Option(metavar="JSON", help="Servers: supported space.")] = None,
) -> None:
    """Check a client or a server; `--help` prints HELP."""
    if (client is None) == (server is None) and not (list_ and client is None):
        _refuse("give either --client COMMAND or --server HOST:PORT")
    for_servers = (token_file, tls_ca, codec, observation_space, action_space)
    if client is not None and (exploit or any(option is not None for option in for_servers)):
        _refuse("a token, TLS, a codec, --exploit and spaces are for --server; add a client's own options to COMMAND")
    if codec not in (None, "protobuf", "json"):
        _refuse(f"--codec must be protobuf or json, not {codec}")
    if (observation_space is None) != (action_space is None):
        _refuse("--observation-space and --action-space must be given together")
    # These are slow to import.
    from relaax.client.connection.address import parse_endpoint
    from relaax.conformance.adaptation import Settings
    from relaax.conformance.client import check_client, client_rules
    from relaax.conformance.report import WIDTH
    from relaax.conformance.server import check_server, server_checks
    from relaax.plain_console import PlainConsole

    endpoint, token, tls = None, "", None
    if server is not None:
        with _refuse_on("", ValueError):
            endpoint = parse_endpoint(server)
        tls = client_context() if endpoint.tls else None
    console, status = console_of(WIDTH), PlainConsole(stderr=True).status("")
    log_to_stderr("relaax conformance: %(message)s")
    if token_file is not None:
        with _refuse_on(f"--token-file {token_file}: ", OSError, UnicodeDecodeError):
            token = read_bounded_text(token_file).strip()
    if tls_ca is not None:
        with _refuse_on(f"--tls-ca {tls_ca}: cannot read a certificate (PEM): ", OSError, ValueError):
            tls = client_context(read_bounded_text(tls_ca, "ascii"))
    settings = Settings(
        observation_space=_space("--observation-space", observation_space),
        action_space=_space("--action-space", action_space),
        token=token,
        tls=tls,
        exploit=exploit,
        codec=codec,
        deadline=deadline,
    )
    checks: list[Any] = []
    for kind, rules in (("servers", server_checks(settings, only)), ("clients", client_rules(only))):
        target = server if kind == "servers" else client
        if target is not None or (list_ and server is client is None):
            checks += rules
            for rule in rules if list_ else ():
                print(f"{kind}: {rule.name} (section {rule.section}): {rule.description}")
    if not checks:
        _refuse(f"--only {only}: no rule matches; --list shows them")
    if list_:
        return
    with status:
        if endpoint is not None:
            _check_reachable(endpoint, server or "", settings)
            report = check_server(endpoint, settings, checks, status.update)
        else:
            command = _command(client or "")
            try:
                report = check_client(command, deadline, checks, status.update, jobs)
            except OSError as error:
                _refuse(f"--client: {command[0]} cannot be started: {error.strerror or error}")
    report.print(console)
    if json_ is not None:
        try:
            report.write(json_)
        except OSError as error:
            _refuse(f"--json {json_}: {error.strerror}")
    raise typer.Exit(1 if report.failed else 0)


conformance.__doc__ = HELP


def _refuse(sentence: str) -> NoReturn:
    exit_with_error("relaax conformance", sentence)


@contextlib.contextmanager
def _refuse_on(what: str, *errors: type[Exception]) -> Iterator[None]:
    """Refuse an option if the block raises one of `errors`. `what`: the start of the message."""
    try:
        yield
    except errors as error:
        _refuse(f"{what}{error}")


def _space(option: str, text: str | None) -> Any:
    from relaax.rlx import space_from_dict

    if text is None:
        return None
    try:
        return space_from_dict(json.loads(text))
    except (ValueError, TypeError) as error:
        _refuse(f'{option} {text}: {error}; an example is \'{{"box":{{"dtype":"DTYPE_FLOAT32","shape":[4]}}}}\'')


def _check_reachable(address: Endpoint, text: str, settings: Settings) -> None:
    from relaax.conformance.server_session import connected
    from relaax.conformance.wire import RuleViolation

    try:
        connected(address, settings).close()
    except RuleViolation as violation:
        _refuse(f"cannot open a WebSocket to {text}: {violation}")
    except ssl.SSLError as error:
        _refuse(f"no TLS connection to {text}: {reason_of(error) or error}")
    except OSError as error:
        _refuse(f"no TCP connection to {text}: {error.strerror or error}")


def _command(text: str) -> list[str]:
    with _refuse_on(f"--client {text}: ", ValueError):
        command = shlex.split(text)
    if not command:
        _refuse("--client: no command was given")
    return command if "{address}" in text else [*command, "{address}"]
