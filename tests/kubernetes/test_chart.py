"""The Helm chart: helm renders it, its manifests are valid, and invalid values are refused."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

import relaax
from support.charts import CHART, ROOT, VALUES, Container, containers, one, render, rendered, run_helm, workloads
from support.pages import blocks

OLDEST, NEWEST = "1.28", "1.37"
# Kinds of operators, whose schemas are not installed.
FOREIGN = {"ScaledObject": "keda.sh/v1alpha1", "ServiceMonitor": "monitoring.coreos.com/v1"}


@pytest.fixture(scope="module", autouse=True)
def cached_schemas() -> Iterator[None]:
    """Cache the schemas, because `validate` reads megabytes for each manifest."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))
        patched.setattr(utils, "all_versions", functools.cache(utils.all_versions))
        yield


def all_containers() -> list[Container]:
    return [container for name in VALUES for container in containers(rendered(name))]


def test_five_sets_of_values_exist() -> None:
    assert set(VALUES) == {"minimal", "distributed", "tls", "s3-keda", "fleets"}


@pytest.mark.parametrize("name", VALUES)
def test_helm_lint_reports_nothing(name: str) -> None:
    done = run_helm("lint", "--strict", CHART, "--values", VALUES[name])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout and "[ERROR]" not in done.stdout


@pytest.mark.parametrize("name", VALUES)
def test_manifests_are_valid_by_kubernetes_schemas(name: str) -> None:
    manifests = rendered(name)
    for made in manifests:
        if made["kind"] in FOREIGN:
            assert made["apiVersion"] == FOREIGN[made["kind"]]
            continue
        for version in (OLDEST, NEWEST):
            kubernetes_validate.validate(made, version, strict=True)
    named = [(made["kind"], made["metadata"]["name"]) for made in manifests]
    assert len(set(named)) == len(named)
    assert {made["metadata"]["namespace"] for made in manifests} == {"lab"}


@pytest.mark.parametrize(
    "values",
    [
        "storage.s3.bucket=my-bucket,tensorboard.enabled=true",
        "storage.s3.bucket=my-bucket,parameterServer.shards=3,replayServer.shards=2,replayServer.keep=true",
        "replayServer.shards=1,replayServer.memory=0.25,replayServer.keep=true,learner.replicas=1",
        "listen=[::],image.tag=latest,podDisruptionBudget.maxUnavailable=25%,rlxServer.service.type=NodePort",
        "networkPolicy.enabled=false,podDisruptionBudget.enabled=false,storage.volume.keep=false",
    ],
)
def test_manifests_of_other_values_are_valid(values: str) -> None:
    for made in render("--set", f"auth.allowAnonymous=true,{values}"):
        kubernetes_validate.validate(made, NEWEST, strict=True)


