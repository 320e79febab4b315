"""gRPC options that both ends of a channel share."""

from __future__ import annotations

MESSAGE_OVERHEAD = 2**20
"""Bytes of a message in addition to its vector: metrics, a fingerprint, counters."""

MAX_PARAMETERS = 50_000_000
"""Longest flat vector: 200 MB in one message. A longer one must be split over shards."""

MAX_STATISTICS = 2**15
"""Largest number of elements of all statistics together.

Their means and `m2` (sums of squared deviations) take half of `MESSAGE_OVERHEAD`.
"""

MAX_CALLS = 16
"""Calls in flight on one connection to a server. Further calls wait in the client. A worker needs four."""

MAX_PENDING = 128
"""Calls of all connections that the server has not started. Further calls are refused and can be retried."""

MAX_HEADER_BYTES = 2**13
"""Bytes of the headers of a call, with references to earlier headers expanded. A token takes 4 KiB."""

Options = list[tuple[str, int]]


def message_bytes(parameters: int) -> int:
    """Return the limit, in bytes, of the messages of a shard with `parameters` parameters."""
    return 4 * parameters + MESSAGE_OVERHEAD


def common_options(longest: int) -> Options:
    """Return the options for message limits, flow control and keepalive. `longest`: message limit in bytes.

    With a fixed window as large as the message, a message does not wait for window updates. Measured for 2.7 MB in each
    direction, a round trip takes two thirds of the time that it takes with gRPC's own estimate of the window.
    """
    return [
        ("grpc.max_receive_message_length", longest),
        ("grpc.max_send_message_length", 2 * longest),  # an answer may have parameters and target network
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", min(max(longest, 2**20), 2**24)),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        (
            "grpc.http2.ping_timeout_ms",
            10_000,
        ),  # a separate limit, 60 s by default, which the keepalive timeout does not shorten
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def client_options(longest: int) -> Options:
    """Return the options of a channel. It finds a restarted server within two seconds.

    The minimum pause is also the timeout of one attempt to connect, which must suffice for TLS on a busy machine.
    """
    return [
        *common_options(longest),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]


def server_options(longest: int) -> Options:
    """Return the options of a server. A port that is in use is an error; it is not shared.

    gRPC reads the headers of a call before the server can refuse it. One byte of them may refer to 4 KB sent earlier,
    so reading a frame may need many times its length in memory. Therefore the calls of a connection are limited.
    """
    return [
        *common_options(longest),
        ("grpc.max_concurrent_streams", MAX_CALLS),
        ("grpc.server.max_pending_requests", MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING),
        ("grpc.max_metadata_size", MAX_HEADER_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_HEADER_BYTES),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.so_reuseport", 0),
    ]
