"""`relaax suite`: several environments and seeds in one table, interrupted and resumed."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relaax.cli.plot import PlottedRun
from relaax.cli.suite.curves import draw_small_multiples, write_curves
from relaax.cli.suite.jobs import JobRunner, SuitePlan, open_record
from relaax.configuration import ConfigurationError
from relaax.evaluation.report import score_tables
from relaax.evaluation.scores import after_ten_million_frames
from support.programs import completed
from support.run_curves import write_run

RELAAX = str(Path(sys.executable).with_name("relaax"))
PLAN = SuitePlan("da3c_ale_pong", ["pong", "ALE/Boxing-v5"], [0, 7], [], 1000.0, None, 30, [])


def result(mean: float, protocol: str = "noop") -> dict[str, Any]:
    return {"mean": mean, "protocol": {"name": protocol}}


def test_table_has_medians_and_published_scores() -> None:
    found = {"pong": {0: result(-20.7), 1: result(14.6), 2: result(0.0)}, "boxing": {0: result(12.1), 2: result(0.1)}}
    ours, human = score_tables(found)
    header, *rows = csv.reader(ours.csv().splitlines())
    cells = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert list(cells) == ["pong", "boxing", "mean, human-normalised %", "median, human-normalised %"]
    assert cells["pong"]["relaax, median"] == "0.0"
    assert float(cells["pong"]["relaax, %"]) == pytest.approx(100 * 20.7 / 35.3)
    assert [cells["boxing"][f"seed {seed}"] for seed in range(3)] == ["12.1", "", "0.1"]
    assert float(cells["boxing"]["relaax, %"]) == pytest.approx(50)
    dqn = [100 * (18.9 + 20.7) / 35.3, 100 * (71.8 - 0.1) / 12.0]
    assert float(cells["mean, human-normalised %"]["dqn"]) == pytest.approx(sum(dqn) / 2)
    assert float(cells["mean, human-normalised %"]["relaax, %"]) == pytest.approx((100 * 20.7 / 35.3 + 50) / 2)
    assert "not comparable with null-op scores" in human.title
    assert human.rows["boxing"][human.columns.index("a3c_ff_4_days")] == 59.8
    assert "| pong | -20.7 | 14.6 | 0 | 58.6 | -20.7 | 14.6 | 0 | 18.9 |" in ours.markdown()


def test_scores_at_ten_million_frames_are_in_a_table() -> None:
    played = {"protocol": {"name": "noop"}, "steps": 100, "frames": 400, "global_step": 2_500_080}
    pong = {**played, "mean": 20.0, "training_mean_return": 16.72}
    boxing = {**played, "mean": 90.0, "training_mean_return": 37.3}
    evaluated, table, _ = score_tables({"pong": {0: pong}, "boxing": {0: boxing}})
    assert evaluated.rows["pong"][evaluated.columns.index("seed 0")] == 20.0
    row = dict(zip(table.columns, table.rows["pong"], strict=True))
    assert (row["relaax, median"], row["seed 0"]) == (16.72, 16.72)
    assert (row["a2c"], row["ppo"], row["dqn"]) == (-12.42, 16.72, -4.926)
    mean = dict(zip(table.columns, table.rows["mean, human-normalised %"], strict=True))
    assert mean["ppo"] == pytest.approx((100 * 37.42 / 35.3 + 100 * 76.05 / 12.0) / 2)
    assert mean["relaax, %"] == pytest.approx((100 * 37.42 / 35.3 + 100 * 37.2 / 12.0) / 2)
    counts = dict(zip(table.columns, list(table.rows.values())[-1], strict=True))
    assert (counts["a2c"], counts["ppo"], counts["dqn"]) == (2, 1, 1)
    assert (counts["random"], counts["seed 0"]) == (None, None)
    for shorter in ({**pong, "global_step": 400_000}, {**pong, "training_mean_return": None}):
        assert len(score_tables({"pong": {0: shorter}, "boxing": {0: boxing}})) == 2


def test_curves_of_all_trainings_are_drawn(tmp_path: Path) -> None:
    pong = [write_run(tmp_path / f"pong-seed-{seed}", 0.0, 1.0 + seed) for seed in (0, 1)]
    runs = {"pong": pong, "CartPole-v1": [write_run(tmp_path / "cartpole", 5.0)], "breakout": [tmp_path / "not-begun"]}
    assert write_curves(tmp_path, runs) == [tmp_path / "curves.csv", tmp_path / "curves.png"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "curves.csv").open() as file:
        rows = list(csv.reader(file))
    assert [row[0] for row in rows] == ["run", *["pong-seed-0"] * 2, *["pong-seed-1"] * 2, "cartpole"]
    assert write_curves(tmp_path, {"breakout": [tmp_path / "not-begun"]}) == []


def test_plots_of_games_have_published_scores(tmp_path: Path) -> None:
    curves = {"pong": [PlottedRun("pong-seed-0", [(0, 0.0, 1.0), (10, 1.0, 2.0)])]}
    figure = draw_small_multiples(curves)
    (panel,) = figure.axes
    heights = [line.get_ydata()[0] for line in panel.lines[1:]]
    assert heights == list(after_ten_million_frames()["pong"].values())
    assert figure.legends[0].get_texts()[0].get_text() == "each seed"


def test_other_environments_have_no_published_scores() -> None:
    (table,) = score_tables({"CartPole-v1": {0: result(100.0, "none"), 1: result(300.0, "none")}})
    assert table.rows == {"CartPole-v1": [200.0, 100.0, 300.0]}
    assert list(table.columns) == ["median", "seed 0", "seed 1"]


def test_finished_jobs_are_kept_and_counted_once(tmp_path: Path) -> None:
    record = open_record(tmp_path, PLAN)
    assert list(record.jobs) == ["pong-seed-0", "pong-seed-7", "ALE-Boxing-v5-seed-0", "ALE-Boxing-v5-seed-7"]
    summary = {"checkpoint": "a", "seconds": 30.0, "status": "interrupted"}
    record.count_summary("pong-seed-7", {})
    record.count_summary("pong-seed-7", summary)
    record.count_summary("pong-seed-7", summary)
    assert (record.jobs["pong-seed-7"].seconds, record.jobs["pong-seed-7"].trained) == (30.0, False)
    record.count_summary("pong-seed-7", {"checkpoint": "b", "seconds": 12.0, "status": "max_time"})
    record.jobs["pong-seed-7"].result = result(1.0)
    record.save()
    more = replace(PLAN, environments=["pong", "boxing", "ALE/Boxing-v5"])
    again = open_record(tmp_path, more)
    assert again.jobs["pong-seed-7"] == record.jobs["pong-seed-7"]
    assert (again.jobs["pong-seed-7"].seconds, again.jobs["pong-seed-7"].trained) == (42.0, True)
    assert again.jobs["boxing-seed-0"].result is None
    with pytest.raises(ConfigurationError, match=r"other max steps: 1000.0, not 2000.0; --dir names another folder"):
        open_record(tmp_path, replace(PLAN, max_steps=2000.0))
    with pytest.raises(ConfigurationError, match=r"other environments: pong, ALE/Boxing-v5, not pong; to resume it,"):
        open_record(tmp_path, replace(PLAN, environments=["pong"]))
    (tmp_path / "suite.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        open_record(tmp_path, PLAN)


def test_failed_job_keeps_the_results_of_others(tmp_path: Path) -> None:
    plan = replace(PLAN, config="da3c_gym_cartpole", environments=["CartPole-v1"], max_steps=500.0, episodes=2)
    record = open_record(tmp_path, replace(plan, evaluation=["--id", "00000009-1"]))
    output: list[str] = []
    record.jobs["CartPole-v1-seed-0"].trained = True  # its evaluation fails without a run directory
    (tmp_path / "CartPole-v1-seed-0").write_text("no folder", encoding="utf-8")
    record.jobs["CartPole-v1-seed-7"].result = result(1.0)
    with pytest.raises(ConfigurationError, match="relaax eval: "):
        JobRunner(record, tmp_path, 1, output.append).run(["CartPole-v1-seed-0"], 1)
    assert record.jobs["CartPole-v1-seed-7"].result == result(1.0)


def start_suite(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [RELAAX, "suite", "da3c_gym_cartpole", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, error = process.communicate(timeout=300)
    return process.returncode, out, error


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/suite", "relaax/cli/run", "relaax/cli/evaluate.py", "relaax/evaluation")
def test_interrupted_suite_is_resumed(tmp_path: Path) -> None:
    arguments = ("CartPole-v1", "Acrobot-v1", "--max-steps", "1500", "--episodes", "2", "--dir", "table")
    first = start_suite(tmp_path, *arguments)
    assert first.stdout is not None
    output = ""
    while "CartPole-v1-seed-0: mean return" not in output:  # the second training starts next
        line = first.stdout.readline()
        assert line, f"it ended early: {output}"
        output += line
    assert "| CartPole-v1 |" in (tmp_path / "table" / "table.md").read_text()  # before the suite ends
    threading.Timer(1.0, first.send_signal, [signal.SIGINT]).start()
    code, out, error = wait_for_end(first)
    assert code == 130, error
    assert "stopping the running jobs; the same command resumes them" in out
    record = json.loads((tmp_path / "table" / "suite.json").read_text())
    before = record["jobs"]["CartPole-v1-seed-0"]
    assert before["result"]["episodes"] == 2
    assert before["result"]["frames"] == before["result"]["steps"] > 0
    assert before["result"]["global_step"] >= 1500
    assert before["result"]["training_mean_return"] > 0
    assert record["jobs"]["Acrobot-v1-seed-0"]["result"] is None

    code, out, error = wait_for_end(start_suite(tmp_path, *arguments))
    assert code == 0, error
    assert "2 trainings, 1 remaining" in out
    record = json.loads((tmp_path / "table" / "suite.json").read_text())
    assert record["jobs"]["CartPole-v1-seed-0"] == before
    with (tmp_path / "table" / "table.csv").open() as file:
        rows = list(csv.reader(file))
    assert [row[0] for row in rows] == ["environment", "CartPole-v1", "Acrobot-v1"]
    assert float(rows[2][1]) == record["jobs"]["Acrobot-v1-seed-0"]["result"]["mean"]
    page = (tmp_path / "table" / "table.md").read_text()
    assert "| CartPole-v1 |" in page
    assert "2 trainings of 1," in page
    assert "Each evaluation: 2 episodes, greedy." in page
    assert "relaax suite da3c_gym_cartpole CartPole-v1 Acrobot-v1" in page
    assert "![Curves of all trainings](curves.png)" in page
    assert (tmp_path / "table" / "curves.png").exists()
    assert json.loads((tmp_path / "table" / "Acrobot-v1-seed-0" / "summary.json").read_text())["env_steps"] >= 1500


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["CartPol-v1"], "gymnasium has no environment 'CartPol-v1'; the nearest is 'CartPole-v1'"),
        (["CartPole-v1", "--seeds", "0"], "--seeds must be a number of seeds (3) or a list of seeds"),
        (["CartPole-v1", "--max-time", "soon"], "a time is a number of seconds, or has units"),
        (["CartPole-v1", "--protocol", "noop"], "--protocol noop is for Atari games"),
        (["CartPole-v1", "--set", "algorithm.entropy=1"], "unknown key"),
    ],
)
def test_invalid_suite_is_refused_before_any_job(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    done = completed([RELAAX, "suite", "da3c_gym_cartpole", *arguments], dict(os.environ), tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert not list(tmp_path.iterdir())