def test_invalid_manifest_is_found() -> None:
    made = json.loads(json.dumps(one(rendered("minimal"), "Deployment", "training-relaax-rlx-server")))
    made["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(made, NEWEST, strict=True)


def test_chart_has_version_of_package_and_oldest_kubernetes() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["appVersion"] == relaax.__version__
    assert chart["kubeVersion"] == f">={OLDEST}.0-0"
    assert {container.spec["image"] for container in containers(rendered("minimal"))} == {
        f"relaax:{relaax.__version__}"
    }


def test_schema_has_exactly_the_keys_of_values() -> None:
    """Objects with arbitrary keys are not compared; `environments` is empty by default."""
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))

    def compare(value: Any, described: dict[str, Any], where: str) -> None:
        if described.get("additionalProperties") is False:
            assert set(described["properties"]) - set(value) <= {"global"}, where
            for key, inner in value.items():
                compare(inner, described["properties"][key], f"{where}.{key}")

    compare(values, schema, "values")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (["rlxServer.replica=2"], "at '/rlxServer': additional properties 'replica' not allowed"),
        (["parametreServer.shards=2"], "additional properties 'parametreServer' not allowed"),
        (["parameterServer.shards=-1"], "at '/parameterServer/shards': minimum: got -1, want 1"),
        (["replayServer.shards=-1"], "at '/replayServer/shards': minimum: got -1, want 0"),
        (["rlxServer.replicas=many"], "at '/rlxServer/replicas': got string, want integer"),
        (["run=../elsewhere"], "at '/run'"),
        (["experiment=../../etc/passwd"], "at '/experiment'"),
        (["autoscaling.kind=knative"], "at '/autoscaling/kind'"),
        (["environments[0].name=a", "environments[0].image=b"], "missing property 'environment'"),
        (
            ["environments[0].name=Boxing!", "environments[0].image=b", "environments[0].environment=c"],
            "at '/environments/0/name'",
        ),
        (["auth.allowAnonymous=false"], "auth.token, the token of environments, is missing: `relaax keys DIR` makes"),
        (["auth.allowAnonymous=false", "auth.token=0123456789abcdef"], "auth.parameterServerToken is missing"),
        (
            [
                "auth.allowAnonymous=false",
                "auth.token=0123456789abcdef",
                "auth.parameterServerToken=0123456789abcdef",
                "replayServer.shards=1",
            ],
            "auth.replayServerToken is missing",
        ),
        (["auth.token=0123456789abcdef"], "auth.allowAnonymous admits every client, and tokens are set"),
        (["auth.allowAnonymous=false", "auth.existingSecret=a", "auth.token=0123456789abcdef"], "remove one of them"),
        (["tls.enabled=true"], "tls.ca is missing: `relaax keys DIR` makes it"),
        (["tls.existingSecret=keys"], "tls.enabled is false: set it to true"),
        (["parameterServer.shards=2"], "all shards write to one location: set storage.s3.bucket, or"),
        (["learner.replicas=1"], "learner.replicas is 1, and learners sample from replay servers"),
        (["autoscaling.kind=keda", "monitoring.kind=annotations"], "autoscaling.prometheus is missing"),
        (["autoscaling.kind=hpa"], "set monitoring.kind to annotations or serviceMonitor"),
        (
            ["autoscaling.kind=hpa", "autoscaling.minReplicas=20"],
            "autoscaling.maxReplicas is 10, less than minReplicas 20",
        ),
        (
            [f"environments[{i}].{key}=a" for i in (0, 1) for key in ("name", "image", "environment")],
            "environments: two fleets have the name a",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else ",".join(value)[:60],
)
def test_invalid_values_are_refused_with_reason(wrong: list[str], sentence: str) -> None:
    done = run_helm("template", "t", CHART, "--set", ",".join(["auth.allowAnonymous=true", *wrong]))
    assert done.returncode != 0
    assert sentence in done.stderr


def test_short_token_is_refused_and_not_shown() -> None:
    done = run_helm("template", "t", CHART, "--set", "auth.token=swordfish")
    assert "at '/auth/token': minLength: got 9, want 16" in done.stderr
    assert "swordfish" not in done.stderr


