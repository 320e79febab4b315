"""Pages and configurations name every difference between a default and its paper."""

from __future__ import annotations

import re

import pytest

from algorithms.async_q import Config as AsyncQ
from algorithms.da3c.model import Config as Da3c
from algorithms.da3c_cont.config import Config as Da3cCont
from algorithms.gorila.model import Config as Gorila
from relaax.configuration import load_configuration
from support.pages import ROOT, study

CONFIGURATIONS = ROOT / "config"
STEPS, FRAME_SKIP = 5, 4  # steps per push in the paper, frames per action


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def section(name: str, heading: str) -> str:
    return re.split(r"^## ", page(name).partition(f"## {heading}\n")[2], flags=re.MULTILINE)[0]


def test_da3c_lists_defaults_that_differ_from_paper() -> None:
    text = section("algorithms/da3c/README.md", "Where the defaults differ from the paper")
    assert "with four exceptions" in text
    assert len(re.findall(r"^- \*\*", text, re.MULTILINE)) == 4
    assert Da3c.model_fields["value_loss_weight"].default == 0.5
    assert "`value_loss_weight`" in text


def test_da3c_cont_lists_defaults_next_to_papers() -> None:
    text = section("algorithms/da3c_cont/README.md", "Where it differs from the paper")
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", text, re.MULTILINE))
    defaults = Da3cCont.model_validate({"path": "da3c_cont"})
    assert (defaults.normalize_rewards, defaults.normalize_observations) == ("auto", True)
    assert rows["rewards"].startswith("divided by the standard deviation")
    assert rows["dense layer, vectors"] == f"{defaults.network.dense[0]} units, tanh"
    assert rows["entropy weight"] == "1e-3" == f"{defaults.entropy_beta:.0e}".replace("-0", "-")
    assert rows["error of the value"] == f"weighs {defaults.value_loss_weight:g}"
    assert rows["update"] == f"rollouts of {defaults.episode_len} steps"
    assert "tanh" in page("docs/from-relaax-0.1.md") and "`normalize_rewards: null`" in page("docs/from-relaax-0.1.md")


def test_gorila_page_compares_update_rate_with_paper() -> None:
    defaults = Gorila.model_fields
    steps = defaults["batch_size"].default / defaults["samples_per_insert"].default
    assert f"an update every {steps:g} steps; in the paper one every step" in page("algorithms/gorila/README.md")
    assert "Algorithm 1" in str(defaults["samples_per_insert"].description)


@pytest.mark.parametrize("name", ["async_q_ale_pong", "async_sarsa_ale_pong", "n_step_q_ale_pong"])
def test_comment_gives_updates_per_target_interval(name: str) -> None:
    found = load_configuration(CONFIGURATIONS / f"{name}.yaml")
    interval, environments = found.algorithm["target_interval"], found.run.envs_per_client
    updates = interval // (found.algorithm["update_interval"] * environments * FRAME_SKIP)
    papers = AsyncQ.model_fields["target_interval"].default // (STEPS * FRAME_SKIP)
    comment = next(line for line in page(f"config/{name}.yaml").splitlines() if line.strip().startswith("# Frames."))
    assert f"{updates} updates" in comment
    assert f"{papers:,}" in comment


def test_pages_state_random_actions_of_published_dqn_scores() -> None:
    for path in (ROOT / "docs" / "evaluation.md", study("atari"), study("replay")):
        assert "5 % of the actions random" in path.read_text("utf-8")
