"""TORCS in processes of its own, each with a race in which the robot `relaax` drives alone."""

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
GOODBYE_SECONDS = 3.0
TOKEN_VARIABLE = "RELAAX_TORCS_TOKEN"  # of the driver
MISSING = "install it; Debian: apt-get install torcs"
_LINE = "relaax "  # begins what the driver says, among what TORCS prints
_FOREVER = 1_000_000  # laps: episodes end, the race does not
_WHEN_WATCHED = 'read -r go && exec "$@" < /dev/null'  # a program that is killed before leaves nothing behind

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
    """Return the folders of TORCS' program and of its data. Raises command.UsageError if it is not installed."""
    programs = [path.parent for pattern in ("lib/*/torcs", "lib/torcs") for path in _found(pattern, "torcs-bin")]
    data = [path for pattern in ("share/games/torcs", "share/torcs") for path in _found(pattern, "tracks")]
    if not programs or not data:
        raise command.UsageError(f"there is no TORCS on this machine: {MISSING}")
    return programs[0], data[0].parent


def _found(pattern: str, inside: str) -> Iterator[Path]:
    for top in PLACES:
        yield from (path / inside for path in sorted(Path(top).glob(pattern)) if (path / inside).exists())


def find_track(name: str) -> tuple[str, str]:
    """Return category and name of a track. Raises command.UsageError, with the nearest name, if there is none."""
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
    """Raise command.UsageError if the robot was not built."""
    if not DRIVER.exists():
        build = Path(__file__).parent / "build"
        raise command.UsageError(f"the robot of TORCS is not built, there is no {DRIVER}: build it: {build}")


class Race:
    """A process of TORCS with a race on a track, in which the robot `relaax` drives a car.

    `keys`: the section RLX of the robot's file. `quiet`: what the robot says is of no interest.
    It ends with this program, however that ends, or by `close`. Raises Failure if TORCS does not begin.
    """

    def __init__(
        self, track: tuple[str, str], car: str, keys: Mapping[str, str | float], token: str, *, quiet: bool = False
    ) -> None:
        folder, data = program()
        home = tempfile.mkdtemp(prefix="relaax-torcs-")
        self._reaper = ProcessReaper(home)
        try:
            _populate(Path(home), folder, data)
            _write(Path(home), track, car, keys)
            places = ["-l", home, "-L", f"{home}/lib", "-D", str(data)]
            self.process = subprocess.Popen(
                ["sh", "-c", _WHEN_WATCHED, "sh", str(folder / "torcs-bin"), *places, "-r", f"{home}/race.xml"],
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
            raise Failure(f"TORCS does not begin: {error}") from error
        self._reaper.register(-self.process.pid)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as watched:  # it has been ended meanwhile
            watched.write("\n")

    def said(self) -> Iterator[list[str]]:
        """Yield what the robot says until it ends, in words. Raises Failure if TORCS ended by itself."""
        assert self.process.stdout is not None
        words, other = [""], "without a word"
        for line in self.process.stdout:
            if line.startswith(_LINE):
                words = line.removeprefix(_LINE).split()
                yield words
            else:
                other = line.strip() or other
        if words[0] != "done":
            raise Failure(f"TORCS has ended by itself: {other}")

    def close(self) -> None:
        """End the process and remove its folder."""
        self._reaper.close()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Grid:
    """Races whose robots speak to a server themselves, until the block ends."""

    def __init__(self) -> None:
        self._races: list[Race] = []
        self._begun = time.monotonic()

    def __enter__(self) -> Grid:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for race in self._races:
            race.process.terminate()  # the robot says goodbye to its server
        until = time.monotonic() + GOODBYE_SECONDS
        for race in self._races:
            with contextlib.suppress(subprocess.TimeoutExpired):
                race.process.wait(max(0.0, until - time.monotonic()))
            race.close()

    def add(self, race: Race) -> None:
        """Take a race, to be ended with the others."""
        self._races.append(race)

    def watch(self) -> RunSummary:
        """Return what the races were when all have ended. Raises Failure as soon as one has failed."""
        said: SimpleQueue[list[str] | Failure | None] = SimpleQueue()
        for race in self._races:
            threading.Thread(target=_listen, args=(race, said), daemon=True).start()
        returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        episodes, steps, running, finished = 0, 0, len(self._races), None
        while running:
            words = said.get()
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
        return RunSummary(episodes, steps, tuple(returns), time.monotonic() - self._begun, finished)


def _listen(race: Race, said: SimpleQueue[list[str] | Failure | None]) -> None:
    try:
        for words in race.said():
            said.put(words)
        said.put(None)
    except Failure as failure:
        said.put(failure)


def _populate(home: Path, folder: Path, data: Path) -> None:
    """Make what TORCS looks for in its home and, with the robot added, in the folder of its modules."""
    for path in ("config", "drivers/relaax", "results/race", "lib/drivers/relaax"):
        (home / path).mkdir(parents=True)
    shutil.copy(data / "config" / "raceengine.xml", home / "config")
    (home / "lib" / "modules").symlink_to(folder / "modules")
    (home / "lib" / "drivers" / "relaax" / "relaax.so").symlink_to(DRIVER)


def _write(home: Path, track: tuple[str, str], car: str, keys: Mapping[str, str | float]) -> None:
    """Write the files of the race and of the robot."""
    category, name = map(quoteattr, track)
    lines = "".join(map(_line, keys.items()))
    (home / "race.xml").write_text(_RACE.format(track=name, category=category, laps=_FOREVER), encoding="utf-8")
    robot = _ROBOT.format(car=quoteattr(car), keys=lines)
    (home / "drivers" / "relaax" / "relaax.xml").write_text(robot, encoding="utf-8")


def _line(item: tuple[str, str | float]) -> str:
    name, value = item
    kind = "attstr" if isinstance(value, str) else "attnum"
    return f"<{kind} name={quoteattr(name)} val={quoteattr(str(value))}/>"