def test_containers_run_without_root_and_with_few_writable_paths() -> None:
    for container in all_containers():
        pod, own = container.pod, container.spec["securityContext"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert own == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        mounts = {mount["mountPath"]: mount for mount in container.spec["volumeMounts"]}
        writable = {path for path, mount in mounts.items() if not mount.get("readOnly")}
        assert {"/home/relaax", "/tmp"} <= writable <= {"/home/relaax", "/tmp", "/data"}
    for made in (made for name in VALUES for made in workloads(rendered(name))):
        pod = made["spec"]["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in made["spec"].get("volumeClaimTemplates", ())}
        assert {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]} == volumes
    user = re.search(r"useradd --uid (\d+)", (ROOT / "docker" / "Dockerfile").read_text("utf-8"))
    assert user is not None and user[1] == "10001"


def test_containers_have_probes_and_time_for_last_checkpoint() -> None:
    for container in all_containers():
        ports = (
            {port["name"]: port["containerPort"] for port in container.spec["ports"]}
            if "ports" in container.spec
            else {}
        )
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container.spec[name]
            if container.component == "environment":
                assert "RELAAX_ALIVE_FILE" in probe["exec"]["command"][-1]
            else:
                (asked,) = (probe[key] for key in ("httpGet", "tcpSocket") if key in probe)
                assert ports[asked["port"]] == (6006 if container.component == "tensorboard" else 7002)
        saves = any(word.startswith("--checkpoint-") for word in container.command())
        # More than the time in which a role ends, from relaax/configuration/roles.py.
        assert container.pod["terminationGracePeriodSeconds"] >= (150 if saves else 30)


def test_commands_and_variables_contain_no_secret() -> None:
    for name in VALUES:
        manifests = rendered(name)
        secrets = [made for made in manifests if made["kind"] == "Secret"]
        tokens = [value for made in secrets for value in made["stringData"].values()]
        rest = json.dumps([made for made in manifests if made["kind"] != "Secret"])
        assert not [token for token in tokens if token in rest]
        assert bool(secrets) == (name in ("distributed", "fleets"))
    for container in all_containers():
        for name, variable in container.variables.items():
            if "TOKEN" in name or "ACCESS" in name:
                assert variable["valueFrom"]["secretKeyRef"].get("optional") is None


def test_each_pod_gets_only_its_secrets() -> None:
    keys = {
        container.component: {
            *(
                variable["valueFrom"]["secretKeyRef"]["key"]
                for variable in container.variables.values()
                if "secretKeyRef" in variable.get("valueFrom", {})
            ),
            *(item["key"] for volume in container.pod["volumes"] for item in volume.get("secret", {}).get("items", ())),
        }
        for container in containers(rendered("tls"))
    }
    worker = {"ca.pem", "worker.pem", "worker-key.pem", "parameter-server-token", "replay-server-token"}
    server = {"ca.pem", "server.pem", "server-key.pem"}
    assert keys == {
        "environment": {"token", "ca.pem"},
        "rlx-server": {*worker, *server, "token", "clients.yaml"},
        "learner": worker,
        "parameter-server": {*server, "parameter-server-token"},
        "replay-server": {*server, "replay-server-token"},
    }


def allowed(manifests: list[dict[str, Any]]) -> set[tuple[str, str, int]]:
    """Return (from, to, port), by component, of the connections that the policies of both sides allow."""
    component = "app.kubernetes.io/component"
    directions: dict[str, set[tuple[str, str, int]]] = {"ingress": set(), "egress": set()}
    for made in manifests:
        if made["kind"] == "NetworkPolicy":
            own = made["spec"]["podSelector"]["matchLabels"][component]
            for direction in directions:
                for rule in made["spec"].get(direction, ()):
                    for peer in rule.get("to" if direction == "egress" else "from", ()):
                        other = peer.get("podSelector", {}).get("matchLabels", {}).get(component, "outside")
                        pair = (own, other) if direction == "egress" else (other, own)
                        directions[direction] |= {(*pair, port["port"]) for port in rule["ports"]}
    return {pair for pair in directions["ingress"] if pair[0] == "outside" or pair in directions["egress"]}


def test_network_policies_allow_only_needed_connections() -> None:
    assert allowed(rendered("tls")) == {
        ("environment", "rlx-server", 7001),
        ("rlx-server", "parameter-server", 7000),
        ("rlx-server", "replay-server", 7003),
        ("learner", "parameter-server", 7000),
        ("learner", "replay-server", 7003),
        ("parameter-server", "parameter-server", 7000),
    }
    assert allowed(rendered("fleets")) == {
        ("environment", "rlx-server", 7001),
        ("outside", "rlx-server", 7001),
        ("rlx-server", "parameter-server", 7000),
        ("parameter-server", "parameter-server", 7000),
        ("outside", "parameter-server", 7002),
        ("outside", "rlx-server", 7002),
        ("outside", "parameter-server", 6006),  # TensorBoard is in its pod
    }
    policies = [made for made in rendered("fleets") if made["kind"] == "NetworkPolicy"]
    assert {made["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for made in policies} == {
        made["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
        for made in workloads(rendered("fleets"))
    }
    assert not [made for made in render("--set", "auth.allowAnonymous=true,networkPolicy.enabled=false") if
                made["kind"] == "NetworkPolicy"]  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_selectors_match_existing_pods(name: str) -> None:
    manifests = rendered(name)
    pods = [made["spec"]["template"]["metadata"]["labels"] for made in workloads(manifests)]
    selected = {
        "Service": lambda spec: spec["selector"],
        "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
        "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
    }
    for made in manifests:
        if made["kind"] in selected:
            wanted = selected[made["kind"]](made["spec"]).items()
            assert [labels for labels in pods if wanted <= labels.items()], made["metadata"]["name"]
    for made in workloads(manifests):
        selector = made["spec"]["selector"]["matchLabels"].items()
        assert [labels for labels in pods if selector <= labels.items()] == [
            made["spec"]["template"]["metadata"]["labels"]
        ]


def test_tensorboard_shares_pod_with_single_node_volume() -> None:
    """A ReadWriteOnce volume can be mounted by one pod only; a Service finds TensorBoard in both cases."""
    for name, shares_pod in (("fleets", True), ("distributed", False), ("s3-keda", False)):
        manifests = rendered(name)
        (board,) = (container for container in containers(manifests) if container.component == "tensorboard")
        labels = board.workload["spec"]["template"]["metadata"]["labels"]
        assert labels["app.kubernetes.io/component"] == ("parameter-server" if shares_pod else "tensorboard")
        service = one(manifests, "Service", "training-relaax-tensorboard")["spec"]["selector"]
        assert service.items() <= labels.items()
        claims = {
            made["metadata"]["name"]
            for made in workloads(manifests)
            for volume in made["spec"]["template"]["spec"]["volumes"]
            if "persistentVolumeClaim" in volume
        }
        assert len(claims) == {"fleets": 1, "distributed": 2, "s3-keda": 0}[name]


def test_long_release_name_gives_valid_names() -> None:
    manifests = render(
        "--values", VALUES["distributed"], release="a-release-whose-name-has-as-many-as-53-characters-xxx"
    )
    for made in manifests:
        assert len(made["metadata"]["name"]) <= (52 if made["kind"] == "StatefulSet" else 63)


def test_rlx_servers_scale_by_workers_and_refusals() -> None:
    scaled = one(rendered("s3-keda"), "ScaledObject", "training-relaax-rlx-server")["spec"]
    (trigger,) = scaled["triggers"]
    pods = '{namespace="lab",pod=~"training-relaax-rlx-server-.*"'
    assert trigger["metadata"] == {
        "serverAddress": "http://prometheus.monitoring:9090",
        "threshold": "48",
        "query": f"sum(relaax_rlx_server_workers{pods}}}) + 16 + clamp_max(sum(increase("
        f'relaax_rlx_server_refusals_total{pods},reason=~"max_workers|memory"}}[1m])) or vector(0), 48)',
    }
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    for family in re.findall(r"relaax_\w+", trigger["metadata"]["query"]):
        assert f"| `{family}` |" in page
    for name, kind in (("s3-keda", "ScaledObject"), ("fleets", "HorizontalPodAutoscaler")):
        server = one(rendered(name), "Deployment", "training-relaax-rlx-server")
        target = one(rendered(name), kind, "training-relaax-rlx-server")["spec"]["scaleTargetRef"]["name"]
        assert target == server["metadata"]["name"]
        assert "replicas" not in server["spec"], "an upgrade would reset the number of replicas"


def test_notes_give_address_and_names_of_certificates() -> None:
    done = run_helm("install", "training", CHART, "--values", VALUES["tls"], "--dry-run=client", "--namespace", "lab")
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert "training-relaax-rlx-server.lab:7001, with the token of the Secret relaax-keys, over TLS by ca.pem" in notes
    listed = set(re.findall(r"(?m)^  (training-\S+)$", notes))
    dialled = {
        word.rpartition(":")[0]
        for container in containers(rendered("tls"))
        for argument in container.command()
        if argument.startswith(("--parameter-server=", "--replay-server=", "--first-shard=")) or ":7001" in argument
        for word in argument.partition("=")[2].split(",") or [argument]
        if word.startswith("training-")
    }
    assert dialled | {"training-relaax-rlx-server", "training-relaax-rlx-server.lab"} == listed


def leaves(values: dict[str, Any], where: str = "") -> list[str]:
    """Return the dotted names of all values."""
    found = []
    for key, value in values.items():
        found += leaves(value, f"{where}{key}.") if isinstance(value, dict) and value else [f"{where}{key}"]
    return found


def test_page_lists_every_value() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text("utf-8").partition("## Values")[2]
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    roles = ("parameterServer", "replayServer", "rlxServer", "learner")
    for name in leaves(values):
        first, _, rest = name.partition(".")
        shared = rest.partition(".")[0] if first in roles else ""
        assert (
            f"`{name}`" in page or f"`{shared}`" in page or f"`{first}.{shared or rest.partition('.')[0]}`" in page
        ), name


def shown_values() -> list[str]:
    """Return values in blocks of the page, and in commands that read them from standard input."""
    page = ROOT / "docs" / "kubernetes.md"
    given = [made.text for made in blocks(page) if made.language == "yaml"]
    for made in blocks(page):
        given += re.findall(r"<<'VALUES'\n(.*?)VALUES\n", made.text, re.DOTALL)
    return given


def test_values_of_page_render_valid_manifests(tmp_path: Path) -> None:
    given = shown_values()
    assert len(given) >= 4
    for text in given:
        (tmp_path / "values.yaml").write_text(text, encoding="utf-8")
        for made in render("--set", "auth.existingSecret=relaax-keys", "--values", tmp_path / "values.yaml"):
            kubernetes_validate.validate(made, NEWEST, strict=True)
