"""A game of Godot for `relaax.client.run`: a process, and the connection of its addon."""

from __future__ import annotations

import os
import re
import runpy
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relaax import rlx
from relaax.client import command
from relaax.client.connection.failure import Failure
from relaax.client.connection.values import values_of
from relaax.client.program.families import ProcessReaper

COLLECTOR = "collector"
EXAMPLE = Path(__file__).resolve().parents[2] / "protocol" / "clients" / "godot"  # in a checkout and in a wheel
GODOT_3, GODOT_4 = ("godot3-server",), ("godot", "--headless")
FAST = 1000  # times as fast as real time, if the processor is
TIMEOUT = 60.0  # seconds until the game connects or responds
CHECKED = 0.1  # seconds between checks whether the game still runs


def project(name: str) -> Path:
    """Return the folder of a game: the bundled example, or the folder `name`. Raises command.UsageError."""
    folder = EXAMPLE if name == COLLECTOR else Path(name)
    if not (folder / "project.godot").is_file():
        text = f"{folder} has no file project.godot: use {COLLECTOR}, or the folder of a project of Godot"
        raise command.UsageError(text)
    return folder


def godot_for(folder: Path) -> tuple[str, ...]:
    """Return the words that start Godot for a project: that of its version. The example runs with either.

    Raises command.UsageError if this Godot is missing.
    """
    settings = (folder / "project.godot").read_text("utf-8", "replace")
    for_3 = re.search(r"^config_version=[1-4]$", settings, re.MULTILINE) is not None
    if for_3 and folder == EXAMPLE and shutil.which(GODOT_3[0]) is None and shutil.which(GODOT_4[0]) is not None:
        return GODOT_4
    words = GODOT_3 if for_3 else GODOT_4
    if shutil.which(words[0]) is None:
        way = f"Debian: apt-get install {words[0]}" if for_3 else "Godot 4: https://godotengine.org/download"
        raise command.UsageError(f"there is no {words[0]} on the PATH; {way}")
    return words


