"""Every key of a configuration file but the algorithm's own, with its default, declared once."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from pydantic import Field

from relaax.configuration.validation import Section

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


def _address(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("an address is HOST:PORT, such as localhost:7001")
    return value


def _device(value: str) -> str:
    kind, colon, index = value.partition(":")
    if value != "cpu" and (kind != "gpu" or (colon and not (index.isascii() and index.isdecimal()))):
        raise ValueError("a device is cpu, gpu (the first one) or gpu:I, such as gpu:1")
    return value


def _folder(value: str) -> str:
    if "://" in value:
        raise ValueError("the path of a folder is needed; other stores are not there yet")
    return value


def _word(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Address = Annotated[
    str, pydantic.AfterValidator(_address), pydantic.WithJsonSchema({"type": "string", "pattern": r"^.+:[0-9]{1,5}$"})
]
Device = Annotated[
    str,
    pydantic.AfterValidator(_device),
    pydantic.WithJsonSchema({"type": "string", "pattern": "^(cpu|gpu(:[0-9]+)?)$"}),
]
Folder = Annotated[str, pydantic.AfterValidator(_folder)]
# A word of a command line may look like a number in YAML.
Word = Annotated[
    str, pydantic.BeforeValidator(_word), pydantic.WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}]})
]


class ParameterServerSection(Section):
    """`relaax-parameter-server`: the process that holds the global parameters."""

    bind: Address = Field("localhost:7000", description="Where workers reach it; port 0 picks a free one.")
    allow_anonymous: bool = Field(False, description="Bind anything but loopback without a token.")
    checkpoint_dir: Folder | None = Field(None, description="Folder of the checkpoints; none are written without it.")
    checkpoint_interval: float = Field(900.0, gt=0, description="Seconds between checkpoints.")
    checkpoints_kept: int = Field(5, ge=1, description="How many of the newest checkpoints are kept.")
    best_checkpoints_kept: int = Field(1, ge=0, description="How many of the best by mean return are kept besides.")
    metrics_dir: str | None = Field(None, description="Folder of the TensorBoard run; none is written without it.")
    device: Device = Field("cpu", description="Where parameters are kept and updated: cpu, gpu (the first) or gpu:I.")
    log_level: LogLevel = Field("INFO", description="The least serious message that is logged.")


class RlxServerSection(Section):
    """`relaax-rlx-server`: the process that environments connect to."""

    bind: Address = Field("localhost:7001", description="Where environments reach it; port 0 picks a free one.")
    allow_anonymous: bool = Field(False, description="Bind anything but loopback without a token.")
    parameter_server: Address = Field("localhost:7000", description="Where the parameter server is.")
    log_level: LogLevel = Field("INFO", description="The least serious message that is logged.")
    device: Device | None = Field(
        None, description="Where workers compute: cpu, gpu or gpu:I; by default cpu, gpu where algorithm.gpu is true."
    )
    worker_start: Literal["fork", "spawn"] = Field(
        "fork",
        description="How a worker starts: fork copies the server's process, spawn starts a fresh one, which takes "
        "seconds and shares no memory but is what macOS needs.",
    )
    timeout: float | None = Field(
        None, gt=0, description="Seconds after which a worker ends at its next episode's end, for rebalancing."
    )
    max_workers: int = Field(256, ge=1, description="Upper bound on workers; more connections are told to wait.")
    max_handshakes: int = Field(16, ge=1, description="Upper bound on processes not yet let in.")
    handshake_timeout: float = Field(10.0, gt=0, description="Seconds a connection has to introduce itself.")
    idle_timeout: float = Field(600.0, gt=0, description="Seconds of silence after which a connection is closed.")
    heartbeat: float = Field(10.0, gt=0, description="Seconds after which a waiting client is told that work goes on.")
    memory_reserve: float = Field(
        256.0, ge=0, description="Megabytes that must stay available after a new worker has started."
    )
    max_frame_megabytes: float = Field(64.0, gt=0, le=1024, description="The longest message a client may send.")


class RunSection(Section):
    """`relaax-run`: what `relaax run` starts beside the servers."""

    environment: str | None = Field(None, description="Environment family: a directory of environments/, or a path.")
    name: str | None = Field(None, description="The environment's name within its family.")
    clients: int = Field(2, ge=1, description="Client processes; each is one connection and one worker.")
    envs_per_client: int = Field(1, ge=1, description="Environments that each client steps together.")
    arguments: list[Word] = Field([], description="Further arguments of the environment's command.")
    target_return: float | None = Field(None, description="Mean return of 100 episodes at which the run has succeeded.")
    max_steps: int | None = Field(None, ge=1, description="Environment steps after which the run stops.")
    checkpoint_interval: float = Field(60.0, gt=0, description="Seconds between checkpoints in `relaax run`.")


SECTIONS: dict[str, type[Section]] = {
    "relaax-parameter-server": ParameterServerSection,
    "relaax-rlx-server": RlxServerSection,
    "relaax-run": RunSection,
}
"""The model of each section by its name. The section `algorithm` is the algorithm's own."""
