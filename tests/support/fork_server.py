"""A server that starts the project's commands by forking a process that has imported them.

This saves a second of processor time for each command. The child has its own session, arguments, environment, working
directory and output. It skips `exec` and the imports, so a command that depends on them is started in the ordinary way:
see `can_fork`.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.metadata
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).resolve().parents[2]
_COMMANDS = Path(sys.executable).parent
OFFLINE_SERVER = str(Path(__file__).resolve().with_name("offline_server.py"))
_READ_BY_LIBRARIES = ("PYTHON", "LD_", "OPENBLAS", "OMP_", "NUMBA", "TF_", "GRPC_", "MALLOC", "LANG", "LC_", "HOME")
_UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
_LONGEST = 1 << 20


def can_fork(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return whether a command belongs to the project and its imports do not depend on a changed environment."""
    module = command[0] == sys.executable and command[1:2] == ["-m"] and command[2].startswith("relaax.")
    script = Path(command[0]).parent == _COMMANDS and Path(command[0]).name.startswith("relaax")
    program = list(command[:3]) == [sys.executable, "-W", "error"] and command[3].endswith(("/main", ".py"))
    file = command[0] == sys.executable and command[1:2] != [] and command[1].endswith(("/main.py", OFFLINE_SERVER))
    here, there = {**(FORK_SERVER.environ or os.environ), **_UNBUFFERED}, {**env, **_UNBUFFERED}
    if there.get("PYTHONPATH") == str(_ROOT):  # the modules are imported from there in any case
        here["PYTHONPATH"] = there["PYTHONPATH"]
    same = all(here.get(name) == there.get(name) for name in {*here, *there} if name.startswith(_READ_BY_LIBRARIES))
    return (module or script or program or file) and same


class Child:
    """A forked process, with the part of the interface of `subprocess.Popen` that the tests use."""

    def __init__(self, args: list[str], pid: int, stdout: IO[bytes], status: socket.socket) -> None:
        self.args, self.pid, self.stdout = args, pid, stdout
        self.returncode: int | None = None
        self._status, self._lock = status, threading.Lock()

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            if self.returncode is None:
                if not select.select([self._status], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
                status = self._status.recv(64)
                self.returncode = os.waitstatus_to_exitcode(int(status)) if status else -signal.SIGKILL
                self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A client of the process that forks. The process starts with the first command."""

    def __init__(self) -> None:
        self._line: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.environ: dict[str, str] = {}
        """The environment in which the process was started."""

    def start(self, args: list[str], stderr: IO[bytes], cwd: Path | None, env: Mapping[str, str]) -> Child:
        reading, writing = os.pipe()
        ours, theirs = socket.socketpair()
        ours.setblocking(True)
        request = json.dumps({"args": args, "cwd": str(cwd or Path.cwd()), "env": dict(env)}).encode()
        line = self._ready()
        socket.send_fds(line, [request], [writing, stderr.fileno(), theirs.fileno()])
        os.close(writing)
        theirs.close()
        pid = int(ours.recv(64))
        return Child(args, pid, os.fdopen(reading, "rb"), ours)

    def end(self) -> None:
        if self._line is not None and self._process is not None:
            self._line.close()
            self._process.wait()
        self._line = self._process = None
        self.environ = {}

    def _ready(self) -> socket.socket:
        if self._line is None or self._process is None or self._process.poll() is not None:
            self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in (self._line, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LONGEST)
            self.environ = dict(os.environ)
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**self.environ, **_UNBUFFERED},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            theirs.close()
        return self._line


FORK_SERVER = ForkServer()
"""The fork server of this process."""


def _entry(args: Sequence[str]) -> Any:
    """Return the function that a command line calls. Sets `sys.argv` and `sys.path`."""
    if args[1:2] == ["-m"]:
        sys.argv, sys.path[0] = [args[0], *args[3:]], str(Path.cwd())
        return importlib.import_module(args[2]).main
    if args[0] == sys.executable:
        sys.argv = list(args[1:])
        if args[1] == "-W":
            sys.argv, sys.warnoptions[:] = list(args[3:]), ["error"]
            warnings.simplefilter("error")
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        return functools.partial(runpy.run_path, sys.argv[0], run_name="__main__")
    sys.argv, sys.path[0] = list(args), str(_COMMANDS)
    (script,) = importlib.metadata.entry_points(group="console_scripts", name=Path(args[0]).name)
    return script.load()


def _writer(like: Any, descriptor: int) -> io.TextIOWrapper:
    """Return an unbuffered text stream to a descriptor, with the encoding of `like`."""
    raw = open(descriptor, "wb", buffering=0, closefd=False)  # noqa: SIM115 stays open
    return io.TextIOWrapper(raw, encoding=like.encoding, errors=like.errors, write_through=True)


def _apply(request: dict[str, Any], descriptors: Sequence[int]) -> Any:
    """Apply a request to this child process, and return its entry point."""
    stdout, stderr, _ = descriptors
    os.setsid()
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = _writer(sys.stdout, 1), _writer(sys.stderr, 2)
    os.closerange(3, 4096)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # TMPDIR may have changed
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "hide")  # as the import of gymnasium does
    args = request["args"]
    sys.orig_argv = [sys.executable, *args[1:]] if args[0] == sys.executable else [sys.executable, *args]
    return _entry(args)


def _serve(line: socket.socket) -> Any:
    """Fork for each request. Return only in a child, with its entry point. Exit when the connection is closed."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(line, _LONGEST, 3)
        if not request:
            sys.exit()
        if os.fork() == 0:  # this process waits for the command and reports its exit status
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            child = os.fork()
            if child == 0:
                line.detach()
                return _apply(json.loads(request), descriptors)
            status = socket.socket(fileno=descriptors[2])
            for descriptor in (0, *descriptors[:2], line.fileno()):
                os.close(descriptor)
            with suppress(OSError):
                status.send(str(child).encode())
                status.send(str(os.waitpid(child, 0)[1]).encode())
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def _main() -> None:
    importlib.import_module("relaax.cli.main")  # sets variables that libraries read
    for package in ("relaax.server", "relaax.nn.host", "relaax.cli.run", "relaax.client"):
        folder = importlib.import_module(package)
        for module in pkgutil.walk_packages(folder.__path__, f"{package}."):
            with suppress(ImportError):  # a command reports a missing extra itself
                importlib.import_module(module.name)
    importlib.import_module("gymnasium.wrappers")
    assert "tensorflow" not in sys.modules
    for name in ("convolution", "dense", "kernels", "lstm"):  # servers load kernels at their start
        importlib.import_module(f"relaax.nn.host.{name}").load_kernels()
    importlib.import_module("relaax.server.replay_server.server")._load_kernels()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    entry = _serve(socket.socket(fileno=int(sys.argv[1])))
    entry()


if __name__ == "__main__":
    _main()
