"""The sections of a configuration and their keys, except the keys of algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import pydantic
from pydantic import Field

from relaax.configuration.key_types import (
    Address,
    Addresses,
    AwsEndpoint,
    AwsKeysFile,
    CheckpointAwsS3,
    CheckpointDir,
    CheckpointInterval,
    Device,
    Duration,
    Folder,
    LogFormatKey,
    LogLevelKey,
    NoneOrAddresses,
    Origin,
    OwnKey,
    ParameterServerCa,
    ParameterServers,
    ParameterServerTokenFile,
    ReplayServerCa,
    ReplayServerTokenFile,
    S3Location,
    ServerAddress,
    StatusBind,
    TlsCertificate,
    TlsKey,
    Word,
    Wrapper,
)
from relaax.configuration.validation import Section


class CheckpointKeys(Protocol):
    """The keys of the location of checkpoints: a folder, S3, or none."""

    @property
    def checkpoint_dir(self) -> str | None:
        """The folder."""

    @property
    def checkpoint_aws_s3(self) -> Sequence[str] | None:
        """Bucket and key."""

    @property
    def aws_keys(self) -> str | None:
        """The file with the S3 credentials."""

    @property
    def aws_endpoint(self) -> str | None:
        """The URL of an S3-compatible store other than Amazon's."""


def require_one_place(keys: CheckpointKeys) -> None:
    """Raise ValueError if both a folder and S3 are given."""
    if keys.checkpoint_dir is not None and keys.checkpoint_aws_s3 is not None:
        raise ValueError("checkpoint_dir and checkpoint_aws_s3 are both given: omit one of them")


class ParameterServerSection(Section):
    """`relaax-parameter-server`: the process that holds the global parameters."""

    bind: Address = Field("localhost:7000", description="Address for workers; port 0 picks a free one.")
    shards: int = Field(1, ge=1, le=64, description="Number of parameter servers.")
    shard: int = Field(0, ge=0, description="Index of this shard, from 0; shard 0 leads.")
    first_shard: ServerAddress = Field(
        "localhost:7000",
        description="Address of shard 0, which other shards need, or @FILE.",
    )
    allow_anonymous: bool = Field(False, description="Allow other addresses than loopback without a token.")
    token_file: str | None = Field(
        None,
        description="File with the token of workers and shards; default: the variable RELAAX_PARAMETER_SERVER_TOKEN.",
    )
    tls_certificate: TlsCertificate = None
    tls_key: TlsKey = None
    tls_client_ca: str | None = Field(None, description="CA (PEM file) of the certificates that workers must present.")
    tls_ca: str | None = Field(None, description="CA (PEM file) of the other shards' certificates.")
    checkpoint_dir: CheckpointDir = None
    checkpoint_aws_s3: CheckpointAwsS3 = None
    aws_keys: AwsKeysFile = None
    aws_endpoint: AwsEndpoint = None
    checkpoint_spool: Folder | None = Field(
        None,
        description="Folder for the last checkpoint if S3 is unreachable; default: relaax/spool in "
        "$XDG_STATE_HOME or ~/.local/state.",
    )
    checkpoint_interval: CheckpointInterval = 900.0
    checkpoint_steps: int | None = Field(
        None, ge=1, description="Environment steps after which a checkpoint is written early."
    )
    checkpoints_kept: int = Field(5, ge=1, description="Newest checkpoints to keep.")
    best_checkpoints_kept: int = Field(1, ge=0, description="Checkpoints with the best mean return to keep.")
    initialize_from: str | None = Field(
        None,
        description="Checkpoints of another training, whose parameters a new one starts with: a run directory, a "
        "folder, or s3://BUCKET/KEY. Optimizer, schedule and counts are new.",
    )
    metrics_dir: Folder | None = Field(None, description="Folder of the TensorBoard run; null: none.")
    metrics_aws_s3: S3Location | None = Field(None, description="Bucket and key for a copy of the TensorBoard run.")
    tracker: Literal["mlflow"] | None = Field(
        None, description="mlflow: also send metrics, configuration and policies to MLflow."
    )
    tracker_uri: str | None = Field(
        None, description="URI of the MLflow server; default: the variable MLFLOW_TRACKING_URI."
    )
    status_bind: StatusBind = None
    device: Device = Field("cpu", description="Device that updates the parameters: cpu, gpu (the first) or gpu:I.")
    log_level: LogLevelKey = "INFO"
    log_format: LogFormatKey = "text"

    @pydantic.model_validator(mode="after")
    def _check_checkpoint_place(self) -> ParameterServerSection:
        require_one_place(self)
        return self


