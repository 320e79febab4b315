"""Arguments, signals and exit codes of the programs that run environments.

A program describes its arguments with `parser`. It passes `execute` a function that takes the parsed arguments and
returns the summary of `relaax.client.run`.
"""

from __future__ import annotations

import argparse
import importlib
import math
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from relaax.client.connection.address import CHECK, DISPLAY, PORT, PROBE, SERVERLESS, ServerList
from relaax.client.connection.client import CA_VARIABLE, TLS_VARIABLE, TOKEN_VARIABLE, secret, tls_context
from relaax.client.connection.failure import CannotWrite, EnvironmentExit, EnvironmentFault, Failure, did_you_mean
from relaax.client.connection.scalars import check_name
from relaax.client.connection.values import UnsupportedSpace
from relaax.client.program.checked_env import is_of_signal
from relaax.client.program.process import cancel_repetition, connection_threads, exit_now, run_connections, terminate
from relaax.client.program.screen import ScreenError, ScreenLost, run_on_screen
from relaax.client.program.summary import RunSummary
from relaax.client.program.watching import Watching, has_screen
from relaax.console import log_to_stderr, one_line, print_error, replace_unknown_characters, shown
from relaax.files import read_bounded_text
from relaax.libraries import missing, named
from relaax.rlx import ErrorCode
from relaax.tls import client_context

DONE, FAILED, USAGE, ENVIRONMENT_EXITED, INTERRUPTED = 0, 1, 2, 4, 130
NOOP = "noop"
NOOP_MAX, NOOP_FRAMES = 30, 18_000  # Nair et al. 2015, section 5.1: five minutes of 60 frames a second
# The server will never accept these spaces or this token, so a restart cannot help.
_REFUSED = (ErrorCode.UNSUPPORTED_SPACE, ErrorCode.SPACE_MISMATCH, ErrorCode.UNAUTHENTICATED)


class UsageError(Exception):
    """Invalid arguments of the command line. The message names the valid ones."""


def parser(program: str, description: str, name: str | None) -> argparse.ArgumentParser:
    """Return a parser for `ADDRESS NAME [N|display]` and the options of every environment.

    `name`: description of NAME; None if the program itself describes the arguments after the address.
    """
    result = argparse.ArgumentParser(prog=program, description=description, allow_abbrev=False)
    add: Any = result.add_argument
    servers = (
        f"HOST:PORT of an RLX server, HOST for port {PORT}, or ws://HOST:PORT/PATH; several separated by commas, or"
        " @FILE with one on each line; random: no server, random actions; check: no server, play random episodes and"
        " report faults of the environments"
    )
    add("address", metavar="ADDRESS", help=servers)
    if name is not None:
        add("name", metavar="NAME", help=name)
        many = "number of environments (1); display: one environment, with --display"
        add("environments", metavar="N|display", nargs="?", action=EnvironmentCount, default=1, help=many)
    text = "number of connections with N environments each, in threads of this process (1)"
    add("--connections", metavar="K", type=positive, default=1, help=text)
    add("--seed", type=int, metavar="N", help="seed of the first environment; the next ones get the following numbers")
    add("--exploit", action="store_true", help="act as well as the model allows, without training it")
    add("--episodes", type=positive, metavar="N", help="end a connection after N episodes")
    text = "end a connection after N steps, summed over its environments"
    add("--steps", type=positive, metavar="N", help=text)
    text = "maximum steps per second of each environment (no limit)"
    add("--rate", type=per_second, metavar="R", help=text)
    text = "give up if the server is unavailable for this time (300)"
    add("--retry-seconds", type=seconds, metavar="SECONDS", default=300.0, help=text)
    add("--codec", choices=("protobuf", "json"), default="protobuf", help="encoding of messages")
    text = f"file with the server's token (default: the variable {TOKEN_VARIABLE}, or {TOKEN_VARIABLE}_FILE)"
    add("--token-file", type=Path, metavar="FILE", help=text)
    text = f"connect over TLS, and trust the certificate authorities of this system (default: if {TLS_VARIABLE} is 1)"
    add("--tls", action="store_const", const=True, help=text)
    text = f"connect over TLS, and trust the certificate authority (PEM) in this file (default: variable {CA_VARIABLE})"
    add("--tls-ca", type=Path, metavar="FILE", help=text)
    add("--measure", type=Path, metavar="FILE", help="write speed measurements to this file, as JSON lines")
    text = "send this entry of the environment's infos as the metric client/NAME; repeatable"
    add("--metric", metavar="NAME", type=metric, action="append", help=text)
    text = (
        "entry of the environment's infos with the action that a person or a script took instead of the agent's: "
        "the agent learns from it"
    )
    add("--taken-action", metavar="NAME", help=text)
    text = (
        "give the environment the server's parameters before each episode: as options of reset, or as attributes of"
        " the environment"
    )
    add("--parameters", choices=("options", "attributes"), help=text)
    text = "show the first environment at its own pace: in a window, or over VNC if there is no screen"
    add("--display", action="store_true", help=text)
    text = "write episodes of the first environment to this folder, as MP4"
    add("--video", type=Path, metavar="DIR", help=text)
    add("--video-every", type=positive, metavar="K", help="record every K-th episode, from the first (1)")
    text = "check: write the report to this file, as JSON, and print nothing"
    add("--report", type=Path, metavar="FILE", help=text)
    levels = ("debug", "info", "warning", "error")
    add("--log-level", choices=levels, default="info", help="level of the log on stderr (info)")
    return result


