"""Training with the whole service: real servers, environments and sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from relaax.transport.segments import SUPPORTED
from support.run import Runs

checks = pytest.mark.checks(
    *("algorithms", "config", "relaax/algorithm_base", "relaax/nn", "relaax/optim"),
    *("relaax/parameters", "relaax/server/parameter_server/shard", "relaax/server/rlx_server/workers"),
)
WITHOUT_LOCKS = pytest.param(
    "hogwild",
    marks=[checks, pytest.mark.skipif(not SUPPORTED, reason="the system cannot pass shared memory between processes")],
)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("bridge", ["auto", WITHOUT_LOCKS])
def test_cartpole_is_solved(runs: Runs, short: bool, bridge: str) -> None:
    """Random play returns 20. The study `cartpole` reports the steps of other seeds."""
    target = 300 if short else 475
    options = "--clients", "4", "--target-return", str(target), "--set", f"rlx-server.bridge={bridge}"
    run = runs.start(*options, "--seed", "11", "--no-progress")
    assert run.running.wait(280) == 0, run.running.report()
    summary = run.summary
    assert summary["status"] == "target_reached"
    assert summary["mean_return_100"] >= target
    assert summary["env_steps"] < 400_000


VARIANTS = {
    # The mean returns to reach in a short and in a whole run. docs/results has the returns of full training.
    "da3c_lstm_cartpole": (60, 200),  # random play returns 20, feed-forward at most 60
    "da3cc_gym_pendulum": (-900, -500),  # random play returns -1200
    "da3c_gym_acrobot": (-300, -150),  # random play returns -500
    "ppo_gym_cartpole": (200, 475),  # random play returns 20
    "ppo_lstm_cartpole": (60, 200),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@checks
@pytest.mark.parametrize("config", VARIANTS)
def test_variant_configuration_learns(runs: Runs, short: bool, config: str) -> None:
    easy, hard = VARIANTS[config]
    run = runs.start("--target-return", str(easy if short else hard), "--seed", "5", "--no-progress", config=config)
    assert run.running.wait(280) == 0, run.running.report()
    assert run.summary["status"] == "target_reached"


GREEDY = {
    # The mean returns of greedy evaluations to reach in a short and in a whole run. Training returns are lower, because
    # some actors explore half of the time. Random play returns 20.
    "async_q_gym_cartpole": (120, 475),
    "async_sarsa_gym_cartpole": (120, 475),
    "n_step_q_gym_cartpole": (120, 475),
    # Random play returns -1200, and the best policy -150.
    "sac_gym_pendulum": (-900, -250),
    "apex_dpg_gym_pendulum": (-1000, -300),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@checks
@pytest.mark.parametrize("config", GREEDY)
def test_greedy_actions_reach_the_target_evaluation(runs: Runs, short: bool, config: str) -> None:
    easy, hard = GREEDY[config]
    options = "--target-evaluation", str(easy if short else hard), "--seed", "5", "--no-progress"
    run = runs.start(*options, config=config)
    assert run.running.wait(580) == 0, run.running.report()
    assert run.summary["status"] == "target_reached"
    assert run.summary["evaluation"] >= (easy if short else hard)


UNTUNED = {
    # The mean returns to reach with default keys, in a short and in a whole run. The study `first-contact` has more
    # environments.
    "FrozenLake-v1": (0.3, 0.6),  # random play returns 0.01
    "CliffWalking-v1": (-100, -20),  # random play falls off a hundred times in an episode
    "Acrobot-v1": (-250, -100),  # random play returns -500
    "MinAtar/Breakout-v1": (2, 4),  # random play returns 0.5
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@checks
@pytest.mark.parametrize("name", UNTUNED)
def test_defaults_learn_untuned_environments(runs: Runs, short: bool, tmp_path: Path, name: str) -> None:
    easy, hard = UNTUNED[name]
    config = tmp_path / "untuned.yaml"
    run_section = {"environment": "OpenAI_Gym", "name": name}
    config.write_text(yaml.safe_dump({"relaax-run": run_section, "algorithm": {"path": "da3c"}}))
    run = runs.start("--target-return", str(easy if short else hard), "--seed", "5", "--no-progress", config=config)
    assert run.running.wait(280) == 0, run.running.report()
    assert run.summary["status"] == "target_reached"


@pytest.mark.slow
@pytest.mark.timeout(300)
@checks
def test_action_mask_halves_the_steps(runs: Runs, tmp_path: Path) -> None:
    """The study of action masks has more seeds and algorithms: da3c needs a quarter of the steps."""
    tests = str(Path(__file__).parents[1])
    section = {"environment": "OpenAI_Gym", "name": "support.roads:Roads", "arguments": ["--path", tests]}
    keys = {"optimizer": "adam", "initial_learning_rate": 3e-3, "rewards_gamma": 0.95, "normalize_rewards": None}
    steps = {}
    for mask in ("action_mask", None):
        config = tmp_path / f"{mask}.yaml"
        network = {"dense": [128, 128]}
        algorithm = {"path": "da3c", "action_mask": mask, "max_global_step": 3e6, "network": network} | keys
        config.write_text(
            yaml.safe_dump({"relaax-run": {"clients": 2, "envs-per-client": 8} | section, "algorithm": algorithm})
        )
        options = "--target-return", "0.9", "--max-steps", "200000", "--seed", "5", "--no-progress"
        run = runs.start(*options, config=config, directory=tmp_path / str(mask))
        assert run.running.wait(120) == 0, run.running.report()
        assert run.summary["status"] == "target_reached"
        steps[mask] = run.summary["env_steps"]
    assert steps["action_mask"] < steps[None] / 2
