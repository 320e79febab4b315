"""Output of commands: errors as one sentence and an exit code, tables, and streams that survive a closed pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

import typer

from relaax.configuration import ConfigurationError
from relaax.console import print_error

if TYPE_CHECKING:
    from relaax.plain_console import PlainConsole

Errors = tuple[type[Exception], ...]


def exit_with_error(command: str, error: object, code: int = 2) -> NoReturn:
    """Print an error of a command, and exit."""
    print_error(command, error, resilient(sys.stderr))
    raise typer.Exit(code) from None


@contextlib.contextmanager
def exit_on_errors(command: str, refused: Errors = (), failed: Errors = ()) -> Iterator[None]:
    """Print an error of the block as one sentence, and exit.

    The exit code is 2 for ConfigurationError and the errors of `refused`, 1 for the errors of `failed`, and 130 for
    Ctrl-C. For StartError it is 1, or 2 if the process refused its configuration.
    """
    from relaax.supervision.process import StartError

    wrong: Errors = (ConfigurationError, *refused)
    try:
        yield
    except wrong as error:
        exit_with_error(command, error)
    except failed as error:
        is_file = isinstance(error, OSError) and error.filename
        exit_with_error(command, f"{error.filename}: {error.strerror}" if is_file else error, 1)  # type: ignore[attr-defined]
    except StartError as error:
        exit_with_error(command, error.refused or error, 2 if error.refused else 1)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def check_writable(option: str, path: Path) -> None:
    """Raise ConfigurationError if the file of an option cannot be written. Call it before a long operation.

    An existing file is not changed. A new file is removed again: an empty file would look like a result.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not os.path.lexists(path)
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise ConfigurationError(f"{option} {path}: {error.strerror}") from None


def console_of(width: int, **options: Any) -> PlainConsole:
    """Return a console for tables. `width`: its width if the output is not a terminal."""
    from relaax.plain_console import PlainConsole

    console = PlainConsole(**options)
    if not console.is_terminal:
        console.width = width
    return console


def resilient(stream: TextIO | None) -> TextIO | None:
    """Return a stream that drops output if writing fails, because its reader has ended or the disk is full.

    None (no open stream) stays None.
    """
    return None if stream is None else cast(TextIO, _ResilientOutput(stream))


class _ResilientOutput:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            self._stream.flush()

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            with contextlib.suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY)  # also drops the buffer of the stream
                os.dup2(null, self._stream.fileno())
                os.close(null)