class GodotGame:
    """A game with N agents, a vector of environments. This object is the RLX server of the game.

    `folder`: the project. `godot`: the words that start Godot. `seed`: of the game's random numbers; None for others in
    each game. A reset with another seed, or within a game, starts a new game.
    """

    autoreset_mode = "same_step"

    def __init__(self, folder: Path, godot: Sequence[str], count: int, seed: int | None = None) -> None:
        self._folder, self._godot, self._count = folder, godot, count
        self._begin(seed)

    def _begin(self, seed: int | None) -> None:
        """Start the game and accept its connection. Raises Failure."""
        self._seed = seed
        self._has_acted = False
        self._observations: Any = None  # the newest
        folder, count = self._folder, self._count
        token = secrets.token_hex(16)  # any program on this machine can connect
        home = tempfile.mkdtemp(prefix="relaax-godot-")
        (Path(home) / "godot" / "app_userdata").mkdir(parents=True)
        self._reaper = ProcessReaper(home)
        self._errors = Path(home) / "errors"
        self._process: subprocess.Popen[bytes] | None = None
        try:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                listener.settimeout(CHECKED)
                if folder == EXAMPLE and self._godot == GODOT_4:
                    folder = Path(home) / COLLECTOR
                    runpy.run_path(str(EXAMPLE / "for_godot_4.py"))["write"](folder)
                words = [*self._godot, "--path", str(folder), "--rlx", f"127.0.0.1:{listener.getsockname()[1]}"]
                self._start([*words, "--agents", str(count)], seed, token, home)
                self._socket = self._accept(listener)
            self._connection = rlx.ServerConnection()
            hello = self._receive(rlx.Hello)
            if not secrets.compare_digest(hello.token, token):
                raise Failure("a program other than the game connected to this one")
            asked = {name: getattr(hello, name) for name in ("out_of_step", "chosen_actions", "environment_parameters")}
            self._send(rlx.Welcome(session_id="game", algorithm="", limits=self._connection.limits, **asked))
        except BaseException:
            self._end_process()
            raise
        self.num_envs, self.frame_skip = hello.environments, hello.frame_skip
        self.single_observation_space, self.single_action_space = hello.observation_space, hello.action_space
        self._seen, self._act = values_of(hello.observation_space), values_of(hello.action_space)
        if self.num_envs != count:
            self.close()
            text = f"the game has {self.num_envs} agents, and {count} are needed: add agents by the option --agents"
            raise Failure(f"{text}, as the example does, or set relaax-run.envs-per-client to {self.num_envs}")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return the newest observations: episodes begin by themselves. A new seed begins a new game."""
        if seed is not None and (self._has_acted or seed != self._seed):
            self.close()
            self._begin(seed)
        if self._observations is None:
            self._observations = self._values(self._receive(rlx.Init).observation)
        return self._observations, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Apply actions. Return observations, and rewards, terminated, truncated, [N]."""
        self._has_acted = True
        self._send(rlx.Actions(list(self._act.to_leaves(actions, 1))))
        step = self._receive(rlx.Step)
        terminated, truncated = (
            np.zeros(self.num_envs, np.bool_) if mask is None else np.asarray(mask, np.bool_)
            for mask in (step.terminated, step.truncated)
        )
        final = step.final_observation
        infos = {} if final is None else {"final_obs": self._values(final)}
        self._observations = self._values(step.observation)
        return self._observations, np.asarray(step.reward), terminated, truncated, infos

    def close(self) -> None:
        """End the game."""
        self._socket.close()
        self._end_process()

    def _end_process(self) -> None:
        self._reaper.close()
        if self._process is not None:
            self._process.wait()

    def _start(self, words: list[str], seed: int | None, token: str, home: str) -> None:
        words += ["--speed", str(FAST), "--retry-seconds", "1"]
        if seed is not None:
            words += ["--seed", str(seed)]
        environment = {**os.environ, "LANG": "en", "XDG_DATA_HOME": home, "RELAAX_TOKEN": token}
        try:
            with self._errors.open("wb") as errors:
                self._process = subprocess.Popen(
                    words,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    start_new_session=True,
                )
        except OSError as error:
            raise Failure(f"{words[0]} did not start: {error}") from error
        self._reaper.register(-self._process.pid)

    def _accept(self, listener: socket.socket) -> socket.socket:
        """Accept the connection of the game. Raises Failure."""
        for _ in range(int(TIMEOUT / CHECKED)):
            try:
                connected, _ = listener.accept()
            except TimeoutError:
                if self._has_ended():
                    raise self._failure("the game ended before it connected") from None
                continue
            connected.settimeout(TIMEOUT)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connected
        raise self._failure(f"the game did not connect within {TIMEOUT:g} seconds: its scene needs the node trainer.gd")

    def _has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _failure(self, sentence: str) -> Failure:
        """Return an error with the last sentence that the game printed."""
        lines = self._errors.read_text("utf-8", "replace").splitlines()
        found = [line.partition("RLX: ")[2] for line in lines if "RLX: " in line]
        found = found or [line for line in lines if line.startswith("SCRIPT ERROR")]
        return Failure(f"{sentence}: {found[-1]}" if found else sentence)

    def _receive(self, *kinds: type[Any]) -> Any:
        """Return the next message that is not a metric or a ping. Raises Failure if it is of another kind."""
        while True:
            event = self._connection.next_event()
            if event is rlx.NEED_DATA:
                self._connection.receive_data(self._read())
            elif isinstance(event, kinds):
                return event
            elif isinstance(event, rlx.Ping):
                self._send(rlx.Pong(event.nonce))
            elif not isinstance(event, rlx.Metrics):
                deadline = time.monotonic() + 5
                while not self._has_ended() and time.monotonic() < deadline:
                    time.sleep(CHECKED)
                raise self._failure("the game ended its connection")

    def _read(self) -> bytes:
        try:
            return self._socket.recv(1 << 16)
        except OSError as error:
            raise self._failure(f"the game does not respond: {error}") from error

    def _send(self, message: rlx.Message) -> None:
        try:
            self._socket.sendall(self._connection.send(message))
        except OSError as error:
            raise self._failure(f"the game closed its connection: {error}") from error

    def _values(self, leaves: Sequence[Any]) -> Any:
        return self._seen.from_leaves(iter(leaves), False)
