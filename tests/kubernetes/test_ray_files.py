"""Files of docker/ray: they are valid for Ray's launcher and Kubernetes, and every cluster has a token."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from support.charts import ROOT

RAY = ROOT / "docker" / "ray"
CLOUDS = {name: yaml.safe_load((RAY / f"{name}.yaml").read_text("utf-8")) for name in ("aws", "gcp", "azure")}
KUBERAY = {name: yaml.safe_load((RAY / f"kuberay-{name}.yaml").read_text("utf-8")) for name in ("cluster", "job")}


@pytest.mark.parametrize("name", CLOUDS)
def test_launcher_files_fit_schema_of_ray(name: str) -> None:
    ray = importlib.util.find_spec("ray")  # not imported, because it warns
    if ray is None or ray.origin is None:
        pytest.skip("Ray, which has the schema, is not installed")
    schema = json.loads((Path(ray.origin).parent / "autoscaler" / "ray-schema.json").read_text("utf-8"))
    jsonschema.validate(CLOUDS[name], schema)


@pytest.mark.parametrize("name", CLOUDS)
def test_launcher_files_have_nodes_and_token(name: str) -> None:
    cluster = CLOUDS[name]
    assert cluster["provider"]["type"] == name
    types = cluster["available_node_types"]
    assert cluster["head_node_type"] in types
    assert {kind for kind, made in types.items() if "environments" in made["resources"]} == {"environments"}
    assert sum(made["max_workers"] for made in types.values()) == cluster["max_workers"]
    starts = cluster["head_start_ray_commands"][1:] + cluster["worker_start_ray_commands"][1:]
    assert len(starts) == 2
    assert all(command.startswith("export RAY_AUTH_MODE=token;") for command in starts)
    assert "~/.ray/auth_token" in cluster["file_mounts"]


@pytest.mark.parametrize("name", KUBERAY)
def test_kuberay_pods_are_valid(name: str) -> None:
    made: dict[str, Any] = KUBERAY[name]
    spec = made["spec"].get("rayClusterSpec", made["spec"])
    assert spec["authOptions"] == {"mode": "token"}
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    for group in groups:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, **group["template"]}
        kubernetes_validate.validate(pod, "1.37", strict=True)
    offers = {
        group["groupName"]: json.loads(json.loads(group["rayStartParams"].get("resources", '"{}"')))
        for group in spec["workerGroupSpecs"]
    }
    assert offers == {"servers": {}, "parameters": {}, "environments": {"environments": 8}}


def test_ray_versions_are_equal() -> None:
    image = (RAY / "Dockerfile").read_text("utf-8")
    for made in KUBERAY.values():
        spec = made["spec"].get("rayClusterSpec", made["spec"])
        assert f"rayproject/ray:{spec['rayVersion']}-" in image