class EnvironmentCount(argparse.Action):
    """The action of the argument `N|display`: a number sets `environments`, and the word display sets `display`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Parse the text, or the default. Raises argparse.ArgumentError."""
        if values == DISPLAY:
            namespace.display, values = True, 1
        try:
            setattr(namespace, self.dest, positive(str(values)))
        except ValueError:
            raise argparse.ArgumentError(self, f"{values!r} is neither a number nor the word {DISPLAY}") from None
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None


def positive(text: str) -> int:
    """Return an integer of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def seconds(text: str) -> float:
    """Return a number of seconds, at least 0, for argparse."""
    return _number(text, "number of seconds", lambda number: 0 <= number < math.inf)


def per_second(text: str) -> float:
    """Return a number of times per second, above 0, for argparse."""
    return _number(text, "number of steps per second above 0", lambda number: 0 < number < math.inf)


def probability(text: str) -> float:
    """Return a number from 0 to 1, for argparse."""
    return _number(text, "probability", lambda number: 0 <= number <= 1)


def _number(text: str, kind: str, fits: Callable[[float], bool]) -> float:
    number = float(text)
    if not fits(number):
        raise argparse.ArgumentTypeError(f"expected a {kind}, not {text}")
    return number


def metric(text: str) -> str:
    """Return the name of a metric, for argparse."""
    try:
        check_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `relaax.client.run`, except the environment, from the command line. Raises UsageError."""
    tls_ca = _checked_ca(arguments.tls_ca)
    try:
        tls = tls_context(arguments.tls, tls_ca)
        if arguments.address not in SERVERLESS:
            ServerList(arguments.address, tls is not None)
    except ValueError as error:  # an invalid address or environment variable
        raise UsageError(str(error)) from None
    if arguments.measure is not None and not _is_checked(arguments):
        try:
            arguments.measure.open("w").close()
        except OSError as error:
            raise UsageError(f"cannot write --measure {arguments.measure}: {error.strerror}") from None
    if arguments.video_every is not None and arguments.video is None:
        raise UsageError("--video-every needs --video DIR")
    return {
        "address": arguments.address,
        "measure": arguments.measure,
        "watching": watching(arguments),
        "seed": arguments.seed,
        "episodes": arguments.episodes,
        "steps": arguments.steps,
        "rate": arguments.rate,
        "mode": "exploit" if arguments.exploit else "train",
        "retry_seconds": arguments.retry_seconds,
        "codec": arguments.codec,
        "metrics": arguments.metric,
        "taken_action": arguments.taken_action,
        "parameters": arguments.parameters,
        "tls": arguments.tls,
        "tls_ca": tls_ca,
        "token": _token(arguments.token_file),
    }


def watching(arguments: argparse.Namespace) -> Watching | None:
    """Return what to watch; None if there is nothing to watch. Then the environments need not render images."""
    if not (arguments.display or arguments.video) or _is_checked(arguments):
        return None
    return Watching(arguments.display, arguments.video, arguments.video_every or 1)


def add_atari_protocol(described: argparse.ArgumentParser) -> None:
    """Add the option --protocol, for programs that run Atari games."""
    described.add_argument(
        "--protocol",
        choices=(NOOP,),
        help=f"evaluate with the null ops of Nair et al. 2015: up to {NOOP_MAX} no-ops before the agent acts, whole "
        f"games, at most {NOOP_FRAMES} frames",
    )


