"""Addresses at which a server listens."""

from __future__ import annotations

import re
import socket

import pytest

from relaax.server.address import (
    AddressError,
    is_loopback,
    listen,
    name_of,
    require_free,
    require_loopback,
    reserve,
    split_address,
)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("localhost:7001", "localhost", 7001),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::1]:7001", "::1", 7001),
        ("a.b:65535", "a.b", 65535),
    ],
)
def test_address_is_split_into_host_and_port(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)


@pytest.mark.parametrize(
    "address", ["localhost", ":7001", "localhost:", "localhost:http", "localhost:65536", "h:-1", ""]
)
def test_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(AddressError, match="HOST:PORT") as refused:
        split_address(address)
    assert repr(address) in str(refused.value)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_loopback_addresses_are_recognized(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "example.org", "localhost.example.org"]
)
def test_public_addresses_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_public_address_needs_allow_anonymous() -> None:
    require_loopback("localhost:1", allow_anonymous=False)
    require_loopback("0.0.0.0:1", allow_anonymous=True)
    with pytest.raises(AddressError, match=r"0\.0\.0\.0:1 .*--allow-anonymous"):
        require_loopback("0.0.0.0:1", allow_anonymous=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_port_0_selects_a_free_port(host: str) -> None:
    if host == "[::1]" and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    with listen(f"{host}:0") as listener:
        name = name_of(listener)
        assert name.startswith(f"{host}:")
        assert not name.endswith(":0")
        with socket.create_connection(split_address(name), timeout=5):
            pass


def test_port_in_use_is_refused_with_a_way_out() -> None:
    with listen("127.0.0.1:0") as listener:
        address = name_of(listener)
        with pytest.raises(AddressError, match=f"{address}: .*in use.*another port, or 0"):
            listen(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_host_name_with_one_address_in_use_is_refused(host: str) -> None:
    """Otherwise clients that use the name would reach different servers."""
    if host == "[::1]" and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    with listen(f"{host}:0") as listener:
        port = split_address(name_of(listener))[1]
        for use in (listen, require_free):
            with pytest.raises(AddressError, match=rf"listen on localhost:{port}: {re.escape(host)}:{port}: .*in use"):
                use(f"localhost:{port}")
    require_free(f"localhost:{port}")
    listen(f"localhost:{port}").close()


def test_unknown_host_is_refused() -> None:
    with pytest.raises(AddressError, match=r"cannot listen on no-such-host\.invalid:1"):
        listen("no-such-host.invalid:1")


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_reserved_address_is_assigned_to_no_other_socket() -> None:
    with reserve("127.0.0.1:0") as reserved:
        address = name_of(reserved)
        with pytest.raises(ConnectionRefusedError), socket.create_connection(reserved.getsockname()):
            pass
        for _ in range(2):  # also after a restart
            with listen(address) as server:
                assert name_of(server) == address
                with pytest.raises(AddressError, match="in use"):
                    listen(address)
        taken = [reserve("127.0.0.1:0") for _ in range(500)]
        try:
            assert address not in map(name_of, taken)
        finally:
            for other in taken:
                other.close()
