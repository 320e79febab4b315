"""A pytest plugin that skips slow tests in CI if their files have not changed since they last passed.

A slow test names the files and folders on which its outcome depends, from the root: `@pytest.mark.checks("docker")`.
With `--short` it is skipped if their digest, with the test's own file, is recorded in `tests/data/unchanged.json`.
`make test-slow` runs every slow test and records each that passes. With these options it takes less than an hour:
make test-slow PYTEST_ARGS="--short -n 4 --dist loadgroup".

    python tests/support/unchanged.py tests/clients      exit code 0 if no test of these folders or modules has to run
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD = ROOT / "tests/data/unchanged.json"
REASON = "unchanged since it last passed"
Recorded = dict[str, dict[str, Any]]
"""For each test with its parameters: `files`, the names of files and folders, and `digest`."""


def recorded(record: Path = RECORD) -> Recorded:
    return json.loads(record.read_text("utf-8") or "{}") if record.exists() else {}


def digest(paths: Sequence[str], root: Path = ROOT) -> str | None:
    """Return the SHA-256 of the names and contents of all files below `paths`; None if git cannot list them."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *paths]
    try:
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    names = sorted({name for name in listed.split("\0") if (root / name).is_file()})
    for path in paths:
        if not any(name == path or name.startswith(f"{path}/") for name in names):
            raise ValueError(f"the mark checks names {path}, where there is no file")
    every = hashlib.sha256()
    for name in names:
        every.update(f"{name}\0{hashlib.sha256((root / name).read_bytes()).hexdigest()}\n".encode())
    return every.hexdigest()


class Unchanged:
    """The plugin: the recorded and the current digests of the tests of this run."""

    def __init__(self, record: Path = RECORD, root: Path = ROOT) -> None:
        self._record, self._root = record, root
        self._recorded = recorded(record)
        self._now: Recorded = {}
        self._passed: Recorded = {}

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        import pytest

        digests: dict[tuple[str, ...], str | None] = {}
        for item in items:
            if mark := item.get_closest_marker("checks"):
                files = (*mark.args, item.path.relative_to(self._root).as_posix())
                if files not in digests:
                    digests[files] = digest(files, self._root)
                self._now[item.nodeid] = {"files": list(files), "digest": digests[files]}
                same = digests[files] is not None and self._now[item.nodeid] == self._recorded.get(item.nodeid)
                if same and config.getoption("--short") and not config.getoption("--record"):
                    item.add_marker(pytest.mark.skip(REASON))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed and report.nodeid in self._now:
            self._passed[report.nodeid] = self._now[report.nodeid]
        elif report.failed:
            self._passed.pop(report.nodeid, None)

    def pytest_sessionfinish(self, session: Any) -> None:
        """Record the passed tests if `--record` is set. A lock serializes the processes of the run."""
        if self._passed and session.config.getoption("--record"):
            with self._record.open("a+", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                known = {name: was for name, was in recorded(self._record).items() if self._is_there(name)}
                both = sorted({**known, **self._passed}.items())
                file.truncate(0)
                file.write("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(was)}" for name, was in both) + "\n}\n")

    def _is_there(self, name: str) -> bool:
        return (self._root / name.split("::")[0]).exists()


def main(places: Sequence[str]) -> int:
    """Return 0 if the files of all recorded tests of these folders or modules are unchanged, else 1."""
    mine = [was for name, was in recorded().items() if name.startswith(tuple(places))]
    return 0 if mine and all(digest(was["files"]) == was["digest"] for was in mine) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
