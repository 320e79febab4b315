#!/usr/bin/env python3
"""Take the pictures of docs/metrics.md and docs/live-page.md again: `.venv/bin/python docs/images/retake.py [RUNS]`.

Trains CartPole twice for about a minute, unless RUNS is a folder of runs, starts TensorBoard on them, and has Chromium
take the pictures. Then trains Boxing for some minutes with a live page. Needs Chromium (Debian: `apt-get install
chromium`) and Pillow, which matplotlib brings.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

# Picture, what follows the address, width and height in pixels.
PICTURES = (
    ("custom-scalars", "#custom_scalars", 1400, 1340),
    ("time-series", "?forceSVG=true&tagFilter=%5E(episode%7Clatency%7Cspeed)%2F#timeseries", 1400, 1000),
    ("hparams", "#hparams", 1600, 620),
)
LIVE = "live-page", 1280, 1000
LIVE_SECONDS = 240
COLOURS = 64

# Name, steps, overrides: what differs can be compared.
TRAINED = (
    ("cartpole", 120_000, ()),
    ("cartpole-careful", 60_000, ("algorithm.initial_learning_rate=7e-4", "algorithm.entropy_beta=0.03")),
)


def browser() -> str | None:
    """The path of Chromium; None if there is none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def train(folder: Path) -> None:
    """Runs to look at."""
    for name, steps, overrides in TRAINED:
        command = [str(BIN / "relaax"), "run", "da3c_gym_cartpole", "--run-dir", str(folder / name)]
        command += ["--max-steps", str(steps), "--no-progress", "--set", "run.target_return=null"]
        for override in overrides:
            command += ["--set", override]
        subprocess.run(command, check=True)


@contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """TensorBoard on the runs of a folder; its address."""
    command = [str(BIN / "tensorboard"), "--logdir", folder.name, "--host", "127.0.0.1", "--port", "0"]
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(
            command, cwd=folder.parent, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        try:
            yield _address(process, Path(log.name))
        finally:
            process.terminate()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Once it has read the runs."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        said = log.read_text(errors="replace")
        found = re.search(r"http://127\.0\.0\.1:\d+/", said)
        if found and _get(f"{found[0]}data/plugin/scalars/tags") not in (b"", b"{}"):
            return found[0]
        time.sleep(0.2)
    raise SystemExit(f"TensorBoard does not start:\n{log.read_text(errors='replace')}")


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bytes(answer.read())
    except OSError:
        return b""


def look(url: str, *options: str) -> bytes:
    """Have Chromium load a page until nothing happens any more; what it prints."""
    found = browser()
    if found is None:
        raise SystemExit("there is no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        command = [found, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", "--virtual-time-budget=60000", *options, url]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=240, check=True)
    return done.stdout


def take(address: str, folder: Path) -> None:
    """All pictures, in few colours."""
    for name, page, width, height in PICTURES:
        take_one(f"{address}{page}", folder / f"{name}.png", width, height)


def take_one(url: str, path: Path, width: int, height: int) -> None:
    """One picture."""
    from PIL import Image

    look(url, f"--window-size={width},{height}", f"--screenshot={path}")
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    print(f"{path}: {path.stat().st_size // 1000} kB")


def take_live(run: Path, folder: Path) -> None:
    """The picture of a live page, while the run trains."""
    command = [str(BIN / "relaax"), "run", "da3c_ale_boxing", "--run-dir", str(run), "--web"]
    training = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert training.stdout is not None
        lines = (re.search(r"live page at (\S+)", line) for line in training.stdout)
        url = next(found[1] for found in lines if found)
        time.sleep(LIVE_SECONDS)
        name, width, height = LIVE
        take_one(url, folder / f"{name}.png", width, height)
    finally:
        training.terminate()
        training.wait()


def main() -> None:
    """Train where nothing is given, and take the pictures."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else f"{made}/runs").resolve()
        if len(sys.argv) == 1:
            train(folder)
        with tensorboard(folder) as address:
            take(address, HERE)
        take_live(Path(made) / "boxing", HERE)


if __name__ == "__main__":
    main()
