"""The configuration section of learners."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from relaax.configuration.sections import Address, Addresses, Device, LogFormat, LogLevel
from relaax.configuration.validation import Section


class LearnerSection(Section):
    """`relaax-learner`: the process that learns from replay memory."""

    learners: int = Field(
        0, ge=0, le=256, description="Number of learners; 0 for algorithms whose workers learn themselves."
    )
    parameter_server: Addresses = Field(
        ["localhost:7000"], description="Address of the parameter server; of all shards, shard 0 first."
    )
    parameter_server_token_file: str | None = Field(
        None,
        description="File with the parameter server's token; otherwise the environment variable "
        "RELAAX_PARAMETER_SERVER_TOKEN.",
    )
    parameter_server_ca: str | None = Field(
        None, description="File with the authority (PEM) that signed the parameter server's certificate: enables TLS."
    )
    parameter_server_certificate: str | None = Field(
        None, description="File with the learner's certificate (PEM), if the parameter server asks for one."
    )
    parameter_server_key: str | None = Field(None, description="File with that certificate's private key (PEM).")
    parameter_server_patience: float = Field(
        60.0, gt=0, description="Seconds to wait for an unreachable parameter server before the learner exits."
    )
    replay_server: Addresses = Field(
        ["localhost:7002"], description="Addresses of the replay servers, in the order of their shards."
    )
    replay_server_token_file: str | None = Field(
        None,
        description="File with the replay servers' token; otherwise the environment variable "
        "RELAAX_REPLAY_SERVER_TOKEN.",
    )
    replay_server_ca: str | None = Field(
        None, description="File with the authority (PEM) that signed the replay servers' certificates: enables TLS."
    )
    replay_server_certificate: str | None = Field(
        None, description="File with the learner's certificate (PEM), if replay servers ask for one."
    )
    replay_server_key: str | None = Field(None, description="File with that certificate's private key (PEM).")
    replay_server_patience: float = Field(
        60.0, gt=0, description="Seconds to wait until a replay server can be reached, before the learner exits."
    )
    bridge: Literal["auto", "grpc", "shared_memory"] = Field(
        "auto",
        description="Transport of gradients, parameters and samples, as relaax-rlx-server.bridge.",
    )
    status_bind: Address | None = Field(None, description="Address of /healthz and /metrics (Prometheus).")
    allow_anonymous: bool = Field(False, description="Allow a status_bind other than loopback.")
    log_level: LogLevel = Field("INFO", description="Least severe level of messages to log.")
    log_format: LogFormat = Field("text", description="text for people, json for machines: one object per line.")
    device: Device | None = Field(
        None, description="Device of the learner: cpu, gpu or gpu:I; by default cpu, or gpu if algorithm.gpu is true."
    )
    blas_kernels: Literal["environment", "native"] = Field(
        "environment", description="OpenBLAS kernels to use, as relaax-rlx-server.blas_kernels."
    )
