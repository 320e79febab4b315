"""The build steps that pyproject.toml cannot express: Protobuf code, compiled kernels, and directories as packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent

# Source, package folder of the generated modules, whether it describes a gRPC service.
PROTOS = (
    ("protocol/rlx/v1/rlx.proto", "relaax/rlx", False),
    ("protocol/relaax/v1/parameter_server.proto", "relaax/parameters", True),
    ("protocol/relaax/v1/replay.proto", "relaax/replay", True),
    ("protocol/relaax/v1/coordination.proto", "relaax/server/parameter_server/coordination", True),
)

# In a checkout these directories are next to the package, where people look for them. Installed, they are inside the
# package, because their names are too common for the top level of site-packages.
BUNDLED = ("algorithms", "environments", "config")


def outputs(source: str, folder: str, service: bool) -> list[Path]:
    """Return the files that protoc generates from one source."""
    stem = f"{folder}/{Path(source).stem}_pb2"
    endings = (".py", ".pyi", "_grpc.py") if service else (".py", ".pyi")
    return [ROOT / f"{stem}{ending}" for ending in endings]


def is_stale(source: str, made: list[Path]) -> bool:
    """Return whether an output is missing or older than its source."""
    changed = (ROOT / source).stat().st_mtime
    return any(not path.is_file() or path.stat().st_mtime < changed for path in made)


def generate() -> None:
    """Generate the Protobuf code that is missing or stale."""
    stale = [entry for entry in PROTOS if is_stale(entry[0], outputs(*entry))]
    if not stale:
        return
    from grpc_tools import protoc  # needed only if code must be generated

    before = Path.cwd()
    os.chdir(ROOT)
    try:
        for source, folder, service in stale:
            # The include is mapped, so that the generated modules import each other by their names in this package.
            command = ["protoc", f"-I{folder}={Path(source).parent.as_posix()}", "--python_out=.", "--pyi_out=."]
            if service:
                command.append("--grpc_python_out=.")
            if protoc.main([*command, source]) != 0:
                raise SystemExit(f"protoc failed on {source}: see its messages above")
    finally:
        os.chdir(before)
    for entry in stale:
        for path in outputs(*entry):
            path.touch()


def compile_kernels() -> None:
    """Compile the kernels that are missing or stale. If that fails, servers compile them with numba."""
    command = [sys.executable, "-m", "relaax.machine_code.build"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    if subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}).returncode:
        print("setup: without compiled kernels, servers start more slowly and need more memory", file=sys.stderr)


class BuildPy(build_py):
    """A build_py that first generates the Protobuf code and compiles the kernels, for wheels and editable installs."""

    def run(self) -> None:
        generate()
        compile_kernels()
        if not self.editable_mode:  # remove files of an earlier build that are no longer in the checkout
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:  # the pages of docs/ link to it there
            self.copy_file("CHANGELOG.md", f"{self.build_lib}/relaax/CHANGELOG.md")


class BdistWheel(bdist_wheel):
    """A bdist_wheel that works with every Python, and with one kind of processor if it has compiled kernels."""

    def initialize_options(self) -> None:
        super().initialize_options()
        generate()
        compile_kernels()
        compiled = any((ROOT / "relaax/machine_code").glob("*.so"))
        self.distribution.has_ext_modules = lambda: compiled  # decides about folders and the tag

    def get_tag(self) -> tuple[str, str, str]:
        *_, system = super().get_tag()
        return "py3", "none", system


class Sdist(sdist):
    """An sdist that first generates the Protobuf code, so that the distribution can be built without protoc."""

    def run(self) -> None:
        generate()
        super().run()


def bundled_packages() -> dict[str, str]:
    """Return the directory in the checkout of each bundled package."""
    packages = {}
    for top in BUNDLED:
        if (ROOT / top).is_dir():
            inner = find_namespace_packages(str(ROOT / top), exclude=["*__pycache__*", "*.egg-info"])
            packages[f"relaax.{top}"] = top
            packages |= {f"relaax.{top}.{name}": f"{top}/{name.replace('.', '/')}" for name in inner}
    # `relaax conformance` replays the golden vectors of `protocol`, which also has their page and the clients.
    # `relaax docs` shows the pages, and the folder of the clients.
    return packages | {
        "relaax.protocol": "protocol",
        "relaax.protocol.vectors": "protocol/vectors",
        "relaax.docs": "docs",
    }


bundled = bundled_packages()
setup(
    packages=[*find_namespace_packages(str(ROOT), include=["relaax", "relaax.*"], exclude=["*__pycache__*"]), *bundled],
    package_dir=bundled,
    package_data={
        "relaax": ["py.typed"],
        "relaax.machine_code": ["*.so"],
        "relaax.protocol": ["rlx/v1/rlx.proto", "clients/**"],
        "relaax.cli.new.templates": ["*.html", "*.js"],
        "relaax.cli.web.static": ["*"],
        "relaax.environments.TORCS": ["build", "draw", "driver/*.cpp", "driver/*.h"],
        "relaax.docs": ["*.svg", "images/*.png", "images/*.svg", "results/*", "results/archive/*"],
        "": ["*.pyi", "*.json", "*.yaml", "*.Procfile", "*.md", "*.csv", "main", "Dockerfile"],
    },
    # Build outputs of the clients.
    exclude_package_data={"relaax.protocol": ["clients/*/build/*", "clients/*/target/*"]},
    # For the build only. pyproject.toml has the other requirements of the build.
    setup_requires=[] if shutil.which(os.environ.get("CC", "cc")) else ["ziglang>=0.13"],
    cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel, "sdist": Sdist},
)
