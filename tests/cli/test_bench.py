"""`relaax bench`: its output, its errors, and real runs of all processes."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from relaax.cli.bench import results
from relaax.cli.bench.benchmark import CROWD_PER_CORE, MAX_CROWD
from relaax.cli.bench.exchange import WARM_UP, insertions, time_replay
from relaax.cli.bench.programs import Measurements, Programs, emulator_forms
from relaax.cli.bench.service import MeasuredService
from relaax.cli.options import cores
from relaax.cli.reporting import check_writable
from relaax.cli.run.plan import make_plan
from relaax.configuration import ConfigurationError
from relaax.supervision.process import StartError
from relaax.transport.channel import Target
from support.processes import Processes, project_command, wait_until
from support.programs import completed
from support.replay_servers import numbered, pictured, serving
from support.run import is_alive

FIGURES = {
    "emulator_only_steps_per_second": 3_900.0,
    "training_steps_per_second": 2_500.0,
    "with_network_steps_per_second": 3_200.0,
    "efficiency": 0.78,
    "parts_us": {"environments": 512.8, "network": 112.2, "idle": 3.0},
    "training_over_emulator": 0.641,
    "act_latency_ms": {"p50": 0.84, "p99": 3.1, "count": 4000},
    "bridge": "shared_memory",
    "sync_ms": {"p50": 4.6, "p99": 9.0, "count": 900},
    "replay_inserts_per_second": 30_000.0,
    "replay_insert_ms": {"p50": 1.6, "p99": 4.0, "count": 900},
    "replay_samples_per_second": 50_000.0,
    "replay_sample_ms": {"p50": 0.6, "p99": 2.0, "count": 900},
    "worker_memory_mb": {"mean": 120.0, "max": 121.0, "workers": 2, "updates": 1000},
    "worker_start_s": 0.6,
}


REPLAY = {name for name in FIGURES if name.startswith("replay_")}


def test_percentiles_are_measured_values() -> None:
    values = [float(i) for i in range(100, 0, -1)]
    assert results.percentile(values, 0.5) == 50
    assert results.percentile(values, 0.99) == 99
    assert results.percentile(values, 0.0) == 1
    assert results.percentile(values, 1.0) == 100
    assert results.percentile([7.0], 0.99) == 7
    assert results.p50_p99(values) == {"p50": 50, "p99": 99, "count": 100}
    with pytest.raises(ValueError, match="percentile of 0 values"):
        results.percentile([], 0.5)


def test_ratios_are_computed_per_window() -> None:
    assert results.ratios([100.0, 50.0, 90.0], [200.0, 100.0, 100.0]) == [0.5, 0.5, 0.9]
    assert results.median([0.5, 0.5, 0.9], 4) == 0.5
    assert math.isnan(results.ratios([1.0], [0.0])[0])


def test_windows_that_differ_a_lot_are_reported() -> None:
    (sentence,) = results.unsteady_windows({"training": [100.0, 131.0, 105.0], "emulator_only": [100.0, 101.0, 115.0]})
    assert "training differ by 30%" in sentence
    assert results.unsteady_windows({"training": [0.0, 0.0, 0.0]}) == []


def test_table_explains_each_figure() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(results.table(FIGURES, "da3c_ale_boxing"))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for words in (
        "3,900 steps/s",
        "30,000 items/s",
        "p50 0.60, p99 2.00 ms",
        "0.64",
        "network 112 µs",
        "p50 0.84, p99 3.10 ms",
        "mean 120, max 121 MB",
        "1,000 updates",
        "0.60 s",
        "shared_memory",
    ):
        assert words in " ".join(text.split()), words
    assert "shared_memory_ms" not in text, "a figure that was not measured has no row"
    assert results.MEANING.keys() >= FIGURES.keys()
    assert all(meaning.endswith(".") for meaning in results.MEANING.values())


def test_busy_machine_is_reported() -> None:
    facts = results.describe_machine()
    assert facts["cores"] == cores() >= 1
    assert {"relaax", "tensorflow", "grpcio"} <= facts["versions"].keys()
    assert results.busy_machine({**facts, "busy_percent": 3.0}) == []
    (sentence,) = results.busy_machine({**facts, "busy_percent": 42.0})
    assert "42 %" in sentence


def test_measurements_are_read_incrementally(tmp_path: Path) -> None:
    measured = Measurements(tmp_path / "m.jsonl")
    measured.update()
    assert measured.steps == []
    with measured.file.open("w") as file:
        file.write('{"time": 10.0, "steps": 0, "start_seconds": 0.5, "act_ms": []}\n{"time": 11.0, "steps"')
        file.flush()
        measured.update()
        assert (measured.start_seconds, measured.steps) == (0.5, [(10.0, 0)])
        file.write(': 100, "act_ms": [1.5, 2.5]}\n{"time": 13.0, "steps": 500, "act_ms": [3.5]}\n')
        file.flush()
        measured.update()
    assert measured.act_ms == [1.5, 2.5, 3.5]
    assert measured.start_seconds == 0.5
    assert measured.steps_per_second(9.0, 12.0) == 100
    assert measured.steps_per_second(11.0, 13.0) == 200
    assert measured.steps_per_second(12.0, 13.5) == 200, "counted from the last line before the window"
    assert measured.steps_per_second(9.0, 10.5) == 0, "one line gives no rate"
    assert measured.steps_per_second(13.0, 14.0) == 0


@pytest.mark.parametrize("config", ["da3c_ale_boxing", "da3c_gym_cartpole"])
def test_emulator_only_runs_as_many_environments_as_training(config: str) -> None:
    plan = make_plan(config, ["run.clients=3", "run.envs_per_client=4"])
    found = emulator_forms(plan)
    assert len({form.commands for form in found}) == len(found) >= 1
    for form in found:
        assert sum(int(command[4]) for command in form.commands) == 12, form
        assert {command[2] for command in form.commands} == {"random"}
    if config == "da3c_ale_boxing":
        assert len(found) == 3


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/bench", "relaax/supervision")
def test_programs_end_with_the_context_manager(tmp_path: Path) -> None:
    plan = make_plan("da3c_gym_cartpole", ["run.clients=1", "run.envs_per_client=2"])
    with Programs("emulator", emulator_forms(plan)[0].commands, tmp_path) as programs:
        assert programs.window(0.1, 2.0) > 0
        pids = [process.pid for process in programs._processes]
    assert all(pids)
    assert all(process.exit_code() is not None for process in programs._processes)
    assert programs.measured[0].steps[0][1] == 0
    assert programs.measured[0].act_ms == [], "environments alone request no actions"
    assert json.loads(programs.measured[0].file.read_text().splitlines()[-1]).keys() == {"time", "steps"}


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/bench", "relaax/client")
def test_connections_of_one_program_are_measured_separately(tmp_path: Path) -> None:
    plan = make_plan("da3c_gym_cartpole", ["run.clients=2", "run.connections_per_client=3", "run.envs_per_client=1"])
    with MeasuredService(plan, tmp_path) as service:
        window = service.window(2.0)
    assert len(window.of_connections) == 6
    assert all(window.of_connections)
    assert window.steps_per_second == pytest.approx(sum(window.of_connections), rel=0.3)


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/bench", "relaax/cli/run", "relaax/supervision")
def test_killed_server_is_reported_in_one_sentence(tmp_path: Path) -> None:
    plan = make_plan("da3c_gym_cartpole", ["run.clients=1"])
    with (
        pytest.raises(StartError, match=r"rlx-server ended during the benchmark \(-9\)"),
        MeasuredService(plan, tmp_path) as service,
    ):
        server = service._supervisor.rlx_server
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        assert server.wait(10)
        service._descendants()


def test_writability_check_does_not_change_the_file(tmp_path: Path) -> None:
    new, old, folder = tmp_path / "some" / "new.json", tmp_path / "old.json", tmp_path / "folder"
    check_writable("--json", new)
    assert not new.exists()
    old.write_text("{}")
    check_writable("--json", old)
    assert old.read_text() == "{}"
    folder.mkdir()
    with pytest.raises(ConfigurationError, match=f"--json {folder}"):
        check_writable("--json", folder)


def test_refused_program_is_reported_in_one_sentence(tmp_path: Path) -> None:
    plan = make_plan("da3c_gym_cartpole", ["run.name=CartPol-v1"])
    with (
        pytest.raises(StartError) as caught,
        Programs("emulator", emulator_forms(plan)[0].commands, tmp_path) as programs,
    ):
        programs.wait_until_acting()
    assert caught.value.refused is not None
    assert "'CartPole-v1'" in caught.value.refused


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["da3c_gym_cartpol"], "da3c_gym_cartpole"),
        (["da3c_gym_cartpole", "--seconds", "0"], "--seconds must be a finite number above 0"),
        (["da3c_gym_cartpole", "--seconds", "nan"], "such as 30, not nan"),
        (["da3c_gym_cartpole", "--clients", "0"], "clients"),
        (["da3c_gym_cartpole", "--json", "/proc/none/results.json"], "--json /proc/none/results.json"),
        (["da3c_gym_cartpole", "--set", "run.name=CartPol-v1", "--seconds", "1"], "'CartPole-v1'"),
    ],
)
def test_invalid_benchmark_is_refused_in_one_sentence(arguments: list[str], sentence: str) -> None:
    done = completed([project_command("relaax"), "bench", *arguments], dict(os.environ))
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_help_names_options_and_duration() -> None:
    done = completed([project_command("relaax"), "bench", "--help"], dict(os.environ))
    assert done.returncode == 0
    for words in ("--seconds", "--clients", "--envs-per-client", "--json", "minutes", "Exit code"):
        assert words in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_interrupted_benchmark_leaves_no_process_or_file(processes: Processes, number: int, tmp_path: Path) -> None:
    bench = processes.start(
        *("relaax", "bench", "da3c_gym_cartpole", "--clients", "1", "--seconds", "3000"),
        env={"TMPDIR": str(tmp_path)},
    )
    children = wait_until(lambda: _descendants(bench.pid), "an environment runs", timeout=120)
    assert bench.stop(number, timeout=60) == 130, bench.report()
    wait_until(lambda: not any(map(is_alive, children)), "its processes have ended")
    assert list(tmp_path.glob("relaax-bench-*")) == []
    assert "Traceback" not in bench.stderr


def _descendants(pid: int) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it may have just ended
            found += [child] if "CartPole-v1" in child.cmdline() else []
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_figure_of_cartpole_is_measured(processes: Processes, tmp_path: Path, short: bool) -> None:
    output = tmp_path / "figures" / "cartpole.json"
    tokens = {"RELAAX_TOKEN": "environments-" + "0" * 16, "RELAAX_PARAMETER_SERVER_TOKEN": "workers-" + "0" * 16}
    seconds, updates = ("1.5", "20") if short else ("9", "300")
    bench = processes.start(
        *("relaax", "bench", "da3c_gym_cartpole", "--clients", "2", "--envs-per-client", "3", "--seed", "5"),
        *("--seconds", seconds, "--updates", updates, "--json", str(output)),
        env={"TMPDIR": str(tmp_path), **tokens},
    )
    assert bench.wait(850) == 0, bench.report()
    result = json.loads(output.read_text())
    assert not any(token in output.read_text() + bench.report() for token in tokens.values())
    for name in FIGURES:
        assert (name in result) == (name not in REPLAY), name
        assert (name in " ".join(bench.lines)) == (name in result)
    assert (result["clients"], result["envs_per_client"], result["seed"]) == (2, 3, 5)
    windows = result["windows"]
    names = "emulator_only", "with_network", "training", "training_over_emulator", "efficiency"
    assert {key: len(values) for key, values in windows.items()} == dict.fromkeys(names, 3)
    assert min(windows["emulator_only"]) > 0
    assert min(windows["training"]) > 0
    assert sorted(windows["training"])[1] == result["training_steps_per_second"]
    assert 0 < result["training_over_emulator"] < 2
    assert 0 < result["efficiency"] < 2
    assert result["parts_us"]["environments"] > 0
    assert 0 <= result["training_discarded_share"] <= 1
    for name in ("act_latency_ms", "sync_ms"):
        assert 0 < result[name]["p50"] <= result[name]["p99"]
        assert result[name]["count"] >= 100
    assert result["parameters"] == 9_155
    memory = result["worker_memory_mb"]
    assert memory["workers"] == 2
    assert 5 < memory["mean"] <= memory["max"] < 1000
    assert memory["updates"] >= int(updates)
    assert result["bridge"] in ("shared_memory", "grpc")
    assert 0 < result["worker_start_s"] < 60
    assert len(result["worker_starts_s"]) == 5
    assert result["machine"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert result["configuration"]["relaax-run"]["name"] == "CartPole-v1"
    assert list(tmp_path.glob("relaax-bench-*")) == []
    crowds = ("processor_crowd", "processor_paced") if CROWD_PER_CORE * cores() <= MAX_CROWD else ()
    expected = {"processor_single": 1, "processor_training": 2} | dict.fromkeys(crowds, CROWD_PER_CORE * cores())
    for name, connections in expected.items():
        assert result[name]["connections"] == connections, name
        assert {"client", "worker", "parameter_server"} <= result[name]["us"].keys(), name
        assert 0 < min(result[name]["us"].values()) <= max(result[name]["us"].values()) < 1e6, name
    words = ("da3c_gym_cartpole", "--environments", "4", "--rate", "5", "--measured", str(output), "--json")
    plan = processes.start("relaax", "plan", *words)
    assert plan.wait(240) == 0, plan.report()
    assert json.loads("".join(plan.lines))["steps_per_second"] == pytest.approx(20)


@pytest.mark.parametrize("stacked", [False, True])
def test_replay_servers_are_filled_and_sampled(stacked: bool) -> None:
    """The table accepts every inserted item, and the algorithm's rate limits do not block."""
    declaration = pictured(1000) if stacked else numbered(1000, samples_per_insert=1.0, min_size=900)
    with serving(2) as shards:
        found = time_replay([Target(shard.address) for shard in shards], declaration, 16, 1.0)
        tallies = [shard.service.statistics()[declaration.spec.name] for shard in shards]
    assert (found["inserted_at_once"], found["sampled_at_once"]) == (50, 16)
    inserted, sampled = sum(each.inserts for each in tallies), sum(each.samples for each in tallies)
    assert inserted == 50 * (len(found["insert_ms"]) + 2 * WARM_UP)
    assert sampled >= 16 * (len(found["sample_ms"]) + 2 * WARM_UP)
    assert all(each.inserts for each in tallies)
    assert sum(each.overruns for each in tallies) == 0
    assert found["inserts_per_second"] == pytest.approx(5e4 * len(found["insert_ms"]) / sum(found["insert_ms"]))
    assert found["samples_per_second"] == pytest.approx(1.6e4 * len(found["sample_ms"]) / sum(found["sample_ms"]))