def execute(
    described: argparse.ArgumentParser,
    main: Callable[[argparse.Namespace], RunSummary],
    line: Sequence[str] | None = None,
) -> NoReturn:
    """Run a program and exit.

    Exit codes: 0 done, also on SIGTERM; 1 failed; 2 invalid usage; 4 the environment called sys.exit(); 130
    interrupted.
    """
    replace_unknown_characters()
    signal.signal(signal.SIGTERM, terminate)
    name = described.prog
    try:
        arguments, unknown = described.parse_known_args(line)
        if unknown:
            described.error(f"unrecognized arguments: {' '.join(unknown)}{_origin_of(unknown, described)}")
        log_to_stderr("%(asctime)s %(name)s: %(message)s", arguments.log_level.upper())
        if arguments.display and not _is_checked(arguments) and not has_screen():
            sys.exit(run_on_screen())
        with named(name):
            summary = _run(main, arguments)
        if summary.report is not None:
            code = DONE if summary.report.finish(arguments.report) else FAILED
        else:
            print(_described(summary), flush=True)
            code = DONE
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (UsageError, UnsupportedSpace, ScreenError) as error:
        print_error(name, missing(error) or error)
        code = USAGE
    except EnvironmentFault as error:
        print_error(name, error)
        # After a rare fault a restart helps. A fault in the only step of a probe would occur again.
        code = USAGE if arguments.address == PROBE else FAILED
    except EnvironmentExit as error:
        print_error(name, error)
        code = ENVIRONMENT_EXITED
    except Failure as failure:
        print_error(name, one_line(failure))
        code = USAGE if failure.code in _REFUSED or isinstance(failure, CannotWrite) else FAILED
    except ScreenLost as error:
        print_error(name, error)
        code = FAILED
    except SystemExit as end:  # from a signal, or from a connection that lacks a library
        if not connection_threads():
            raise
        code = end.code if isinstance(end.code, int) else FAILED
    except Exception:
        if not connection_threads():
            raise
        sys.excepthook(*sys.exc_info())
        code = FAILED
    finally:
        cancel_repetition()
    if connection_threads():
        exit_now(code)
    sys.exit(code)


def _run(main: Callable[[argparse.Namespace], RunSummary], arguments: argparse.Namespace) -> RunSummary:
    """Run the program. Raises EnvironmentExit if it exits with code 0 and no signal is the cause."""
    try:
        if arguments.connections > 1 and not _is_checked(arguments):
            return run_connections(main, arguments)
        return main(arguments)
    except SystemExit as end:
        if end.code or is_of_signal(end):
            raise
        raise EnvironmentExit("the environment called sys.exit() while it was created or closed") from end


def _is_checked(arguments: argparse.Namespace) -> bool:
    return arguments.address in (CHECK, PROBE)


def sibling_module(package: str | None, module: str) -> ModuleType:
    """Return a module of the program's folder. `package`: the program's package; None or empty for a script."""
    return importlib.import_module(f"{package}.{module}" if package else module)


def _origin_of(unknown: Sequence[str], described: argparse.ArgumentParser) -> str:
    """Return a hint about unknown options: the key of `relaax run` that adds them, or a similar option."""
    given = [word for word in ("--kwarg", "--wrapper", "--register", "--import") if word in unknown]
    keys = {"--kwarg": "kwargs", "--wrapper": "wrappers", "--register": "register", "--import": "modules"}
    if not given:
        return did_you_mean(unknown[0].partition("=")[0], described._option_string_actions)
    return (
        f" (relaax-run.{keys[given[0]]} is passed as {given[0]}, for environments of gymnasium: add this option to the"
        " program, or pass another option with relaax-run.arguments)"
    )


def _checked_ca(path: Path | None) -> Path | None:
    """Return the file of --tls-ca. Raises UsageError if it has no certificate."""
    if path is not None:
        try:
            client_context(read_bounded_text(path, "ascii"))
        except (OSError, ValueError) as error:
            raise UsageError(f"--tls-ca {path}: cannot read a certificate (PEM) from it: {error}") from None
    return path


def _token(path: Path | None) -> str:
    try:
        return secret(TOKEN_VARIABLE) if path is None else read_bounded_text(path).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the token file {path}: {error}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None


def _described(summary: RunSummary) -> str:
    if summary.spaces is not None:
        return summary.spaces
    text = f"{summary.steps} steps, {summary.episodes} episodes"
    if summary.mean_return is not None:
        text += f", mean return {shown(summary.mean_return)} of the last {len(summary.returns)}"
    return text if summary.training_finished is None else f"training finished: {summary.training_finished}; {text}"
