"""Servers that move to another address, which a file lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relaax.configuration import ConfigurationError, RlxServerSection
from relaax.files import write_whole
from relaax.parameters.client import ParameterClient, Transport
from relaax.server.access import targets, targets_at
from relaax.transport.channel import MovingAddress, Target, read_addresses
from support.parameter_servers import gradient, registration, running


def put(book: Path, *addresses: str) -> None:
    write_whole(book, [f"{address}\n".encode() for address in addresses])


@pytest.mark.parametrize("transport", ["grpc", "auto"])
def test_a_worker_follows_a_server_that_moves(transport: Transport, tmp_path: Path) -> None:
    book, checkpoints = tmp_path / "book", tmp_path / "checkpoints"
    with running(directory=checkpoints) as first:
        put(book, first.address)
        [target] = targets(RlxServerSection(parameter_server=[f"@{book}"]))
        parameters_client = ParameterClient([target], transport=transport, timeout=5.0)
        try:
            parameters_client.register(registration())
            parameters_client.pull()
            assert parameters_client.push(gradient(1), env_steps=5).discarded is None
            first.stop()
            with running(directory=checkpoints) as second:
                assert second.address != first.address
                put(book, second.address)
                pushed = parameters_client.push(gradient(1), env_steps=7)
                assert (pushed.discarded, pushed.global_step) == ("incarnation", 12)
                assert parameters_client.push(gradient(1), env_steps=1).discarded is None
                np.testing.assert_array_equal(second.parameters, -gradient(2))
        finally:
            parameters_client.close()


def test_an_unreadable_file_keeps_the_last_address(tmp_path: Path) -> None:
    book = tmp_path / "book"
    put(book, "a:1", "b:2")
    moving = MovingAddress(f"@{book}", 1)
    assert moving.current() == "b:2"
    put(book, "a:1")
    assert moving.current() == "b:2"
    put(book, "a:1", "c:3")
    assert moving.current() == "c:3"
    book.unlink()
    assert moving.current() == "c:3"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "cannot be read: No such file"), ("", "contains no address"), ("a:1 b\n", "'b' is not an address")],
)
def test_a_file_without_addresses_is_refused(content: str | None, sentence: str, tmp_path: Path) -> None:
    book = tmp_path / "book"
    if content is not None:
        book.write_text(content)
    with pytest.raises(ValueError, match=sentence):
        read_addresses(f"@{book}")
    with pytest.raises(ConfigurationError, match=f"^the_key: .*{sentence}"):
        targets_at(Target(""), [f"@{book}"], "the_key")
