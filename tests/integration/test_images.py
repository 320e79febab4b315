"""The images, built as `make images` does, train across containers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from support.charts import containers, one, render
from support.image_builds import Container, ImageStore, require_buildah, stop
from support.ports import free_ports
from support.processes import Processes, Running, wait_until
from support.scrape import health, scraped, status_url
from support.screens import PASSWORD, Browser, variables, vnc_screenshot

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.checks(
        *("docker", ".dockerignore", "pyproject.toml", "setup.py", "constraints.txt"),
        *("environments/ALE", "environments/OpenAI_Gym", "tests/support/image_builds.py"),
    ),
]


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageStore]:
    require_buildah()
    made = ImageStore(tmp_path_factory.mktemp("boxes"))
    try:
        made.build()
        yield made
    finally:
        made.remove()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder for checkpoints, which the user of the containers may write to."""
    tmp_path.chmod(0o755)
    folder = tmp_path / "data"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    return folder


class Servers:
    """A parameter server and an RLX server, in a container each."""

    def __init__(
        self,
        processes: Processes,
        parameters_box: Container,
        rlx_box: Container,
        data: Path,
        experiment: str,
        port: int,
    ) -> None:
        config = f"--config=/config/{experiment}.yaml"
        volume = f"{data}:/kept"  # buildah always mounts the volume that the image declares at /data
        self._status = [f"127.0.0.1:{port}" for port in free_ports(2)]
        self.parameter_server = parameters_box.start(
            *(processes, "relaax-parameter-server", config, "--bind=127.0.0.1:0", "--checkpoint-dir=/kept/checkpoints"),
            *("--metrics-dir=/kept/metrics", f"--status-bind={self._status[0]}"),
            volume=volume,
        )
        parameters = self.parameter_server.wait_for_address(600)
        self.rlx_server = rlx_box.start(
            *(processes, "relaax-rlx-server", config, f"--bind=127.0.0.1:{port}", f"--parameter-server={parameters}"),
            f"--status-bind={self._status[1]}",
        )
        self.rlx_server.wait_for_address(600)


def steps_of(client: Running) -> int:
    """Wait until a client has ended, and return its number of steps."""
    assert client.wait(1200) == 0, client.report()
    return int(client.lines[-1].split()[0])


@pytest.mark.parametrize(
    ("image", "experiment", "name", "steps"),
    [("relaax-gym", "da3c_gym_cartpole", "CartPole-v1", 4000), ("relaax-ale", "da3c_ale_boxing", "boxing", 1600)],
)
def test_training_runs_across_containers(
    boxes: ImageStore, processes: Processes, data: Path, image: str, experiment: str, name: str, steps: int, short: bool
) -> None:
    steps *= 1 if short else 10
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    with (
        boxes.container("relaax") as parameters_box,
        boxes.container("relaax") as rlx_box,
        boxes.container(image) as client_box,
    ):
        early = client_box.start(processes, address, name, "4", "--steps", str(steps))
        wait_until(lambda: "trying again" in early.stderr, "a client that waits for its server", 300, 0.5)
        servers = Servers(processes, parameters_box, rlx_box, data, experiment, port)
        assert steps_of(early) >= steps
        subprocess.run(client_box.command("sh", "-c", 'rm "$RELAAX_ALIVE_FILE"'), check=True, capture_output=True)
        assert not client_box.is_healthy(), "only the previous client has been answered"
        client = client_box.start(processes, address, name, "4")
        wait_until(client_box.is_healthy, "a healthy client", 120, 0.5)
        assert stop(client) == 0
        assert stop(servers.rlx_server) == 0
        assert stop(servers.parameter_server) == 0
    assert list(data.glob("checkpoints/*/manifest.json")), "no checkpoint was written"
    assert list(data.glob("metrics/**/events*")), "no metrics were written"


VALUES = """
experiment: da3c_gym_cartpole
auth: {token: a-token-of-environments, parameterServerToken: a-token-of-workers}
environments:
  - {name: cartpole, image: relaax-gym, environment: CartPole-v1, environments: 4}
"""


