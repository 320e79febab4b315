"""Every key of a configuration file but the algorithm's own, with its default, declared once."""

from __future__ import annotations

import os
import re
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


def _addresses(value: object) -> object:
    """A list, or one text with commas between the addresses."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _folder(value: str) -> str:
    if "://" in value:
        raise ValueError("the path of a folder is needed; for S3 there is a key of its own that ends in _aws_s3")
    return os.path.expanduser(value)


_AMOUNT = r"\d+(?:\.\d+)?"
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_DURATION = "".join(rf"(?:({_AMOUNT}){unit})?" for unit in _UNITS)


def _seconds(value: object) -> object:
    """Seconds of a text such as 90s or 1h30m; a number is seconds as it stands."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    if re.fullmatch(_AMOUNT, text):
        return float(text)
    found = re.fullmatch(_DURATION, text)
    if found is None or not text:
        raise ValueError("a time is a number of seconds, or one with units: 90s, 15m, 2h, 1h30m, 3d")
    return sum(float(amount) * unit for amount, unit in zip(found.groups(), _UNITS.values(), strict=True) if amount)


def _wrapper(value: object) -> object:
    """A name, or one name with arguments."""
    given = list(value.values()) if isinstance(value, dict) else [None]
    if isinstance(value, str | dict) and len(given) == 1 and isinstance(given[0], dict | None):
        return value
    raise ValueError("a wrapper is a name, or one name with its arguments: {ResizeObservation: {shape: [84, 84]}}")


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
Addresses = Annotated[
    list[Address],
    Field(min_length=1),
    pydantic.BeforeValidator(_addresses),
    pydantic.WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
Folder = Annotated[str, pydantic.AfterValidator(_folder)]
Duration = Annotated[
    float,
    Field(gt=0),
    pydantic.BeforeValidator(_seconds),
    pydantic.WithJsonSchema(
        {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": f"^({_AMOUNT}[dhms]?)+$"}]}
    ),
]
# BUCKET and KEY: what is kept in S3 stands under KEY/ in BUCKET.
S3Location = Annotated[list[str], Field(min_length=2, max_length=2)]
LogFormat = Literal["text", "json"]
Wrapper = Annotated[
    str | dict[str, dict[str, pydantic.JsonValue] | None],
    pydantic.BeforeValidator(_wrapper),
    pydantic.WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "object", "minProperties": 1, "maxProperties": 1}]}
    ),
]
# A word of a command line may look like a number in YAML.
Word = Annotated[
    str, pydantic.BeforeValidator(_word), pydantic.WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}]})
]


