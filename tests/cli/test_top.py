"""`relaax top`: the servers that it polls, and the tables that it shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from relaax.cli.live.addresses import _logged_addresses
from relaax.cli.live.top import ServiceWatcher, service_tables
from relaax.cli.run.progress import ReplayShardView, table_row
from relaax.configuration.roles import PARAMETER_SERVER, REPLAY_SERVER
from relaax.parameters.interfaces import TRAIN
from relaax.plain_console import PlainConsole
from relaax.replay import replay_pb2 as pb
from relaax.server.parameter_server.service.registry import WorkerOrigin
from relaax.server.replay_server.table_statistics import TableStatistics
from relaax.transport.channel import Target
from support.parameter_servers import gradient, parameter_client, registration, running
from support.processes import Processes, project_command
from support.replay_servers import client_of, numbered, numbers, serving
from support.terminal_pictures import reported
from support.unused_address import unused_address

PATIENCE = 120.0


def render(table: object, width: int = 160) -> str:
    console = PlainConsole(width=width)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_ten_thousand_workers_are_listed() -> None:
    """The list of workers is longer than other status messages."""
    with running() as server:
        for number in range(10_000):
            server.core.registry.register(
                f"{number:032x}", "", 1, TRAIN, 1, WorkerOrigin("CartPole-v1", "host", "server:7001")
            )
        watcher = ServiceWatcher([Target(server.address)], [])
        seen = watcher.snapshot()
        watcher.close()
        assert len(seen["workers"]) == 10_000


def test_markup_and_control_characters_in_names_are_printed(processes: Processes) -> None:
    with running() as server, parameter_client(server.address) as worker:
        worker.register(registration(environment="[/x]", host="[link=h]:bomb:\x1b[2J", server="[red]:7001"))
        command = processes.start(project_command("relaax"), "top", server.address, "--once")
        assert command.wait(PATIENCE) == 0, command.report()
        shown = "\n".join(command.lines)
        for name in ("[/x]", "[link=h]:bomb:\\x1b[2J", "[red]:7001"):
            assert name in shown


def test_replay_servers_are_listed_with_the_shards() -> None:
    with (
        running() as server,
        serving(2) as shards,
        client_of(shards, numbered(100), actors=(0, 1)) as client,
        parameter_client(server.address) as actor,
        unused_address() as gone,
    ):
        actor.register(registration())
        actor.pull()
        actor.push(gradient(1), env_steps=1, want_parameters=False)
        actor.push(None, env_steps=4)
        replay = [Target(address) for address in (*(shard.address for shard in shards), gone)]
        watcher = ServiceWatcher([Target(server.address)], replay)
        first = watcher.snapshot()
        assert [table["inserts_per_second"] for shard in first["replay"] for table in shard["tables"]] == [None, None]
        for writer in client.writers:
            writer.insert(numbers(1, 2, 3))
        assert client.sample(12, 30.0) is not None
        seen = json.loads(json.dumps(watcher.snapshot()))
        watcher.close()
        (one,), (other,), no_tables = (shard["tables"] for shard in seen["replay"])
        assert (one["name"], one["size"], one["capacity"], one["inserts"]) == ("numbers", 3, 50, 3)
        assert one["samples"] + other["samples"] == 12
        assert one["samples_per_insert"] == one["samples"] / 3
        assert one["inserts_per_second"] > 0
        assert (no_tables, seen["replay"][2]["error"][:11]) == ([], "UNAVAILABLE")
        assert [shard.get("shard") for shard in seen["replay"]] == [0, 1, None]
        assert seen["shards"][0]["mean_actor_staleness"] == 1.0
        text = render(service_tables(seen))
        assert "actors 1 versions behind" in text
        for shard in shards:
            (line,) = [line for line in text.splitlines() if shard.address in line]
            assert "numbers" in line
        assert f"{gone}: UNAVAILABLE" in text


def test_tables_of_all_sessions_are_summed_and_counted() -> None:
    with (
        running() as server,
        serving() as shards,
        client_of(shards, numbered(100), session="a"),
        client_of(shards, numbered(100), session="b"),
    ):
        watcher = ServiceWatcher([Target(server.address)], [Target(shards[0].address)])
        seen = watcher.snapshot()
        watcher.close()
        assert [table["tables"] for table in seen["replay"][0]["tables"]] == [2]
        assert "numbers x 2" in render(service_tables(seen))


def test_server_without_tables_shows_none_yet() -> None:
    with running() as server, serving() as shards:
        watcher = ServiceWatcher([Target(server.address)], [Target(shards[0].address)])
        assert "none yet" in render(service_tables(watcher.snapshot()))
        watcher.close()


def test_service_without_replay_memory_has_no_replay_table() -> None:
    with running() as server:
        watcher = ServiceWatcher([Target(server.address)])
        seen = watcher.snapshot()
        watcher.close()
        assert seen["replay"] == []
        assert "replay" not in render(service_tables(seen))


def test_run_directory_names_shards_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for role in (PARAMETER_SERVER, REPLAY_SERVER):
        for number in range(12):
            log = tmp_path / "logs" / (f"{role.name}-{number}.log" if number else f"{role.name}.log")
            log.write_text(f"{role.command} listening on h:{number + 1}\n")
    for role in (PARAMETER_SERVER, REPLAY_SERVER):
        assert _logged_addresses(tmp_path, role) == ",".join(f"h:{number + 1}" for number in range(12))


@pytest.mark.parametrize("named", ["option", "run", "configuration"])
def test_command_polls_the_named_replay_servers(processes: Processes, tmp_path: Path, named: str) -> None:
    with running() as server, serving(2) as shards:
        addresses = ",".join(shard.address for shard in shards)
        if named == "option":
            where = [server.address, "--replay-server", addresses]
        elif named == "run":
            logs = tmp_path / "run" / "logs"
            logs.mkdir(parents=True)
            (logs / "parameter-server.log").write_text(f"relaax-parameter-server listening on {server.address}\n")
            for name, shard in zip(("replay-server", "replay-server-1"), shards, strict=True):
                (logs / f"{name}.log").write_text(f"relaax-replay-server listening on {shard.address}\n")
            where = [str(tmp_path / "run")]
        else:
            section = {"parameter_server": server.address, "replay_server": addresses}
            (tmp_path / "c.yaml").write_text(json.dumps({"relaax-rlx-server": section, "algorithm": {"path": "da3c"}}))
            where = [str(tmp_path / "c.yaml")]
        command = processes.start(project_command("relaax"), "top", *where, "--once", "--json")
        assert command.wait(PATIENCE) == 0, command.report()
        seen = json.loads(command.lines[-1])
        assert [shard["error"] for shard in seen["replay"]] == [None, None]
        assert [shard["shard"] for shard in seen["replay"]] == [0, 1]


def test_replay_server_option_is_refused_for_a_run(processes: Processes, tmp_path: Path) -> None:
    command = processes.start(project_command("relaax"), "top", str(tmp_path), "--replay-server", "h:1")
    assert command.wait(PATIENCE) == 2
    assert "--replay-server is for HOST:PORT: a configuration or a run names its own replay servers" in command.stderr


def test_server_status_becomes_rows() -> None:
    table = pb.TableStatus(name="t", tables=1, size=2, capacity=4, bytes=8, inserts=0, samples=0)
    view = ReplayShardView("h:1", status=pb.ReplayServiceGetStatusResponse(tables=[table]))
    assert view.tables == {"t": TableStatistics(tables=1, size=2, capacity=4, bytes=8)}
    assert view.sum == view.tables["t"]
    assert table_row(view.sum)["samples_per_insert"] is None
    assert ReplayShardView("h:1").sum == TableStatistics()


LARGE = {
    "shards": {
        "updates": 123_456_789,
        "updates_per_second": 12_345.6,
        "mean_return_100": -98_765.4,
        "checkpoint_global_step": 123_400_000,
        "address": "parameter-server-0.relaax.svc.cluster.local:7000",
    },
    "workers": {
        "actor": 1_023,
        "environment": "package.of_mine:AVeryLongEnvironment-v3",
        "host": "node-17.cluster.example.org",
        "environments": 1_000,
        "steps_per_second": 23_456.7,
        "act_ms_p50": 1_234.5,
        "mean_return_100": -87_654.3,
    },
    "servers": {
        "server": "rlx-0.relaax.svc:7001",
        "workers": 1_001,
        "environments": 1_001_000,
        "steps_per_second": 345_678.9,
    },
}
TABLE = {"size": 987_654, "inserts_per_second": 1_234.5, "samples_per_second": 456_789.1}


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_large_numbers_are_not_cut_at_any_width(width: int) -> None:
    seen = reported("gorila_distributed_gym_cartpole")["top"]
    for kind, large in LARGE.items():
        seen[kind] = [{**one, **large} for one in seen[kind] * 12]
    seen["shards"][5] = {"address": "gone:7000", "error": "UNAVAILABLE"}
    seen["replay"] = [{**one, "tables": [{**table, **TABLE} for table in one["tables"]]} for one in seen["replay"] * 6]
    text = render(service_tables(seen), width)
    assert max(map(cell_len, text.splitlines())) <= width
    numbers = [value for values in (*LARGE.values(), TABLE) for value in values.values() if not isinstance(value, str)]
    for number in numbers:
        shown = f"{number:,}" if isinstance(number, int) else f"{number:,.1f}"
        assert re.search(rf"(?<![\d,.]){re.escape(shown)}(?![\d,.])", text), number
    for word in ("updates", "checkpoint", "environment", "inserts/s", "steps/s", "actor", "7000", "7001"):
        assert word in text, word
    assert ("a wider terminal shows: " in text) == (width < 120)


def test_checkpoint_error_is_shown_below_the_shards() -> None:
    seen = reported("gorila_distributed_gym_cartpole")["top"]
    seen["shards"][1]["checkpoint_error"] = "cannot write checkpoints/00000003-12000-f1: No space left on device"
    text = render(service_tables(seen), 80)
    assert f"{seen['shards'][1]['address']}: cannot write checkpoints/00000003-12000-f1" in text
    assert "20,067" in text, "the other shard's checkpoint"
