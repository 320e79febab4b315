"""Environments that come and go, RLX servers that follow them, and machines that follow these by Ray's autoscaler."""

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
Say = Callable[[str], None]


@dataclass
class Elastic:
    """What was seen. Numbers of servers and machines by seconds; times in seconds."""

    course: list[tuple[float, int, int, int]] = field(default_factory=list)
    """Seconds, connections, RLX servers, machines."""
    up: float = 0.0
    """Until the last environment was admitted."""
    down: float = 0.0
    """From the departure of most environments until one server and one machine were left."""
    moved: int = 0
    """Environments that stayed, and moved."""
    episodes: int = 0
    """That environments have ended."""
    counted: int = 0
    """That the parameter server knows of."""


def autoscaler_config(folder: Path, machines: int, address: str) -> Path:
    """A configuration of Ray's autoscaler with its fake provider, whose machines are processes of this one."""
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


def rise_and_fall(processes: Processes, folder: Path, programs: int, each: int, rate: float, say: Say) -> Elastic:
    """Let programs with so many environments come, all but one of them go again, and then the last one."""
    seen = Elastic()
    with RayNodes(processes) as nodes:
        nodes.environment["RELAAX_TOKEN"] = TOKEN
        nodes.environment["AUTOSCALER_UPDATE_INTERVAL_S"] = "1"
        config = autoscaler_config(folder, programs, nodes.address)
        nodes.start(0, SERVER_CPUS + OTHER_CPUS, config=config, RAY_FAKE_CLUSTER="1")
        training = ClusterTraining(nodes, "da3c_gym_cartpole", folder, *_settings(programs, each))
        with training:
            training.wait_running()
            begun = time.monotonic()

            def looks(condition: Callable[[Status], bool]) -> Callable[[Status], bool]:
                def look(status: Status) -> bool:
                    servers = of_role(status, "rlx-server")
                    course = (time.monotonic() - begun, connections_of(status), len(servers), len(status["machines"]))
                    seen.course.append(course)
                    say("{:6.1f} s  {} connections  {} servers  {} machines".format(*course))
                    return condition(status)

                return look

            book = f"@{training.folder / 'rlx-server'}"
            running = [_start(processes, book, each, rate) for _ in range(programs)]
            for one in running:
                one.wait_for_line(f"admitted {each}", PATIENCE)
            training.wait_until(looks(lambda status: connections_of(status) == programs * each), "all play", PATIENCE)
            seen.up = time.monotonic() - begun
            leaving, staying = running[1:], running[0]
            gone = time.monotonic()
            finished = [_end(one) for one in leaving]
            training.wait_until(looks(lambda status: _is_small(status, each)), "one server is left", PATIENCE)
            seen.down = time.monotonic() - gone
            seen.moved = each
            finished.append(_end(staying))
            seen.episodes = sum(one["episodes"] for one in finished)
            training.wait_until(looks(lambda status: connections_of(status) == 0), "nobody plays", PATIENCE)
            seen.counted = training.stop()["episodes"]
    return seen


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


def _start(processes: Processes, book: str, each: int, rate: float) -> Running:
    return processes.start(
        sys.executable, CLIENT, book, str(each), f"{rate:g}", env={"RELAAX_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    )


def _end(running: Running) -> Any:
    code = running.stop(signal.SIGTERM, PATIENCE)
    assert code == 0, running.report()
    return json.loads(running.lines[-1])


def _is_small(status: Status, connections: int) -> bool:
    one = len(of_role(status, "rlx-server")) == 1 and len(status["machines"]) == 1
    return one and connections_of(status) == connections
