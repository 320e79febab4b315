"""The source distribution and the wheel: their files, and the commands of an installed wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import google.protobuf
import numpy
import pytest

from relaax.algorithm_base import Box, Discrete
from relaax.machine_code.prebuilt import levels, library_path
from support.pages import broken_links
from support.policy_files import bundled, write
from support.processes import Processes
from support.wheel import LEFT, ROOT, copy_checkout, install, quick_wheel, run, share_test_libraries

pytestmark = pytest.mark.slow
of_the_wheel = pytest.mark.checks("setup.py", "pyproject.toml", "Makefile", ".ci", "tests/support/wheel.py")

SHIPPED = ("relaax/cli/new/templates", "relaax/cli/web/static")
BUILT = ROOT / "environments/TORCS/driver"  # built on machines with TORCS
COMMANDS = ("relaax", "relaax-parameter-server", "relaax-replay-server", "relaax-rlx-server", "relaax-learner")
NEEDING_SERVER = (
    *(f"relaax {name}" for name in ("version", "run x", "plot x", "new algorithm x", "bench", "conformance", "schema")),
    *("relaax", "relaax --help", "relaax-parameter-server --config x", "relaax-rlx-server --config x"),
    "relaax-learner --config x",
)
SHOW_BUNDLED = """
from relaax.bundled import bundled_folder, bundled_names
from relaax.rlx import rlx_pb2
print(bundled_folder("config"))
print(*bundled_names("config", ".yaml"))
"""

ACT = """
import sys
import numpy as np
import relaax.policy
action = relaax.policy.load(sys.argv[1]).act(np.load(sys.argv[2]))
tops = {name.partition(".")[0] for name in sys.modules}
print(action, sorted(tops & {"grpc", "numba", "safetensors", "tensorflow"}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a source distribution of a copy of the checkout, built like a release."""
    folder = tmp_path_factory.mktemp("packaging")
    copy_checkout(folder / "checkout", "*_pb2*")
    run("make", "wheel", f"PYTHON={sys.executable}", cwd=folder / "checkout")
    (built,) = (folder / "checkout/dist").glob("*.whl")
    assert not (folder / "checkout/.venv").exists()
    return built


@of_the_wheel
@pytest.mark.timeout(600)
def test_wheel_has_all_files_in_package_relaax(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0].split("-")[0] for name in names} == {"relaax"}
    for folder in (
        "algorithms",
        "environments",
        "config",
        "docs",
        "protocol/vectors",
        "relaax/cli/new/templates",
        "relaax/cli/web",
    ):
        for path in (ROOT / folder).rglob("*"):
            made = "__pycache__" in path.parts or path.is_relative_to(BUILT / "include") or path.suffix == ".so"
            if path.is_file() and not made and path.name != "retake.py":
                assert f"relaax/{path.relative_to(ROOT).as_posix().removeprefix('relaax/')}" in names
    clients = {path.relative_to(ROOT) for path in (ROOT / "protocol/clients").rglob("*") if path.is_file()}
    packaged = {f"relaax/{path}" for path in clients if not {"build", "target"} & {*path.parts}}
    assert {name for name in names if name.startswith("relaax/protocol/clients/")} == packaged
    assert wheel.name.endswith(f"-py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}.whl")
    assert {
        *(f"relaax/machine_code/{library_path(level).name}" for level in levels()),
        "relaax/py.typed",
        "relaax/rlx/rlx_pb2.py",
        "relaax/rlx/rlx_pb2.pyi",
        "relaax/parameters/parameter_server_pb2.py",
        "relaax/parameters/parameter_server_pb2_grpc.py",
        "relaax/protocol/rlx/v1/rlx.proto",
        "relaax/CHANGELOG.md",
    } <= names


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a virtual environment that has the wheel, and the libraries of the one that runs the tests."""
    folder = tmp_path_factory.mktemp("installed")
    share_test_libraries(install(wheel, folder))
    return folder


@of_the_wheel
@pytest.mark.timeout(600)
def test_installed_wheel_finds_bundled_files(installed: Path) -> None:
    (site,) = (installed / "venv/lib").glob("python3.*/site-packages")
    folder, configurations = run(installed / "venv/bin/python", "-c", SHOW_BUNDLED, cwd=installed).splitlines()
    assert folder == str(site / "relaax/config")
    assert configurations.split() == sorted(path.stem for path in (ROOT / "config").glob("*.yaml"))
    for command in COMMANDS:
        assert (installed / "venv/bin" / command).is_file()
    for main in (ROOT / "environments").glob("*/main"):
        assert os.access(site / "relaax" / main.relative_to(ROOT), os.X_OK)


@of_the_wheel
@pytest.mark.timeout(600)
def test_installed_wheel_writes_browser_game_with_client(installed: Path, tmp_path: Path) -> None:
    command = "-m", "relaax.cli.main", "new", "environment", "--browser", "mine"
    run(installed / "venv/bin/python", *command, cwd=tmp_path)
    source = ROOT / "protocol/clients/javascript/src"
    assert {path.name for path in (tmp_path / "mine/rlx").iterdir()} == {path.name for path in source.iterdir()}


@of_the_wheel
@pytest.mark.timeout(600)
def test_links_of_installed_pages_are_valid(installed: Path) -> None:
    (site,) = (installed / "venv/lib").glob("python3.*/site-packages")
    pages = list((site / "relaax").rglob("*.md"))
    assert len(pages) > 30
    assert {page.name: wrong for page in pages if (wrong := broken_links(page))} == {}
    listed = run(installed / "venv/bin/python", installed / "venv/bin/relaax", "docs", cwd=installed)
    *_, files, clients = listed.splitlines()
    assert files.endswith(f" {site / 'relaax/docs'}")
    assert clients.endswith(f" {site / 'relaax/protocol/clients'}")


@of_the_wheel
@pytest.mark.timeout(600)
def test_installed_wheel_trains(installed: Path, processes: Processes, tmp_path: Path) -> None:
    command = processes.start(
        *(installed / "venv/bin/python", installed / "venv/bin/relaax", "run", "da3c_gym_cartpole"),
        *("--max-steps", "5000", "--set", "run.target_return=null"),
        cwd=tmp_path,
        env={"PYTHONPATH": ""},
    )
    assert command.wait(200) == 0, command.report()
    summary = json.loads((tmp_path / "runs/da3c_gym_cartpole/summary.json").read_text())
    assert (summary["status"], summary["env_steps"] >= 5000) == ("max_steps", True)
    written = (tmp_path / "runs/da3c_gym_cartpole/configuration.yaml").read_text()
    assert f"path: {installed}/venv" in written


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a virtual environment that has RELAAX without extras: the client, numpy and Protobuf.

    The two libraries are links to those of the environment that runs the tests.
    """
    folder = tmp_path_factory.mktemp("bare")
    site = install(quick_wheel(folder), folder)
    (site / "google").mkdir()
    for library in (numpy, google.protobuf):
        here = Path(library.__file__).parent
        parent = here.parent
        for found in (here, *parent.glob("numpy.libs"), *parent.glob("_upb")):
            target = site / ("google" if parent.name == "google" else "") / found.name
            if not target.exists():
                target.symlink_to(found)
    return folder


def test_client_loads_only_numpy_and_protobuf(bare: Path) -> None:
    # Modules that Python loads at its start are excluded: Debian has a sitecustomize.
    program = "import sys; before = {*sys.modules}; import relaax.client; print(*{*sys.modules} - before)"
    loaded = run(bare / "venv/bin/python", "-c", program, cwd=bare).split()
    tops = {name.partition(".")[0] for name in loaded}
    assert {name for name in tops - sys.stdlib_module_names if not name.startswith("_")} == {
        "relaax",
        "numpy",
        "google",
    }


def test_files_of_earlier_build_are_not_packaged(bare: Path) -> None:
    (package,) = (bare / "venv/lib").glob("python3.*/site-packages/relaax")
    assert (package / "__init__.py").is_file()
    assert not (package / LEFT).exists()


@pytest.mark.parametrize("line", NEEDING_SERVER)
def test_every_command_names_its_missing_extra(line: str, bare: Path) -> None:
    command, *arguments = line.split()
    assert refusal(bare, bare / "venv/bin" / command, *arguments) == (
        f"{command}: typer is not installed; pip install 'relaax[server]'\n"
    )


@pytest.mark.parametrize(
    ("program", "name", "extra"),
    [
        ("OpenAI_Gym", "CartPole-v1", "gymnasium is not installed; pip install 'relaax[gym]'"),
        ("ALE", "boxing", "ale-py is not installed; pip install 'relaax[atari]'"),
        ("ViZDoom", "my_way_home", "vizdoom is not installed; pip install 'relaax[vizdoom]'"),
        ("MiniWorld", "MazeS2", "miniworld is not installed; pip install 'relaax[miniworld]'"),
        ("PettingZoo", "tictactoe", "pettingzoo is not installed; pip install 'relaax[pettingzoo]'"),
        ("MiniWoB", "click-test", "miniwob is not installed; pip install 'relaax[miniwob]'"),
        ("DeepMind_Lab", "nav_maze_static_01", "this Python has no deepmind_lab, which is built from"),
    ],
)
def test_environments_name_their_missing_extra(program: str, name: str, extra: str, bare: Path) -> None:
    (script,) = (bare / "venv/lib").glob(f"python3.*/site-packages/relaax/environments/{program}/main")
    message = refusal(bare, bare / "venv/bin/python", script, "localhost:1", name)
    assert message.startswith(f"{program}/main: {extra}")


def test_client_names_missing_extra_for_id(bare: Path) -> None:
    code = "from relaax.client import run; run('CartPole-v1', 'localhost:1')"
    answer = completed(bare, bare / "venv/bin/python", "-c", code)
    assert answer.stderr.endswith("ModuleNotFoundError: gymnasium is not installed; pip install 'relaax[gym]'\n")


def test_policy_names_its_missing_extra(bare: Path) -> None:
    answer = completed(bare, bare / "venv/bin/python", "-c", "import relaax.policy")
    assert answer.stderr.endswith("ModuleNotFoundError: pydantic is not installed; pip install 'relaax[policy]'\n")


@of_the_wheel
@pytest.mark.timeout(600)
def test_policy_acts_with_only_its_extra(wheel: Path, tmp_path: Path) -> None:
    """pip installs the extra from the package index."""
    run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", f"relaax[policy] @ {wheel.as_uri()}", cwd=tmp_path)
    path, agent, _ = write(tmp_path, bundled("da3c"), Box(0, 255, (84, 84), numpy.uint8), Discrete(5))
    seen = numpy.random.default_rng(3).integers(0, 256, (84, 84)).astype(numpy.uint8)
    wanted = agent.reset([numpy.stack([seen] * 3)])[0][0]
    numpy.save(tmp_path / "seen.npy", seen)
    assert run(python, "-c", ACT, path, tmp_path / "seen.npy", cwd=tmp_path) == f"{wanted} []\n"


def completed(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    line = [str(part) for part in command]
    environ = {**os.environ, "PYTHONPATH": ""}
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False, timeout=60, env=environ)


def refusal(folder: Path, *command: str | Path) -> str:
    """Run a command that exits with code 2, and return its stderr."""
    answer = completed(folder, *command)
    assert (answer.returncode, answer.stdout) == (2, ""), answer.stderr
    return answer.stderr