class RlxServerSection(Section):
    """`relaax-rlx-server`: the process that environments connect to."""

    bind: Address = Field("localhost:7001", description="Address for environments; port 0 picks a free one.")
    allow_anonymous: bool = Field(False, description="Allow other addresses than loopback without a token.")
    token_file: str | None = Field(
        None, description="File with the token of environments; default: the variable RELAAX_TOKEN."
    )
    clients_file: str | None = Field(
        None,
        description="YAML file with names, tokens and quotas of clients.",
    )
    tls_certificate: TlsCertificate = None
    tls_key: TlsKey = None
    origins: list[Origin] = Field(
        [],
        description="Origins of web pages that may connect over WebSocket, such as "
        "https://games.example.org. Pages on localhost always may.",
    )
    max_failed_handshakes: int = Field(
        20, ge=1, description="Failed handshakes per minute before an address is refused for a minute."
    )
    parameter_server: ParameterServers = Field(["localhost:7000"])
    exploit: bool = Field(False, description="Refuse clients that train.")
    checkpoint: str | None = Field(
        None,
        description="Act with these checkpoints, without a parameter server: a folder, a run directory or "
        "s3://BUCKET/KEY.",
    )
    aws_keys: AwsKeysFile = None
    aws_endpoint: AwsEndpoint = None
    parameter_server_token_file: ParameterServerTokenFile = None
    parameter_server_ca: ParameterServerCa = None
    parameter_server_certificate: str | None = Field(
        None, description="The workers' certificate (PEM file), if required."
    )
    parameter_server_key: OwnKey = None
    parameter_server_patience: float = Field(
        60.0, gt=0, description="Seconds that workers wait for an unreachable parameter server."
    )
    replay_server: NoneOrAddresses = Field(
        [], description="Addresses of the replay servers in the order of shards, or @FILE."
    )
    replay_server_token_file: ReplayServerTokenFile = None
    replay_server_ca: ReplayServerCa = None
    replay_server_certificate: str | None = Field(None, description="The workers' certificate (PEM file), if required.")
    replay_server_key: OwnKey = None
    replay_server_patience: float = Field(
        60.0, gt=0, description="Seconds after which a worker exits if no replay server is reachable."
    )
    bridge: Literal["auto", "grpc", "shared_memory", "hogwild"] = Field(
        "auto",
        description="Transport of gradients and parameters. auto: shared_memory if a shard is on this "
        "host, else grpc. hogwild: shared memory without locks. Except with grpc, replay "
        "servers on this host use shared memory too.",
    )
    wire_precision: Literal["float32", "float16", "bfloat16"] = Field(
        "float32",
        description="Number format of gradients and parameters sent by grpc; 16-bit formats halve the bytes.",
    )
    record: Folder | None = Field(
        None, description="Folder for Parquet files with all episodes that clients play; null: none."
    )
    status_bind: StatusBind = None
    log_level: LogLevelKey = "INFO"
    log_format: LogFormatKey = "text"
    device: Device | None = Field(None, description="Device of the workers: cpu, gpu or gpu:I; default: cpu.")
    inference: Literal["worker", "shared"] = Field(
        "worker",
        description="Process that computes actions. worker: each worker. shared: one process on `device` for all "
        "workers that compute no gradients; needs fork (Linux).",
    )
    blas_kernels: Literal["environment", "native"] = Field(
        "environment",
        description="OpenBLAS kernels. environment: by OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE. native: "
        "those of the processor.",
    )
    worker_start: Literal["fork", "spawn"] = Field(
        "fork",
        description="fork: copy the server's process. spawn: start a new process, which takes seconds; "
        "required on macOS.",
    )
    pin_workers: bool = Field(
        True, description="Run each worker on a core of its own, while there are free ones (Linux, device cpu)."
    )
    timeout: float | None = Field(
        None, gt=0, description="Seconds after which a connection ends at the end of an episode, for rebalancing."
    )
    drain: float = Field(
        0.0,
        ge=0,
        description="Seconds after SIGTERM in which connections end with their episodes; then they are closed.",
    )
    max_workers: int = Field(256, ge=1, description="Maximum workers; further connections must wait.")
    max_environments: int = Field(4096, ge=1, description="Maximum environments per connection.")
    max_environments_per_address: int = Field(65_536, ge=1, description="Maximum environments per network address.")
    max_handshakes: int = Field(16, ge=1, description="Maximum worker processes in the handshake.")
    handshake_timeout: float = Field(10.0, gt=0, description="Maximum seconds of a handshake.")
    idle_timeout: float = Field(600.0, gt=0, description="Seconds of silence after which a connection is closed.")
    heartbeat: float = Field(10.0, gt=0, description="Seconds between heartbeats to a waiting client.")
    memory_reserve: float = Field(
        256.0, ge=0, description="Megabytes that must remain available after a worker starts."
    )
    max_frame_megabytes: float = Field(64.0, gt=0, le=1024, description="Maximum megabytes of a client's message.")

    @property
    def only_acts(self) -> bool:
        """Whether clients that train are refused."""
        return self.exploit or self.checkpoint is not None

    @pydantic.model_validator(mode="after")
    def _check_wire_precision(self) -> RlxServerSection:
        if self.wire_precision != "float32" and self.bridge not in ("auto", "grpc"):
            raise ValueError(
                f"wire_precision {self.wire_precision} applies to grpc only, and bridge is {self.bridge}: set "
                "bridge to grpc or auto, or omit wire_precision"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _check_inference(self) -> RlxServerSection:
        if self.inference == "shared" and self.worker_start != "fork":
            raise ValueError(
                f"inference shared needs workers that are forked, and worker_start is {self.worker_start}: set "
                "worker_start to fork, or inference to worker"
            )
        return self


class ReplayServerSection(Section):
    """`relaax-replay-server`: the process that holds a shard of the replay memory."""

    bind: Address = Field("localhost:7002", description="Address for workers and learners; port 0 picks a free one.")
    shards: int = Field(0, ge=0, le=64, description="Number of replay servers; 0 for algorithms without replay memory.")
    shard: int = Field(0, ge=0, description="Index of this shard, from 0.")
    memory: float | None = Field(
        None,
        gt=0,
        description="Gigabytes for this shard's tables; default with K shards: 1/(2K) of the available memory.",
    )
    session_timeout: Duration = Field(
        600.0, description="Time without requests after which a session's memory is dropped."
    )
    allow_anonymous: bool = Field(False, description="Allow other addresses than loopback without a token.")
    token_file: str | None = Field(
        None,
        description="File with the token of workers and learners; default: the variable RELAAX_REPLAY_SERVER_TOKEN.",
    )
    tls_certificate: TlsCertificate = None
    tls_key: TlsKey = None
    tls_client_ca: str | None = Field(
        None,
        description="CA (PEM file) of the certificates that workers and learners must present.",
    )
    checkpoint_dir: CheckpointDir = None
    checkpoint_aws_s3: CheckpointAwsS3 = None
    aws_keys: AwsKeysFile = None
    aws_endpoint: AwsEndpoint = None
    checkpoint_interval: CheckpointInterval = 900.0
    status_bind: StatusBind = None
    log_level: LogLevelKey = "INFO"
    log_format: LogFormatKey = "text"

    @property
    def is_persistent(self) -> bool:
        """Whether the memory is saved in checkpoints."""
        return self.checkpoint_dir is not None or self.checkpoint_aws_s3 is not None

    @pydantic.model_validator(mode="after")
    def _check_checkpoint_place(self) -> ReplayServerSection:
        require_one_place(self)
        return self


class LearnerSection(Section):
    """`relaax-learner`: the process that learns from replay memory."""

    learners: int = Field(
        0, ge=0, le=256, description="Number of learners; 0 for algorithms whose workers learn themselves."
    )
    parameter_server: ParameterServers = Field(["localhost:7000"])
    parameter_server_token_file: ParameterServerTokenFile = None
    parameter_server_ca: ParameterServerCa = None
    parameter_server_certificate: str | None = Field(
        None, description="The learner's certificate (PEM file), if required."
    )
    parameter_server_key: OwnKey = None
    parameter_server_patience: float = Field(
        60.0, gt=0, description="Seconds that the learner waits for an unreachable parameter server."
    )
    replay_server: Addresses = Field(
        ["localhost:7002"], description="Addresses of the replay servers in the order of shards, or @FILE."
    )
    replay_server_token_file: ReplayServerTokenFile = None
    replay_server_ca: ReplayServerCa = None
    replay_server_certificate: str | None = Field(
        None, description="The learner's certificate (PEM file), if required."
    )
    replay_server_key: OwnKey = None
    replay_server_patience: float = Field(
        60.0, gt=0, description="Seconds after which the learner exits if no replay server is reachable."
    )
    bridge: Literal["auto", "grpc", "shared_memory"] = Field(
        "auto",
        description="Transport, as relaax-rlx-server.bridge.",
    )
    status_bind: StatusBind = None
    allow_anonymous: bool = Field(False, description="Allow a status_bind other than loopback.")
    log_level: LogLevelKey = "INFO"
    log_format: LogFormatKey = "text"
    device: Device | None = Field(None, description="Device of the learner: cpu, gpu or gpu:I; default: cpu.")
    blas_kernels: Literal["environment", "native"] = Field(
        "environment", description="OpenBLAS kernels, as relaax-rlx-server.blas_kernels."
    )


class TensorBoardSection(Section):
    """`relaax-tensorboard`: TensorBoard, which shows the curves of a training in the browser."""

    enabled: bool = Field(False, description="Whether `relaax run` starts it.")
    bind: Address = Field("localhost:6006", description="Address for browsers; port 0 picks a free one.")
    metrics_dir: Folder | None = Field(
        None, description="Folder of the runs; default: relaax-parameter-server.metrics_dir."
    )
    allow_anonymous: bool = Field(False, description="Allow other addresses than loopback, without a token.")


class RunSection(Section):
    """`relaax-run`: what `relaax run` starts besides the servers."""

    environment: str | None = Field(None, description="Environment family: a directory of environments/, or a path.")
    name: str | None = Field(None, description="The environment's name within its family.")
    clients: int = Field(2, ge=1, description="Client processes.")
    envs_per_client: int = Field(4, ge=1, description="Environments that a connection steps together.")
    connections_per_client: int = Field(1, ge=1, description="Connections per client, each with its own environments.")
    demonstrations: str | None = Field(
        None, description="Recorded episodes that clients play instead of environments, as `relaax clone` sets it."
    )
    kwargs: dict[str, pydantic.JsonValue] = Field(
        {},
        description="Arguments of the environment's constructor: {is_slippery: false}.",
    )
    wrappers: list[Wrapper] = Field(
        [],
        description="Wrappers, in order: names of `gymnasium.wrappers` or MODULE:CLASS, optionally with "
        "arguments: [GrayscaleObservation, {ResizeObservation: {shape: [84, 84]}}].",
    )
    register_: str | None = Field(
        None,
        alias="register",  # pydantic's models have a method of that name
        description="MODULE:FUNCTION to call first, which registers ids: minatar.gym:register_envs.",
    )
    modules: list[str] = Field(
        [],
        description="Modules to import first, which register ids: [highway_env].",
    )
    path: list[str] = Field(
        [],
        description="Folders of modules and programs, searched after this file's folder and before the "
        "working directory.",
    )
    arguments: list[Word] = Field([], description="Further arguments of the environment's command.")
    target_return: float | None = Field(None, description="Mean return of 100 episodes at which the run succeeds.")
    eval_every: int | None = Field(
        None,
        ge=1,
        description="Environment steps between two evaluations of the newest checkpoint.",
    )
    eval_episodes: int = Field(10, ge=1, description="Episodes of each evaluation.")
    target_evaluation: float | None = Field(None, description="Mean return of an evaluation at which the run succeeds.")
    max_steps: int | None = Field(None, ge=1, description="Environment steps after which the run stops.")
    max_time: Duration | None = Field(
        None,
        description="Training time after which the run stops: seconds, or 15m, 2h, 1h30m.",
    )
    web: Address | None = Field(None, description="Address of a live page of the run; port 0 picks a free one.")
    web_token_file: str | None = Field(
        None,
        description="File with the page's token, required for other addresses than loopback; default: the variable "
        "RELAAX_WEB_TOKEN.",
    )
    web_certificate: str | None = Field(None, description="The page's certificate (PEM file); enables HTTPS.")
    web_key: str | None = Field(None, description="Private key of that certificate (PEM file).")
    checkpoint_interval: float = Field(60.0, gt=0, description="Seconds between checkpoints in `relaax run`.")
    stop_timeout: float = Field(
        10.0,
        gt=0,
        description="Seconds from SIGTERM to SIGKILL for clients.",
    )

    @pydantic.model_validator(mode="after")
    def _check_target_evaluation(self) -> RunSection:
        if self.target_evaluation is not None and self.eval_every is None:
            raise ValueError("target_evaluation needs evaluations: set eval_every, or omit target_evaluation")
        return self


class ClusterSection(Section):
    """`relaax-cluster`: how a training is spread over the machines of a Ray cluster."""

    rlx_servers: int | None = Field(
        None,
        ge=1,
        description="Number of RLX servers; with scaling, the minimum. Default: one per machine; with scaling, 1.",
    )
    scaling: Literal["fixed", "refusals", "timeout"] = Field(
        "fixed",
        description="When to add or remove RLX servers. refusals: by refused clients and free places. timeout: "
        "by refused clients and unused servers.",
    )
    max_rlx_servers: int | None = Field(None, ge=1, description="Largest number of RLX servers.")
    free_places: int = Field(0, ge=0, description="Free connections to keep, with scaling: refusals.")
    idle_seconds: float = Field(60.0, gt=0, description="Seconds after which an unneeded RLX server is removed.")
    clients: int | None = Field(
        None,
        ge=0,
        description="Clients to start; default: relaax-run.clients; 0 if all run elsewhere.",
    )
    resources: dict[str, dict[str, float]] = Field(
        {},
        description="Ray resources of each process, by role: {rlx-server: {CPU: 4}, client: {environments: 1}}.",
    )

    @pydantic.model_validator(mode="after")
    def _check_scaling(self) -> ClusterSection:
        if self.scaling == "fixed" and self.max_rlx_servers is not None:
            raise ValueError("max_rlx_servers has no effect with scaling fixed: set scaling to refusals or timeout")
        if self.scaling != "fixed" and self.max_rlx_servers is None:
            raise ValueError(f"scaling {self.scaling} needs max_rlx_servers, the largest number of RLX servers")
        if self.max_rlx_servers is not None and self.max_rlx_servers < (self.rlx_servers or 1):
            raise ValueError(f"max_rlx_servers {self.max_rlx_servers} is less than rlx_servers {self.rlx_servers}")
        if self.free_places and self.scaling != "refusals":
            raise ValueError(f"free_places has no effect with scaling {self.scaling}: set scaling to refusals")
        return self
