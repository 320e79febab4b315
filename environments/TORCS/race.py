"""Processes of TORCS, each with a race in which the robot `relaax` drives alone."""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from xml.sax.saxutils import quoteattr

from relaax.client import RunSummary, command
from relaax.client.connection.failure import Failure
from relaax.client.program.families import ProcessReaper
from relaax.client.program.summary import RECENT_EPISODES
from relaax.rlx import ErrorCode

DRIVER = Path(__file__).parent / "driver" / "relaax.so"
PLACES = ("/usr", "/usr/local")
DISCONNECT_SECONDS = 3.0
TOKEN_VARIABLE = "RELAAX_TORCS_TOKEN"  # the driver reads it
MISSING = "install it; Debian: apt-get install torcs"
_PREFIX = "relaax "  # marks the messages of the driver among the output of TORCS
_LAPS = 1_000_000  # episodes end, the race does not
_WAIT_FOR_REAPER = 'read -r go && exec "$@" < /dev/null'  # if this program is killed first, TORCS does not start

_RACE = """<?xml version="1.0" encoding="UTF-8"?>
<params name="race" type="param" mode="mw">
  <section name="Header"><attstr name="name" val="RELAAX"/></section>
  <section name="Tracks"><section name="1">
    <attstr name="name" val={track}/><attstr name="category" val={category}/>
  </section></section>
  <section name="Races"><section name="1"><attstr name="name" val="Race"/></section></section>
  <section name="Race">
    <attnum name="laps" val="{laps}"/>
    <attstr name="type" val="race"/>
    <attnum name="fuel consumption factor" val="0"/>
    <attnum name="damage factor" val="0"/>
  </section>
  <section name="Drivers"><section name="1">
    <attnum name="idx" val="1"/><attstr name="module" val="relaax"/>
  </section></section>
</params>
"""
_ROBOT = """<?xml version="1.0" encoding="UTF-8"?>
<params name="relaax" type="robotdef">
  <section name="Robots"><section name="index"><section name="1">
    <attstr name="name" val="relaax"/><attstr name="type" val="robot"/><attstr name="car name" val={car}/>
  </section></section></section>
  <section name="RLX">{keys}</section>
</params>
"""


def program() -> tuple[Path, Path]:
    """Return the folders of TORCS' program and its data. Raises command.UsageError if it is not installed."""
    programs = [
        path.parent for pattern in ("lib/*/torcs", "lib/torcs") for path in _existing_paths(pattern, "torcs-bin")
    ]
    data = [path for pattern in ("share/games/torcs", "share/torcs") for path in _existing_paths(pattern, "tracks")]
    if not programs or not data:
        raise command.UsageError(f"there is no TORCS on this machine: {MISSING}")
    return programs[0], data[0].parent


def _existing_paths(pattern: str, inside: str) -> Iterator[Path]:
    for top in PLACES:
        yield from (path / inside for path in sorted(Path(top).glob(pattern)) if (path / inside).exists())


def find_track(name: str) -> tuple[str, str]:
    """Return category and name of a track. Raises command.UsageError, with the nearest name, if it does not exist."""
    tracks = {path.name: path.parent.name for path in (program()[1] / "tracks").glob("*/*")}
    _require("track", name, tracks)
    return tracks[name], name


def require_car(name: str) -> None:
    """Raise command.UsageError, with the nearest name, if the game has no such car."""
    _require("car", name, [path.name for path in (program()[1] / "cars").iterdir()])


def _require(kind: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0)
        raise command.UsageError(f"TORCS has no {kind} {name!r}; the nearest is {near[0]!r}")


def require_driver() -> None:
    """Raise command.UsageError if the robot is not built."""
    if not DRIVER.exists():
        build = Path(__file__).parent / "build"
        raise command.UsageError(f"the robot of TORCS is not built, there is no {DRIVER}: run {build}")


