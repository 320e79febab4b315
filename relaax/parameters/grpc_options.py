"""gRPC options that both ends of a channel share."""

from __future__ import annotations

MESSAGE_OVERHEAD = 2**20
"""Bytes of a message beside its vector: metrics, a fingerprint, numbers."""

MAX_PARAMETERS = 50_000_000
"""Longest flat vector: 200 MB in one message. What is longer must be split over shards."""

MAX_STATISTICS = 2**15
"""Numbers of all statistics together: with their mean and m2 they take half of the bytes beside the vector."""

Options = list[tuple[str, int]]


def message_bytes(parameters: int) -> int:
    """Return the longest message that a shard of so many parameters sends or takes."""
    return 4 * parameters + MESSAGE_OVERHEAD


def common_options(longest: int) -> Options:
    """Message limits, flow control and keepalive for messages of up to so many bytes.

    A fixed window as large as the message lets a message through without waiting for window updates: measured, a round
    trip of 2.7 MB each way takes two thirds of the time that it takes with gRPC's own estimate of the window.
    """
    return [
        ("grpc.max_receive_message_length", longest),
        ("grpc.max_send_message_length", longest),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", min(max(longest, 2**20), 2**24)),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),  # a second limit, 60 s by default: keepalive's own does not shorten it
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def client_options(longest: int) -> Options:
    """Return the options of a channel. A server that is back is noticed within two seconds.

    The shortest pause is also what one attempt to connect gets, with TLS, on a machine with too much to do.
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
    """Return the options of a server. A port that is in use is refused instead of shared."""
    return [
        *common_options(longest),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.so_reuseport", 0),
    ]
