"""Workers with synchronous updates: clients of real shards, by gRPC and shared memory."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.optim.optimizers import RMSProp
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.client import ParameterClient, Transport
from relaax.parameters.interfaces import Pushed, TrainingEnded
from relaax.server.parameter_server.service import service
from relaax.server.parameter_server.shard.shard import Push, Shard
from relaax.server.parameter_server.shard.synchronous import Synchronization
from relaax.transport.segments import SUPPORTED
from support.cutting_proxy import CuttingProxy
from support.parameter_servers import SIZE, Models, fingerprint, gradient, parameter_client, registration, running
from support.processes import Processes, Running, wait_until
from support.shards import OneShard, Shards, sharded

NEVER = 3600.0
BOUND = 60.0
"""Seconds after which a test has failed."""
SYNCHRONOUS = Models(synchronization=Synchronization(NEVER))
SHARED_MEMORY = pytest.param(
    "shared_memory", marks=pytest.mark.skipif(not SUPPORTED, reason="the system cannot pass memory between processes")
)
both_ways = pytest.mark.parametrize("transport", ["grpc", SHARED_MEMORY])
ONES, ZEROS = gradient(*[1.0] * SIZE), gradient()


class Task(threading.Thread):
    """A call in a thread of its own, whose result or exception `result` returns."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        super().__init__(daemon=True)
        self._call, self._arguments = call, arguments
        self._outcome: Any = None
        self.start()

    def run(self) -> None:
        try:
            self._outcome = self._call(*self._arguments)
        except BaseException as error:
            self._outcome = error

    def result(self) -> Any:
        self.join(BOUND)
        assert not self.is_alive(), "the call has not ended"
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


@contextmanager
def workers(addresses: Sequence[str], *environments: int, **options: Any) -> Iterator[list[ParameterClient]]:
    """Registered clients with these numbers of environments. All participate in synchronous updates."""
    with ExitStack() as opened:
        clients = [opened.enter_context(parameter_client(addresses, **options)) for _ in environments]
        for client, count in zip(clients, environments, strict=True):
            client.register(registration(environments=count))
            client.pull()
        for client in clients:  # the first completes an update, and the gradients of the others are stale
            client.push(ZEROS, 0)
        yield clients


def push_all(clients: Sequence[ParameterClient], *gradients: Any, env_steps: int = 1) -> list[Pushed]:
    """Push one gradient of each client at the same time, and return the results."""
    tasks = [Task(client.push, each, env_steps) for client, each in zip(clients, gradients, strict=True)]
    return [task.result() for task in tasks]


def shard_of(one: OneShard) -> Shard:
    assert one.core.model is not None
    return one.core.model.shard


def pending(shards: Shards) -> bool:
    """Return whether every shard has the contribution of one worker to the pending update."""
    updates = [shard_of(one)._synchronous for one in shards.all]
    return all(each is not None and len(each._contributors) == 1 for each in updates)


def left_out(shards: Shards) -> list[int]:
    """Return the number of workers that updates did not wait for, by shard."""
    counts = [shard_of(one).synchronous_counts for one in shards.all]
    return [each.left_out for each in counts if each is not None]


@both_ways
@pytest.mark.parametrize("count", [1, 2])
def test_two_workers_equal_one_with_all_environments(transport: Transport, count: int) -> None:
    models = Models(RMSProp(), learning_rate=0.05, synchronization=Synchronization(NEVER))
    rng = np.random.default_rng(3)
    with (
        sharded(count, models) as shards,
        sharded(count, models) as reference,
        workers(shards.addresses, 2, 6, transport=transport) as pair,
        workers(reference.addresses, 8, transport=transport) as (everyone,),
    ):
        for version in range(2, 12):
            each = rng.normal(size=(8, SIZE)).astype(np.float32)  # the gradient of each environment
            one = everyone.push(each.mean(0), 8)
            both = push_all(pair, each[:2].mean(0), each[2:].mean(0), env_steps=4)
            assert one.pulled is not None
            for pushed in both:
                assert (pushed.discarded, pushed.staleness, pushed.version) == (None, 0, version)
                assert pushed.pulled is not None
                np.testing.assert_allclose(pushed.pulled.parameters, one.pulled.parameters, rtol=0, atol=1e-6)
            assert both[0].global_step == one.global_step == 8 * (version - 1)
        assert float(np.abs(shards.parameters).min()) > 0.01


