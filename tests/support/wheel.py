"""A wheel of the checkout, and virtual environments with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Other tests may write into the folders of tools during the copy.
_LEFT_OUT = (".git", ".venv", ".hypothesis", ".*_cache", "__pycache__", "build", "dist", "*.egg-info", "runs")
LEFT = "left.py"
"""A leftover of an earlier build in the folder `build` of the checkout. A wheel must not contain it."""


def copy_checkout(folder: Path, *without: str) -> None:
    """Copy the checkout, except products of tools and names that match `without`."""

    def left_out(parent: str, names: list[str]) -> set[str]:
        made = {name for name in shutil.ignore_patterns(*_LEFT_OUT)(parent, names) if Path(parent, name).is_dir()}
        return made | shutil.ignore_patterns(*without)(parent, names)

    shutil.copytree(ROOT, folder, symlinks=True, ignore=left_out)


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command, check that its exit code is 0, and return its output."""
    answer = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def quick_wheel(folder: Path) -> Path:
    """Build a wheel in `folder/dist` with the installed tools and the generated code of the checkout."""
    copy_checkout(folder / "checkout")
    left = folder / "checkout/build/lib/relaax" / LEFT
    left.parent.mkdir(parents=True)
    left.touch()
    build = ("-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder / "dist")
    run(sys.executable, *build, folder / "checkout", cwd=folder)
    shutil.rmtree(folder / "checkout")
    (built,) = (folder / "dist").glob("relaax-*.whl")
    return built


def install(wheel: Path, folder: Path) -> Path:
    """Make a virtual environment `folder/venv` with only this wheel, and return its site-packages."""
    run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=folder)
    python = folder / "venv/bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    (site,) = (folder / "venv/lib").glob("python3.*/site-packages")
    return site


def share_test_libraries(site: Path) -> None:
    """Add the libraries of the tests' environment to a virtual environment, to avoid downloads."""
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join(libraries) + "\n")
