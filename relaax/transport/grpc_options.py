"""gRPC options that both ends of a channel share."""

from __future__ import annotations

MESSAGE_OVERHEAD = 2**20
"""Bytes of a message beside its vector: metrics, a fingerprint, numbers."""

MAX_PARAMETERS = 50_000_000
"""Longest flat vector: 200 MB in one message. What is longer must be split over shards."""

MAX_STATISTICS = 2**15
"""Numbers of all statistics together: with their mean and m2 they take half of the bytes beside the vector."""

MAX_CALLS = 16
"""Calls in flight of one connection to a server; a client's further ones wait in the client. A worker has four."""

MAX_PENDING = 128
"""Calls of all connections that the server has not yet looked at; past it a call is refused, and can be made again."""

MAX_HEADER_BYTES = 2**13
"""Bytes of the headers of a call, references to earlier headers counted as what they stand for. A token takes 4 KiB."""

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
    """Return the options of a server. A port that is in use is refused instead of shared.

    gRPC reads the headers of a call before anybody can refuse it, and a byte of them may refer to 4 KB sent earlier: a
    frame of 16 KiB takes up to a megabyte while it is read. So the number of calls of a connection is bounded.
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