class ParameterServerSection(Section):
    """`relaax-parameter-server`: the process that holds the global parameters."""

    bind: Address = Field("localhost:7000", description="Where workers reach it; port 0 picks a free one.")
    shards: int = Field(1, ge=1, le=64, description="Over how many parameter servers the parameters are spread.")
    shard: int = Field(0, ge=0, description="Which of them this is, from 0; shard 0 leads.")
    first_shard: Address = Field("localhost:7000", description="Where the others find shard 0.")
    allow_anonymous: bool = Field(False, description="Bind anything but loopback without a token.")
    token_file: str | None = Field(
        None,
        description="File with the token that workers and other shards must show; else the environment variable "
        "RELAAX_PARAMETER_SERVER_TOKEN.",
    )
    tls_certificate: str | None = Field(None, description="File with this server's certificate (PEM): TLS is on.")
    tls_key: str | None = Field(None, description="File with the certificate's private key (PEM).")
    tls_client_ca: str | None = Field(
        None, description="File with the authority (PEM) that must have signed the certificates of workers: mutual TLS."
    )
    tls_ca: str | None = Field(
        None, description="File with the authority (PEM) that shards check each other's certificates by."
    )
    checkpoint_dir: Folder | None = Field(None, description="Folder of the checkpoints; none are written without it.")
    checkpoint_aws_s3: S3Location | None = Field(
        None, description="Bucket and key of the checkpoints in S3, in place of a folder."
    )
    aws_keys: str | None = Field(
        None, description="YAML file with `access` and `secret` for S3; else what boto3 finds by itself."
    )
    aws_endpoint: str | None = Field(None, description="URL of a store that speaks S3, where it is not Amazon's.")
    checkpoint_spool: Folder | None = Field(
        None,
        description="Folder where the last checkpoint waits while S3 is away, until the next start; else "
        "relaax/spool in $XDG_STATE_HOME or ~/.local/state.",
    )
    checkpoint_interval: float = Field(
        900.0,
        gt=0,
        description="Seconds between checkpoints; the first ones come after 1, 2, 4 and 8 minutes, if it is longer.",
    )
    checkpoints_kept: int = Field(5, ge=1, description="How many of the newest checkpoints are kept.")
    best_checkpoints_kept: int = Field(1, ge=0, description="How many of the best by mean return are kept besides.")
    metrics_dir: Folder | None = Field(None, description="Folder of the TensorBoard run; none is written without it.")
    metrics_aws_s3: S3Location | None = Field(None, description="Bucket and key that the TensorBoard run is copied to.")
    status_bind: Address | None = Field(None, description="Where /healthz and /metrics (Prometheus) are served.")
    device: Device = Field("cpu", description="Where parameters are kept and updated: cpu, gpu (the first) or gpu:I.")
    log_level: LogLevel = Field("INFO", description="The least serious message that is logged.")
    log_format: LogFormat = Field("text", description="text for people, json for machines: one object each line.")

    @pydantic.model_validator(mode="after")
    def _one_place(self) -> ParameterServerSection:
        if self.checkpoint_dir is not None and self.checkpoint_aws_s3 is not None:
            raise ValueError("checkpoint_dir and checkpoint_aws_s3 are both given: checkpoints are kept in one place")
        return self


