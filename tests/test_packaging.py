"""What is built from a checkout, and what of it arrives where nothing else is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", "__pycache__", "*_pb2*", "build", "dist", "*.egg-info", "runs"
)
SHOW_BUNDLED = """
from relaax.bundled import bundled_folder, bundled_names
from relaax.rlx import rlx_pb2
print(bundled_folder("config"))
print(*bundled_names("config", ".yaml"))
"""


def run(*command: str | Path, cwd: Path) -> str:
    answer = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as a release is: a source distribution from a copy of the checkout, a wheel from that."""
    folder = tmp_path_factory.mktemp("packaging")
    shutil.copytree(ROOT, folder / "checkout", symlinks=True, ignore=NOT_SOURCE)
    run(sys.executable, "-m", "build", "--outdir", folder / "dist", cwd=folder / "checkout")
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_wheel_holds_everything_under_one_name(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0].split("-")[0] for name in names} == {"relaax"}
    for folder in ("algorithms", "environments", "config"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert f"relaax/{path.relative_to(ROOT).as_posix()}" in names
    assert {
        "relaax/py.typed",
        "relaax/rlx/rlx_pb2.py",
        "relaax/rlx/rlx_pb2.pyi",
        "relaax/bridge/parameter_server_pb2.py",
        "relaax/bridge/parameter_server_pb2_grpc.py",
    } <= names


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_installed_wheel_finds_what_is_bundled(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    run(python, "-m", "pip", "install", "--no-deps", wheel, cwd=tmp_path)
    (site,) = (tmp_path / "venv/lib").glob("python3.*/site-packages")
    # The dependencies are those of the environment that runs the tests: not worth a download.
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join(libraries) + "\n")
    folder, configurations = run(python, "-c", SHOW_BUNDLED, cwd=tmp_path).splitlines()
    assert folder == str(site / "relaax/config")
    assert configurations.split() == sorted(path.stem for path in (ROOT / "config").glob("*.yaml"))
    for command in ("relaax", "relaax-parameter-server", "relaax-rlx-server"):
        assert (tmp_path / "venv/bin" / command).is_file()
    for main in (ROOT / "environments").glob("*/main"):
        assert os.access(site / "relaax" / main.relative_to(ROOT), os.X_OK)
