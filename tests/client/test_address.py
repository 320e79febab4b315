import pytest

from relaax.client.connection.address import parse_address


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:7001", ("127.0.0.1", 7001)),
        ("server.example:65535", ("server.example", 65535)),
        ("[::1]:80", ("::1", 80)),
        ("server.example", ("server.example", 7001)),
        ("10.0.0.5", ("10.0.0.5", 7001)),
        ("[::1]", ("::1", 7001)),
    ],
)
def test_valid_address_gives_host_and_port(address, expected):
    assert parse_address(address) == expected


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        (":7001", "HOST:PORT"),
        ("no host", "HOST:PORT"),
        ("http://host:7001", "'/'"),
        ("a:7001,b:7001", "','"),
        ("", "HOST:PORT"),
        ("[]", "HOST:PORT"),
        ("localhost:", "''"),
        ("::1:7001", "brackets"),
        ("::1", "brackets"),
        ("localhost:http", "'http'"),
        ("localhost:0", "'0'"),
        ("localhost:65536", "'65536'"),
        ("localhost:٣", "number"),
    ],
)
def test_invalid_address_is_refused_with_the_way_out(address, hint):
    with pytest.raises(ValueError, match=hint.replace("[", r"\[")) as refused:
        parse_address(address)
    assert repr(address) in str(refused.value)
