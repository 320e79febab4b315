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
    shards: int = Field(1, ge=1, le=64, description="Number of parameter servers that share the parameters.")
    shard: int = Field(0, ge=0, description="Index of this shard, from 0; shard 0 leads.")
    first_shard: ServerAddress = Field(
        "localhost:7000",
        description="Address of shard 0, for the other shards; or @FILE with it on the first line.",
    )
    allow_anonymous: bool = Field(False, description="Allow a bind address other than loopback without a token.")
    token_file: str | None = Field(
        None,
        description="File with the token that workers and other shards must send; by default the variable "
        "RELAAX_PARAMETER_SERVER_TOKEN.",
    )
    tls_certificate: TlsCertificate = None
    tls_key: TlsKey = None
    tls_client_ca: str | None = Field(
        None, description="File with the CA (PEM) that must have signed the workers' certificates: mutual TLS."
    )
    tls_ca: str | None = Field(
        None, description="File with the CA (PEM) that must have signed the other shards' certificates."
    )
    checkpoint_dir: CheckpointDir = None
    checkpoint_aws_s3: CheckpointAwsS3 = None
    aws_keys: AwsKeysFile = None
    aws_endpoint: AwsEndpoint = None
    checkpoint_spool: Folder | None = Field(
        None,
        description="Folder that keeps the last checkpoint until the next start if S3 is unreachable; by default "
        "relaax/spool in $XDG_STATE_HOME or ~/.local/state.",
    )
    checkpoint_interval: CheckpointInterval = 900.0
    checkpoint_steps: int | None = Field(
        None, ge=1, description="Environment steps after which a checkpoint is written early; null: never."
    )
    checkpoints_kept: int = Field(5, ge=1, description="Number of newest checkpoints to keep.")
    best_checkpoints_kept: int = Field(1, ge=0, description="Number of checkpoints with the best mean return to keep.")
    metrics_dir: Folder | None = Field(None, description="Folder of the TensorBoard run; null: none is written.")
    metrics_aws_s3: S3Location | None = Field(None, description="Bucket and key for a copy of the TensorBoard run.")
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
    allow_anonymous: bool = Field(False, description="Allow a bind address other than loopback without a token.")
    token_file: str | None = Field(
        None, description="File with the token that environments must send; by default the variable RELAAX_TOKEN."
    )
    clients_file: str | None = Field(
        None,
        description="YAML file with client names, their tokens and quotas; read again when it changes.",
    )
    tls_certificate: TlsCertificate = None
    tls_key: TlsKey = None
    origins: list[Origin] = Field(
        [],
        description="Origins of web pages that may connect over WebSocket, such as https://games.example.org. Pages "
        "of the browser's own computer, and programs that are not browsers, always may.",
    )
    max_failed_handshakes: int = Field(
        20, ge=1, description="Failed handshakes per minute after which an address is refused for a while."
    )
    parameter_server: ParameterServers = Field(["localhost:7000"])
    exploit: bool = Field(False, description="Refuse clients that train; serve only clients that act.")
    checkpoint: str | None = Field(
        None,
        description="Location of checkpoints to serve instead of a parameter server's model, for clients that only "
        "act: a folder, a run directory or s3://BUCKET/KEY. Newer checkpoints are loaded when they are published.",
    )
    aws_keys: AwsKeysFile = None
    aws_endpoint: AwsEndpoint = None
    parameter_server_token_file: ParameterServerTokenFile = None
    parameter_server_ca: ParameterServerCa = None
    parameter_server_certificate: str | None = Field(
        None, description="File with the workers' certificate (PEM), if the parameter server requires one."
    )
    parameter_server_key: OwnKey = None
    parameter_server_patience: float = Field(
        60.0, gt=0, description="Seconds that a worker waits for an unreachable parameter server before it exits."
    )
    replay_server: NoneOrAddresses = Field(
        [], description="Addresses of the replay servers in the order of their shards; or @FILE."
    )
    replay_server_token_file: ReplayServerTokenFile = None
    replay_server_ca: ReplayServerCa = None
    replay_server_certificate: str | None = Field(
        None, description="File with the workers' certificate (PEM), if replay servers require one."
    )
    replay_server_key: OwnKey = None
    replay_server_patience: float = Field(
        60.0, gt=0, description="Seconds after which a worker exits if no replay server is reachable."
    )
    bridge: Literal["auto", "grpc", "shared_memory", "hogwild"] = Field(
        "auto",
        description="Transport of gradients and parameters. auto: shared_memory if a shard of the parameter server is "
        "on this host, else grpc. shared_memory: workers on another host exit. hogwild: workers update the shared "
        "parameters themselves, without locks. Except with grpc, replay servers on this host use shared memory too.",
    )
    wire_precision: Literal["float32", "float16", "bfloat16"] = Field(
        "float32",
        description="Number format of gradients and parameters sent by grpc; 16-bit formats round them and halve the "
        "bytes. The parameter server keeps float32.",
    )
    status_bind: StatusBind = None
    log_level: LogLevelKey = "INFO"
    log_format: LogFormatKey = "text"
    device: Device | None = Field(
        None, description="Device of the workers: cpu, gpu or gpu:I; by default cpu, or gpu if algorithm.gpu is true."
    )
    blas_kernels: Literal["environment", "native"] = Field(
        "environment",
        description="OpenBLAS kernels. environment: those that the variables OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE "
        "request. native: those of the processor, regardless of the variables.",
    )
    worker_start: Literal["fork", "spawn"] = Field(
        "fork",
        description="How a worker starts. fork: as a copy of the server's process. spawn: as a new process, which "
        "takes seconds and shares no memory; required on macOS.",
    )
    timeout: float | None = Field(
        None, gt=0, description="Seconds after which a worker exits at the end of an episode, for rebalancing."
    )
    drain: float = Field(
        0.0,
        ge=0,
        description="Seconds after SIGTERM in which each connection ends with its episode, so that clients can move to "
        "another server; then the others are closed. New connections are not accepted.",
    )
    max_workers: int = Field(256, ge=1, description="Maximum number of workers; further connections must wait.")
    max_environments: int = Field(4096, ge=1, description="Maximum number of environments per connection.")
    max_environments_per_address: int = Field(
        65_536, ge=1, description="Maximum number of environments per network address, over its connections."
    )
    max_handshakes: int = Field(16, ge=1, description="Maximum number of worker processes in the handshake.")
    handshake_timeout: float = Field(10.0, gt=0, description="Maximum seconds of a handshake.")
    idle_timeout: float = Field(600.0, gt=0, description="Seconds of silence after which a connection is closed.")
    heartbeat: float = Field(10.0, gt=0, description="Seconds between heartbeats to a waiting client.")
    memory_reserve: float = Field(
        256.0, ge=0, description="Megabytes that must remain available after a new worker has started."
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


class ReplayServerSection(Section):
    """`relaax-replay-server`: the process that holds a shard of the replay memory."""

    bind: Address = Field("localhost:7002", description="Address for workers and learners; port 0 picks a free one.")
    shards: int = Field(
        0, ge=0, le=64, description="Number of replay servers that share the memory; 0 for algorithms without one."
    )
    shard: int = Field(0, ge=0, description="Index of this shard, from 0.")
    memory: float | None = Field(
        None,
        gt=0,
        description="Gigabytes that the tables of this shard may take; by default 1/(2K) of the available memory with "
        "K shards, because all may be on one host.",
    )
    session_timeout: Duration = Field(
        600.0, description="Time without a request after which the memory of a session is dropped."
    )
    allow_anonymous: bool = Field(False, description="Allow a bind address other than loopback without a token.")
    token_file: str | None = Field(
        None,
        description="File with the token that workers and learners must send; by default the variable "
        "RELAAX_REPLAY_SERVER_TOKEN.",
    )
    tls_certificate: TlsCertificate = None
    tls_key: TlsKey = None
    tls_client_ca: str | None = Field(
        None,
        description="File with the CA (PEM) that must have signed the certificates of workers and learners: mutual "
        "TLS.",
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
        None, description="File with the learner's certificate (PEM), if the parameter server requires one."
    )
    parameter_server_key: OwnKey = None
    parameter_server_patience: float = Field(
        60.0, gt=0, description="Seconds that the learner waits for an unreachable parameter server before it exits."
    )
    replay_server: Addresses = Field(
        ["localhost:7002"], description="Addresses of the replay servers in the order of their shards; or @FILE."
    )
    replay_server_token_file: ReplayServerTokenFile = None
    replay_server_ca: ReplayServerCa = None
    replay_server_certificate: str | None = Field(
        None, description="File with the learner's certificate (PEM), if replay servers require one."
    )
    replay_server_key: OwnKey = None
    replay_server_patience: float = Field(
        60.0, gt=0, description="Seconds after which the learner exits if no replay server is reachable."
    )
    bridge: Literal["auto", "grpc", "shared_memory"] = Field(
        "auto",
        description="Transport of gradients, parameters and samples, as relaax-rlx-server.bridge.",
    )
    status_bind: StatusBind = None
    allow_anonymous: bool = Field(False, description="Allow a status_bind other than loopback.")
    log_level: LogLevelKey = "INFO"
    log_format: LogFormatKey = "text"
    device: Device | None = Field(
        None, description="Device of the learner: cpu, gpu or gpu:I; by default cpu, or gpu if algorithm.gpu is true."
    )
    blas_kernels: Literal["environment", "native"] = Field(
        "environment", description="OpenBLAS kernels to use, as relaax-rlx-server.blas_kernels."
    )


class TensorBoardSection(Section):
    """`relaax-tensorboard`: TensorBoard, which shows the curves of a training in the browser."""

    enabled: bool = Field(False, description="Whether `relaax run` starts it.")
    bind: Address = Field("localhost:6006", description="Address for browsers; port 0 picks a free one.")
    metrics_dir: Folder | None = Field(
        None, description="Folder with the runs to show; by default relaax-parameter-server.metrics_dir."
    )
    allow_anonymous: bool = Field(False, description="Allow a bind address other than loopback, without a token.")


class RunSection(Section):
    """`relaax-run`: what `relaax run` starts besides the servers."""

    environment: str | None = Field(None, description="Environment family: a directory of environments/, or a path.")
    name: str | None = Field(None, description="The environment's name within its family.")
    clients: int = Field(2, ge=1, description="Client processes; each is one connection and one worker.")
    envs_per_client: int = Field(4, ge=1, description="Environments that each connection of a client steps together.")
    connections_per_client: int = Field(
        1, ge=1, description="Connections per client, each with its own environments, in threads of one process."
    )
    kwargs: dict[str, pydantic.JsonValue] = Field(
        {},
        description="Arguments of the environment's constructor, as for `gymnasium.make`: {is_slippery: false}.",
    )
    wrappers: list[Wrapper] = Field(
        [],
        description="Wrappers of each environment, in order: names of `gymnasium.wrappers` or MODULE:CLASS, optionally "
        "with arguments: [GrayscaleObservation, {ResizeObservation: {shape: [84, 84]}}].",
    )
    register_: str | None = Field(
        None,
        alias="register",  # pydantic's models have a method of that name
        description="MODULE:FUNCTION to call first, which registers the ids of a package: minatar.gym:register_envs.",
    )
    modules: list[str] = Field(
        [],
        description="Modules to import first, which register the ids of a package: [highway_env].",
    )
    path: list[str] = Field(
        [],
        description="Folders to search for modules and programs of the environment, after the folder of this file and "
        "before the working directory. `relaax run` sets it in the run directory.",
    )
    arguments: list[Word] = Field([], description="Further arguments of the environment's command.")
    target_return: float | None = Field(None, description="Mean return of 100 episodes at which the run succeeds.")
    eval_every: int | None = Field(
        None,
        ge=1,
        description="Environment steps between two evaluations, which play the newest checkpoint greedily during "
        "training. The best checkpoint is then the best by evaluation. null: no evaluation.",
    )
    eval_episodes: int = Field(10, ge=1, description="Episodes of each evaluation.")
    target_evaluation: float | None = Field(
        None, description="Mean return of an evaluation at which the run succeeds; needs eval_every."
    )
    max_steps: int | None = Field(None, ge=1, description="Environment steps after which the run stops.")
    max_time: Duration | None = Field(
        None,
        description="Training time after which the run stops, counted from its first connection: seconds, or 15m, "
        "2h, 1h30m.",
    )
    checkpoint_interval: float = Field(60.0, gt=0, description="Seconds between checkpoints in `relaax run`.")
    stop_timeout: float = Field(
        10.0,
        gt=0,
        description="Seconds from SIGTERM to SIGKILL for clients when the run stops.",
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
        description="Number of RLX servers, or with scaling the smallest number; by default one on each machine, or 1 "
        "with scaling.",
    )
    scaling: Literal["fixed", "refusals", "timeout"] = Field(
        "fixed",
        description="Whether to change the number of RLX servers. fixed: never. refusals: add one when one refuses a "
        "connection or fewer than `free_places` are free; remove one when one fewer would have been enough for "
        "`idle_seconds`, and move its connections at the end of their episodes. timeout: add one when one refuses a "
        "connection; remove the last one when it had no connection for `idle_seconds`.",
    )
    max_rlx_servers: int | None = Field(None, ge=1, description="Largest number of RLX servers, with scaling.")
    free_places: int = Field(0, ge=0, description="Connections for which to keep room, with scaling: refusals.")
    idle_seconds: float = Field(
        60.0, gt=0, description="Seconds after which an RLX server that is not needed is removed, with scaling."
    )
    clients: int | None = Field(
        None,
        ge=0,
        description="Clients to start; by default relaax-run.clients; 0 if all run elsewhere.",
    )
    resources: dict[str, dict[str, float]] = Field(
        {},
        description="Ray resources of each process, by role: {rlx-server: {CPU: 4}, client: {environments: 1}}; by "
        "default one CPU, and for a client one `environments` if a machine has that resource.",
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
