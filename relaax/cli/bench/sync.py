"""Time a worker's push and pull against bare calls with the same bytes, alternating, in a separate process.

`python -m relaax.cli.bench.sync PARAMETER_SERVER RAW_SERVER FINGERPRINT_FILE SECONDS OUTPUT`. The output: JSON with
`sync_ms` (by gRPC), `shared_memory_ms` (empty if server and worker are on different hosts) and `raw_grpc_ms`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from relaax.cli.bench.raw_server import METHOD
from relaax.configuration.roles import WORKERS_TOKEN
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.channel import Target
from relaax.parameters.client import ParameterClient
from relaax.parameters.grpc_options import client_options, message_bytes
from relaax.parameters.interfaces import Registration
from relaax.server.security.tokens import read_token

WARM_UP = 20
LONG = 5_000_000
DEADLINE = 60.0
ENV_STEPS = 1  # the value does not affect speed: it is only counted


def request_of(parameters: int) -> bytes:
    """Return the serialized push of a gradient of `parameters` numbers."""
    request = pb.PushRequest(
        worker_id="0" * 32,
        incarnation=time.time_ns() // 1_000_000,
        push_id=100,
        base_version=1_000,
        env_steps=100,
        global_step=1_000_000,
        want_parameters=True,
        gradient=bytes(4 * parameters),
    )
    return request.SerializeToString()


def milliseconds(call: Callable[[], Any]) -> float:
    """Return how long a call takes."""
    before = time.perf_counter()
    call()
    return (time.perf_counter() - before) * 1e3


def compare(server: str, raw_server: str, fingerprint: str, seconds: float) -> dict[str, Any]:
    """Alternate for `seconds`, at least 100 calls of each; at least 10 for long vectors, which take a second each."""
    targets = [Target(shard, read_token(None, "", WORKERS_TOKEN) or "") for shard in server.split(",")]
    bridge, local = ParameterClient(targets), ParameterClient(targets, way="auto")
    registered = bridge.register(Registration(fingerprint))
    bridge.pull()
    local.register(Registration(fingerprint))
    local.pull()
    gradient = np.random.default_rng(0).normal(scale=1e-3, size=registered.parameters).astype(np.float32)
    request = request_of(registered.parameters)
    sync: list[float] = []
    shared: list[float] = []
    raw: list[float] = []
    with grpc.insecure_channel(raw_server, options=client_options(message_bytes(registered.parameters))) as channel:
        bare = channel.unary_unary(METHOD, request_serializer=None, response_deserializer=None)  # bytes, as they are
        answer = bare(request, timeout=DEADLINE)
        ends = time.monotonic() + seconds
        is_long = registered.parameters > LONG
        warm_up, least = (WARM_UP // 10, 10) if is_long else (WARM_UP, 100)
        while len(sync) < warm_up + least or time.monotonic() < ends:
            sync.append(milliseconds(lambda: bridge.push(gradient, ENV_STEPS)))
            if local.shares_memory:
                shared.append(milliseconds(lambda: local.push(gradient, ENV_STEPS)))
            raw.append(milliseconds(lambda: bare(request, timeout=DEADLINE)))
    for each in (bridge, local):
        each.close()
    return {
        "sync_ms": sync[warm_up:],
        "shared_memory_ms": shared[warm_up:],
        "raw_grpc_ms": raw[warm_up:],
        "parameters": registered.parameters,
        "request_bytes": len(request),
        "response_bytes": len(answer),
    }


def main() -> None:
    """Compare, and write the result."""
    server, raw_server, fingerprint, seconds, output = sys.argv[1:]
    result = compare(server, raw_server, Path(fingerprint).read_text("utf-8"), float(seconds))
    Path(output).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