def test_inserted_items_have_the_layout_of_actor_items() -> None:
    made = insertions(pictured(1000).spec, 3)
    first, second = next(made), next(made)
    assert first.columns["stack"].tolist() == [[0, 1], [1, 2], [2, 3]]
    assert second.columns["stack"].tolist() == [[3, 4], [4, 5], [5, 6]]
    assert (first.first_frame, second.first_frame) == (0, 3)
    assert first.frames is not None and first.frames.shape == (4, 2, 2, 1)
    assert first.columns["number"].shape == (3,)


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/bench", "relaax/replay", "relaax/cli/run")
@pytest.mark.timeout(900)
def test_replay_servers_of_an_experiment_are_measured(processes: Processes, tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    bench = processes.start(
        *("relaax", "bench", "gorila_distributed_gym_cartpole", "--clients", "1", "--seed", "5"),
        *("--seconds", "3", "--updates", "1", "--json", str(output)),
        env={"TMPDIR": str(tmp_path), "RELAAX_REPLAY_SERVER_TOKEN": "replay-" + "0" * 16},
    )
    assert bench.wait(850) == 0, bench.report()
    result = json.loads(output.read_text())
    assert result.keys() >= REPLAY
    assert (result["replay_inserted_at_once"], result["replay_sampled_at_once"]) == (50, 64)
    assert min(result["replay_inserts_per_second"], result["replay_samples_per_second"]) > 100
    assert list(tmp_path.glob("relaax-bench-*")) == []
