"""Short runs of the GPU study on any machine: each part is measured or marked, and a repeated run measures nothing."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("gpu.py")
SMALL = [
    "algorithm.network.convolutions=[{filters: 4, kernel: 8, stride: 8}]",
    "algorithm.network.dense=[16]",
]
FIGURES = {
    "learner": [("learner {}", "updates/s"), ("learner {} alone", "updates/s")],
    "boxing": [("boxing cpu", "steps/s")],
    "acting": [("acting {} worker", "steps/s"), ("acting {} shared", "steps/s")],
    "workers": [("workers", "steps/s")],
}

pytestmark = pytest.mark.timeout(900)


def run(output: Path, *parts: str) -> str:
    """Run parts with short windows, and return what the command prints."""
    options = ["--output", str(output), "--seconds", "0.3", "--capacity", "2100", "--only", *parts]
    options += [word for key in SMALL for word in ("--set", key)]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, timeout=800)
    logs = "\n".join(path.read_text() for path in output.glob("*.log"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    return done.stdout


def figures_of(output: Path) -> dict[tuple[str, str], float]:
    with (output / "gpu.csv").open(newline="") as file:
        return {(row["part"], row["figure"]): float(row["value"]) for row in csv.DictReader(file)}


def has_gpu(output: Path) -> bool:
    return bool(json.loads((output / "gpu.json").read_text())["card"]["tensorflow"])


def test_parts_are_measured_once_or_marked(tmp_path: Path) -> None:
    parts = ("replay", "latency gpu", "latency cpu")
    run(tmp_path, *parts)
    outcomes = {
        name: part["outcome"] for name, part in json.loads((tmp_path / "gpu.json").read_text())["parts"].items()
    }
    on_gpu = "done" if has_gpu(tmp_path) else "no GPU"
    assert outcomes == {"replay": "done", "latency gpu": on_gpu, "latency cpu": "done"}
    figures = figures_of(tmp_path)
    assert min(figures["replay", "transitions/s"], figures["replay", "batches/s"]) > 0
    assert min(figures["latency cpu act", "p50 ms"], figures["latency cpu gradient", "p50 ms"]) > 0
    assert ("no GPU" in (tmp_path / "gpu.md").read_text()) is not has_gpu(tmp_path)
    before = (tmp_path / "gpu.csv").read_text()
    assert ": done" not in run(tmp_path, *parts)
    assert (tmp_path / "gpu.csv").read_text() == before


@pytest.mark.parametrize("name", FIGURES)
def test_training_parts_are_measured(tmp_path: Path, name: str) -> None:
    run(tmp_path, *(["workers"] if name == "workers" else [f"{name} gpu", f"{name} cpu"]))
    figures, device = figures_of(tmp_path), "gpu" if has_gpu(tmp_path) else "cpu"
    for part, figure in FIGURES[name]:
        assert (part.format(device), figure) in figures
