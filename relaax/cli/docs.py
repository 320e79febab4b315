"""The command `relaax docs`: the documentation pages that are installed with the package."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relaax.bundled import bundled_folder
from relaax.cli.reporting import exit_with_error
from relaax.configuration import unknown

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_ENTRY = re.compile(r"^\d+\. \[[^\]]*\]\(([^)]+)\): (.+)$", re.MULTILINE)


def docs(
    page: Annotated[
        str | None,
        typer.Argument(
            autocompletion=_complete,
            help="A page, such as getting-started; omit it to list all.",
        ),
    ] = None,
) -> None:
    """Show a page of the documentation, or list the pages.

    On a terminal, a page is formatted and can be scrolled. In a file or a pipe, it is Markdown. The pages belong to the
    installed version. The list ends with the folders of pages and clients. Exit code 2: the page does not exist.
    """
    folder = bundled_folder("docs")
    if page is None:
        entries = _entries(folder)
        for name, (_, about) in entries.items():
            print(f"{name:{max(map(len, entries))}}  {about}")
        print(f"\n`relaax docs PAGE` shows one. The files are in {folder}")
        print(f"Clients in other languages: {', '.join(_client_pages())}. Their files are in {_clients()}")
        return
    pages = _pages()
    file = pages.get(page.removesuffix(".md")) or _linked(page)
    if file is None:
        exit_with_error("relaax docs", unknown("page", page, pages))
    _show(_read(file))


def _linked(target: str) -> Path | None:
    """Return the file of a link in README.md or in a page of `docs/`, such as protocol/RLX.md#2-framing."""
    docs = bundled_folder("docs")
    path = target.partition("#")[0].removesuffix(".md") + ".md"
    return next((file for folder in (docs, docs.parent) if (file := folder / path).is_file()), None)


def _entries(folder: Path) -> dict[str, tuple[Path, str]]:
    """Return file and subject of each page of the index, by name."""
    found = _ENTRY.findall(_read(folder / "README.md"))
    return {_name(folder / target): (folder / target, about) for target, about in found}


def _pages() -> dict[str, Path]:
    """Return the file of each page, by name."""
    folder = bundled_folder("docs")
    pages = {name: path for name, (path, _) in _entries(folder).items()}
    pages |= _client_pages()
    pages |= {
        f"results/{path.stem[len('YYYY-MM-DD-') :]}": path for path in sorted((folder / "results/archive").glob("*.md"))
    }
    return pages


def _client_pages() -> dict[str, Path]:
    return {f"clients/{path.parent.name}": path for path in sorted(_clients().glob("*/README.md"))}


def _clients() -> Path:
    return bundled_folder("protocol") / "clients"


def _complete(incomplete: str) -> list[str]:
    return [name for name in _pages() if name.startswith(incomplete)]


def _name(path: Path) -> str:
    return path.parent.name if path.stem == "README" else path.stem


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _show(text: str) -> None:
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.markdown import CodeBlock, Markdown
    from rich.syntax import Syntax

    from relaax.plain_console import PlainConsole

    class CopyableCode(CodeBlock):
        """A code block without margin and added line breaks, so that code copied from the terminal runs."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            code = Syntax("", self.lexer_name, theme=self.theme).highlight(str(self.text).rstrip())
            code.rstrip()
            code.no_wrap, code.overflow = True, "ignore"
            yield code

    class Page(Markdown):
        """Markdown with `CopyableCode` blocks."""

        elements = Markdown.elements | {"fence": CopyableCode, "code_block": CopyableCode}

    os.environ.setdefault("LESS", "FRX")  # keep colors; do not wait at the end of a short page
    console = PlainConsole()
    with console.pager(styles=True):
        console.print(Page(text, hyperlinks=False), crop=False)