class RlxServerSection(Section):
    """`relaax-rlx-server`: the process that environments connect to."""

    bind: Address = Field("localhost:7001", description="Where environments reach it; port 0 picks a free one.")
    allow_anonymous: bool = Field(False, description="Bind anything but loopback without a token.")
    token_file: str | None = Field(
        None, description="File with the token that environments must show; else the environment variable RELAAX_TOKEN."
    )
    clients_file: str | None = Field(
        None,
        description="YAML file with names of clients, a token for each, and quotas; it is read again when it changes.",
    )
    tls_certificate: str | None = Field(None, description="File with this server's certificate (PEM): TLS is on.")
    tls_key: str | None = Field(None, description="File with the certificate's private key (PEM).")
    max_failed_handshakes: int = Field(
        20, ge=1, description="Failed handshakes in a minute after which an address is turned away for a while."
    )
    parameter_server: Addresses = Field(
        ["localhost:7000"], description="Where the parameter server is; all of its shards, shard 0 first."
    )
    parameter_server_token_file: str | None = Field(
        None,
        description="File with the parameter server's token; else the environment variable "
        "RELAAX_PARAMETER_SERVER_TOKEN.",
    )
    parameter_server_ca: str | None = Field(
        None, description="File with the authority (PEM) that signed the parameter server's certificate: TLS is used."
    )
    parameter_server_certificate: str | None = Field(
        None, description="File with the workers' own certificate (PEM), where the parameter server asks for one."
    )
    parameter_server_key: str | None = Field(None, description="File with that certificate's private key (PEM).")
    parameter_server_patience: float = Field(
        60.0, gt=0, description="Seconds that a worker waits for a parameter server that is away."
    )
    bridge: Literal["auto", "grpc", "shared_memory", "hogwild"] = Field(
        "auto",
        description="How gradients and parameters travel: auto is shared_memory where a shard of the parameter server "
        "is on the workers' own host, and grpc else; shared_memory ends a worker where it is not. With hogwild workers "
        "update the parameters there by themselves, without locks.",
    )
    wire_precision: Literal["float32", "float16", "bfloat16"] = Field(
        "float32",
        description="Numbers of gradients and parameters on the wire, where they travel by grpc: of 16 bits, they are "
        "rounded, and take half the bytes. The parameter server keeps float32.",
    )
    status_bind: Address | None = Field(None, description="Where /healthz and /metrics (Prometheus) are served.")
    log_level: LogLevel = Field("INFO", description="The least serious message that is logged.")
    log_format: LogFormat = Field("text", description="text for people, json for machines: one object each line.")
    device: Device | None = Field(
        None, description="Where workers compute: cpu, gpu or gpu:I; by default cpu, gpu where algorithm.gpu is true."
    )
    blas_kernels: Literal["environment", "native"] = Field(
        "environment",
        description="Which kernels of OpenBLAS multiply matrices: those that OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE of "
        "the environment ask for, or, whatever these say, those for the processor that is there.",
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
    max_environments: int = Field(4096, ge=1, description="Environments of a connection.")
    max_environments_per_address: int = Field(
        65_536, ge=1, description="Environments of all connections that come from one network address."
    )
    max_handshakes: int = Field(16, ge=1, description="Upper bound on processes not yet let in.")
    handshake_timeout: float = Field(10.0, gt=0, description="Seconds a connection has to introduce itself.")
    idle_timeout: float = Field(600.0, gt=0, description="Seconds of silence after which a connection is closed.")
    heartbeat: float = Field(10.0, gt=0, description="Seconds after which a waiting client is told that work goes on.")
    memory_reserve: float = Field(
        256.0, ge=0, description="Megabytes that must stay available after a new worker has started."
    )
    max_frame_megabytes: float = Field(64.0, gt=0, le=1024, description="The longest message a client may send.")

    @pydantic.model_validator(mode="after")
    def _a_wire_to_be_precise_on(self) -> RlxServerSection:
        if self.wire_precision != "float32" and self.bridge not in ("auto", "grpc"):
            raise ValueError(
                f"wire_precision {self.wire_precision} is for what travels by grpc, and bridge is {self.bridge}: set "
                "bridge to grpc or auto, or leave wire_precision out"
            )
        return self


class RunSection(Section):
    """`relaax-run`: what `relaax run` starts beside the servers."""

    environment: str | None = Field(None, description="Environment family: a directory of environments/, or a path.")
    name: str | None = Field(None, description="The environment's name within its family.")
    clients: int = Field(2, ge=1, description="Client processes; each is one connection and one worker.")
    envs_per_client: int = Field(4, ge=1, description="Environments that each connection of a client steps together.")
    connections_per_client: int = Field(
        1, ge=1, description="Connections of each client, with environments of their own, in threads of one process."
    )
    kwargs: dict[str, pydantic.JsonValue] = Field(
        {},
        description="Arguments of the environment's constructor, as `gymnasium.make` takes them: {is_slippery: false}.",
    )
    wrappers: list[Wrapper] = Field(
        [],
        description="What each environment is put into, in order: names of `gymnasium.wrappers` or MODULE:CLASS, with "
        "their arguments if they have any: [GrayscaleObservation, {ResizeObservation: {shape: [84, 84]}}].",
    )
    register_: str | None = Field(
        None,
        alias="register",  # pydantic's models have a method of that name
        description="MODULE:FUNCTION that is called first, for packages that register their ids by a call: "
        "minatar.gym:register_envs.",
    )
    arguments: list[Word] = Field([], description="Further arguments of the environment's command.")
    target_return: float | None = Field(None, description="Mean return of 100 episodes at which the run has succeeded.")
    max_steps: int | None = Field(None, ge=1, description="Environment steps after which the run stops.")
    max_time: Duration | None = Field(
        None,
        description="Time of training after which the run stops, counted from its first connection: seconds, or 15m, "
        "2h, 1h30m.",
    )
    checkpoint_interval: float = Field(60.0, gt=0, description="Seconds between checkpoints in `relaax run`.")
    stop_timeout: float = Field(
        10.0,
        gt=0,
        description="Seconds that clients have to end, after SIGTERM, when the run stops; then they are killed.",
    )
