"""Tests of the order in which a session tries several RLX servers."""

from collections import Counter
from pathlib import Path

import pytest

from relaax.client.connection.address import Endpoint, ServerList
from relaax.client.connection.failure import ConnectionInterrupted
from relaax.rlx import ErrorCode

THREE = "a:1,b:2,c:3"


def try_servers(servers: ServerList, count: int) -> list[str]:
    """Lose the connection to `count` servers in turn; return their addresses."""
    tried = []
    for _ in range(count):
        servers.choose()
        tried.append(servers.current)
        servers.record_loss(None)
    return tried


def test_each_round_tries_all_servers_in_the_same_order() -> None:
    tried = try_servers(ServerList(THREE), 6)
    assert sorted(tried[:3]) == ["a:1", "b:2", "c:3"]
    assert tried[3:] == tried[:3]


def test_record_loss_returns_false_at_the_end_of_a_round() -> None:
    servers = ServerList(THREE)
    results = []
    for _ in range(6):
        servers.choose()
        results.append(servers.record_loss(ErrorCode.OVERLOADED))
    assert results == [True, True, False] * 2


def test_lost_server_is_tried_first() -> None:
    servers = ServerList(THREE)
    servers.choose()
    servers.record_connected()
    current = servers.current
    assert not servers.record_loss(None)
    servers.choose()
    assert servers.current == current
    assert servers.record_loss(None)
    servers.choose()
    assert servers.current != current


def test_rebalancing_server_is_tried_last() -> None:
    servers = ServerList(THREE)
    servers.choose()
    servers.record_connected()
    first = servers.current
    assert servers.record_loss(ErrorCode.REBALANCING)
    assert try_servers(servers, 3)[-1] == first


def test_sessions_are_spread_over_the_servers() -> None:
    chosen = Counter()
    for _ in range(600):
        servers = ServerList(THREE)
        servers.choose()
        chosen[servers.current] += 1
    assert min(chosen.values()) > 100  # 200 each, on average


def test_added_server_moves_only_sessions_that_choose_it(tmp_path: Path) -> None:
    file = tmp_path / "servers"
    moved = 0
    for _ in range(150):
        file.write_text("a:1\nb:2\n")
        servers = ServerList(f"@{file}")
        servers.choose()
        before = servers.current
        file.write_text("b:2\nc:3\na:1\n")
        servers.choose()
        assert servers.current in (before, "c:3")
        moved += servers.current == "c:3"
    assert 20 < moved < 80


def test_server_list_file_is_read_at_each_attempt(tmp_path: Path) -> None:
    file = tmp_path / "servers"
    servers = ServerList(f"@{file}")
    with pytest.raises(ConnectionInterrupted, match="cannot read the server list .*servers: No such file"):
        servers.choose()
    assert not servers.record_loss(None)
    file.write_text("\n")
    with pytest.raises(ConnectionInterrupted, match="servers has no addresses"):
        servers.choose()
    file.write_text("here:99999\n")
    with pytest.raises(ConnectionInterrupted, match="port must be a number from 1 to 65535"):
        servers.choose()
    file.write_bytes(b"\xff")
    with pytest.raises(ConnectionInterrupted, match="servers is not a text file"):
        servers.choose()
    file.write_text("here:1\n")
    assert servers.choose() == Endpoint("here", 1)
    servers.record_connected()
    file.write_text("there:2\n")
    servers.record_loss(None)
    assert servers.choose() == Endpoint("there", 2)


@pytest.mark.parametrize("text", ["", "a:1,", "a:1,b c", "@", "a:1,@file", "http://a"])
def test_invalid_server_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^address '"):
        ServerList(text)


@pytest.mark.parametrize("word", ["check", "local", "probe", "random"])
def test_reserved_word_as_address_is_refused(word: str) -> None:
    with pytest.raises(
        ValueError, match=f"'{word}' is only for relaax.client.run and the .* need HOST:PORT, such as '{word}:7"
    ):
        ServerList(word)
    assert ServerList(f"{word}:7001").choose() == Endpoint(word, 7001)


def test_server_list_may_contain_websocket_addresses(tmp_path: Path) -> None:
    assert ServerList("a:1,ws://b/rlx").over_websocket
    assert not ServerList("a:1").over_websocket
    file = tmp_path / "servers"
    file.write_text("wss://b:2/rlx\n")
    assert ServerList(f"@{file}", tls=True).choose() == Endpoint("b", 2, "/rlx", True)
    file.write_text("ws://b:2/rlx\n")
    assert ServerList(f"@{file}").choose() == Endpoint("b", 2, "/rlx")
    with pytest.raises(ConnectionInterrupted, match="TLS is required: write wss://"):
        ServerList(f"@{file}", tls=True).choose()