@both_ways
def test_several_pushes_of_a_rollout_are_an_update_each(transport: Transport) -> None:
    with sharded(1, SYNCHRONOUS) as shards, workers(shards.addresses, 1, 1, transport=transport) as pair:
        for number in range(1, 5):
            push_all(pair, number * ONES, ZEROS, env_steps=int(number == 1))
        np.testing.assert_array_equal(shards.parameters, -5 * ONES)
        assert (shards.leader.version, shard_of(shards.leader).counters.env_steps) == (5, 2)


@both_ways
@pytest.mark.parametrize("count", [1, 2])
def test_gradient_of_an_older_version_is_stale(transport: Transport, count: int) -> None:
    with (
        sharded(count, SYNCHRONOUS) as shards,
        workers(shards.addresses, 1, transport=transport) as (one,),
        parameter_client(shards.addresses, transport=transport) as late,
    ):
        late.register(registration())
        late.pull()
        one.push(ONES, 1)
        stale = late.push(9 * ONES, 1)
        assert (stale.discarded, stale.staleness, stale.global_step) == ("stale", 1, 2)
        assert stale.pulled is not None
        np.testing.assert_array_equal(stale.pulled.parameters, -ONES)
        push_all((one, late), ONES, 3 * ONES)
        np.testing.assert_array_equal(shards.parameters, -3 * ONES)


@both_ways
def test_joining_worker_takes_part_from_its_first_gradient(transport: Transport) -> None:
    with sharded(1, SYNCHRONOUS) as shards, workers(shards.addresses, 1, transport=transport) as (one,):
        with parameter_client(shards.addresses, transport=transport) as joining:
            joining.register(registration(environments=3))
            joining.pull()
            one.push(ZEROS, 1)  # does not wait for it
            joining.pull()
            waiting = Task(joining.push, 4 * ONES, 1)
            wait_until(lambda: pending(shards), "the joining worker waits")
            one.push(ZEROS, 1)
            assert waiting.result().discarded is None
            np.testing.assert_array_equal(shards.parameters, -3 * ONES)
        assert one.push(ZEROS, 1).discarded is None  # it has deregistered


def started_child(processes: Processes, shards: Shards, transport: str, mode: str) -> Running:
    addresses = ",".join(shards.addresses)
    command = sys.executable, "-m", "support.synchronous_child", addresses, fingerprint(), transport, mode
    return processes.start(*command, cwd=Path(__file__).parents[1])


@both_ways
@pytest.mark.parametrize("count", [1, 2])
def test_killed_worker_does_not_delay_others(transport: Transport, count: int, processes: Processes) -> None:
    with sharded(count, SYNCHRONOUS) as shards:
        child = started_child(processes, shards, transport, "compute")
        child.wait_for_line("updated")
        with parameter_client(shards.addresses, transport=transport) as one:
            one.register(registration())
            one.pull()
            waiting = Task(one.push, ONES, 1)
            wait_until(lambda: pending(shards), "the worker waits for the child")
            child.send_signal(signal.SIGKILL)
            np.testing.assert_array_equal(waiting.result().pulled.parameters, -2 * ONES)
            for _ in range(3):
                assert one.push(ONES, 1).discarded is None
        assert left_out(shards) == [0] * count


@both_ways
def test_gradient_of_a_worker_killed_while_it_waits_counts(transport: Transport, processes: Processes) -> None:
    with sharded(1, SYNCHRONOUS) as shards:
        child = started_child(processes, shards, transport, "push")
        child.wait_for_line("updated")
        with parameter_client(shards.addresses, transport=transport) as one:
            one.register(registration())
            one.pull()
            one.push(ONES, 1)  # from now on, the child waits for it
            wait_until(lambda: pending(shards), "the child waits for the worker")
            before = shards.parameters
            child.send_signal(signal.SIGKILL)
            child.wait()
            for number in range(1, 4):
                assert one.push(3 * ONES, 1).discarded is None
                np.testing.assert_array_equal(shards.parameters, before - (3 * number - 1) * ONES)
        assert left_out(shards) == [0]


@both_ways
def test_workers_with_crossed_versions_do_not_deadlock(transport: Transport) -> None:
    with sharded(2, SYNCHRONOUS) as shards, workers(shards.addresses, 1, 1, transport=transport) as pair:
        push_all(pair, ONES, ONES)
        for shard, client in enumerate(pair):  # as if each had pulled from one shard before its last update
            client._links[shard].version = 1

        def push_repeatedly(client: ParameterClient) -> list[str | None]:
            results = [client.push(ONES, 1).discarded for _ in range(20)]
            client.close()  # the other worker may still need an update
            return results

        tasks = [Task(push_repeatedly, client) for client in pair]
        for discarded in (task.result() for task in tasks):
            assert discarded[0] == "stale"
            assert discarded[3:] == [None] * 17
        assert left_out(shards) == [0, 0]


