"""Arguments, signals and exit codes of the programs that run environments.

A program describes its arguments with `parser`, and hands `execute` a function that takes them and returns what
`relaax.client.run` did.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from relaax.client.connection.address import CHECK, DISPLAY, PORT, PROBE, SERVERLESS, Places
from relaax.client.connection.client import CA_VARIABLE, TLS_VARIABLE, TOKEN_VARIABLE, secret, tls_context
from relaax.client.connection.failure import CannotWrite, EnvironmentExit, EnvironmentFault, Failure, did_you_mean
from relaax.client.connection.scalars import check_name
from relaax.client.connection.values import UnsupportedSpace
from relaax.client.program.checked_env import is_of_signal
from relaax.client.program.process import disarm, leave, side_by_side, terminate, under_way
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
# That server will never take these spaces or this token: starting again cannot help.
_REFUSED = (ErrorCode.UNSUPPORTED_SPACE, ErrorCode.SPACE_MISMATCH, ErrorCode.UNAUTHENTICATED)


class UsageError(Exception):
    """The arguments name something that does not exist or make no sense. The message says what does."""


def parser(program: str, description: str, name: str | None) -> argparse.ArgumentParser:
    """Return a parser for `ADDRESS NAME [N|display]` and the options of every environment.

    `name`: what NAME is; None if the program describes by itself what comes after the address.
    """
    result = argparse.ArgumentParser(prog=program, description=description, allow_abbrev=False)
    result.add_argument(
        "address",
        metavar="ADDRESS",
        help=f"HOST:PORT of an RLX server, HOST for port {PORT}, or ws://HOST:PORT/PATH; several with commas between,"
        " or @FILE with one on each line; random: no server, random actions; check: no server, play episodes at"
        " random and report what is wrong with them",
    )
    if name is not None:
        result.add_argument("name", metavar="NAME", help=name)
        result.add_argument(
            "environments",
            metavar="N|display",
            nargs="?",
            action=HowMany,
            default=1,
            help="how many (1); display: one, with --display",
        )
    result.add_argument(
        "--connections",
        metavar="K",
        type=positive,
        default=1,
        help="so many connections with N environments each, in threads of this process (1)",
    )
    result.add_argument("--seed", type=int, metavar="N", help="seed of the first environment; the others' follow it")
    result.add_argument("--exploit", action="store_true", help="act as well as the model allows, and teach it nothing")
    result.add_argument("--episodes", type=positive, metavar="N", help="end a connection after so many episodes")
    result.add_argument(
        "--steps", type=positive, metavar="N", help="end a connection after so many steps, over its environments"
    )
    result.add_argument(
        "--rate", type=per_second, metavar="R", help="steps per second of each environment at most (no limit)"
    )
    result.add_argument(
        "--retry-seconds",
        type=seconds,
        metavar="SECONDS",
        default=300.0,
        help="give up when the server is away for so long (300)",
    )
    result.add_argument("--codec", choices=("protobuf", "json"), default="protobuf", help="how messages are written")
    result.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"file with the server's token (else the variable {TOKEN_VARIABLE}, or {TOKEN_VARIABLE}_FILE)",
    )
    result.add_argument(
        "--tls",
        action="store_const",
        const=True,
        help=f"connect over TLS, by the authorities of this system (else if {TLS_VARIABLE} is 1)",
    )
    result.add_argument(
        "--tls-ca",
        type=Path,
        metavar="FILE",
        help=f"connect over TLS, by the authority (PEM) in this file (else the variable {CA_VARIABLE})",
    )
    result.add_argument(
        "--measure", type=Path, metavar="FILE", help="write how fast it goes to this file, as JSON lines"
    )
    result.add_argument(
        "--metric",
        metavar="NAME",
        type=metric,
        action="append",
        help="send this entry of the environment's infos as the metric client/NAME; repeatable",
    )
    result.add_argument(
        "--display",
        action="store_true",
        help="show the first environment at its own pace: in a window, or over VNC where there is no screen",
    )
    result.add_argument(
        "--video", type=Path, metavar="DIR", help="write episodes of the first environment to this folder, as MP4"
    )
    result.add_argument(
        "--video-every", type=positive, metavar="K", help="of every K-th episode, from the first on (1)"
    )
    result.add_argument(
        "--report", type=Path, metavar="FILE", help="check: write the report to this file, as JSON, and print nothing"
    )
    levels = ("debug", "info", "warning", "error")
    result.add_argument("--log-level", choices=levels, default="info", help="what to tell on stderr (info)")
    return result


class HowMany(argparse.Action):
    """The argument `N|display`: sets `environments`, and for the word also `display`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Take the text, or the default. Raises argparse.ArgumentError."""
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
    """Return a number of seconds, 0 or more, for argparse."""
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return number


def per_second(text: str) -> float:
    """Return a number of times per second, above 0, for argparse."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of steps per second above 0")
    return number


def probability(text: str) -> float:
    """Return a number from 0 to 1, for argparse."""
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no probability")
    return number


