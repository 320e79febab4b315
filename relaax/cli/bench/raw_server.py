"""A gRPC server that answers every call with the same bytes, as many as the parameter server's answer to a push.

`python -m relaax.cli.bench.raw_server PARAMETERS`
"""

from __future__ import annotations

import signal
import sys
import threading
from concurrent import futures

import grpc

from relaax.parameters import parameter_server_pb2 as pb
from relaax.transport.grpc_options import message_bytes, server_options
from relaax.transport.process_resources import keep_freed_memory

SERVICE, NAME = "relaax.Bench", "Exchange"
METHOD = f"/{SERVICE}/{NAME}"
THREADS = 8  # as many as the parameter server has


def answer_of(parameters: int) -> bytes:
    """Return the serialized answer to a push that requests parameters."""
    answer = pb.PushResponse(global_step=1_000_000, version=1_000, staleness=1, parameters=bytes(4 * parameters))
    return answer.SerializeToString()


def serve(parameters: int) -> grpc.Server:
    """Start the server, and print a line with its address."""
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
    return server


def main() -> None:
    """Serve until a signal arrives."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    server = serve(int(sys.argv[1]))
    stop.wait()
    server.stop(None)


if __name__ == "__main__":
    main()
