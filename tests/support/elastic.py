"""A training with a changing number of environments. RLX servers and machines are scaled with it.

Ray's autoscaler adds and removes the machines.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from support.cluster_training import ClusterTraining, Status, connections_of, of_role
from support.processes import Processes, Running
from support.ray_nodes import RayNodes

CLIENT = Path(__file__).with_name("elastic_client.py")
TOKEN = "a-token-of-environments-that-come-and-go"
SERVER_CPUS, OTHER_CPUS = 4, 2
IDLE_SECONDS = 10.0
IDLE_MINUTES = 0.2
PATIENCE = 300.0
Log = Callable[[str], None]


@dataclass
class Elastic:
    """Measurements of a run. Times are in seconds."""

    course: list[tuple[float, int, int, int]] = field(default_factory=list)
    """Seconds since the start, connections, RLX servers, machines."""
    up: float = 0.0
    """Time until the last environment was admitted."""
    down: float = 0.0
    """Time from the end of most environments until one server and one machine were left."""
    moved: int = 0
    """Number of remaining environments, which moved to the last server."""
    episodes: int = 0
    """Number of episodes, counted by the environments."""
    counted: int = 0
    """Number of episodes, counted by the parameter server."""


def autoscaler_config(folder: Path, machines: int, address: str) -> Path:
    """Write a configuration of Ray's autoscaler with its fake provider: machines are processes of this machine."""
    path = folder / "autoscaler.yaml"
    resources = {"CPU": SERVER_CPUS, "object_store_memory": 100_000_000}
    document = {
        "cluster_name": "elastic",
        "max_workers": machines - 1,
        "idle_timeout_minutes": IDLE_MINUTES,
        "upscaling_speed": 100.0,
        "provider": {
            "type": "fake_multinode",
            "disable_node_updaters": True,
            "launch_multiple": True,
            "gcs_address": address,
            "use_node_id_as_ip": True,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {}, "node_config": {}, "max_workers": 0},
            "machine": {"resources": resources, "node_config": {}, "min_workers": 0, "max_workers": machines - 1},
        },
        "head_node_type": "ray.head.default",
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "initialization_commands": [],
        "setup_commands": [],
        "head_setup_commands": [],
        "worker_setup_commands": [],
        "head_start_ray_commands": [],
        "worker_start_ray_commands": [],
        "auth": {},
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def scale_up_and_down(processes: Processes, folder: Path, programs: int, each: int, rate: float, log: Log) -> Elastic:
    """Start programs with `each` environments, end all programs except one, and then end the last one."""
    measured = Elastic()
    with RayNodes(processes) as nodes:
        nodes.environment["RELAAX_TOKEN"] = TOKEN
        nodes.environment["AUTOSCALER_UPDATE_INTERVAL_S"] = "1"
        config = autoscaler_config(folder, programs, nodes.address)
        nodes.start(0, SERVER_CPUS + OTHER_CPUS, config=config, RAY_FAKE_CLUSTER="1")
        training = ClusterTraining(nodes, "da3c_gym_cartpole", folder, *_settings(programs, each))
        with training:
            training.wait_running()
            begun = time.monotonic()

            def recorded(condition: Callable[[Status], bool]) -> Callable[[Status], bool]:
                def check(status: Status) -> bool:
                    servers = of_role(status, "rlx-server")
                    course = (time.monotonic() - begun, connections_of(status), len(servers), len(status["machines"]))
                    measured.course.append(course)
                    log("{:6.1f} s  {} connections  {} servers  {} machines".format(*course))
                    return condition(status)

                return check

            addresses = f"@{training.folder / 'rlx-server'}"
            running = [_start(processes, addresses, each, rate) for _ in range(programs)]
            for one in running:
                one.wait_for_line(f"admitted {each}", PATIENCE)
            training.wait_until(
                recorded(lambda status: connections_of(status) == programs * each), "all environments play", PATIENCE
            )
            measured.up = time.monotonic() - begun
            others, last = running[1:], running[0]
            ended = time.monotonic()
            finished = [_end(one) for one in others]
            training.wait_until(recorded(lambda status: _is_small(status, each)), "one server is left", PATIENCE)
            measured.down = time.monotonic() - ended
            measured.moved = each
            finished.append(_end(last))
            measured.episodes = sum(one["episodes"] for one in finished)
            training.wait_until(recorded(lambda status: connections_of(status) == 0), "no environment plays", PATIENCE)
            measured.counted = training.stop()["episodes"]
    return measured


def _settings(programs: int, each: int) -> list[str]:
    keys = {
        "cluster.scaling": "refusals",
        "cluster.max_rlx_servers": programs,
        "cluster.idle_seconds": IDLE_SECONDS,
        "cluster.clients": 0,
        "cluster.resources": json.dumps({"rlx-server": {"CPU": SERVER_CPUS}}),
        "rlx-server.max_workers": each,
        "run.max_steps": 10**9,
    }
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]


def _start(processes: Processes, addresses: str, each: int, rate: float) -> Running:
    return processes.start(
        sys.executable, CLIENT, addresses, str(each), f"{rate:g}", env={"RELAAX_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    )


def _end(running: Running) -> Any:
    code = running.stop(signal.SIGTERM, PATIENCE)
    assert code == 0, running.report()
    return json.loads(running.lines[-1])


def _is_small(status: Status, connections: int) -> bool:
    one = len(of_role(status, "rlx-server")) == 1 and len(status["machines"]) == 1
    return one and connections_of(status) == connections