def metric(text: str) -> str:
    """Return the name of a metric, for argparse."""
    try:
        check_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `relaax.client.run` from the command line, but for the environment. Raises UsageError."""
    tls_ca = _readable(arguments.tls_ca)
    try:
        tls = tls_context(arguments.tls, tls_ca)
        if arguments.address not in SERVERLESS:
            Places(arguments.address, tls is not None)
    except ValueError as error:  # of the address, or of the variables
        raise UsageError(str(error)) from None
    if arguments.measure is not None and not _is_checked(arguments):
        _require_writable(arguments.measure)
    if arguments.video_every is not None and arguments.video is None:
        raise UsageError("--video-every is for --video, which names the folder")
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
        "tls": arguments.tls,
        "tls_ca": tls_ca,
        "token": _token(arguments.token_file),
    }


def watching(arguments: argparse.Namespace) -> Watching | None:
    """Return what is to be watched; None if nothing is. Then the environments need not give images."""
    if not (arguments.display or arguments.video) or _is_checked(arguments):
        return None
    return Watching(arguments.display, arguments.video, arguments.video_every or 1)


def add_atari_protocol(described: argparse.ArgumentParser) -> None:
    """Add the option --protocol, for programs that run Atari games."""
    described.add_argument(
        "--protocol",
        choices=(NOOP,),
        help=f"evaluate as Nair et al. 2015 do with null ops: up to {NOOP_MAX} no-ops at the start and nothing else "
        f"before the agent acts, whole games, at most {NOOP_FRAMES} frames",
    )


def execute(
    described: argparse.ArgumentParser,
    main: Callable[[argparse.Namespace], RunSummary],
    line: Sequence[str] | None = None,
) -> NoReturn:
    """Run a program and exit.

    0: done, also on SIGTERM; 1: failed; 2: cannot be done as asked for; 4: the environment called sys.exit(); 130:
    interrupted.
    """
    replace_unknown_characters()
    signal.signal(signal.SIGTERM, terminate)
    name = described.prog
    try:
        arguments, unknown = described.parse_known_args(line)
        if unknown:
            described.error(f"unrecognized arguments: {' '.join(unknown)}{_whence(unknown, described)}")
        log_to_stderr("%(asctime)s %(name)s: %(message)s", arguments.log_level.upper())
        if arguments.display and not _is_checked(arguments) and not has_screen():
            code = run_on_screen()
            sys.exit(code)
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
    except EnvironmentFault as error:  # started again, it may work for hours; at the first step it never does
        print_error(name, error)
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
    except SystemExit as end:  # of a signal, or of a connection that lacks a library
        if not under_way():
            raise
        code = end.code if isinstance(end.code, int) else FAILED
    except Exception:
        if not under_way():
            raise
        sys.excepthook(*sys.exc_info())
        code = FAILED
    finally:
        disarm()
    if under_way():
        leave(code)
    sys.exit(code)


def _run(main: Callable[[argparse.Namespace], RunSummary], arguments: argparse.Namespace) -> RunSummary:
    """Run the program. Raises EnvironmentExit if anything in it but a signal exits with code 0."""
    try:
        if arguments.connections > 1 and not _is_checked(arguments):
            return side_by_side(main, arguments)
        return main(arguments)
    except SystemExit as end:
        if end.code or is_of_signal(end):
            raise
        raise EnvironmentExit("the environment called sys.exit() while it was made or closed") from end


def _is_checked(arguments: argparse.Namespace) -> bool:
    return arguments.address in (CHECK, PROBE)


def beside(package: str | None, module: str) -> ModuleType:
    """Return a module beside the program, which runs as a script or was imported as a part of `package`."""
    return importlib.import_module(f"{package}.{module}" if package else module)


def _whence(unknown: Sequence[str], described: argparse.ArgumentParser) -> str:
    """Return where options came from that `relaax run` gave to a program without them, or what they are like."""
    given = [word for word in ("--kwarg", "--wrapper", "--register", "--import") if word in unknown]
    keys = {"--kwarg": "kwargs", "--wrapper": "wrappers", "--register": "register", "--import": "modules"}
    if not given:
        return did_you_mean(unknown[0].partition("=")[0], described._option_string_actions)
    return (
        f" (relaax-run.{keys[given[0]]} comes as {given[0]}, for environments of gymnasium: let this program describe"
        " that option, or give one of its own as relaax-run.arguments)"
    )


def _require_writable(path: Path) -> None:
    try:
        path.open("w").close()
    except OSError as error:
        raise UsageError(f"cannot write --measure {path}: {error.strerror}") from None


def _readable(path: Path | None) -> Path | None:
    """Return the file of --tls-ca. Raises UsageError."""
    if path is not None:
        try:
            client_context(read_bounded_text(path, "ascii"))
        except (OSError, ValueError) as error:
            raise UsageError(f"--tls-ca {path}: no certificate (PEM) can be read there: {error}") from None
    return path


def _token(path: Path | None) -> str:
    """Return the token of a file, or else of the variables. Raises UsageError."""
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
