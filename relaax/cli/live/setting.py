"""The command `relaax set`: change parameters of the environments while a training runs."""

from __future__ import annotations

from typing import Annotated

import typer

from relaax.cli import completion
from relaax.cli.live.addresses import section_of_service
from relaax.cli.options import AuthorityOption, TokenFileOption
from relaax.cli.reporting import exit_on_errors
from relaax.configuration import ConfigurationError
from relaax.console import log_to_stderr, print_error

_ANSWER_SECONDS = 5.0


def set_parameters(
    where: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.configurations_and_runs,
            metavar="HOST:PORT|CONFIG|RUN",
            help="A parameter server; a configuration that names it, with its token and certificates; or the directory "
            "of an active run.",
        ),
    ],
    assignments: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=NUMBER...",
            help="Parameters of environment-parameters, and their numbers; NAME= for the values of the lessons again.",
        ),
    ],
    token_file: TokenFileOption = None,
    tls_ca: AuthorityOption = None,
) -> None:
    """Change parameters of the environments while a training runs.

    Environments use a number from their next episode on, in all lessons, and checkpoints contain it. Exit code 0: done;
    1: the parameter server does not answer; 2: the request is invalid.
    """
    log_to_stderr("relaax set: %(message)s")
    with exit_on_errors("relaax set"):
        numbers = [_parsed(assignment) for assignment in assignments]
        from relaax.server.access import targets

        target = targets(section_of_service(where, None, token_file, tls_ca))[0]
    import grpc

    from relaax.parameters import parameter_server_pb2 as pb
    from relaax.parameters import parameter_server_pb2_grpc as rpc
    from relaax.parameters.calls import authentication_error
    from relaax.parameters.editions import edition_of
    from relaax.transport.channel import open_channel

    with open_channel(target) as channel:
        stub = rpc.ParameterServerServiceStub(channel)
        for name, number in numbers:
            try:
                request = pb.SetParameterRequest(name=name, value=number)
                edition = edition_of(stub.SetParameter(request, timeout=_ANSWER_SECONDS).edition)
            except grpc.RpcError as error:
                refused = error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)
                sentence = authentication_error(error, target) or error.details()
                print_error("relaax set", sentence if refused else f"{target.address}: {sentence}")
                raise typer.Exit(2 if refused else 1) from None
    print(edition)


def _parsed(assignment: str) -> tuple[str, float | None]:
    """Return the name and the number of `NAME=NUMBER`; None for `NAME=`. Raises ConfigurationError."""
    name, equals, text = assignment.partition("=")
    try:
        number = float(text) if text else None
    except ValueError:
        number = float("nan")
    if not name or not equals or number != number:
        raise ConfigurationError(f"{assignment}: NAME=NUMBER is expected, as in gravity=3.7, or NAME=")
    return name, number