def test_worker_of_fast_shards_is_awaited_after_a_long_wait() -> None:
    with sharded(2, SYNCHRONOUS) as shards, workers(shards.addresses, 1, 1) as (one, two):
        other = shard_of(shards.all[1])
        other.push(Push("blocking", 1, 0, ZEROS[: other.size], 0, 0, 0))  # stale; it never pushes again
        waiting = Task(one.push, ONES, 1), Task(two.push, ONES, 1)
        updates = shard_of(shards.leader)._synchronous
        wait_until(lambda: updates is not None and len(updates._suspended) == 2, "shard 0 awaits no worker")
        other.stop_waiting_for("blocking")
        for each in waiting:
            assert each.result().discarded is None
        assert updates is not None and not updates._suspended
        waiting = (Task(one.push, ONES, 1),)
        wait_until(lambda: pending(shards), "both shards await the other worker")
        two.push(ONES, 1)
        assert waiting[0].result().discarded is None


@both_ways
@pytest.mark.parametrize("count", [1, 2])
def test_slow_worker_is_left_out_until_its_next_push(transport: Transport, count: int) -> None:
    models = Models(synchronization=Synchronization(1.0))
    with sharded(count, models) as shards, workers(shards.addresses, 1, 1, transport=transport) as (one, slow):
        begun = time.monotonic()
        assert one.push(ONES, 1).discarded is None
        assert time.monotonic() - begun >= 1.0
        assert left_out(shards) == [1] * count
        one.push(ONES, 1)
        assert left_out(shards) == [1] * count
        assert slow.push(9 * ONES, 1).discarded == "stale"
        waiting = Task(one.push, ONES, 1)
        wait_until(lambda: pending(shards), "the update waits for the slow worker")
        waiting.result()
        assert left_out(shards) == [2] * count
        np.testing.assert_array_equal(shards.parameters, -3 * ONES)


@both_ways
def test_frozen_worker_is_left_out_until_it_continues(transport: Transport, processes: Processes) -> None:
    with sharded(1, Models(synchronization=Synchronization(1.0))) as shards:
        child = started_child(processes, shards, transport, "push")
        child.wait_for_line("updated")
        with parameter_client(shards.addresses, transport=transport) as one:
            one.register(registration())
            one.pull()
            one.push(ONES, 1)
            child.send_signal(signal.SIGSTOP)
            for _ in range(3):
                one.push(ONES, 1)
            updates = shard_of(shards.leader)._synchronous
            assert updates is not None and len(updates._participants) == 1
            assert left_out(shards)[0] >= 1
            child.send_signal(signal.SIGCONT)
            before = updates.counts.contributions - updates.counts.updates
            wait_until(lambda: one.push(ONES, 1).discarded is None and len(updates._participants) == 2, "both push")
            wait_until(
                lambda: one.push(ONES, 1) and updates.counts.contributions - updates.counts.updates > before,
                "an update has the gradients of both",
            )


def test_workers_beyond_the_waiting_limit_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_WAITING_WORKERS", 1)
    with sharded(1, SYNCHRONOUS) as shards, workers(shards.addresses, *[1] * 5) as clients:
        for _ in range(3):
            push_all(clients, *[ONES] * 5)
        np.testing.assert_array_equal(shards.parameters, -3 * ONES)


def test_repeated_contribution_after_a_lost_answer_counts_once() -> None:
    with sharded(1, SYNCHRONOUS) as shards, CuttingProxy(shards.leader.address) as proxy:
        with workers(shards.addresses, 1) as (two,), parameter_client(proxy.address) as one:
            one.register(registration())
            one.pull()
            proxy.cut_at_answer()
            waiting = Task(one.push, 4 * ONES, 1)
            wait_until(lambda: shards.leader.core.repeated["same"] == 1, "the push was repeated")
            two.push(ZEROS, 1)
            assert waiting.result().discarded is None
        np.testing.assert_array_equal(shards.parameters, -2 * ONES)
        assert shard_of(shards.leader).counters.env_steps == 2


