"""What no bridge would send: refused with a sentence, and nothing has changed."""

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


def introduction(**changes: Any) -> pb.RegisterRequest:
    values = {"worker_id": WORKER, "environments": 1, "fingerprint": fingerprint(), "role": pb.ROLE_TRAIN, **changes}
    return pb.RegisterRequest(**values)


@pytest.fixture
def incarnation(stub: Stub) -> int:
    return int(stub.Register(introduction()).incarnation)


def update(incarnation: int, **changes: Any) -> pb.PushRequest:
    values: dict[str, Any] = {"push_id": 1, "gradient": gradient(1).tobytes(), "env_steps": 1, **changes}
    return pb.PushRequest(worker_id=WORKER, incarnation=incarnation, **values)


def refused(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
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
def test_registrations_out_of_bounds(server: Running, stub: Stub, changes: dict[str, Any], sentence: str) -> None:
    code, details = refused(lambda: stub.Register(introduction(**changes)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert sentence in details
    assert server.core.model is None


@pytest.mark.parametrize("text", ["{", "[" * 100_000, ""])
def test_a_fingerprint_that_is_none(stub: Stub, incarnation: int, text: str) -> None:
    code, details = refused(lambda: stub.Register(introduction(worker_id="1" * 32, fingerprint=text)))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert details == "the worker's fingerprint is not JSON"


def test_the_same_registration_twice_is_one_worker(server: Running, stub: Stub) -> None:
    assert stub.Register(introduction()) == stub.Register(introduction())
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
def test_pushes_that_no_worker_sends(
    server: Running, stub: Stub, incarnation: int, changes: dict[str, Any], code: str, sentence: str
) -> None:
    found, details = refused(lambda: stub.Push(update(incarnation, **changes)))
    assert found is grpc.StatusCode[code]
    assert sentence in details
    counters = server.core.model.shard.counters
    assert (counters.version, counters.env_steps) == (0, 0)
    assert stub.Push(update(incarnation)).version == 1


def test_a_repeated_push_gets_the_same_answer(server: Running, stub: Stub, incarnation: int) -> None:
    request = update(
        incarnation, want_parameters=True, report=pb.MetricsReport(episodes=[pb.EpisodeResult(episode_return=1)])
    )
    first = stub.Push(request)
    assert stub.Push(request).SerializeToString() == first.SerializeToString()
    assert (server.version, server.core.status().episodes) == (1, 1)
    assert server.core.repeated == {"same": 1, "earlier": 0}


def test_pushes_of_another_incarnation_and_of_unknown_workers(server: Running, stub: Stub, incarnation: int) -> None:
    answers = [stub.Push(update(incarnation - 1)), stub.Push(update(incarnation + 1))]
    stub.Leave(pb.LeaveRequest(worker_id=WORKER))
    answers.append(stub.Push(update(incarnation)))
    assert [answer.discard for answer in answers] == [pb.DISCARD_INCARNATION] * 3
    assert server.core.status().global_step == 0


def test_a_worker_cannot_deregister_those_that_are_listed(server: Running, stub: Stub, incarnation: int) -> None:
    (listed,) = stub.ListWorkers(pb.ListWorkersRequest()).workers
    assert WORKER.startswith(listed.worker_id)
    with contextlib.suppress(grpc.RpcError):
        stub.Leave(pb.LeaveRequest(worker_id=listed.worker_id))
    assert stub.Push(update(incarnation)).discard == pb.DISCARD_UNSPECIFIED
    assert server.core.registry.count() == 1


def test_pulls(stub: Stub, incarnation: int) -> None:
    def pull(**changes: Any) -> pb.PullResponse:
        return stub.Pull(pb.PullRequest(**{"worker_id": WORKER, "incarnation": incarnation, **changes}))

    assert pull().parameters == bytes(4 * SIZE)
    assert not pull().not_modified
    assert pull(have_version=0) == pb.PullResponse(not_modified=True, actor_count=1)
    stub.Push(update(incarnation))
    assert pull(have_version=0).parameters == gradient(-1).tobytes()
    assert pull(incarnation=incarnation - 1).incarnation_ended
    assert pull(worker_id="1" * 32).incarnation_ended
    code, details = refused(lambda: pull(vector="target"))
    assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "the model has no vector 'target'")
    code, details = refused(lambda: pull(precision=-1))
    assert (code, details[:29]) == (grpc.StatusCode.INVALID_ARGUMENT, "precision -1 is not supported")


def test_gradients_that_are_not_finite_are_logged(
    stub: Stub, incarnation: int, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = gradient(1)
    wrong[5] = np.nan
    for push_id in (1, 1, 2):  # one is a retry, the last one is within the minute
        stub.Push(update(incarnation, push_id=push_id, gradient=wrong.tobytes()))
    logged = [record.getMessage() for record in caplog.records if "discarded" in record.getMessage()]
    assert logged == [
        "discarded a gradient of worker 00000000: 1 of 8 elements are NaN or infinite, the first is 5 (nan)"
    ]


def test_a_push_that_changes_nothing_is_not_answered_with_what_the_worker_has(stub: Stub, incarnation: int) -> None:
    def push(number: int, **changes: Any) -> pb.PushResponse:
        return stub.Push(update(incarnation, **{"push_id": number, "want_parameters": True, **changes}))

    nan = gradient(np.nan).tobytes()
    has_it = push(1, have_version=0, gradient=nan)
    assert (has_it.not_modified, has_it.parameters, has_it.discard) == (True, b"", pb.DISCARD_NOT_FINITE)
    assert push(1, have_version=0, gradient=nan) == has_it
    assert push(2, gradient=nan).parameters == bytes(4 * SIZE)
    changed = push(3, have_version=0)
    assert (changed.not_modified, changed.version, changed.parameters) == (False, 1, gradient(-1).tobytes())
    assert push(4, have_version=0, gradient=b"").parameters == gradient(-1).tobytes()
    silent = push(5, have_version=1, gradient=b"", want_parameters=False)
    assert (silent.not_modified, silent.parameters) == (False, b"")


def test_versions_of_another_incarnation_are_others(tmp_path: Path) -> None:
    changes = {"have_version": 0, "want_parameters": True, "gradient": gradient(np.nan).tobytes()}
    with running(directory=tmp_path) as first, grpc.insecure_channel(first.address) as channel:
        stub: Stub = pb_grpc.ParameterServerServiceStub(channel)
        push = update(stub.Register(introduction()).incarnation, **changes)
        assert stub.Push(push).not_modified
        first.stop()
    with running(directory=tmp_path) as second, grpc.insecure_channel(second.address) as channel:
        stub = pb_grpc.ParameterServerServiceStub(channel)
        repeated = stub.Push(push)  # which the checkpoint's ledger holds
        assert (repeated.discard, repeated.not_modified) == (pb.DISCARD_NOT_FINITE, False)
        assert repeated.parameters == bytes(4 * SIZE)
        assert second.core.repeated == {"same": 0, "earlier": 1}
        pull = pb.PullRequest(worker_id=WORKER, incarnation=push.incarnation, have_version=0)
        assert stub.Pull(pull) == pb.PullResponse(incarnation_ended=True)


def test_a_repeated_report_is_counted_once(server: Running, stub: Stub, incarnation: int) -> None:
    report = pb.MetricsReport(episodes=[pb.EpisodeResult(episode_return=1)])
    for number in (1, 1, 2):
        stub.Report(pb.ReportRequest(worker_id=WORKER, report=report, report_id=number))
    assert server.core.status().episodes == 2
    assert stub.Report(pb.ReportRequest(worker_id="1" * 32)).incarnation_ended


def test_a_message_over_the_limit_is_refused_and_others_are_served(stub: Stub, incarnation: int) -> None:
    code, _ = refused(lambda: stub.Push(update(incarnation, gradient=bytes(4_000_000))))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert stub.Push(update(incarnation)).version == 1


def test_status_needs_no_registration(server: Running, stub: Stub) -> None:
    status = stub.GetStatus(pb.GetStatusRequest())
    assert (status.incarnation, status.global_step, status.workers) == (server.core.incarnation, 0, 0)
    assert not status.HasField("mean_return_100")
    assert (status.training_seconds, status.checkpoint) == (0.0, "")


def test_status_counts(stub: Stub, incarnation: int) -> None:
    stub.Push(update(incarnation, env_steps=7, report=pb.MetricsReport(episodes=[pb.EpisodeResult(episode_return=3)])))
    stub.Push(update(incarnation, push_id=2, gradient=gradient(np.nan).tobytes(), base_version=0))
    status = stub.GetStatus(pb.GetStatusRequest())
    assert (status.global_step, status.frames, status.updates, status.discarded) == (8, 8, 1, 1)
    assert (status.episodes, status.mean_return_100, status.workers) == (1, 3.0, 1)
    assert (status.mean_staleness, status.learning_rate, status.max_global_step) == (0.5, 1.0, 10**9)
    assert status.training_seconds > 0


def test_status_says_why_gradients_were_discarded(stub: Stub, incarnation: int) -> None:
    stub.Push(update(incarnation, gradient=gradient(np.nan).tobytes()))
    answer = stub.Push(update(incarnation, push_id=2, gradient=b"", withheld=True, env_steps=3))
    assert (answer.discard, answer.version) == (pb.DISCARD_LOSS, 0)
    for number, version in ((3, 0), (4, 0)):
        stub.Push(update(incarnation, push_id=number, base_version=version))
    status = stub.GetStatus(pb.GetStatusRequest())
    reasons = status.discarded_stale, status.discarded_not_finite, status.discarded_loss
    assert (status.discarded, *reasons) == (2, 0, 1, 1)
    assert (status.updates, status.staleness_p95) == (2, 1.0)
    code, sentence = refused(lambda: stub.Push(update(incarnation, push_id=5, withheld=True)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "withheld=true must not have a gradient" in sentence


def test_a_push_repeated_by_eight_threads_at_once_is_applied_once(
    server: Running, stub: Stub, incarnation: int
) -> None:
    """Over two connections: each may have four calls whose messages are on their way."""
    answers: list[pb.PushResponse] = []
    own = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(server.address, own) as channel:
        stubs = [stub, pb_grpc.ParameterServerServiceStub(channel)]
        threads = [
            threading.Thread(
                target=lambda by: answers.append(by.Push(update(incarnation, want_parameters=True))), args=[by]
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


def test_one_worker_takes_no_place_of_anothers_metrics(server: Running, stub: Stub, incarnation: int) -> None:
    """Its clients may have had many names, one connection after the other."""
    other = "1" * 32
    stub.Register(introduction(worker_id=other))
    noise = [pb.ScalarSum(name=f"client/noise-{index}", sum=1, count=1) for index in range(3000)]
    stub.Report(pb.ReportRequest(worker_id=WORKER, report_id=1, report=pb.MetricsReport(scalars=noise)))
    assert len(server.core.metrics.drain()) == 1024
    score = pb.MetricsReport(scalars=[pb.ScalarSum(name="client/score", sum=2, count=1)])
    stub.Report(pb.ReportRequest(worker_id=other, report_id=1, report=score))
    assert server.core.metrics.drain() == {"client/score": 2.0}
    stub.Leave(pb.LeaveRequest(worker_id=WORKER))
    later = [pb.ScalarSum(name=f"client/later-{index}", sum=1, count=1) for index in range(3000)]
    stub.Report(pb.ReportRequest(worker_id=other, report_id=2, report=pb.MetricsReport(scalars=later)))
    assert len(server.core.metrics.drain()) == 1023, "names of a worker that has gone make room"