def test_helm_chart_trains_in_the_images(boxes: ImageStore, processes: Processes, data: Path, tmp_path: Path) -> None:
    """The entry points of the images accept the arguments of the Helm chart, and its probes succeed."""
    (tmp_path / "values.yaml").write_text(VALUES, encoding="utf-8")
    manifests = render("--values", tmp_path / "values.yaml")
    secret = one(manifests, "Secret", "training-relaax-tokens")["stringData"]
    by_component = {each.component: each for each in containers(manifests)}
    # buildah mounts the volume that the image declares at /data, and all containers share the ports of this machine.
    replacements = {"/data/": "/kept/"} | {f"0.0.0.0:{port}": "127.0.0.1:0" for port in (7000, 7001, 7002)}

    def start(box: Container, component: str, **options: str) -> Running:
        variables = {
            name: variable.get("value") or secret[variable["valueFrom"]["secretKeyRef"]["key"]]
            for name, variable in by_component[component].variables.items()
            if name != "ORDINAL"
        }
        words = by_component[component].command()
        for old, new in replacements.items():
            words = [word.replace(old, new) for word in words]
        return box.start(processes, *words, env=variables, **options)

    with (
        boxes.container("relaax") as parameters_box,
        boxes.container("relaax") as rlx_box,
        boxes.container("relaax-gym") as client_box,
    ):
        parameters = start(parameters_box, "parameter-server", volume=f"{data}:/kept")
        name = "training-relaax-parameter-server"
        replacements[f"{name}-0.{name}:7000"] = parameters.wait_for_address(600)
        server = start(rlx_box, "rlx-server")
        replacements["training-relaax-rlx-server:7001"] = server.wait_for_address(600)
        client = start(client_box, "environment")
        probe = by_component["environment"].spec["readinessProbe"]["exec"]["command"]
        probe_command = client_box.command(
            *probe, env={"RELAAX_ALIVE_FILE": by_component["environment"].variables["RELAAX_ALIVE_FILE"]["value"]}
        )
        wait_until(
            lambda: subprocess.run(probe_command, capture_output=True).returncode == 0, "a ready environment", 300, 0.5
        )
        for running in (parameters, server):
            url = status_url(running)
            wait_until(lambda url=url: health(url)[0] == 200, "a ready server", 120)
        steps = "relaax_parameter_server_global_step"
        wait_until(lambda: scraped(status_url(parameters))[steps] > 1000, "training has started", 300, 0.5)
        for running in (client, server, parameters):
            assert stop(running) == 0
    assert list(data.glob("da3c_gym_cartpole/checkpoints/*/manifest.json")), "no checkpoint was written"


def test_client_images_are_small_and_have_no_framework(boxes: ImageStore, processes: Processes) -> None:
    for image in ("relaax-ale", "relaax-gym"):
        assert boxes.megabytes(image) <= 450
        with boxes.container(image) as client_box:
            code = "import importlib.util as u; print([n for n in ('tensorflow', 'grpc', 'torch') if u.find_spec(n)])"
            checked = processes.start(*client_box.command("python", "-c", code))
            assert checked.wait(120) == 0, checked.report()
            assert checked.lines == ["[]"]


def test_container_is_healthy_only_while_it_serves(boxes: ImageStore, processes: Processes) -> None:
    with boxes.container("relaax") as parameters_box:
        assert not parameters_box.is_healthy()
        arguments = ("relaax-parameter-server", "--config=/config/da3c_gym_cartpole.yaml", "--bind=127.0.0.1:0")
        started = parameters_box.start(
            processes, *arguments, "--checkpoint-dir=/tmp/checkpoints", "--metrics-dir=/tmp/metrics"
        )
        wait_until(parameters_box.is_healthy, "a healthy server", 300, 0.5)
        assert stop(started) == 0
        assert not parameters_box.is_healthy()


def test_container_shows_its_game(boxes: ImageStore, processes: Processes, tmp_path: Path) -> None:
    vnc, page = free_ports(2)
    given = {name: value for name, value in variables(vnc, page).items() if value}
    with boxes.container("relaax-ale") as client_box:
        shown = client_box.start(processes, "random", "boxing", "display", env=given)

        wait_until(lambda: is_ring(vnc_screenshot(vnc, PASSWORD, tmp_path)), "the ring of Boxing", 180, 0.5)
        with ExitStack() as stack:
            browser = Browser(stack, tmp_path / "profile")
            browser.open(page, PASSWORD)
            wait_until(lambda: is_ring(browser.canvas()), "the ring in the browser", 180, 0.5)
        assert vnc_screenshot(vnc, "another", tmp_path) is None
        assert stop(shown) == 0
        refused = client_box.start(processes, "random", "boxing", "display")
        assert refused.wait(120) == 2
        assert "no password for the screen over VNC: set RELAAX_VNC_PASSWORD" in refused.stderr


def is_ring(seen: npt.NDArray[np.uint8] | None) -> bool:
    """Whether a picture has the green of Boxing's ring."""
    return seen is not None and bool((seen == (110, 156, 66)).all(-1).sum() > 5000)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("no host", "boxing"), "address 'no host' contains ' '"),
        (("localhost:x", "boxing"), "the port must be a number from 1 to 65535, not 'x'"),
        (("localhost", "boxng"), "no game 'boxng'; the nearest is 'boxing'"),
    ],
)
def test_permanent_error_ends_the_client(
    boxes: ImageStore, processes: Processes, arguments: tuple[str, ...], sentence: str
) -> None:
    with boxes.container("relaax-ale") as client_box:
        ended = client_box.start(processes, *arguments)
        assert ended.wait(120) == 2
        assert sentence in ended.stderr
        assert "Traceback" not in ended.stderr
