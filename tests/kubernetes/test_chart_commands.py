"""Commands of the containers of the Helm chart: each one is parsed, and a training runs some."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from relaax.bundled import bundled_folder
from relaax.configuration import roles
from relaax.server.learner import main as learner
from relaax.server.parameter_server import main as parameter_server
from relaax.server.replay_server import main as replay_server
from relaax.server.rlx_server import main as rlx_server
from relaax.server.tensorboard import main as tensorboard
from support.charts import ROOT, VALUES, Container, containers, render, rendered
from support.processes import Processes, Running, wait_until
from support.scrape import health, scraped, status_url

APPS = {
    "relaax-parameter-server": parameter_server.app,
    "relaax-replay-server": replay_server.app,
    "relaax-rlx-server": rlx_server.app,
    "relaax-learner": learner.app,
    "relaax-tensorboard": tensorboard.app,
}
DOCKERFILES = {path.parent.name: path.read_text("utf-8") for path in (ROOT / "environments").glob("*/Dockerfile")}
FAMILIES = {
    re.findall(r'org.opencontainers.image.title="([\w-]+)"', text)[-1]: family for family, text in DOCKERFILES.items()
}
A_TOKEN = "a-token-of-the-tests"


def localized(command: list[str], files: Mapping[str, str | Path]) -> list[str]:
    """Return the command with paths and addresses of this machine instead of those of a container."""
    there = re.compile("|".join(re.escape(place) for place in sorted(files, key=len, reverse=True)))
    return [there.sub(lambda found: str(files[found[0]]), word) for word in command]


def experiment(manifests: list[dict[str, Any]], folder: Path) -> Path:
    """Write the configuration of the values, if any, to the folder and return the folder."""
    for made in manifests:
        if made["kind"] == "ConfigMap":
            (folder / "configuration.yaml").write_text(made["data"]["configuration.yaml"], encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", VALUES)
def test_every_container_has_a_valid_command(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = rendered(name)
    files = {"/config/": f"{bundled_folder('config')}/", "/experiment/": f"{experiment(manifests, tmp_path)}/"}
    for container in containers(manifests):
        with monkeypatch.context() as patched:
            for variable in container.variables:
                if variable.startswith("RELAAX_") and variable.endswith("_TOKEN"):
                    patched.setenv(variable, A_TOKEN)
            for ordinal in range(container.replicas if container.workload["kind"] == "StatefulSet" else 1):
                check(container, localized(container.command(ordinal), files))


def check(container: Container, command: list[str]) -> None:
    program, *arguments = command
    if container.component == "environment":
        address, *_ = command
        assert address == "training-relaax-rlx-server:7001"
        family = FAMILIES[container.image]
        importlib.import_module(f"environments.{family}.main").parser().parse_args(command)
    elif program == "tensorboard":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of its dependencies
            from tensorboard import default
            from tensorboard import program as board
        board.TensorBoard(plugins=default.get_plugins()).configure(["tensorboard", *arguments])
    else:
        result = CliRunner().invoke(APPS[program], [*arguments, "--check-config"])
        assert result.exit_code == 0, f"{command}: {result.output}{result.stderr}"


@pytest.mark.parametrize("name", VALUES)
def test_containers_have_tokens_of_their_role(name: str) -> None:
    by_name = {role.name: role for role in roles.ROLES}
    replay = any(made["metadata"]["name"].endswith("replay-server") for made in rendered(name))
    for container in containers(rendered(name)):
        role = by_name[container.component.replace("environment", "client")]
        tokens = {token for token in role.tokens if replay or token != roles.REPLAY_TOKEN}
        assert {variable for variable in container.variables if variable.endswith("_TOKEN")} == (
            set() if name == "minimal" else tokens
        )


@pytest.mark.parametrize(
    "wrong", ["--bnd=0.0.0.0:7001", "--set=relaax-rlx-server.max-wrkers=3", "--set=relaax-rlx-server.max-workers=-3"]
)
def test_invalid_command_is_found(wrong: str) -> None:
    (container,) = (each for each in containers(rendered("minimal")) if each.component == "rlx-server")
    command = localized(container.command(), {"/config/": f"{bundled_folder('config')}/"})
    with pytest.raises(AssertionError):
        check(container, [*command, wrong])


VALUES_OF_THE_TRAINING = """
configuration: |
  relaax-replay-server: {session-timeout: 60}
  algorithm:
    path: gorila
    learner: separate
    replay_capacity: 10000
    learning_starts: 100
    batch_size: 16
    max_global_step: 1e8
    optimizer: adam
    network: {dense: [16]}
tls: {enabled: true}
storage: {volume: {accessModes: [ReadWriteMany]}}
parameterServer: {shards: 2}
replayServer: {shards: 1, memory: 0.1}
learner: {replicas: 1}
environments:
  - {name: cartpole, image: relaax-gym, environment: CartPole-v1, environments: 2}
