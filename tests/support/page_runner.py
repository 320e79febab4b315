"""A page's commands, followed from top to bottom in an empty folder, with a wheel and no checkout."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from support.pages import blocks, files
from support.processes import Processes, Running, wait_until

SERVERS = "servers"
"""Blocks of this name: each line is a server that goes on until the next such block, or the page's end."""
WATCH = "watch"
"""Blocks of this name: each line goes on until Ctrl-C."""
PATIENCE = 600.0  # seconds: a training of the long form may take minutes
PORTS = (7000, 7001, 9100, 9101)

# What is different from the page. If libraries were borrowed, not installed, `pip` looks whether they are there; other
# tests have TensorBoard's port; a training ends early, without its target, where $LIMIT says so.
PRELUDE = """
relaax() {
  local code=0
  case "$*" in
    *--max-steps* | *max_global_step* | *--help*) command relaax "$@" || code=$? ;;
    run*) command relaax "$@" $LIMIT || code=$? ;;
    *) command relaax "$@" || code=$? ;;
  esac
  if [ "$1" = run ] && [ $code = 3 ]; then return 0; fi
  return $code
}
pip() { python -m pip --disable-pip-version-check "$@"; }
tensorboard() { command tensorboard "$@" --port 0; }
"""


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago.

    They are below those that systems give to whoever asks for any: other tests do so until servers have loaded.
    """
    free: list[int] = []
    for port in random.sample(range(20_000, 32_000), 5 * count):
        with suppress(OSError), socket.create_server(("localhost", port)):
            free.append(port)
    return free[:count]


class PageRunner:
    """An empty folder with a shell in it, whose `python` and `relaax` are those of `environment`, a virtual one."""

    def __init__(self, folder: Path, environment: Path, processes: Processes, limit: int | None) -> None:
        self._folder = folder
        self._processes = processes
        self._ports = dict(zip(map(str, PORTS), map(str, free_ports(len(PORTS))), strict=True))
        here = Path(sys.executable).parent  # TensorBoard's command is not the wheel's
        server, workers = (f"localhost:{self._ports[port]}" for port in ("7001", "7000"))
        self._env = {
            "PATH": os.pathsep.join([str(environment / "bin"), str(here), os.environ["PATH"]]),
            "PYTHONPATH": "",
            "HOME": str(folder),
            "LIMIT": "" if limit is None else f"--max-steps {limit}",
            "RELAAX_PARAMETER_SERVER__BIND": workers,
            "RELAAX_RLX_SERVER__PARAMETER_SERVER": workers,
            "RELAAX_RLX_SERVER__BIND": server,
        }
        if not (environment / "bin" / "pip").exists():  # the libraries are borrowed
            self._env["PIP_NO_INDEX"] = "1"
        self._servers: list[Running] = []

    def follow(self, page: Path, less: dict[str, str]) -> dict[str, str]:
        """Do what a page says; what each block printed, to stdout and stderr. `less`: what of its text to replace."""
        self.write_files(page)
        said: dict[str, str] = {}
        for made in blocks(page):
            if made.language != "sh" or made.name.startswith("needs "):
                continue
            text = made.text
            for old, new in less.items():
                text = text.replace(old, new)
            if made.name == SERVERS:
                self.end()
                self._servers = [self._serve(line) for line in text.splitlines()]
            elif made.name == WATCH:
                said[WATCH] = said.get(WATCH, "") + "".join(self._watch(line) for line in text.splitlines())
            else:
                said[made.name] = self._do(text)
        self.end()
        return said

    def write_files(self, page: Path) -> None:
        """Write the files that a page shows."""
        for name, text in files(page).items():
            file = self._folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self._placed(text), encoding="utf-8")

    def end(self) -> None:
        """Ctrl-C to the servers. Their training may have finished before."""
        for server in reversed(self._servers):
            assert server.stop(signal.SIGINT, timeout=60) in (130, 0), server.report()
        self._servers = []

    def _do(self, text: str) -> str:
        shell = self._start(f"{PRELUDE}{text}")
        assert shell.wait(PATIENCE) == 0, f"{text}\n{shell.report()}"
        return "\n".join([*shell.lines, shell.stderr])

    def _serve(self, line: str) -> Running:
        server = self._start(f"exec {line}")
        server.wait_for_address()
        return server

    def _watch(self, line: str) -> str:
        """Until it has something to show: a line of its own, or a file."""
        before = set(self._folder.iterdir())
        shell = self._start(f"{PRELUDE}{line}")

        def news() -> str:
            assert shell.returncode is None, shell.report()
            made = sorted(path.name for path in set(self._folder.iterdir()) - before)
            text = "\n".join([*shell.lines, shell.stderr, *made])
            return text if re.search(r"http://|connected|\.jsonl", text) else ""

        said = wait_until(news, f"{line!r} shows something", PATIENCE, 0.1)
        shell.interrupt_group()
        assert shell.wait(60) in (0, 130, -signal.SIGINT), shell.report()
        return said

    def _start(self, text: str) -> Running:
        return self._processes.start("bash", "-euc", self._placed(text), cwd=self._folder, env=self._env)

    def _placed(self, text: str) -> str:
        """With ports of its own."""
        return re.sub(rf"(?<=localhost:)({'|'.join(self._ports)})\b", lambda port: self._ports[port[0]], text)
