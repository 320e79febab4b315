"""The studies in tests/benchmarks: their files, tables and options. The measurements themselves are started by hand."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

import pytest

from relaax import rlx
from relaax.cli.bench.programs import Programs, emulator_forms
from relaax.cli.run.plan import make_plan

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that imports a module of tests/benchmarks by its bare name, as the studies do."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_measured_rows_are_read_back_from_the_file(module: Any, tmp_path: Path) -> None:
    rows = module("rows").Rows(tmp_path / "study.csv")
    rows.add("latency", 0, 1, {"p50_ms": 0.123456, "p99_ms": 12})
    rows.add("latency", 0, 2, {"p50_ms": 0.3, "p99_ms": 10})
    rows.add("connections", 64, 1, {"reached": True})
    again = module("rows").Rows(tmp_path / "study.csv")
    assert again.rounds("latency") == [{"p50_ms": 0.12346, "p99_ms": 12}, {"p50_ms": 0.3, "p99_ms": 10}]
    assert again.has("latency", 0, 2)
    assert not again.has("latency", 0, 3)
    assert not again.has("latency", 1, 1)
    assert again.cases("connections") == [64]
    assert again.rounds("connections", 64) == [{"reached": 1}]
    assert again.rounds("connections") == []


def test_file_that_is_no_study_is_not_overwritten(module: Any, tmp_path: Path) -> None:
    path = tmp_path / "study.csv"
    path.write_text("minutes,return\n1,2\n")
    with pytest.raises(ValueError, match="no columns part, case, round"):
        module("rows").Rows(path)


def test_written_tables_keep_the_text_of_a_page(module: Any, tmp_path: Path) -> None:
    write_tables, page = module("rows").write_tables, tmp_path / "page.md"
    write_tables(page, "speed", "| 1 |\n")
    page.write_text(f"# Before\n\n{page.read_text()}\nAfter.\n")
    write_tables(page, "growth", "| 3 |\n")
    write_tables(page, "speed", "| 2 |\n")
    text = page.read_text()
    assert text.startswith(
        "# Before\n\n<!-- speed: written by a command -->\n\n| 2 |\n\n<!-- end of speed -->\n\nAfter.\n"
    )
    assert "| 1 |" not in text
    assert "| 3 |" in text
    page.write_text("<!-- speed: written by a command -->\n")
    with pytest.raises(ValueError, match="end of speed"):
        write_tables(page, "speed", "| 2 |\n")


def test_ratio_is_computed_within_a_round(module: Any, tmp_path: Path) -> None:
    speed = module("speed")
    rounds = [
        {"training": 60.0, "emulator_only": 100.0},
        {"training": 35.0, "emulator_only": 50.0},
        {"training": 10.0, "emulator_only": 100.0},
    ]
    assert speed.ratio("training", "emulator_only")(rounds) == 0.6
    assert speed.medians("training", "emulator_only")(rounds) == 0.35
    bar = next(bar for bar in speed.BARS if bar.what == "training over the environments alone")
    assert bar.row(rounds).endswith("| 0.60 | ≥ 0.60 | yes |")
    assert bar.row(rounds[2:]).endswith("| 0.10 | ≥ 0.60 | **no** |")
    rows = module("rows").Rows(tmp_path / "speed.csv")
    rows.add(
        "boxing-2x8",
        0,
        1,
        rounds[0] | {"with_network": 80.0, "impala": 20.0, "impala_as_is": 15.0, "a2c": 30.0, "a2c_as_is": 12.0},
    )
    assert "| boxing-2x8 | training | 60 | 60 to 60 | 1 |" in speed.tables(rows)
    assert "over RLlib's IMPALA, 2 x 8 | 3.00 | ≥ 3.20 | **no** |" in speed.tables(rows)
    assert "latency" not in speed.tables(rows), "a part that was not measured has no row"
    assert {bar.part for bar in speed.BARS} == speed.PARTS.keys()


@pytest.mark.parametrize("count", [10_000, 1_000_000, 50_000_000])
def test_network_has_about_the_requested_parameters(module: Any, count: int) -> None:
    keys = module("growth").hidden(count)
    config = make_plan("da3c_gym_cartpole", keys).configuration.algorithm["network"]
    first, second = config["dense"]
    assert config["separate"] is False
    parameters = (4 + 1) * first + (first + 1) * second + (second + 1) * (2 + 1)
    assert 0.97 * count < parameters <= count


def test_study_is_drawn_as_png(module: Any, tmp_path: Path) -> None:
    growth, rows = module("growth"), module("rows").Rows(tmp_path / "growth-shards.csv")
    rows.add("shards", 1, 1, {"grpc_ms": 8.0, "bare_grpc_ms": 5.0, "updates_per_second": 20.0})
    rows.add("shards", 2, 1, {"grpc_ms": 9.0, "shared_memory_ms": 2.0, "bare_grpc_ms": 5.0, "updates_per_second": 19.0})
    assert "| 1 | 8 | 5 | 20 | – |" in growth.table("shards", rows)
    growth.draw(tmp_path / "growth-shards.png", "shards", rows)
    assert (tmp_path / "growth-shards.png").read_bytes().startswith(b"\x89PNG")


def test_every_package_of_a_peer_is_pinned(module: Any) -> None:
    peers = module("peers.venvs").PEERS
    assert all("==" in requirement for peer in peers.values() for requirement in peer)


@pytest.mark.parametrize(
    ("study", "arguments", "sentence"),
    [
        ("speed", ["--only", "latencies"], "latencies"),
        ("speed", ["--rounds", "0"], "--rounds and --seconds must be above 0"),
        ("growth", ["--seconds", "nan"], "--rounds and --seconds must be above 0"),
        ("peers.venvs", ["sb4"], "there is no peer 'sb4'; there are sb3, rllib"),
    ],
)
def test_invalid_study_options_are_refused(
    module: Any, capsys: pytest.CaptureFixture[str], study: str, arguments: list[str], sentence: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        module(study).main(arguments)
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    "observation", [rlx.Box(shape=(4,)), rlx.Dict({"place": rlx.Discrete(3, start=5), "seen": rlx.MultiBinary(2)})]
)
def test_client_overhead_is_measured_per_message_and_step(module: Any, tmp_path: Path, observation: rlx.Space) -> None:
    found = module("client_overhead").client_overhead(observation, rlx.Discrete(2), 4, tmp_path, messages=60)
    assert found["us_per_message"] > 0
    assert found["us_per_step"] == pytest.approx(found["us_per_message"] / 4, abs=0.01)


@pytest.mark.slow
@pytest.mark.checks("tests/benchmarks", "relaax/cli/bench", "environments/ALE", "relaax/client")
def test_atari_program_runs_with_and_without_preprocessing(module: Any, tmp_path: Path) -> None:
    plan = make_plan("da3c_ale_boxing", ["run.clients=1", "run.envs_per_client=2"])
    for form in (emulator_forms(plan)[-1], module("ale_vector").bare_form(plan)):
        with Programs("emulator", form.commands, tmp_path) as programs:
            assert programs.window(0.1, 2.0) > 0, form.name
        assert programs.measured[0].act_ms == []


def test_a_case_of_several_studies_is_trained_once(module: Any, tmp_path: Path) -> None:
    study, rows = module("replay_papers"), module("rows").Rows(tmp_path / "study.csv")
    assert study.part_of("sampling", "prioritised") == study.part_of("exploration", "ladder")
    options = argparse.Namespace(studies=["exploration", "sampling"], first_seed=1, seeds=2)
    cases = ["exploration ladder", "exploration 0.4 for all", "exploration 0.1 for all", "sampling uniform"]
    assert sorted((part, seed) for part, seed, _ in study.plan(options, rows)) == sorted(
        (case, seed) for case in cases for seed in (1, 2)
    )
    rows.add("exploration ladder", 0, 2, {"mean": 1.0})
    assert ("exploration ladder", 2) not in {(part, seed) for part, seed, _ in study.plan(options, rows)}
    assert "| prioritised |" in study.table(rows, "sampling", 1)