"""
# Values of the chart by the files of `relaax keys`.
KEYS = {
    "auth.token": "token",
    "auth.parameterServerToken": "parameter-server-token",
    "auth.replayServerToken": "replay-server-token",
    "tls.ca": "ca.pem",
    "tls.server": "server.pem",
    "tls.serverKey": "server-key.pem",
    "tls.worker": "worker.pem",
    "tls.workerKey": "worker-key.pem",
}


class Pods:
    """Pods as processes on this machine: commands of containers with their files and variables."""

    def __init__(self, processes: Processes, manifests: list[dict[str, Any]], folder: Path) -> None:
        self._processes = processes
        self._manifests = manifests
        self._containers = {container.component: container for container in containers(manifests)}
        self.folder = folder
        (folder / "experiment").mkdir()
        experiment(manifests, folder / "experiment")
        # Paths, addresses and names of pods, and their replacements on this machine. Fixed ports become free ones.
        self.replacements: dict[str, str | Path] = {
            f"/{name}/": f"{folder / name}/" for name in ("experiment", "data", "tls", "tmp")
        } | {f"0.0.0.0:{port}": "127.0.0.1:0" for port in (7000, 7001, 7002, 7003)}
        secrets = {made["metadata"]["name"]: made["stringData"] for made in manifests if made["kind"] == "Secret"}
        self._secrets = secrets
        (folder / "tls").mkdir()
        (folder / "tmp").mkdir()
        for name, content in secrets["training-relaax-tls"].items():
            (folder / "tls" / name).write_text(content, encoding="utf-8")
            (folder / "tls" / name).chmod(0o640)

    def start(self, component: str, ordinal: int = 0) -> Running:
        """Start the pod with this ordinal."""
        container = self._containers[component]
        command: list[str | Path] = [*localized(container.command(ordinal), self.replacements)]
        if component == "environment":
            command = [sys.executable, ROOT / "environments" / FAMILIES["relaax-gym"] / "main.py", *command]
        return self._processes.start(*command, cwd=self.folder, env=self.variables(container))

    def serve(self, component: str, ordinal: int = 0) -> tuple[Running, str]:
        """Start the pod, and make its address known to the others under its name."""
        running = self.start(component, ordinal)
        address = running.wait_for_address()
        pod = f"training-relaax-{component}"
        port = next(
            port["containerPort"] for port in self._containers[component].spec["ports"] if port["name"] != "status"
        )
        name = pod if component == "rlx-server" else f"{pod}-{ordinal}.{pod}"
        self.replacements[f"{name}:{port}"] = address
        return running, address

    def variables(self, container: Container) -> dict[str, str]:
        """Return the variables of the container, with values of secrets from the manifests."""
        found = {}
        for name, variable in container.variables.items():
            if "value" in variable:
                found[name] = localized([variable["value"]], self.replacements)[0]
            elif "secretKeyRef" in variable["valueFrom"]:
                reference = variable["valueFrom"]["secretKeyRef"]
                found[name] = self._secrets[reference["name"]][reference["key"]]
        return found

    def probe(self, component: str, name: str) -> bool:
        """Run the program of a probe, and return whether it succeeds."""
        container = self._containers[component]
        command = container.spec[name]["exec"]["command"]
        return subprocess.run(command, env={"PATH": "/usr/bin:/bin", **self.variables(container)}).returncode == 0


def http_status(container: Container, running: Running, name: str) -> int:
    """Return the status code that a probe over HTTP would get."""
    path = container.spec[name]["httpGet"]["path"]
    url = status_url(running)
    if path == "/metrics":
        return 200 if scraped(url) else 0
    assert path == "/healthz"
    return health(url)[0]


@pytest.mark.slow
@pytest.mark.checks("docker/helm", "relaax/configuration/roles.py", "relaax/server/command")
@pytest.mark.timeout(300)
def test_commands_of_containers_train(processes: Processes, tmp_path: Path) -> None:
    """The pods run as plain processes, with tokens and mutual TLS: each role of the service, and an environment."""
    made = processes.start("relaax", "keys", tmp_path / "keys")
    assert made.wait(60) == 0, made.report()
    (tmp_path / "values.yaml").write_text(VALUES_OF_THE_TRAINING, encoding="utf-8")
    given = [f"--set-file={key}={tmp_path / 'keys' / name}" for key, name in KEYS.items()]
    manifests = render("--values", tmp_path / "values.yaml", *given)
    found = {container.component: container for container in containers(manifests)}
    pods = Pods(processes, manifests, tmp_path)

    first, _ = pods.serve("parameter-server", 0)
    assert http_status(found["parameter-server"], first, "startupProbe") == 200
    assert http_status(found["parameter-server"], first, "livenessProbe") == 200
    assert http_status(found["parameter-server"], first, "readinessProbe") == 503, "a shard is missing"
    second, _ = pods.serve("parameter-server", 1)
    replay, _ = pods.serve("replay-server")
    learning = pods.start("learner")
    server, address = pods.serve("rlx-server")
    assert not pods.probe("environment", "startupProbe")
    environment = pods.start("environment")
    for container, running in (
        ("parameter-server", first), ("parameter-server", second), ("replay-server", replay), ("rlx-server", server),
        ("learner", learning),
    ):  # fmt: skip
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            wait_until(
                lambda c=container, r=running, p=probe: http_status(found[c], r, p) == 200,
                f"{container} is healthy",
                timeout=120,
            )
    updates = "relaax_parameter_server_updates_total"
    wait_until(lambda: scraped(status_url(first))[updates] > 5, "the learner updates", timeout=180)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert pods.probe("environment", probe), probe

    stranger = processes.start(
        sys.executable, ROOT / "environments" / "OpenAI_Gym" / "main.py", address, "CartPole-v1", "--tls-ca",
        tmp_path / "keys" / "ca.pem", "--retry-seconds", "1", env={"RELAAX_TOKEN": A_TOKEN},
    )  # fmt: skip
    assert stranger.wait(60) == 2, "the token is required, even with --allow-anonymous"
    for running in (environment, server, learning, replay, second, first):
        assert running.stop(timeout=120) == 0, running.report()
    (run,) = (tmp_path / "data").iterdir()
    assert run.name == "training"
    (*_, newest) = sorted((run / "checkpoints").glob("*/manifest.json"))
    assert len(list(newest.parent.glob("shard-*.safetensors"))) == 2
    assert list((run / "metrics").rglob("events.out.tfevents.*"))
