"""Vectors of 16-bit numbers: conversions, compared with numpy and ml_dtypes, and exchanges with a parameter server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as pb_grpc
from relaax.parameters.interfaces import ParameterServerError
from relaax.parameters.precision import PRECISIONS, Narrower, check_precision, prepare, widened
from relaax.parameters.shard_client import ShardClient
from relaax.transport.channel import Target
from relaax.transport.long_messages import Carrier
from support.parameter_servers import SIZE, Models, fingerprint, gradient, parameter_client, registration, running
from support.shards import sharded

DTYPES: dict[str, npt.DTypeLike] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
LARGEST = {"float16": 65504.0, "bfloat16": float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)}
short = pytest.mark.parametrize("name", list(DTYPES))
every = pytest.mark.parametrize("name", list(PRECISIONS))


def narrowed(vector: npt.NDArray[np.float32], name: str) -> npt.NDArray[Any]:
    return Narrower("numbers")(vector, PRECISIONS[name])


def through(vector: npt.NDArray[np.float32], name: str) -> npt.NDArray[np.float32]:
    """Return a vector after narrowing and widening."""
    return widened(memoryview(narrowed(vector, name)).cast("B"), PRECISIONS[name])


def everything(name: str) -> npt.NDArray[np.float32]:
    """Return all 16-bit numbers of this precision, as float32."""
    with np.errstate(invalid="ignore"):
        return np.arange(2**16, dtype=np.uint16).view(DTYPES[name]).astype(np.float32)


def near(name: str) -> npt.NDArray[np.float32]:
    """Return all finite 16-bit numbers, their midpoints, the float32 neighbours of both, and random float32 numbers."""
    exact = np.sort(everything(name)[np.isfinite(everything(name))]).astype(np.float64)
    half_way = (exact[:-1] + exact[1:]) / 2
    numbers = np.concatenate([exact, half_way]).astype(np.float32)
    with np.errstate(over="ignore"):
        below, above = (np.nextafter(numbers, np.float32(limit)) for limit in (-np.inf, np.inf))
    bits = np.random.default_rng(0).integers(0, 2**32, 2**17, np.uint32)
    return np.concatenate([numbers, below, above, bits.view(np.float32)])


@short
def test_rounding_agrees_with_other_implementations(name: str) -> None:
    numbers = near(name)
    with np.errstate(all="ignore"):
        expected = numbers.astype(DTYPES[name])
    fits = np.isfinite(expected.astype(np.float32))
    np.testing.assert_array_equal(narrowed(numbers, name)[fits], expected.view(np.uint16)[fits])


@short
def test_finite_numbers_stay_finite_and_others_do_not_change(name: str) -> None:
    numbers = near(name)
    found = through(numbers, name)
    with np.errstate(all="ignore"):
        too_large = np.isfinite(numbers) & np.isinf(numbers.astype(DTYPES[name]).astype(np.float32))
    assert too_large.sum() > 1
    np.testing.assert_array_equal(found[too_large], np.copysign(LARGEST[name], numbers[too_large]))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(numbers))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(numbers))
    np.testing.assert_array_equal(np.signbit(found)[~np.isnan(found)], np.signbit(numbers)[~np.isnan(found)])


@pytest.mark.parametrize(
    ("name", "edge"), [("float16", 65520.0), ("bfloat16", float(np.uint32(0x7F7F8000).view(np.float32)))]
)
def test_rounding_at_the_edge_of_infinity(name: str, edge: float, caplog: pytest.LogCaptureFixture) -> None:
    at = np.float32(edge)
    below = np.nextafter(at, np.float32(0))
    with np.errstate(over="ignore"):
        assert np.isinf(at.astype(DTYPES[name])), "other implementations round it to infinity"
    for number in (below, -below):
        np.testing.assert_array_equal(through(gradient(number), name), gradient(np.copysign(LARGEST[name], number)))
    assert caplog.messages == [], "rounding is not logged"
    np.testing.assert_array_equal(through(gradient(at, -at), name), gradient(LARGEST[name], -LARGEST[name]))
    assert caplog.messages[0].startswith("2 of 8 numbers are too large")


@short
def test_every_16_bit_number_is_widened(name: str) -> None:
    data = memoryview(np.arange(2**16, dtype=np.uint16)).cast("B")
    found = widened(data, PRECISIONS[name])
    assert not found.flags.writeable
    expected = everything(name)
    there = ~np.isnan(expected)
    np.testing.assert_array_equal(found.view(np.uint32)[there], expected.view(np.uint32)[there])
    np.testing.assert_array_equal(np.isnan(found), ~there)


@short
def test_unaligned_data_is_widened(name: str) -> None:
    numbers = gradient(1, -2, 0.5)
    odd = memoryview(b"x" + narrowed(numbers, name).tobytes())[1:]
    np.testing.assert_array_equal(widened(odd, PRECISIONS[name]), numbers)
    assert not len(widened(memoryview(b""), PRECISIONS[name]))


def test_float32_is_not_converted() -> None:
    prepare("float32")
    numbers = gradient(1, 1 + 2**-20)
    assert narrowed(numbers, "float32") is numbers
    assert np.shares_memory(through(numbers, "float32"), numbers)


@short
def test_clamped_numbers_are_logged_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    narrow = Narrower("parameters")
    for vector in (gradient(LARGEST[name], np.inf, np.nan), gradient(3.4028e38, -3.4028e38), gradient(3.4028e38)):
        narrow(vector, PRECISIONS[name])
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.messages[0].startswith(f"2 of 8 parameters are too large for {name} and are sent as")


@short
def test_incomplete_numbers_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"a {name} vector must have a multiple of 2 bytes, not 5"):
        widened(memoryview(bytes(5)), PRECISIONS[name])


def test_an_unknown_precision_is_refused_with_the_known_ones() -> None:
    sentence = r"precision 7 is not supported; use one of 0 \(float32\), 1 \(float16\), 2 \(bfloat16\)"
    unknown: Any = 7
    uses: list[Callable[[], Any]] = [
        lambda: check_precision(unknown),
        lambda: Narrower("numbers")(gradient(1), unknown),
        lambda: widened(memoryview(bytes(4)), unknown),
    ]
    for use in uses:
        with pytest.raises(ValueError, match=sentence):
            use()


@short
def test_gradients_and_parameters_are_rounded_on_the_wire(name: str) -> None:
    fine = 1 + 2**-12  # 12 fraction bits, more than either precision has
    with (
        running(Models(learning_rate=fine)) as server,
        parameter_client(server.address, wire_precision=name) as parameters_client,
        parameter_client(server.address) as exact,
    ):
        for each in (parameters_client, exact):
            each.register(registration())
            each.pull()
        pulled = parameters_client.push(gradient(fine, -2), env_steps=1).pulled
        assert pulled is not None
        np.testing.assert_array_equal(pulled.parameters, gradient(-1, 2))
        assert (pulled.parameters.dtype, pulled.parameters.flags.writeable) == (np.float32, False)
        np.testing.assert_array_equal(server.parameters, np.float32(fine) * gradient(-1, 2))
        np.testing.assert_array_equal(exact.pull().parameters, server.parameters)


@short
def test_half_of_the_bytes_are_sent(name: str) -> None:
    with running() as server, grpc.insecure_channel(server.address) as channel:
        stub: Any = pb_grpc.ParameterServerServiceStub(channel)
        worker = "0" * 32
        introduced = stub.Register(
            pb.RegisterRequest(worker_id=worker, environments=1, fingerprint=fingerprint(), role=pb.ROLE_TRAIN)
        )
        who = {"worker_id": worker, "incarnation": introduced.incarnation, "precision": PRECISIONS[name]}
        ones = narrowed(gradient(1), name).tobytes()
        pushed = stub.Push(pb.PushRequest(**who, push_id=1, gradient=ones, want_parameters=True))
        pulled = stub.Pull(pb.PullRequest(**who))
        for answer in (pushed, pulled):
            assert (answer.precision, len(answer.parameters)) == (PRECISIONS[name], 2 * SIZE)


@short
def test_gradients_that_are_not_finite_are_discarded(name: str) -> None:
    with running() as server, parameter_client(server.address, wire_precision=name) as parameters_client:
        parameters_client.register(registration())
        parameters_client.pull()
        for wrong in (np.nan, np.inf, -np.inf):
            assert parameters_client.push(gradient(wrong), env_steps=1).discarded == "not_finite"
        assert server.version == 0


def test_too_large_numbers_are_applied_as_the_largest(caplog: pytest.LogCaptureFixture) -> None:
    with running() as server, parameter_client(server.address, wire_precision="float16") as parameters_client:
        parameters_client.register(registration())
        parameters_client.pull()
        pushed = parameters_client.push(gradient(1e6, 1), env_steps=1)
        assert pushed.discarded is None
        np.testing.assert_array_equal(server.parameters, gradient(-65504, -1))
        parameters_client.push(gradient(100), env_steps=1)  # one parameter exceeds the range, which the server logs
        np.testing.assert_array_equal(server.parameters, gradient(-65604, -1))
        np.testing.assert_array_equal(parameters_client.pull().parameters, gradient(-65504, -1))
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [message[: message.index(" are")] for message in warnings] == [
        "1 of 8 numbers of a gradient",
        "1 of 8 parameters",
    ]


@short
def test_several_shards_use_16_bit_numbers(name: str) -> None:
    with sharded(3) as shards, parameter_client(shards.addresses, wire_precision=name) as parameters_client:
        parameters_client.register(registration())
        pulled = parameters_client.pull()
        pushed = parameters_client.push(gradient(*range(SIZE)), env_steps=1)
        assert pushed.pulled is not None
        np.testing.assert_array_equal(pushed.pulled.parameters, -gradient(*range(SIZE)))
        np.testing.assert_array_equal(pulled.parameters, np.zeros(SIZE))
        assert parameters_client.pull() is pushed.pulled


def test_shared_memory_uses_float32_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with (
        running() as server,
        parameter_client(server.address, transport="auto", wire_precision="float16") as parameters_client,
    ):
        parameters_client.register(registration())
        parameters_client.pull()
        assert parameters_client.shares_memory
        pushed = parameters_client.push(gradient(1e6, 1 + 2**-20), env_steps=1)
        assert pushed.pulled is not None
        np.testing.assert_array_equal(pushed.pulled.parameters, -gradient(1e6, 1 + 2**-20))
    expected = "using shared memory for vectors, in float32: wire-precision float16"
    assert sum(expected in message for message in caplog.messages) == 1


@every
def test_answer_without_a_precision_is_read_as_float32(name: str) -> None:
    link = ShardClient(Target("127.0.0.1:1"), precision=PRECISIONS[name])
    link.set_range(pb.RegisterResponse(range_end=SIZE, parameters=SIZE))
    try:
        answer = Carrier(pb.PullResponse(version=3), memoryview(gradient(1 + 2**-20)).cast("B"))
        np.testing.assert_array_equal(link.received(answer), gradient(1 + 2**-20))
        with pytest.raises(ParameterServerError, match="sent 4 numbers for its range of 8"):
            link.received(Carrier(pb.PullResponse(version=3), memoryview(bytes(16))))
        with pytest.raises(ParameterServerError, match="precision 9 is not supported"):
            link.received(Carrier(pb.PullResponse(precision=9), memoryview(bytes(16))))  # type: ignore[arg-type]
    finally:
        link.close()
