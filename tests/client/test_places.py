"""Which of several RLX servers a session tries next."""

from collections import Counter
from pathlib import Path

import pytest

from relaax.client.connection.address import Endpoint, ServerList
from relaax.client.connection.failure import ConnectionInterrupted
from relaax.rlx import ErrorCode

THREE = "a:1,b:2,c:3"


def round_of(places: ServerList, count: int) -> list[str]:
    tried = []
    for _ in range(count):
        places.choose()
        tried.append(places.current)
        places.record_loss(None)
    return tried


def test_a_round_tries_each_once_and_the_next_has_the_same_order() -> None:
    tried = round_of(ServerList(THREE), 6)
    assert sorted(tried[:3]) == ["a:1", "b:2", "c:3"]
    assert tried[3:] == tried[:3]


def test_the_end_of_a_round_is_told() -> None:
    places = ServerList(THREE)
    told = []
    for _ in range(6):
        places.choose()
        told.append(places.record_loss(ErrorCode.OVERLOADED))
    assert told == [True, True, False] * 2


def test_a_lost_server_is_tried_again_first() -> None:
    places = ServerList(THREE)
    places.choose()
    places.record_connected()
    here = places.current
    assert not places.record_loss(None)
    places.choose()
    assert places.current == here
    assert places.record_loss(None)
    places.choose()
    assert places.current != here


def test_a_server_that_sends_its_clients_away_is_tried_last() -> None:
    places = ServerList(THREE)
    places.choose()
    places.record_connected()
    first = places.current
    assert places.record_loss(ErrorCode.REBALANCING)
    assert round_of(places, 3)[-1] == first


def test_sessions_share_the_servers() -> None:
    chosen = Counter()
    for _ in range(600):
        places = ServerList(THREE)
        places.choose()
        chosen[places.current] += 1
    assert min(chosen.values()) > 100  # 200 each, on average


def test_a_server_more_moves_nobody_who_does_not_go_there(tmp_path: Path) -> None:
    book = tmp_path / "servers"
    moved = 0
    for _ in range(150):
        book.write_text("a:1\nb:2\n")
        places = ServerList(f"@{book}")
        places.choose()
        before = places.current
        book.write_text("b:2\nc:3\na:1\n")
        places.choose()
        assert places.current in (before, "c:3")
        moved += places.current == "c:3"
    assert 20 < moved < 80


def test_a_file_is_read_anew_for_each_attempt(tmp_path: Path) -> None:
    book = tmp_path / "servers"
    places = ServerList(f"@{book}")
    with pytest.raises(ConnectionInterrupted, match="cannot read the server list .*servers: No such file"):
        places.choose()
    assert not places.record_loss(None)
    book.write_text("\n")
    with pytest.raises(ConnectionInterrupted, match="servers has no addresses"):
        places.choose()
    book.write_text("here:99999\n")
    with pytest.raises(ConnectionInterrupted, match="port must be a number from 1 to 65535"):
        places.choose()
    book.write_bytes(b"\xff")
    with pytest.raises(ConnectionInterrupted, match="servers is not a text file"):
        places.choose()
    book.write_text("here:1\n")
    assert places.choose() == Endpoint("here", 1)
    places.record_connected()
    book.write_text("there:2\n")
    places.record_loss(None)
    assert places.choose() == Endpoint("there", 2)


@pytest.mark.parametrize("text", ["", "a:1,", "a:1,b c", "@", "a:1,@file", "http://a"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^address '"):
        ServerList(text)


@pytest.mark.parametrize("word", ["check", "local", "probe", "random"])
def test_word_in_place_of_an_address_is_refused(word: str) -> None:
    with pytest.raises(
        ValueError, match=f"'{word}' is only for relaax.client.run and the .* need HOST:PORT, such as '{word}:7"
    ):
        ServerList(word)
    assert ServerList(f"{word}:7001").choose() == Endpoint(word, 7001)


def test_a_place_may_be_behind_a_websocket_and_a_file_may_say_so(tmp_path: Path) -> None:
    assert ServerList("a:1,ws://b/rlx").over_websocket
    assert not ServerList("a:1").over_websocket
    book = tmp_path / "servers"
    book.write_text("wss://b:2/rlx\n")
    assert ServerList(f"@{book}", tls=True).choose() == Endpoint("b", 2, "/rlx", True)
    book.write_text("ws://b:2/rlx\n")
    assert ServerList(f"@{book}").choose() == Endpoint("b", 2, "/rlx")
    with pytest.raises(ConnectionInterrupted, match="TLS is required: write wss://"):
        ServerList(f"@{book}", tls=True).choose()
