"""How commands report: errors as one sentence and an exit code, tables, and output that outlives its reader."""

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


def give_up(command: str, error: object, code: int = 2) -> NoReturn:
    """Print an error of a command, and exit."""
    print_error(command, error, resilient(sys.stderr))
    raise typer.Exit(code) from None


@contextlib.contextmanager
def reported(command: str, refused: Errors = (), failed: Errors = ()) -> Iterator[None]:
    """Turn errors that the user can act on into a sentence and an exit code.

    The code is 2 for an error of the configuration and those of `refused`, 1 for those of `failed`, and 130 for Ctrl-C.
    That of a process that did not start is 1, or 2 if it refused its configuration.
    """
    from relaax.supervision.process import StartError

    wrong: Errors = (ConfigurationError, *refused)
    try:
        yield
    except wrong as error:
        give_up(command, error)
    except failed as error:
        is_file = isinstance(error, OSError) and error.filename
        give_up(command, f"{error.filename}: {error.strerror}" if is_file else error, 1)  # type: ignore[attr-defined]
    except StartError as error:
        give_up(command, error.refused or error, 2 if error.refused else 1)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def promise(option: str, path: Path) -> None:
    """Ensure, before time is spent, that a file can be written. Raises ConfigurationError.

    An existing file is left as it is; no new file remains: an empty one would look like a result.
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
    """Return a console for tables, of this width if its output is no terminal."""
    from relaax.plain_console import PlainConsole

    console = PlainConsole(**options)
    if not console.is_terminal:
        console.width = width
    return console


def resilient(stream: TextIO | None) -> TextIO | None:
    """Return the same stream, except that it drops what cannot be written: its reader has ended, or the disk is full.

    None, for no open stream, stays None.
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
                nowhere = os.open(os.devnull, os.O_WRONLY)  # also drops what the stream has buffered
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)