@both_ways
def test_checkpoint_has_no_pending_update(transport: Transport, tmp_path: Path) -> None:
    with (
        sharded(2, SYNCHRONOUS, tmp_path) as shards,
        workers(shards.addresses, 1, 1, transport=transport) as (one, two),
    ):
        push_all((one, two), ONES, ONES)
        waiting = Task(one.push, 8 * ONES, 1)
        wait_until(lambda: pending(shards), "an update is pending")
        assert shards.save()
        two.push(8 * ONES, 1)
        assert waiting.result().discarded is None
        np.testing.assert_array_equal(shards.parameters, -9 * ONES)
        waiting = Task(one.push, 8 * ONES, 1)
        wait_until(lambda: pending(shards), "an update is pending")
        shards.all[1].vanish()  # all shards return to the checkpoint
        shards.restart(1)
        rolled_back = waiting.result()
        assert rolled_back.discarded == "incarnation"
        np.testing.assert_array_equal(rolled_back.pulled.parameters, -ONES)
        assert two.push(ONES, 1).discarded == "incarnation"
        push_all((one, two), ONES, ONES)
        np.testing.assert_array_equal(shards.parameters, -2 * ONES)


@both_ways
def test_restarted_server_continues_without_the_pending_update(transport: Transport, tmp_path: Path) -> None:
    with running(SYNCHRONOUS, tmp_path) as server, workers([server.address], 1, 1, transport=transport) as (one, two):
        push_all((one, two), ONES, ONES)
        waiting = Task(one.push, 8 * ONES, 1)
        wait_until(lambda: server.core.global_step == 3, "an update is pending")
        server.stop()  # saves a checkpoint
        with running(SYNCHRONOUS, tmp_path, server.address) as again:
            assert waiting.result().discarded == "incarnation"
            two.push(ONES, 1)
            push_all((one, two), ONES, ONES)
            np.testing.assert_array_equal(again.parameters, -2 * ONES)
            assert again.core.global_step == 6


@both_ways
def test_waiting_worker_learns_of_the_end_of_training(transport: Transport) -> None:
    models = Models(synchronization=Synchronization(NEVER), max_global_step=10)
    with sharded(1, models) as shards, workers(shards.addresses, 1, 1, 1, transport=transport) as (one, two, _):
        waiting = Task(one.push, ONES, 1)
        wait_until(lambda: pending(shards), "a worker waits")
        with pytest.raises(TrainingEnded):
            two.push(ONES, 9)
        with pytest.raises(TrainingEnded):
            waiting.result()


@both_ways
def test_stopping_server_does_not_wait_for_workers(transport: Transport) -> None:
    with (
        running(SYNCHRONOUS) as server,
        workers([server.address], 1, 1, transport=transport, unavailable_after=0.5) as (one, _),
    ):
        waiting = Task(one.push, ONES, 1)
        wait_until(lambda: server.core.global_step == 1, "a worker waits")
        server.stop()
        waiting.join(BOUND)
        assert not waiting.is_alive()


def test_metrics_show_waits_contributions_and_left_out_workers() -> None:
    models = Models(synchronization=Synchronization(2.0))
    with running(models) as server, workers([server.address], 1, 1) as (one, slow):
        server.core.scalars()
        push_all((one, slow), ONES, ONES)
        assert server.core.scalars()[1]["sync/contributions"] == 2
        one.push(ONES, 1)
        _, scalars = server.core.scalars()
        assert (scalars["sync/contributions"], scalars["sync/left_out"], server.core.left_out) == (1, 1, 1)
        one.push(ONES, 1)
        waits = server.core.scalars()[1]["sync/wait_fraction"]
        assert 0.5 < waits <= 1.0  # the last report has the wait for the slow worker


def test_asynchronous_server_reports_no_synchronous_metrics() -> None:
    with running() as server, parameter_client(server.address) as client:
        client.register(registration())
        client.pull()
        server.core.scalars()
        assert client.push(ONES, 1).version == 1
        client.push(ONES, 1)
        _, scalars = server.core.scalars()
        assert not [name for name in scalars if name.startswith("sync/")]
        assert server.core.left_out == 0


def test_unregistered_worker_does_not_wait() -> None:
    with running(SYNCHRONOUS) as server, workers([server.address], 1):
        stranger = service.ParameterService(server.core)
        begun = time.monotonic()
        request = pb.PullRequest(worker_id="0" * 32, incarnation=server.core.incarnation, newer_than=9)
        stranger.await_update(request, own_thread=True)
        assert time.monotonic() - begun < 0.9
        assert stranger.pull(request).message.incarnation_ended