class Race:
    """A process of TORCS with a race on a track, in which the robot `relaax` drives a car.

    `keys`: the section RLX of the robot's file. `quiet`: the output is discarded, so there are no `messages`.
    The process ends with this program, even if the program is killed, or by `close`. Raises Failure if TORCS does not
    start.
    """

    def __init__(
        self, track: tuple[str, str], car: str, keys: Mapping[str, str | float], token: str, *, quiet: bool = False
    ) -> None:
        folder, data = program()
        home = tempfile.mkdtemp(prefix="relaax-torcs-")
        self._reaper = ProcessReaper(home)
        try:
            _populate(Path(home), folder, data)
            _write_files(Path(home), track, car, keys)
            places = ["-l", home, "-L", f"{home}/lib", "-D", str(data)]
            self.process = subprocess.Popen(
                ["sh", "-c", _WAIT_FOR_REAPER, "sh", str(folder / "torcs-bin"), *places, "-r", f"{home}/race.xml"],
                cwd=data,
                env={**os.environ, "LD_LIBRARY_PATH": str(folder / "lib"), TOKEN_VARIABLE: token},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL if quiet else subprocess.PIPE,
                stderr=subprocess.DEVNULL if quiet else subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            self._reaper.close()
            raise Failure(f"TORCS did not start: {error}") from error
        self._reaper.register(-self.process.pid)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stdin:  # the process may have ended
            stdin.write("\n")

    def messages(self) -> Iterator[list[str]]:
        """Yield the messages of the robot, each as a list of words. Raises Failure if TORCS ends without `done`."""
        assert self.process.stdout is not None
        words, output = [""], "no output"
        for line in self.process.stdout:
            if line.startswith(_PREFIX):
                words = line.removeprefix(_PREFIX).split()
                yield words
            else:
                output = line.strip() or output
        if words[0] != "done":
            raise Failure(f"TORCS ended unexpectedly: {output}")

    def close(self) -> None:
        """End the process and remove its folder."""
        self._reaper.close()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Grid:
    """A context manager of races whose robots connect to a server; it ends them all on exit."""

    def __init__(self) -> None:
        self._races: list[Race] = []
        self._start = time.monotonic()

    def __enter__(self) -> Grid:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for race in self._races:
            race.process.terminate()  # the robot disconnects from its server
        until = time.monotonic() + DISCONNECT_SECONDS
        for race in self._races:
            with contextlib.suppress(subprocess.TimeoutExpired):
                race.process.wait(max(0.0, until - time.monotonic()))
            race.close()

    def add(self, race: Race) -> None:
        self._races.append(race)

    def wait(self) -> RunSummary:
        """Wait until all races have ended, and return their summary. Raises Failure as soon as one fails."""
        messages: SimpleQueue[list[str] | Failure | None] = SimpleQueue()
        for race in self._races:
            threading.Thread(target=_forward_messages, args=(race, messages), daemon=True).start()
        returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        episodes, steps, running, finished = 0, 0, len(self._races), None
        while running:
            words = messages.get()
            match words:
                case None:
                    running -= 1
                case Failure():
                    raise words
                case ["episode", value, *_]:
                    episodes += 1
                    returns.append(float(value))
                case ["done", taken]:
                    steps += int(taken)
                case ["finished", *sentence]:
                    finished = " ".join(sentence)
                case ["failed", code, *sentence]:
                    raise Failure(" ".join(sentence), ErrorCode(int(code)) if int(code) else None)
        return RunSummary(episodes, steps, tuple(returns), time.monotonic() - self._start, finished)


def _forward_messages(race: Race, messages: SimpleQueue[list[str] | Failure | None]) -> None:
    try:
        for words in race.messages():
            messages.put(words)
        messages.put(None)
    except Failure as failure:
        messages.put(failure)


def _populate(home: Path, folder: Path, data: Path) -> None:
    """Create the files that TORCS needs in its home, and a folder of its modules that includes the robot."""
    for path in ("config", "drivers/relaax", "results/race", "lib/drivers/relaax"):
        (home / path).mkdir(parents=True)
    shutil.copy(data / "config" / "raceengine.xml", home / "config")
    (home / "lib" / "modules").symlink_to(folder / "modules")
    (home / "lib" / "drivers" / "relaax" / "relaax.so").symlink_to(DRIVER)


def _write_files(home: Path, track: tuple[str, str], car: str, keys: Mapping[str, str | float]) -> None:
    """Write the configuration files of the race and of the robot."""
    category, name = map(quoteattr, track)
    lines = "".join(map(_to_xml, keys.items()))
    (home / "race.xml").write_text(_RACE.format(track=name, category=category, laps=_LAPS), encoding="utf-8")
    robot = _ROBOT.format(car=quoteattr(car), keys=lines)
    (home / "drivers" / "relaax" / "relaax.xml").write_text(robot, encoding="utf-8")


def _to_xml(item: tuple[str, str | float]) -> str:
    name, value = item
    kind = "attstr" if isinstance(value, str) else "attnum"
    return f"<{kind} name={quoteattr(name)} val={quoteattr(str(value))}/>"
