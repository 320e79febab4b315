"""Import rules that import-linter cannot express: allowed packages and loaded libraries. See also pyproject.toml."""

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
    """Return the modules outside of a package that its modules import."""
    modules = {package, *graph().find_descendants(package)}
    found = {name for module in modules for name in graph().find_modules_directly_imported_by(module)}
    return found - modules


def foreign(package: str, *allowed: str) -> set[str]:
    """Return the imports of a package that are neither in the standard library nor in an allowed package."""
    return {
        name
        for name in imported_by(package)
        if name.split(".")[0] not in sys.stdlib_module_names
        and not any(name == one or name.startswith(f"{one}.") for one in allowed)
    }


def test_import_graph_has_every_module() -> None:
    # A folder without __init__.py inside a package would be missing from the graph, and could break every rule.
    files = [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files}
    assert names - graph().modules == set()


def test_protocol_core_imports_only_numpy_and_protobuf() -> None:
    assert foreign("relaax.rlx", "numpy", "google") == set()
    assert {name.split(".")[0] for name in imported_by("relaax.rlx")} & SOCKETS == set()


def test_client_imports_rlx_sockets_and_optional_packages() -> None:
    # The package itself is imported for its version, gymnasium to create an environment by id, websockets for addresses
    # that begin with ws, the others for --display and --video.
    assert (
        foreign(
            *("relaax.client", "relaax.rlx", "relaax.console", "relaax.files", "relaax.libraries", "relaax.tls"),
            "relaax.backoff",
            *("relaax.websocket", "numpy", "gymnasium", "imageio", "pygame", "websockets"),
        )
        - {"relaax"}
        == set()
    )


def test_environments_import_only_the_client() -> None:
    # As a script, an environment program imports its sibling modules by their bare names.
    siblings = {path.stem for path in (ROOT / "environments").glob("*/*.py")}
    simulators = {
        "ale_py",
        "minatar",
        "vizdoom",
        "miniworld",
        "pettingzoo",
        "pyglet",
        "selenium",
        "urllib3",
        "matplotlib",
    }
    # The robot of TORCS is an RLX client. If it cannot reach the service, the program acts as its RLX server.
    assert (
        foreign("environments", "relaax.client", "relaax.rlx", "numpy", "gymnasium", "cv2", *simulators, *siblings)
        == set()
    )


def test_algorithms_import_only_allowed_packages() -> None:
    allowed = ("relaax.algorithm_base", "relaax.nn", "relaax.optim", "numpy", "tensorflow", "pydantic")
    assert foreign("algorithms", *allowed) == set()


def loaded(module: str) -> set[str]:
    """Return the libraries that the import of a module loads."""
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in json.loads(answer.stdout)}


@pytest.mark.parametrize("module", ["relaax.rlx", "relaax.client"])
def test_importing_the_client_loads_no_framework(module: str) -> None:
    frameworks = {"boto3", "grpc", "gymnasium", "keras", "psutil", "pydantic", "tensorflow", "yaml"}
    assert loaded(module) & frameworks == set()


@pytest.mark.parametrize("module", ["relaax.cli.run.experiment", "relaax.cli.run.panel"])
def test_run_command_loads_no_compiler_or_framework(module: str) -> None:
    assert loaded(module) & {"boto3", "gymnasium", "matplotlib", "numba", "tensorflow"} == set()
