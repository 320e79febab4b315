"""The content of the live page: figures, curves, tables, warnings and a picture, read only when somebody asks."""

from __future__ import annotations

import json
import secrets
import struct
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relaax.cli.plot import unit_of
from relaax.cli.web.curves import Curves, EventFolder
from relaax.cli.web.log_warnings import LogWarnings
from relaax.configuration import ConfigurationError
from relaax.console import shown

if TYPE_CHECKING:
    from relaax.cli.live.top import ServiceWatcher

POLL_SECONDS = 1.0
"""Minimum seconds between two readings, for all browsers together."""
BUSY_SECONDS = 3.0
"""Maximum seconds that a request waits for a reading. Then it gets the state of the last one."""
GONE_SECONDS = 300.0
"""Seconds for which a disconnected worker is listed."""
SILENT_SECONDS = 10.0
"""Seconds without a call after which a worker is marked as silent."""
NO_IMAGE_SECONDS = 30.0
"""Seconds until the next request for a picture if the observation is not an image."""
MAX_ROWS = 200
"""Maximum number of rows of a table."""
_PURPOSES = {"train": "trains", "exploit": "acts", "learn": "learns"}
_MODES = {1: 0, 3: 2}  # colour types of PNG: gray, RGB
Table = dict[str, Any]
Connect = Callable[[], "ServiceWatcher | None"]
"""Connect to the servers at their present addresses; None without servers. Raises ConfigurationError."""


