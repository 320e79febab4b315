"""A screen over VNC and in the browser, for a machine without a screen, such as a container.

The program is run again, as a child process with the screen. This process starts TigerVNC's server, websockify with the
page of noVNC, and the child. If one of them ends, or a signal arrives, this process ends the others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import IO, Any

from relaax.client.connection.address import parse_address
from relaax.client.connection.client import secret
from relaax.client.program.watching import SCREENS

logger = logging.getLogger("relaax.client")

PASSWORD_VARIABLE = "RELAAX_VNC_PASSWORD"
VNC_VARIABLE, VNC_PORT = "RELAAX_VNC_BIND", 5900
PAGE_VARIABLE, PAGE_PORT = "RELAAX_NOVNC_BIND", 6080
PASSWORD_LENGTH = 8
"""Maximum length of a VNC password, in characters (RFC 6143, section 7.2.2)."""

_PAGE = Path("/usr/share/novnc")
_SIZE = "1024x768"
_END_SECONDS = 10.0


class ScreenError(Exception):
    """A screen that cannot be started. The message names the way out."""


class ScreenLost(Exception):
    """The end of the screen before the end of the program."""


def run_on_screen() -> int:
    """Run the command of this process again, on a screen over VNC. Return its exit code; 130 after Ctrl-C.

    Raises ScreenError if the screen cannot be started, and ScreenLost.
    """
    server = shutil.which("Xtigervnc") or shutil.which("Xvnc")
    obscure = shutil.which("tigervncpasswd") or shutil.which("vncpasswd")
    if server is None or obscure is None:
        raise ScreenError(
            "display: there is no screen (DISPLAY is not set), and TigerVNC is not installed (Debian, Ubuntu: apt-get "
            "install tigervnc-standalone-server tigervnc-tools novnc); --video DIR writes MP4 files instead"
        )
    password = subprocess.run([obscure, "-f"], input=_password(), capture_output=True, check=True).stdout
    return asyncio.run(_Screen(server, password).run())


class _Screen:
    """The processes of a screen. `password`: in the form of TigerVNC's password files."""

    def __init__(self, server: str, password: bytes) -> None:
        self._server, self._password = server, password
        self._vnc = _bind(VNC_VARIABLE, VNC_PORT)
        self._page = _bind(PAGE_VARIABLE, PAGE_PORT)
        self._program: asyncio.subprocess.Process | None = None
        self._exit_code: asyncio.Future[int]

    async def run(self) -> int:
        """Start the processes, wait until one ends, and end the others."""
        loop = asyncio.get_running_loop()
        self._exit_code = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relaax-screen-")))
            output = stack.enter_context((folder / "output").open("w+b"))
            display, server = await self._start_server(stack, folder, output)
            page = await self._start_page(stack)
            others = {name: value for name, value in os.environ.items() if name not in (*SCREENS, PASSWORD_VARIABLE)}
            environment = {**others, "DISPLAY": display, "XAUTHORITY": str(folder / "cookie")}
            if self._exit_code.done():
                return self._exit_code.result()
            # close_fds=False: `relaax eval` passes open descriptors to the program.
            again = [sys.executable, *sys.orig_argv[1:]]
            self._program = program = await _start(stack, again, close_fds=False, env=environment)
            waits = {asyncio.ensure_future(process.wait()): process for process in (program, server, page) if process}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if server.returncode is not None:
                why = _last_line(output) or f"{self._server}: exit code {server.returncode}"
                raise ScreenLost(f"the screen ended ({why})")
            if page is not None and page.returncode is not None:
                raise ScreenLost(f"the page of the screen ended (websockify: exit code {page.returncode})")
            assert program.returncode is not None
            return program.returncode if program.returncode >= 0 else 128 - program.returncode

    def _on_signal(self, number: signal.Signals) -> None:
        if not self._exit_code.done():
            self._exit_code.set_result(0 if number == signal.SIGTERM else 130)
        if self._program is not None and self._program.returncode is None:
            self._program.send_signal(number)

    async def _start_server(
        self, stack: AsyncExitStack, folder: Path, output: IO[bytes]
    ) -> tuple[str, asyncio.subprocess.Process]:
        """Start the VNC server. Return the display, such as ":1", and the process. Raises ScreenError."""
        (folder / "cookie").write_bytes(_cookie())
        host, port = self._vnc
        kept = os.memfd_create("password")  # in memory, so that no file is left; read at each login
        os.write(kept, self._password)
        answer, number = os.pipe()
        stack.callback(os.close, answer)
        try:
            command = [
                *(self._server, "-displayfd", str(number), "-geometry", _SIZE, "-depth", "24", "-noreset"),
                *("-auth", str(folder / "cookie"), "-nolisten", "tcp", "-rfbport", str(port)),
                *(() if host == "0.0.0.0" else ("-interface", host)),
                *("-SecurityTypes", "TLSVnc,VncAuth", "-PasswordFile", f"/proc/self/fd/{kept}"),
                *("-AlwaysShared", "-desktop", "RELAAX", "-Log", "*:stderr:0"),
            ]
            server = await _start(stack, command, pass_fds=(number, kept), stdout=output, stderr=output)
        finally:
            os.close(number)
            os.close(kept)
        display = await asyncio.to_thread(os.read, answer, 16)
        if not display.strip():
            raise ScreenError(
                f"display: no screen at {VNC_VARIABLE}={host}:{port}: {_last_line(output) or self._server}"
            )
        return f":{display.decode().strip()}", server

    async def _start_page(self, stack: AsyncExitStack) -> asyncio.subprocess.Process | None:
        """Start the page for browsers and return its process; None if it is not installed."""
        host, port = self._page
        websockify = shutil.which("websockify")
        is_installed = websockify is not None and (_PAGE / "vnc.html").is_file()
        where = (
            f"in the browser at http://{host}:{port}/vnc.html"
            if is_installed
            else "websockify and novnc are not installed"
        )
        logger.info("the screen is available over VNC at %s:%d; %s", *self._vnc, where)
        if websockify is None or not is_installed:
            return None
        vnc_host, vnc_port = self._vnc
        target = f"{'127.0.0.1' if vnc_host == '0.0.0.0' else vnc_host}:{vnc_port}"
        command = [websockify, "--web", str(_PAGE), f"{host}:{port}", target]
        return await _start(stack, command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def _start(stack: AsyncExitStack, command: list[str], **options: Any) -> asyncio.subprocess.Process:
    """Start a process, and end it when the stack is closed or this process is killed. Ctrl-C does not reach it."""
    tied = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    process = await asyncio.create_subprocess_exec(*tied, *command, start_new_session=True, **options)
    stack.push_async_callback(_end, process)
    return process


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process with SIGTERM, after 10 seconds with SIGKILL, and kill the processes of its group."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), _END_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _password() -> bytes:
    """Return the password from the environment. Raises ScreenError if it is missing or invalid for VNC."""
    try:
        password = secret(PASSWORD_VARIABLE)
    except ValueError as error:
        raise ScreenError(str(error)) from None
    if not password:
        way_out = f"set {PASSWORD_VARIABLE}, or {PASSWORD_VARIABLE}_FILE to a file that contains it"
        raise ScreenError(f"display: no password for the screen over VNC: {way_out}")
    if len(password) > PASSWORD_LENGTH or not (password.isascii() and password.isprintable()):
        raise ScreenError(
            f"display: {PASSWORD_VARIABLE} has {len(password)} characters: VNC needs 1 to {PASSWORD_LENGTH} printable "
            "ASCII characters"
        )
    return password.encode() + b"\n"


def _bind(variable: str, port: int, environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Return the host and port to listen on; loopback if the variable is not set. Raises ScreenError."""
    try:
        return parse_address(environment.get(variable) or "127.0.0.1", port)
    except ValueError as error:
        raise ScreenError(f"{variable}: {error}") from None


def _cookie() -> bytes:
    """Return an Xauthority file with one cookie for any host and display: family, address, number, name, data."""
    parts = (b"", b"", b"MIT-MAGIC-COOKIE-1", secrets.token_bytes(16))
    return struct.pack(">H", 0xFFFF) + b"".join(struct.pack(">H", len(part)) + part for part in parts)


def _last_line(output: IO[bytes]) -> str:
    """Return the last non-empty line of the server's output; empty if there is none."""
    output.seek(0)
    lines = [line.strip() for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""
