"""What import-linter cannot say: lists of what is allowed, and what really is loaded. The rest is in pyproject.toml."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("relaax", "algorithms", "environments")

SOCKETS = {"asyncio", "http", "multiprocessing", "select", "selectors", "socket", "socketserver", "ssl", "urllib"}


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)


def imported_by(package: str) -> set[str]:
    """Everything outside of a package that one of its modules imports, by the names of the modules."""
    modules = {package, *graph().find_descendants(package)}
    found = {name for module in modules for name in graph().find_modules_directly_imported_by(module)}
    return found - modules


def foreign(package: str, *allowed: str) -> set[str]:
    """What a package imports that is neither the standard library's nor allowed, nor below what is allowed."""
    return {
        name
        for name in imported_by(package)
        if name.split(".")[0] not in sys.stdlib_module_names
        and not any(name == one or name.startswith(f"{one}.") for one in allowed)
    }


def test_the_rules_see_every_module() -> None:
    # A folder without __init__.py inside of one that has it would be left out, and break every rule unseen.
    files = [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files}
    assert names - graph().modules == set()


def test_the_protocol_core_imports_numpy_and_protobuf_only() -> None:
    assert foreign("relaax.rlx", "numpy", "google") == set()
    assert {name.split(".")[0] for name in imported_by("relaax.rlx")} & SOCKETS == set()


def test_the_client_adds_sockets_only() -> None:
    # The package itself is imported for its version, gymnasium when it must make an environment by its id, websockets
    # for an address that begins with ws, the others when something is to be watched.
    assert (
        foreign(
            *("relaax.client", "relaax.rlx", "relaax.console", "relaax.files", "relaax.libraries", "relaax.tls"),
            "relaax.backoff",
            *("relaax.websocket", "numpy", "gymnasium", "imageio", "pygame", "websockets"),
        )
        - {"relaax"}
        == set()
    )


def test_environments_import_the_client_only() -> None:
    # Started as a script, an environment knows the modules beside it by their bare names.
    beside = {path.stem for path in (ROOT / "environments").glob("*/*.py")}
    simulators = {"ale_py", "minatar", "vizdoom", "miniworld", "pyglet", "selenium", "urllib3", "matplotlib"}
    # TORCS' robot is a client: where it cannot reach the agent, its program is the server that it speaks to.
    assert (
        foreign("environments", "relaax.client", "relaax.rlx", "numpy", "gymnasium", "cv2", *simulators, *beside)
        == set()
    )


def test_algorithms_import_their_contract_and_tensorflow_only() -> None:
    allowed = ("relaax.algorithm_base", "relaax.nn", "relaax.optim", "numpy", "tensorflow", "pydantic")
    assert foreign("algorithms", *allowed) == set()


def loaded(module: str) -> set[str]:
    """The libraries in a process that has imported one module."""
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in json.loads(answer.stdout)}


@pytest.mark.parametrize("module", ["relaax.rlx", "relaax.client"])
def test_importing_the_client_loads_no_framework(module: str) -> None:
    frameworks = {"boto3", "grpc", "gymnasium", "keras", "psutil", "pydantic", "tensorflow", "yaml"}
    assert loaded(module) & frameworks == set()


@pytest.mark.parametrize("module", ["relaax.cli.run.experiment", "relaax.cli.run.panel"])
def test_a_run_loads_no_compiler_beside_its_servers(module: str) -> None:
    assert loaded(module) & {"boto3", "gymnasium", "matplotlib", "numba", "tensorflow"} == set()
