"""The structure of the project: layout, length of modules, tracked files, installed packages."""

from __future__ import annotations

import graphlib
import importlib.metadata
import re
import subprocess
from collections import Counter
from pathlib import Path

import grimp
import pytest

from relaax.hosting.loader import EXPORTS, REPLAY_EXPORTS
from support.machine import need

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("relaax", "algorithms", "environments")
TOP_LEVEL = {
    # The layout.
    "protocol", "relaax", "algorithms", "environments", "config", "docker", "docs", "tests",
    # The project.
    "setup.py", "pyproject.toml", "constraints.txt", "MANIFEST.in", "Makefile", ".ci",
    "README.md", "CHANGELOG.md", "LICENSE", ".gitignore", ".editorconfig", ".gitattributes", ".dockerignore",
}  # fmt: skip


def git(*arguments: str) -> list[str]:
    """Return the lines of git's output. Skip the test outside of a repository, such as in a source distribution."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git repository")
    need("git")
    answer = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return answer.stdout.splitlines()


def modules() -> dict[str, int]:
    """Return the number of lines of each module that is not generated."""
    return {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "_pb2" not in path.name and path.name != "__init__.py"
    }


def test_modules_are_short() -> None:
    assert {path: count for path, count in modules().items() if count > 600} == {}


def test_folders_hold_at_most_fifteen_modules() -> None:
    counts = Counter(str(Path(path).parent) for path in modules())
    assert {folder: count for folder, count in counts.items() if count > 15} == {}


def test_imports_have_no_cycles() -> None:
    """Imports inside functions and for types only count, too."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imported).prepare()  # raises CycleError, which names the modules


def test_top_level_has_only_known_files() -> None:
    files = git("ls-files", "--cached", "--others", "--exclude-standard")
    assert {name.split("/")[0] for name in files} - TOP_LEVEL == set()


def test_generated_code_exists_and_is_not_tracked() -> None:
    generated = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "relaax").rglob("*_pb2*.py"))
    assert generated == [
        "relaax/parameters/parameter_server_pb2.py",
        "relaax/parameters/parameter_server_pb2_grpc.py",
        "relaax/replay/replay_pb2.py",
        "relaax/replay/replay_pb2_grpc.py",
        "relaax/rlx/rlx_pb2.py",
        "relaax/server/parameter_server/coordination/coordination_pb2.py",
        "relaax/server/parameter_server/coordination/coordination_pb2_grpc.py",
    ]
    assert git("ls-files", "*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py") == []
    assert sorted(git("check-ignore", *generated)) == generated


def test_python_files_of_protocol_are_programs_of_clients() -> None:
    programs = {"json_client.py", "godot/for_godot_4.py"}
    assert set((ROOT / "protocol").rglob("*.py*")) == {ROOT / "protocol" / "clients" / name for name in programs}


def test_only_package_relaax_is_installed() -> None:
    distribution = importlib.metadata.distribution("relaax")
    assert (distribution.read_text("top_level.txt") or "").split() == ["relaax"]


def test_base_requirements_are_numpy_and_protobuf() -> None:
    required = importlib.metadata.requires("relaax") or []
    base = {re.split(r"[^\w-]", line, maxsplit=1)[0] for line in required if "extra ==" not in line}
    assert base == {"numpy", "protobuf"}


def test_constraints_have_only_packages_and_versions() -> None:
    line = re.compile(r'[a-z0-9-]+==([0-9]+!)?[0-9][\w.]*(; python_version (<|>=) "3\.\d+")?')
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert len(lines) > 50
    assert [text for text in lines if not line.fullmatch(text)] == []


def test_every_configuration_has_a_procfile() -> None:
    stems = {suffix: {path.stem for path in (ROOT / "config").glob(f"*{suffix}")} for suffix in (".yaml", ".Procfile")}
    assert stems[".yaml"] == stems[".Procfile"] != set()


def test_class_names_are_unique() -> None:
    """Exceptions are the names that every algorithm exports, and the classes of templates.

    `TrainingFinished` is both a message of the protocol and the exception that reports it to a program.
    """
    found: dict[str, list[str]] = {}
    for path in modules():
        if "/templates/" not in path:
            for name in re.findall(r"^class (\w+)", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE):
                found.setdefault(name, []).append(path)
    assert {
        name: paths
        for name, paths in found.items()
        if len(paths) > 1 and name not in {*EXPORTS, *REPLAY_EXPORTS, "TrainingFinished"}
    } == {}
