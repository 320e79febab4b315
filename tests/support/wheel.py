"""A wheel of the checkout, and environments that have it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Other tests write into the folders of tools while this one copies.
_LEFT_OUT = (".git", ".venv", ".hypothesis", ".*_cache", "__pycache__", "build", "dist", "*.egg-info", "runs")
LEFT = "left.py"
"""A file that an earlier build left in the folder `build` of the checkout: no wheel may have it."""


def copy_checkout(folder: Path, *without: str) -> None:
    """Copy what is no product of tools, and nothing that matches `without`."""

    def left_out(parent: str, names: list[str]) -> set[str]:
        made = {name for name in shutil.ignore_patterns(*_LEFT_OUT)(parent, names) if Path(parent, name).is_dir()}
        return made | shutil.ignore_patterns(*without)(parent, names)

    shutil.copytree(ROOT, folder, symlinks=True, ignore=left_out)


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints that ends with exit code 0."""
    answer = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def quick_wheel(folder: Path) -> Path:
    """Built with the tools and the generated code that are here, in `folder/dist`."""
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
    """A new environment `folder/venv` with this wheel and nothing else; its site-packages."""
    run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=folder)
    python = folder / "venv/bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    (site,) = (folder / "venv/lib").glob("python3.*/site-packages")
    return site


def borrow(site: Path) -> None:
    """Let an environment have the libraries of the one that runs the tests: not worth a download."""
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join(libraries) + "\n")
