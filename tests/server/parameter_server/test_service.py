"""Invalid requests, which no client sends: each gets an error and changes nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as pb_grpc
from support.parameter_servers import SIZE, Models, Running, fingerprint, gradient, running

WORKER = "0" * 32
Stub = Any


@pytest.fixture
def server() -> Iterator[Running]:
    with running(Models(max_staleness=5)) as started:
        yield started


@pytest.fixture
def stub(server: Running) -> Iterator[Stub]:
    with grpc.insecure_channel(server.address) as channel:
        yield pb_grpc.ParameterServerServiceStub(channel)


def register_request(**changes: Any) -> pb.RegisterRequest:
    values = {"worker_id": WORKER, "environments": 1, "fingerprint": fingerprint(), "role": pb.ROLE_TRAIN, **changes}
    return pb.RegisterRequest(**values)


@pytest.fixture
def incarnation(stub: Stub) -> int:
    return int(stub.Register(register_request()).incarnation)


def push_request(incarnation: int, **changes: Any) -> pb.PushRequest:
    values: dict[str, Any] = {"push_id": 1, "gradient": gradient(1).tobytes(), "env_steps": 1, **changes}
    return pb.PushRequest(worker_id=WORKER, incarnation=incarnation, **values)


def error_of(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    return error.code(), error.details()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"worker_id": "me"}, "32 hexadecimal digits"),
        ({"role": pb.ROLE_UNSPECIFIED}, "role 0 is not supported"),
        ({"environments": 0}, "environments must be from 1"),
        ({"environments": 10**9}, "environments must be from 1"),
        ({"frame_skip": 10**6}, "frame_skip must be at most"),
        ({"session_id": "x" * 1000}, "256 characters"),
        ({"fingerprint": "x" * (2**20 + 1)}, "at most 1048576 characters, not 1048577"),
    ],
)
def test_registration_out_of_bounds_is_refused(
    server: Running, stub: Stub, changes: dict[str, Any], sentence: str
) -> None:
    code, details = error_of(lambda: stub.Register(register_request(**changes)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert sentence in details
    assert server.core.model is None


@pytest.mark.parametrize("text", ["{", "[" * 100_000, ""])
def test_fingerprint_that_is_not_json_is_refused(stub: Stub, incarnation: int, text: str) -> None:
    code, details = error_of(lambda: stub.Register(register_request(worker_id="1" * 32, fingerprint=text)))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert details == "the worker's fingerprint is not JSON"


def test_repeated_registration_is_one_worker(server: Running, stub: Stub) -> None:
    assert stub.Register(register_request()) == stub.Register(register_request())
    assert server.core.status().workers == 1


@pytest.mark.parametrize(
    ("changes", "code", "sentence"),
    [
        ({"gradient": bytes(4 * (SIZE + 1))}, "INVALID_ARGUMENT", "gradient must have 8 elements, not 9"),
        ({"gradient": bytes(5)}, "INVALID_ARGUMENT", "must have a multiple of 4 bytes, not 5"),
        ({"gradient": bytes(2 * SIZE + 1), "precision": 1}, "INVALID_ARGUMENT", "a multiple of 2 bytes, not 17"),
        (
            {"gradient": bytes(4 * SIZE), "precision": 1},
            "INVALID_ARGUMENT",
            "gradient must have 8 elements, not 16",
        ),
        ({"precision": 3}, "INVALID_ARGUMENT", "precision 3 is not supported"),
        ({"precision": 3, "gradient": b""}, "INVALID_ARGUMENT", "precision 3 is not supported"),
        ({"push_id": 2}, "FAILED_PRECONDITION", "push 2 after push 0"),
        ({"push_id": 0}, "FAILED_PRECONDITION", "push 0 after push 0"),
        ({"base_version": 1}, "INVALID_ARGUMENT", "newer than the current version"),
        ({"env_steps": 2**63}, "INVALID_ARGUMENT", "env_steps must be at most"),
        ({"statistics": [pb.Moments(name="x")]}, "INVALID_ARGUMENT", "unknown statistic 'x'"),
        ({"report": pb.MetricsReport(scalars=[pb.ScalarSum(name="/")])}, "INVALID_ARGUMENT", "not a metric name"),
        ({"report": pb.MetricsReport(histograms=[pb.Histogram(name="/")])}, "INVALID_ARGUMENT", "not a metric name"),
        (
            {"report": pb.MetricsReport(histograms=[pb.Histogram(name="a", buckets=[1], counts=[1, 2])])},
            "INVALID_ARGUMENT",
            "1 buckets, but 2 counts",
        ),
        (
            {"report": pb.MetricsReport(histograms=[pb.Histogram(name="a", buckets=[501], counts=[1])])},
            "INVALID_ARGUMENT",
            "from -300 to 500",
        ),
        (
            {"report": pb.MetricsReport(gauges=[pb.Gauge(name="worker/memory_mb", value=np.inf)])},
            "INVALID_ARGUMENT",
            "'worker/memory_mb' is inf",
        ),
        ({"report": pb.MetricsReport(gauges=[pb.Gauge(name="/", value=1.0)])}, "INVALID_ARGUMENT", "not a metric name"),
        (
            {"report": pb.MetricsReport(scalars=[pb.ScalarSum(name="a")] * 65_537)},
            "INVALID_ARGUMENT",
            "at most 65536 entries, not 65537",
        ),
        (
            {"report": pb.MetricsReport(episodes=[pb.EpisodeResult(episode_return=np.nan)])},
            "INVALID_ARGUMENT",
            "episode return nan is",
        ),
        (
            {"report": pb.MetricsReport(episodes=[pb.EpisodeResult(episode_return=1.7e308)])},
            "INVALID_ARGUMENT",
            "episode return 1.7e+308 is",
        ),
        (
            {"report": pb.MetricsReport(scalars=[pb.ScalarSum(name="client/a", sum=1.7e308, count=2)])},
            "INVALID_ARGUMENT",
            "2 samples of 'client/a' cannot have the sum 1.7e+308",
        ),
        (
            {"report": pb.MetricsReport(gauges=[pb.Gauge(name="worker/memory_mb", value=1.7e308)])},
            "INVALID_ARGUMENT",
            "'worker/memory_mb' is 1.7e+308",
        ),
    ],
)
def test_invalid_push_is_refused_and_changes_nothing(
    server: Running, stub: Stub, incarnation: int, changes: dict[str, Any], code: str, sentence: str
) -> None:
    found, details = error_of(lambda: stub.Push(push_request(incarnation, **changes)))
    assert found is grpc.StatusCode[code]
    assert sentence in details
    counters = server.core.model.shard.counters
    assert (counters.version, counters.env_steps) == (0, 0)
    assert stub.Push(push_request(incarnation)).version == 1


def test_repeated_push_gets_the_same_answer(server: Running, stub: Stub, incarnation: int) -> None:
    request = push_request(
        incarnation, want_parameters=True, report=pb.MetricsReport(episodes=[pb.EpisodeResult(episode_return=1)])
    )
    first = stub.Push(request)
    assert stub.Push(request).SerializeToString() == first.SerializeToString()
    assert (server.version, server.core.status().episodes) == (1, 1)
    assert server.core.repeated == {"same": 1, "earlier": 0}


def test_push_of_another_incarnation_or_worker_is_discarded(server: Running, stub: Stub, incarnation: int) -> None:
    answers = [stub.Push(push_request(incarnation - 1)), stub.Push(push_request(incarnation + 1))]
    stub.Leave(pb.LeaveRequest(worker_id=WORKER))
    answers.append(stub.Push(push_request(incarnation)))
    assert [answer.discard for answer in answers] == [pb.DISCARD_INCARNATION] * 3
    assert server.core.status().global_step == 0


def test_listed_worker_ids_cannot_deregister_a_worker(server: Running, stub: Stub, incarnation: int) -> None:
    (listed,) = stub.ListWorkers(pb.ListWorkersRequest()).workers
    assert WORKER.startswith(listed.worker_id)
    with contextlib.suppress(grpc.RpcError):
        stub.Leave(pb.LeaveRequest(worker_id=listed.worker_id))
    assert stub.Push(push_request(incarnation)).discard == pb.DISCARD_UNSPECIFIED
    assert server.core.registry.count() == 1


def test_pull_depends_on_version_and_incarnation(stub: Stub, incarnation: int) -> None:
    def pull(**changes: Any) -> pb.PullResponse:
        return stub.Pull(pb.PullRequest(**{"worker_id": WORKER, "incarnation": incarnation, **changes}))

    assert pull().parameters == bytes(4 * SIZE)
    assert not pull().not_modified
    assert pull(have_version=0) == pb.PullResponse(not_modified=True, actor_count=1)
    stub.Push(push_request(incarnation))
    assert pull(have_version=0).parameters == gradient(-1).tobytes()
    assert pull(incarnation=incarnation - 1).incarnation_ended
    assert pull(worker_id="1" * 32).incarnation_ended
    code, details = error_of(lambda: pull(vector="target"))
    assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "the model has no vector 'target'")
    code, details = error_of(lambda: pull(precision=-1))
    assert (code, details[:29]) == (grpc.StatusCode.INVALID_ARGUMENT, "precision -1 is not supported")


def test_non_finite_gradients_are_logged_once_a_minute(
    stub: Stub, incarnation: int, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = gradient(1)
    wrong[5] = np.nan
    for push_id in (1, 1, 2):  # a retry, and another push within the minute
        stub.Push(push_request(incarnation, push_id=push_id, gradient=wrong.tobytes()))
    logged = [record.getMessage() for record in caplog.records if "discarded" in record.getMessage()]
    assert logged == [
        "discarded a gradient of worker 00000000: 1 of 8 elements are NaN or infinite, the first is 5 (nan)"
    ]


def test_push_without_a_change_is_answered_not_modified(stub: Stub, incarnation: int) -> None:
    def push(number: int, **changes: Any) -> pb.PushResponse:
        return stub.Push(push_request(incarnation, **{"push_id": number, "want_parameters": True, **changes}))

    nan = gradient(np.nan).tobytes()
    unchanged = push(1, have_version=0, gradient=nan)
    assert (unchanged.not_modified, unchanged.parameters, unchanged.discard) == (True, b"", pb.DISCARD_NOT_FINITE)
    assert push(1, have_version=0, gradient=nan) == unchanged
    assert push(2, gradient=nan).parameters == bytes(4 * SIZE)
    changed = push(3, have_version=0)
    assert (changed.not_modified, changed.version, changed.parameters) == (False, 1, gradient(-1).tobytes())
    assert push(4, have_version=0, gradient=b"").parameters == gradient(-1).tobytes()
    silent = push(5, have_version=1, gradient=b"", want_parameters=False)
    assert (silent.not_modified, silent.parameters) == (False, b"")


def test_versions_of_another_incarnation_are_not_compared(tmp_path: Path) -> None:
    changes = {"have_version": 0, "want_parameters": True, "gradient": gradient(np.nan).tobytes()}
    with running(directory=tmp_path) as first, grpc.insecure_channel(first.address) as channel:
        stub: Stub = pb_grpc.ParameterServerServiceStub(channel)
        push = push_request(stub.Register(register_request()).incarnation, **changes)
        assert stub.Push(push).not_modified
        first.stop()
    with running(directory=tmp_path) as second, grpc.insecure_channel(second.address) as channel:
        stub = pb_grpc.ParameterServerServiceStub(channel)
        repeated = stub.Push(push)  # the checkpoint has this push in its ledger
        assert (repeated.discard, repeated.not_modified) == (pb.DISCARD_NOT_FINITE, False)
        assert repeated.parameters == bytes(4 * SIZE)
        assert second.core.repeated == {"same": 0, "earlier": 1}
        pull = pb.PullRequest(worker_id=WORKER, incarnation=push.incarnation, have_version=0)
        assert stub.Pull(pull) == pb.PullResponse(incarnation_ended=True)


def test_repeated_report_is_counted_once(server: Running, stub: Stub, incarnation: int) -> None:
    report = pb.MetricsReport(episodes=[pb.EpisodeResult(episode_return=1)])
    for number in (1, 1, 2):
        stub.Report(pb.ReportRequest(worker_id=WORKER, report=report, report_id=number))
    assert server.core.status().episodes == 2
    assert stub.Report(pb.ReportRequest(worker_id="1" * 32)).incarnation_ended


def test_only_messages_over_the_limit_are_refused(stub: Stub, incarnation: int) -> None:
    code, _ = error_of(lambda: stub.Push(push_request(incarnation, gradient=bytes(4_000_000))))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert stub.Push(push_request(incarnation)).version == 1


def test_status_needs_no_registration(server: Running, stub: Stub) -> None:
    status = stub.GetStatus(pb.GetStatusRequest())
    assert (status.incarnation, status.global_step, status.workers) == (server.core.incarnation, 0, 0)
    assert not status.HasField("mean_return_100")
    assert (status.training_seconds, status.checkpoint) == (0.0, "")


def test_status_has_the_counters(stub: Stub, incarnation: int) -> None:
    stub.Push(
        push_request(incarnation, env_steps=7, report=pb.MetricsReport(episodes=[pb.EpisodeResult(episode_return=3)]))
    )
    stub.Push(push_request(incarnation, push_id=2, gradient=gradient(np.nan).tobytes(), base_version=0))
    status = stub.GetStatus(pb.GetStatusRequest())
    assert (status.global_step, status.frames, status.updates, status.discarded) == (8, 8, 1, 1)
    assert (status.episodes, status.mean_return_100, status.workers) == (1, 3.0, 1)
    assert (status.mean_staleness, status.learning_rate, status.max_global_step) == (0.5, 1.0, 10**9)
    assert status.training_seconds > 0


def test_status_counts_discarded_gradients_by_reason(stub: Stub, incarnation: int) -> None:
    stub.Push(push_request(incarnation, gradient=gradient(np.nan).tobytes()))
    answer = stub.Push(push_request(incarnation, push_id=2, gradient=b"", withheld=True, env_steps=3))
    assert (answer.discard, answer.version) == (pb.DISCARD_LOSS, 0)
    for number, version in ((3, 0), (4, 0)):
        stub.Push(push_request(incarnation, push_id=number, base_version=version))
    status = stub.GetStatus(pb.GetStatusRequest())
    reasons = status.discarded_stale, status.discarded_not_finite, status.discarded_loss
    assert (status.discarded, *reasons) == (2, 0, 1, 1)
    assert (status.updates, status.staleness_p95) == (2, 1.0)
    code, sentence = error_of(lambda: stub.Push(push_request(incarnation, push_id=5, withheld=True)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "withheld=true must not have a gradient" in sentence


def test_push_repeated_by_eight_threads_is_applied_once(server: Running, stub: Stub, incarnation: int) -> None:
    """Two connections are used, because each may have four calls with pending messages."""
    answers: list[pb.PushResponse] = []
    own = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(server.address, own) as channel:
        stubs = [stub, pb_grpc.ParameterServerServiceStub(channel)]
        threads = [
            threading.Thread(
                target=lambda by: answers.append(by.Push(push_request(incarnation, want_parameters=True))), args=[by]
            )
            for by in stubs * 4
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(answers) == 8
    assert {answer.parameters for answer in answers} == {gradient(-1).tobytes()}
    assert server.version == 1


def test_metric_names_of_one_worker_do_not_block_others(server: Running, stub: Stub, incarnation: int) -> None:
    """The clients of one worker may send many names, one connection after the other."""
    other = "1" * 32
    stub.Register(register_request(worker_id=other))
    noise = [pb.ScalarSum(name=f"client/noise-{index}", sum=1, count=1) for index in range(3000)]
    stub.Report(pb.ReportRequest(worker_id=WORKER, report_id=1, report=pb.MetricsReport(scalars=noise)))
    assert len(server.core.metrics.drain()) == 1024
    score = pb.MetricsReport(scalars=[pb.ScalarSum(name="client/score", sum=2, count=1)])
    stub.Report(pb.ReportRequest(worker_id=other, report_id=1, report=score))
    assert server.core.metrics.drain() == {"client/score": 2.0}
    stub.Leave(pb.LeaveRequest(worker_id=WORKER))
    later = [pb.ScalarSum(name=f"client/later-{index}", sum=1, count=1) for index in range(3000)]
    stub.Report(pb.ReportRequest(worker_id=other, report_id=2, report=pb.MetricsReport(scalars=later)))
    assert len(server.core.metrics.drain()) == 1023, "names of a deregistered worker are freed"
