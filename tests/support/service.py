"""The whole service: a real parameter server and a real RLX server."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as rpc
from relaax.transport.grpc_options import client_options
from support.processes import Processes, Running, wait_until

PARAMETER_SERVER = (sys.executable, "-m", "relaax.server.parameter_server.main")
REPLAY_SERVER = (sys.executable, "-m", "relaax.server.replay_server.main")
RLX_SERVER = (sys.executable, "-m", "relaax.server.rlx_server.main")
LEARNER = (sys.executable, "-m", "relaax.server.learner.main")
RELAAX = (sys.executable, "-m", "relaax.cli.main")


def status_of(address: str) -> Any:
    """Return a parameter server's status of training. Raises grpc.RpcError."""
    with grpc.insecure_channel(address, options=client_options(longest=2**20)) as channel:
        return rpc.ParameterServerServiceStub(channel).GetStatus(pb.GetStatusRequest(), timeout=20, wait_for_ready=True)


Sections = Mapping[str, Mapping[str, Any]]


def write_service_config(folder: Path, sections: Sections = MappingProxyType({}), **algorithm: Any) -> Path:
    """Write a configuration of da3c with a small network.

    `sections`: further sections, and keys of others. `algorithm`: additional keys of the algorithm.
    """
    document: dict[str, Any] = {
        "relaax-parameter-server": {
            "bind": "127.0.0.1:0",
            "checkpoint-dir": str(folder / "checkpoints"),
            "metrics-dir": str(folder / "metrics"),
        },
        "relaax-rlx-server": {"bind": "127.0.0.1:0", "heartbeat": 1, "timeout": None},
        "algorithm": {"path": "da3c", "network": {"dense": [8]}, "max_global_step": 10_000_000, **algorithm},
    }
    for name, section in sections.items():
        document[name] = {**document.get(name, {}), **section}
    path = folder / "service.yaml"
    path.write_text(json.dumps(document), encoding="utf-8")  # JSON is YAML
    return path


class Service:
    """A parameter server and an RLX server that uses it."""

    def __init__(
        self,
        processes: Processes,
        folder: Path,
        env: Mapping[str, str] | None = None,
        sections: Sections = MappingProxyType({}),
        **algorithm: Any,
    ) -> None:
        """`env`: additional environment variables of the servers. `sections`: see `write_service_config`."""
        self._processes = processes
        self._env = env
        self.folder = folder
        self.config = write_service_config(folder, sections, **algorithm)
        self.parameter_server: Running
        self.rlx_server: Running
        self.start_parameter_server("127.0.0.1:0")
        self.start_rlx_server("127.0.0.1:0")

    def start_parameter_server(self, bind: str | None = None) -> None:
        """Start the parameter server. A restart uses the same address."""
        self.parameter_server, self.parameter_server_address = self._processes.start_server(
            *PARAMETER_SERVER, "--config", self.config, "--bind", bind or self.parameter_server_address, env=self._env
        )

    def start_rlx_server(self, bind: str | None = None, parameter_server: str | None = None) -> None:
        """Start the RLX server. `parameter_server`: another address of the parameter server, such as a proxy."""
        self.rlx_server, self.address = self._processes.start_server(
            *RLX_SERVER,
            *("--config", self.config, "--bind", bind or self.address),
            *("--parameter-server", parameter_server or self.parameter_server_address),
            *(("--bridge", "grpc") if parameter_server else ()),  # shared memory would bypass a proxy
            env=self._env,
        )

    @property
    def status(self) -> Any:
        return status_of(self.parameter_server_address)

    def wait_for_no_workers(self) -> Any:
        """Wait until every worker has deregistered, and return the status."""
        wait_until(lambda: not (self.status.workers or self.status.exploit_workers), "every worker has deregistered")
        return self.status


@contextmanager
def started_service(folder: Path, **algorithm: Any) -> Iterator[Service]:
    """Start a service, and end it at the end of the block."""
    with Processes(folder) as processes:
        yield Service(processes, folder, **algorithm)