class RunPage:
    """The content of a run's page: one state for all browsers. Thread-safe.

    `name`: its title. `connect`: connects to the servers, or None. `run`: its directory, if any. `metrics`: the folder
    of its event files; without it, curves begin when the page is first opened.
    """

    def __init__(self, name: str, connect: Connect | None, run: Path | None, metrics: Path | None) -> None:
        self._name, self._connect, self._run = name, connect, run
        self._curves = Curves()
        self._events = None if metrics is None else EventFolder(metrics, self._curves)
        self._warnings = None if run is None else LogWarnings(run / "logs")
        self._watcher: ServiceWatcher | None = None
        self._reason = ""
        self._workers: dict[str, dict[str, Any]] = {}
        self._gone: dict[str, tuple[float, dict[str, Any]]] = {}
        self._session = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._polled_at: float | None = None
        self._state: dict[str, Any] = {}
        self._image: tuple[int, bytes] = (0, b"")
        self._picture_text = "Pictures are shown while the run trains."
        self._ask_picture_at = 0.0

    def data(self, session: str, since: int) -> dict[str, Any]:
        """Return the state for a browser. `since`: the last change that it has of this `session`."""
        if self._lock.acquire(timeout=BUSY_SECONDS):
            try:
                if self._polled_at is None or time.monotonic() - self._polled_at >= POLL_SECONDS:
                    self._poll()
                    self._polled_at = time.monotonic()
                known = since if session == self._session else 0
                curves = {name: _with_texts(name, curve) for name, curve in self._curves.since(known).items()}
                return {**self._state, "session": self._session, "changes": self._curves.changes, "curves": curves}
            finally:
                self._lock.release()
        return {"name": self._name, "state": "Reading the metrics of the run."}

    def image(self) -> bytes:
        """Return the newest picture as PNG, empty before the first."""
        return self._image[1]

    def close(self) -> None:
        """Close the connections to the servers."""
        if self._watcher is not None:
            self._watcher.close()

    def _poll(self) -> None:
        summary = self._summary()
        service = None if summary is not None else self._service()
        if self._events is not None:
            from relaax.metrics.writer import do_without_tensorflow

            do_without_tensorflow()
            self._events.read()
        elif service is not None:
            self._add_status(service)
        if self._warnings is not None:
            self._warnings.read()
        self._note_workers(service)
        self._read_picture(service)
        self._state = {
            "name": self._name,
            "state": self._sentence(summary, service),
            "alive": service is not None,
            "figures": _figures(summary, service),
            "tables": {
                "workers": self._worker_table(service),
                "servers": _server_table(service),
                "replay": _replay_table(service),
                "evaluations": self._evaluation_table(),
            },
            "warnings": self._all_warnings(service),
            "warnings_note": "" if self._warnings is not None else "Only a run's directory has logs.",
            "picture": {"number": self._image[0], "text": self._picture_text},
        }

    def _summary(self) -> Mapping[str, Any] | None:
        """Return the summary of a run that has ended; None of others."""
        if self._run is None:
            return None
        try:
            found: Any = json.loads((self._run / "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _service(self) -> Mapping[str, Any] | None:
        """Return the state of the servers; None if the first shard does not answer."""
        if self._connect is None:
            return None
        if self._watcher is None:
            try:
                self._watcher = self._connect()
            except ConfigurationError as error:
                self._reason = str(error)
            if self._watcher is None:
                return None
        state = self._watcher.snapshot()
        first = state["shards"][0]
        if first["error"] is None:
            return state
        self._reason = f"the parameter server at {first['address']} does not answer: {first['error']}"
        self._watcher.close()
        self._watcher = None  # a restarted server may have another address
        return None

    def _sentence(self, summary: Mapping[str, Any] | None, service: Mapping[str, Any] | None) -> str:
        if summary is not None:
            error = f" {summary['error']}" if summary.get("error") else ""
            return f"The run has ended: {summary.get('status', 'unknown')}.{error}"
        if service is None:
            return "Curves only: no server is named." if self._connect is None else f"Not training: {self._reason}."
        if service["shards"][0]["finished"]:
            return "Training has finished."
        if any(shard["error"] for shard in service["shards"]):
            return "Training waits: a shard of the parameter server does not answer."
        return "Training." if service["workers"] else "Waiting for a worker."

    def _add_status(self, service: Mapping[str, Any]) -> None:
        """Add points of curves from the state of the servers, for a training whose metrics folder is not known."""
        first = service["shards"][0]
        values = {
            "episode/mean_return_100": first["mean_return_100"],
            "speed/steps_per_second": service["steps_per_second"],
            "speed/updates_per_second": first["updates_per_second"],
            "staleness/mean": first["mean_staleness"],
            "learning_rate": first["learning_rate"],
        }
        self._curves.add(service["global_step"], {name: one for name, one in values.items() if one is not None})

    def _note_workers(self, service: Mapping[str, Any] | None) -> None:
        now = time.time()
        if service is not None:
            here = {worker["worker"]: worker for worker in service["workers"]}
            for name, worker in self._workers.items():
                if name not in here:
                    self._gone[name] = now, worker
            self._gone = {name: one for name, one in self._gone.items() if name not in here}
            self._workers = here
        self._gone = dict([one for one in self._gone.items() if now - one[1][0] < GONE_SECONDS][-MAX_ROWS:])

    def _read_picture(self, service: Mapping[str, Any] | None) -> None:
        if service is None or self._watcher is None or time.monotonic() < self._ask_picture_at:
            return
        answer = self._watcher.picture()
        if answer is None or not answer.number:
            self._picture_text = "There is no picture yet."
        elif not answer.picture.height:
            self._image = 0, b""
            self._ask_picture_at = time.monotonic() + NO_IMAGE_SECONDS
            self._picture_text = "The observation is not an image, so there is no picture."
        else:
            picture = answer.picture
            if answer.number != self._image[0]:
                self._image = answer.number, png(picture.height, picture.width, picture.pixels)
            self._picture_text = (
                f"Observation of the first environment, {picture.width} x {picture.height} pixels, "
                f"{answer.age_seconds:.0f} s old."
            )

    def _worker_table(self, service: Mapping[str, Any] | None) -> Table:
        workers = [] if service is None else service["workers"]
        rows = [_worker_row(one, f"disconnected {time.time() - at:.0f} s ago") for at, one in self._gone.values()]
        late = sorted(workers, key=lambda one: -one["silent_seconds"])
        rows += [_worker_row(one, _state_of(one)) for one in late[: MAX_ROWS - len(rows)]]
        left_out = len(workers) + len(self._gone) - len(rows)
        note = f"{left_out:,} more workers are not listed." if left_out else ""
        return {
            "columns": [
                *("worker", "state", "environment", "environments", "host", "server", "last call", "staleness"),
                *("steps/s", "answer", "episodes", "mean return"),
            ],
            "rows": rows,
            "note": note if rows else "No worker is connected.",
        }

    def _evaluation_table(self) -> Table:
        low, high = (dict(self._curves.of(f"evaluation/interval_{end}")) for end in ("low", "high"))
        rows = [
            [f"{step:,}", shown(mean), f"{_number(low.get(step))} to {_number(high.get(step))}"]
            for step, mean in reversed(self._curves.of("evaluation/mean_return"))
        ]
        note = "" if rows else "This run has no evaluations. relaax run --eval-every STEPS makes them."
        return {"columns": ["step", "mean return", "95 % interval"], "rows": rows[:MAX_ROWS], "note": note}

    def _all_warnings(self, service: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        """Return the warnings in the logs, the disconnected workers, and problems that last."""
        found = [] if self._warnings is None else self._warnings.newest()
        found = [{**one, "id": f"log {one['number']}"} for one in found]
        for name, (at, worker) in self._gone.items():
            text = f"worker {name} of {worker['environment'] or worker['host']} disconnected"
            found.append({"id": f"gone {name}", "time": at, "level": "warning", "log": "page", "text": text})
        for shard in () if service is None else (*service["shards"], *service["replay"]):
            problem = shard["error"] or shard.get("checkpoint_error")
            if problem:
                at, text = service["time"] if service else 0.0, f"{shard['address']}: {problem}"
                found.append({"id": f"shard {text}", "time": at, "level": "error", "log": "page", "text": text})
        return sorted(found, key=lambda one: float(one["time"]))


def _with_texts(name: str, curve: dict[str, Any]) -> dict[str, Any]:
    latest = curve["latest"]
    return {
        "whole": curve["whole"],
        "points": curve["points"],
        "unit": unit_of(name),
        "latest": None if latest is None else shown(latest[1]),
        "step": None if latest is None else f"{latest[0]:,}",
    }


def _figures(summary: Mapping[str, Any] | None, service: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return names and values: of the service, or else of the summary."""
    if service is None:
        known = summary or {}
        wanted = {
            "steps": "env_steps", "steps/s": "steps_per_second", "episodes": "episodes", "updates": "updates",
            "mean return": "mean_return_100", "best mean return": "best_mean_return_100", "evaluation": "evaluation",
            "seconds": "seconds",
        }  # fmt: skip
        return [(label, _figure(known[key])) for label, key in wanted.items() if known.get(key) is not None]
    first = service["shards"][0]
    workers = service["workers"]
    limit = f" of {first['max_global_step']:,}" if first["max_global_step"] else ""
    figures = [
        ("steps", f"{service['global_step']:,}{limit}"),
        ("steps/s", _number(service["steps_per_second"])),
        ("episodes", f"{first['episodes']:,}"),
        ("mean return", _number(first["mean_return_100"])),
        ("updates", f"{first['updates']:,}"),
        ("updates/s", _number(first["updates_per_second"])),
        ("staleness", _number(first["mean_staleness"])),
        ("discarded", f"{first['discarded']:,}"),
        ("learning rate", f"{first['learning_rate']:.2e}"),
        ("workers", f"{len(workers):,}"),
        ("environments", f"{sum(worker['environments'] for worker in workers):,}"),
        ("time", _duration(first["training_seconds"])),
    ]
    if first["learners"]:
        figures.append(("learners", f"{first['learners']:,}"))
    if first["lesson"]:
        figures.append(("lesson", f"{first['lesson']} of {first['lessons']} {first['lesson_name']}".strip()))
    step = first["checkpoint_global_step"]
    return [*figures, ("last checkpoint", "none yet" if step is None else f"step {step:,}")]


def _worker_row(worker: Mapping[str, Any], state: str) -> list[str]:
    actor = "" if worker["actor"] is None else f", actor {worker['actor']:,}"
    return [
        f"{worker['worker']}{actor}",
        state,
        worker["environment"] or "–",
        f"{worker['environments']:,}",
        worker["host"] or "–",
        worker["server"] or "–",
        f"{worker['silent_seconds']:.0f} s",
        _number(worker["staleness"]),
        _number(worker["steps_per_second"]),
        "–" if worker["act_ms_p50"] is None else f"{worker['act_ms_p50']:.3g} ms",
        f"{worker['episodes']:,}",
        _number(worker["mean_return_100"]),
    ]


def _state_of(worker: Mapping[str, Any]) -> str:
    purpose = _PURPOSES.get(worker["mode"], worker["mode"])
    return f"{purpose}, silent" if worker["silent_seconds"] > SILENT_SECONDS else purpose


def _server_table(service: Mapping[str, Any] | None) -> Table:
    servers = [] if service is None else service["servers"]
    rows = [
        [one["server"] or "–", f"{one['workers']:,}", f"{one['environments']:,}", _number(one["steps_per_second"])]
        for one in servers[:MAX_ROWS]
    ]
    note = "" if rows else "No environment is connected."
    return {"columns": ["RLX server", "connections", "environments", "steps/s"], "rows": rows, "note": note}


def _replay_table(service: Mapping[str, Any] | None) -> Table:
    shards: Sequence[Mapping[str, Any]] = [] if service is None else service["replay"]
    rows = []
    for index, shard in enumerate(shards[:MAX_ROWS]):
        name = [f"{index}", shard["address"]]
        if shard["error"] is not None:
            rows.append([*name, "does not answer", *["–"] * 6])
        for one in shard["tables"]:
            rows.append(
                [
                    *name, one["name"], f"{one['size']:,} of {one['capacity']:,}",
                    *(_number(one[key]) for key in ("inserts_per_second", "samples_per_second", "samples_per_insert")),
                    f"{one['mean_age']:,.0f}", f"{one['overruns']:,}",
                ]
            )  # fmt: skip
    columns = "shard", "address", "table", "items", "inserts/s", "samples/s", "samples/insert", "age", "overruns"
    note = "" if rows else "This run has no replay memory, or it does not answer."
    return {"columns": columns, "rows": rows, "note": note}


def _number(value: float | None) -> str:
    return "–" if value is None else shown(value)


def _figure(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else shown(float(value))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def png(height: int, width: int, pixels: bytes) -> bytes:
    """Return pixels, a byte (gray) or three (RGB) for each, as a PNG file (ISO/IEC 15948). Empty if they do not fit."""
    channels = len(pixels) // max(1, height * width)
    if channels not in _MODES or len(pixels) != height * width * channels:
        return b""
    row = width * channels
    lines = b"".join(b"\0" + pixels[start : start + row] for start in range(0, len(pixels), row))  # 0: no filter
    head = struct.pack(">IIBBBBB", width, height, 8, _MODES[channels], 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(lines, 1)) + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
