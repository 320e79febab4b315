"""`relaax plot`: figures and tables of single runs and of groups."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from relaax.cli.app import app
from relaax.cli.plot import PlottedRun, band, default_title, draw, read_csv, unit_of
from support.pages import DOCS
from support.run_curves import SCALAR, write_run

CURVE = [(0, 0.0, 1.0), (10, 60.0, 3.0)]


def test_points_undone_by_a_crash_are_dropped(tmp_path: Path) -> None:
    """Older versions wrote such files; they did not mark where training resumes."""
    write_run(tmp_path / "run", 1.0, 2.0, 3.0, 4.0)
    (first,) = (tmp_path / "run" / "metrics").iterdir()
    first.rename(first.with_name("events.out.tfevents.1.host"))
    write_run(tmp_path / "run", 30.0, 40.0, first=2)
    assert plot(tmp_path / "run", "--csv", tmp_path / "out.csv", "-o", tmp_path / "out.png").exit_code == 0
    with (tmp_path / "out.csv").open() as file:
        assert [(row["step"], float(row[SCALAR])) for row in csv.DictReader(file)] == [
            ("0", 1.0),
            ("100", 2.0),
            ("200", 30.0),
            ("300", 40.0),
        ]


def plot(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["plot", *map(str, arguments)])


def test_groups_and_a_run_are_plotted_and_tabulated(tmp_path):
    for seed in (1, 2):
        write_run(tmp_path / f"lstm-{seed}", 10.0, 20.0 + seed)
        write_run(tmp_path / f"dense-{seed}", 5.0, 6.0 + seed)
        (tmp_path / f"dense-{seed}.json").touch()  # a suite writes such files for its results
    write_run(tmp_path / "other", 1.5)
    done = plot(
        tmp_path / "other",
        *("--group", f"LSTM={tmp_path}/lstm-*", "--group", f"feed-forward={tmp_path}/dense-*"),
        *("--reference", "a public result=17.5", "--target", "25", "--title", "Two"),
        *("--output", tmp_path / "pictures" / "plot.png", "--csv", tmp_path / "plot.csv"),
    )
    assert done.exit_code == 0, done.output
    assert (tmp_path / "pictures" / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "LSTM/lstm-2: episode/mean_return_100 22.0 at step 100 after 0.5 minutes" in done.output
    with (tmp_path / "plot.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["run", "step", "seconds", SCALAR],
        ["other", "0", "0.0", "1.5000"],
        ["LSTM/lstm-1", "0", "0.0", "10.0000"],
        ["LSTM/lstm-1", "100", "30.0", "21.0000"],
        ["LSTM/lstm-2", "0", "0.0", "10.0000"],
        ["LSTM/lstm-2", "100", "30.0", "22.0000"],
        ["feed-forward/dense-1", "0", "0.0", "5.0000"],
        ["feed-forward/dense-1", "100", "30.0", "7.0000"],
        ["feed-forward/dense-2", "0", "0.0", "5.0000"],
        ["feed-forward/dense-2", "100", "30.0", "8.0000"],
    ]


def test_runs_of_the_same_name_are_both_plotted(tmp_path):
    first, second = (write_run(tmp_path / place / "seed-1", 1.0) for place in ("a", "b"))
    done = plot(first, second, "--output", tmp_path / "plot.svg", "--csv", tmp_path / "plot.csv")
    assert done.exit_code == 0, done.output
    names = [line.split(",")[0] for line in (tmp_path / "plot.csv").read_text().splitlines()[1:]]
    assert names == ["seed-1", str(second)]


def test_group_is_drawn_as_median_and_interval():
    def runs(name: str, count: int) -> list[PlottedRun]:
        return [PlottedRun(f"{name}/{i}", [(0, 0.0, 1.0 * i), (10 * (i + 1), 60.0, 3.0)], name) for i in range(count)]

    (axes,) = draw([*runs("LSTM", 3), *runs("feed-forward", 5)], SCALAR, references={"paper": 2.0}).axes
    lstm, feed_forward, _ = axes.get_lines()
    assert lstm.get_linestyle() != feed_forward.get_linestyle(), "distinguishable without colors"
    assert list(lstm.get_xdata())[::499] == [0, 10], "up to the end of the shortest run"
    assert lstm.get_ydata()[0] == 1.0  # the median of 0, 1 and 2
    assert lstm.get_ydata()[-1] == pytest.approx(2.0 + 1 / 3)  # the median of 3, 2 and 2 1/3
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "LSTM (median and range of 3)",
        "feed-forward (median and quartiles of 5)",
    ]
    assert "paper (2)" in [text.get_text() for text in axes.texts]


def test_interval_is_the_range_of_few_or_quartiles_of_many():
    ends = np.array([0.0, 1.0])
    few = [(ends, np.full(2, value)) for value in (1.0, 2.0, 6.0)]
    assert [values[0] for values in band(few)[1:]] == [2.0, 1.0, 6.0]
    many = [(ends, np.full(2, value)) for value in (0.0, 1.0, 2.0, 3.0, 100.0)]
    assert [values[0] for values in band(many)[1:]] == [2.0, 1.0, 3.0]


def test_references_are_dotted_and_the_target_is_dashed():
    (axes,) = draw(
        [PlottedRun("one", CURVE)], SCALAR, x="minutes", target=4.0, references={"A2C": 2.5, "random": -1}
    ).axes
    curve, target, *references = axes.get_lines()
    assert list(curve.get_xdata()) == [0.0, 1.0]
    assert list(curve.get_ydata()) == [1.0, 3.0]
    assert (target.get_linestyle(), list(target.get_ydata())) == ("--", [4.0, 4.0])
    assert [(line.get_linestyle(), line.get_ydata()[0]) for line in references] == [(":", 2.5), (":", -1)]
    assert [text.get_text() for text in axes.texts] == ["A2C (2.5)", "random (-1)"]
    shown = [text.get_text() for text in axes.get_legend().get_texts()]
    assert shown == ["one", "target (4)"], "references are labelled at their lines"
    assert axes.get_xlabel() == "time [minutes]"


def test_curves_of_a_file_are_drawn_but_not_written_to_csv(tmp_path):
    run = write_run(tmp_path / "run", 1.0, 2.0)
    published = tmp_path / "published.csv"
    published.write_text("run,step,seconds,return\nDQN,0,,0.5\nDQN,100,,4.5\nA2C,50,,3\n")
    done = plot(run, "--curves", published, "-o", tmp_path / "plot.svg", "--csv", tmp_path / "plot.csv")
    assert done.exit_code == 0, done.output
    assert "<!-- DQN -->" in (tmp_path / "plot.svg").read_text(), "the legend names it"
    assert "DQN" not in (tmp_path / "plot.csv").read_text()
    dqn, a2c = read_csv(published)
    assert [(step, value) for step, _, value in dqn.curve] == [(0, 0.5), (100, 4.5)]
    assert (a2c.name, len(a2c.curve)) == ("A2C", 1)
    assert read_csv(tmp_path / "plot.csv")[0].curve == [(0, 0.0, 1.0), (100, 30.0, 2.0)], "written by --csv"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the first line must be run,step,seconds,VALUE, not ''"),
        ("run,step,return\n", "the first line must be run,step,seconds,VALUE, not 'run,step,return'"),
        ("run,step,seconds,return\n", "has no curves"),
        ("run,step,seconds,return\nDQN,1,,2\nDQN,1,2\n", "line 3: must have a name and three numbers"),
        ("run,step,seconds,return\nDQN,one,,2\n", "line 2: must have a name and three numbers"),
        ("run,step,seconds,return\nDQN,1,,2\n", "--x minutes: the curve DQN of --curves has no seconds"),
        (None, "published.csv: No such file or directory"),
    ],
)
def test_unreadable_curves_are_refused_in_one_sentence(tmp_path, text, expected):
    run, published = write_run(tmp_path / "run", 1.0), tmp_path / "published.csv"
    if text is not None:
        published.write_text(text)
    refused = plot(run, "--curves", published, "--x", "minutes", "-o", tmp_path / "plot.png")
    assert refused.exit_code == 2
    assert expected in refused.output
    assert not (tmp_path / "plot.png").exists()


@pytest.mark.parametrize("group", [None, "both"])
def test_curve_of_one_point_is_visible(group):
    runs = [PlottedRun(name, [(10, 0.0, value)], group) for name, value in (("first", 1.0), ("second", 3.0))]
    (axes,) = draw(runs, SCALAR).axes
    assert {line.get_marker() for line in axes.get_lines()} == {"o"}


def test_one_run_alone_needs_no_legend():
    (axes,) = draw([PlottedRun("one", CURVE)], SCALAR).axes
    assert axes.get_legend() is None


def write_configuration(folder: Path, name: str, algorithm: str) -> Path:
    """Write a run directory that contains only a configuration."""
    folder.mkdir(parents=True)
    text = f"relaax-run: {{environment: OpenAI_Gym, name: {name}}}\nalgorithm: {{path: /bundled/{algorithm}}}\n"
    (folder / "configuration.yaml").write_text(text)
    return folder


def test_title_of_one_run_is_run_environment_and_algorithm(tmp_path: Path) -> None:
    run = write_configuration(tmp_path / "first", "CartPole-v1", "da3c")
    assert default_title({"first": (run, None)}) == "first: CartPole-v1 by da3c"
    (run / "metrics").mkdir()
    assert default_title({"metrics": (run / "metrics", None)}) == "metrics: CartPole-v1 by da3c"
    assert default_title({"other": (tmp_path, None)}) == "other"
    assert default_title({"x" * 99: (run, None)}) == "x" * 59 + "…: CartPole-v1 by da3c"
    (run / "configuration.yaml").write_text("- [")
    assert default_title({"first": (run, None)}) == "first"


def test_title_of_several_runs_is_their_common_part(tmp_path: Path) -> None:
    one, two, other = (
        write_configuration(tmp_path / name, environment, algorithm)
        for name, environment, algorithm in (
            ("one", "CartPole-v1", "da3c"),
            ("two", "CartPole-v1", "gorila"),
            ("other", "Pendulum-v1", "gorila"),
        )
    )
    assert default_title({"a": (one, None), "b": (one, None)}) == "CartPole-v1 by da3c"
    assert default_title({"a/1": (one, "a"), "a/2": (one, "a")}) == "a: CartPole-v1 by da3c"
    assert default_title({"one": (one, None), "two": (two, None)}) == "CartPole-v1"
    assert default_title({"two": (two, None), "other": (other, None)}) == "gorila"
    assert default_title({"one": (one, None), "other": (other, None)}) == "one, other"


def test_figure_has_a_default_title_and_units(tmp_path: Path) -> None:
    run = write_run(write_configuration(tmp_path / "first", "CartPole-v1", "da3c"), 1.0, 2.0)
    for arguments, title in (((), "first: CartPole-v1 by da3c"), (("--title", "Mine"), "Mine")):
        assert plot(run, "-o", tmp_path / "plot.svg", *arguments).exit_code == 0
        words = re.findall("<!-- (.*) -->", (tmp_path / "plot.svg").read_text())
        assert title in words
        assert {"environment steps", "mean return of 100 episodes [reward]"} <= set(words)


def test_units_match_the_page_on_metrics() -> None:
    rows = re.findall(r"^\| `([a-z]+/[\w/]+)` \| ([^|,]*)", (DOCS / "metrics.md").read_text("utf-8"), re.MULTILINE)
    units = {name: unit.strip() for name, unit in rows}
    assert len(units) > 40
    known = {name: unit_of(name) for name in units if unit_of(name)}
    assert known == {name: units[name] for name in known}
    for name in ("episode/return", "latency/act_ms/p99", "system/available_memory_mb", "speed/steps_per_second"):
        assert name in known
    assert unit_of("loss/policy") == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "name a run directory, or use --group NAME=PATTERN"),
        (["{run}", "--x", "hours"], "--x must be 'steps' or 'minutes', not 'hours'"),
        (["{run}", "--reference", "A2C"], "such as 'random agent=22.1', not 'A2C'"),
        (["{run}", "--reference", "=3"], "such as 'random agent=22.1', not '=3'"),
        (
            ["{run}", "--reference", "A2C=nan"],
            "--reference must be NAME=VALUE, such as 'random agent=22.1', not 'A2C=nan'",
        ),
        (["--group", "{run}"], "--group must be NAME=PATTERN"),
        (["--group", "LSTM={folder}/nothing-*"], "no folder matches"),
        (["{folder}/nothing"], "/nothing: the folder does not exist"),
        (["{run}", "--scalar", "loss/polic"], f"has no scalar loss/polic; it has {SCALAR}"),
        (["{run}", "--scalar", "episode/mean_return"], f"; the nearest is {SCALAR}; it has"),
        (["{run}", "-o", "{folder}/plot.doc"], "doc"),
        (
            ["--group", "late={folder}/of-*"],
            "runs of a group do not overlap: one begins at 500, another ends at 0",
        ),
    ],
)
def test_invalid_plot_is_refused_in_one_sentence(tmp_path, arguments, expected):
    run = write_run(tmp_path / "run", 1.0)
    write_run(tmp_path / "of-1", 1.0)
    write_run(tmp_path / "of-2", 1.0, first=5)
    done = plot(*(text.format(run=run, folder=tmp_path) for text in arguments))
    assert done.exit_code == 2
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("relaax plot: ")
    assert expected in sentence
    assert "Traceback" not in done.output
