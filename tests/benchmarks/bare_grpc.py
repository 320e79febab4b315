"""A comparison of a worker's push and pull with bare gRPC calls of the same size, whose bytes are not parsed.

`python tests/benchmarks/bare_grpc.py serve PARAMETERS` answers every call with the same bytes. Their number is the size
of the parameter server's answer to a push. `python tests/benchmarks/bare_grpc.py compare PARAMETER_SERVER RAW_SERVER
FINGERPRINT_FILE SECONDS OUTPUT` alternates pushes and bare calls. It writes JSON to OUTPUT: `sync_ms` (by gRPC),
`shared_memory_ms` (empty if server and worker are on different hosts) and `raw_grpc_ms`.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from relaax.cli.bench.exchange import push_calls, time_alternately
from relaax.parameters import parameter_server_pb2 as pb
from relaax.transport.grpc_options import client_options, message_bytes, server_options
from relaax.transport.process_resources import keep_freed_memory

SERVICE, NAME = "relaax.Bench", "Exchange"
METHOD = f"/{SERVICE}/{NAME}"
THREADS = 8  # the parameter server's number
DEADLINE = 60.0


def answer_of(parameters: int) -> bytes:
    """Return the serialized answer to a push that requests parameters."""
    answer = pb.PushResponse(global_step=1_000_000, version=1_000, staleness=1, parameters=bytes(4 * parameters))
    return answer.SerializeToString()


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


def serve(parameters: int) -> None:
    """Print a line with the server's address, and serve until a signal arrives."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    keep_freed_memory(4 * parameters)
    answer = answer_of(parameters)

    def exchange(request: bytes, context: grpc.ServicerContext) -> bytes:
        return answer

    server = grpc.server(futures.ThreadPoolExecutor(THREADS), options=server_options(message_bytes(parameters)))
    handlers = {NAME: grpc.unary_unary_rpc_method_handler(exchange)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"the bare gRPC server is listening on 127.0.0.1:{port}", flush=True)
    stop.wait()
    server.stop(None)


def compare(servers: str, raw_server: str, fingerprint: str, seconds: float) -> dict[str, Any]:
    """Return the milliseconds of every call, by kind."""
    with push_calls(servers, fingerprint) as (calls, length):
        request = request_of(length)
        with grpc.insecure_channel(raw_server, options=client_options(message_bytes(length))) as channel:
            bare = channel.unary_unary(METHOD, request_serializer=None, response_deserializer=None)
            answer = bare(request, timeout=DEADLINE)
            raw = {"raw_grpc_ms": lambda: bare(request, timeout=DEADLINE)}
            times = time_alternately({**calls, **raw}, length, seconds)
    sizes = {"parameters": length, "request_bytes": len(request), "response_bytes": len(answer)}
    return {"shared_memory_ms": [], **times, **sizes}


def main(what: str, *arguments: str) -> None:
    if what == "serve":
        serve(int(arguments[0]))
        return
    servers, raw_server, fingerprint, seconds, output = arguments
    result = compare(servers, raw_server, Path(fingerprint).read_text("utf-8"), float(seconds))
    Path(output).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
