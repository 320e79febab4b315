"""Run the commands of a documentation page, from top to bottom, in an empty folder without a checkout."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

from support.pages import blocks, files
from support.ports import free_ports
from support.processes import Processes, Running, wait_until

SERVERS = "servers"
"""Name of blocks whose lines are servers. They run until the next such block or the end of the page."""
WATCH = "watch"
"""Name of blocks whose lines run until Ctrl-C."""
PATIENCE = 600.0  # seconds; a training of the slow tests takes minutes
PORTS = (7000, 7001, 7100, 7101, 9100, 9101)

# Differences from the page: if the libraries are shared with the tests, `pip` only checks that they are present;
# TensorBoard uses a free port, because other tests may use its default one; $LIMIT ends a training before its target.
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


class PageRunner:
    """A runner of pages in a folder. It uses the `python` and `relaax` of the virtual environment `environment`."""

    def __init__(self, folder: Path, environment: Path, processes: Processes, limit: int | None) -> None:
        self._folder = folder
        self._processes = processes
        self._ports = dict(zip(map(str, PORTS), map(str, free_ports(len(PORTS))), strict=True))
        here = Path(sys.executable).parent  # has the command of TensorBoard, which the wheel does not install
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
        if not (environment / "bin" / "pip").exists():  # libraries are shared with the tests, not installed
            self._env["PIP_NO_INDEX"] = "1"
        self._servers: list[Running] = []

    def run(self, page: Path, replacements: dict[str, str]) -> dict[str, str]:
        """Run the blocks of a page. Return the output (stdout and stderr) of each block, by name.

        `replacements`: replaces parts of the text of blocks.
        """
        self.write_files(page)
        output: dict[str, str] = {}
        for block in blocks(page):
            if block.language != "sh" or block.name.startswith("needs "):
                continue
            text = block.text
            for old, new in replacements.items():
                text = text.replace(old, new)
            if block.name == SERVERS:
                self.end()
                self._servers = [self._serve(line) for line in text.splitlines()]
            elif block.name == WATCH:
                output[WATCH] = output.get(WATCH, "") + "".join(self._watch(line) for line in text.splitlines())
            else:
                output[block.name] = self._run_shell(text)
        self.end()
        return output

    def write_files(self, page: Path) -> None:
        """Write the files that a page contains."""
        for name, text in files(page).items():
            file = self._folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self._with_own_ports(text), encoding="utf-8")

    def end(self) -> None:
        """Send Ctrl-C to the servers. Their training may have finished before."""
        for server in reversed(self._servers):
            assert server.stop(signal.SIGINT, timeout=60) in (130, 0), server.report()
        self._servers = []

    def _run_shell(self, text: str) -> str:
        shell = self._start(f"{PRELUDE}{text}")
        assert shell.wait(PATIENCE) == 0, f"{text}\n{shell.report()}"
        return "\n".join([*shell.lines, shell.stderr])

    def _serve(self, line: str) -> Running:
        server = self._start(f"exec {line}")
        server.wait_for_address()
        return server

    def _watch(self, line: str) -> str:
        """Run a line until it has printed an address or a connection, or written a .jsonl file. Return its output."""
        before = set(self._folder.iterdir())
        shell = self._start(f"{PRELUDE}{line}")

        def output() -> str:
            assert shell.returncode is None, shell.report()
            new_files = sorted(path.name for path in set(self._folder.iterdir()) - before)
            text = "\n".join([*shell.lines, shell.stderr, *new_files])
            return text if re.search(r"http://|connected|\.jsonl", text) else ""

        shown = wait_until(output, f"{line!r} shows something", PATIENCE, 0.1)
        shell.interrupt_group()
        assert shell.wait(60) in (0, 130, -signal.SIGINT), shell.report()
        return shown

    def _start(self, text: str) -> Running:
        return self._processes.start("bash", "-euc", self._with_own_ports(text), cwd=self._folder, env=self._env)

    def _with_own_ports(self, text: str) -> str:
        """Return the text with the ports of this runner."""
        return re.sub(rf"(?<=localhost:)({'|'.join(self._ports)})\b", lambda port: self._ports[port[0]], text)
