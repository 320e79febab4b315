"""An unchanged configuration file of earlier releases is loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from relaax.algorithm_base import Box, Discrete, load_algorithm
from relaax.configuration import load_configuration
from relaax.optim.optimizers import RMSProp

FILE = Path(__file__).resolve().parents[2] / "data" / "da3c_ale_boxing.yaml"


def test_sections_of_the_servers_are_read() -> None:
    configuration = load_configuration(FILE)
    server, rlx = configuration.parameter_server, configuration.rlx_server
    assert (server.bind, server.checkpoint_dir) == ("localhost:7000", "checkpoints/boxing_a3c")
    assert (server.log_level, server.metrics_dir) == ("WARNING", "metrics_ale_demo")
    assert (rlx.bind, rlx.parameter_server, rlx.log_level) == ("localhost:7001", ["localhost:7000"], "WARNING")


def test_algorithm_is_found_and_numbers_have_their_types() -> None:
    configuration = load_configuration(FILE)
    algorithm = load_algorithm(configuration.algorithm_path, configuration.folder)
    assert algorithm.name == "da3c"
    config = algorithm.configure(configuration.algorithm)
    assert config.max_global_step == 100_000_000
    assert type(config.max_global_step) is int
    assert config.initial_learning_rate == 7e-4
    assert type(config.initial_learning_rate) is float
    assert (config.action_size, config.state_size) == (18, [84, 84])
    assert config.model_dump(include={"episode_len", "entropy_beta", "rewards_gamma", "gpu", "lstm"}) == {
        "episode_len": 5,
        "entropy_beta": 0.01,
        "rewards_gamma": 0.99,
        "gpu": False,
        "lstm": False,
    }
    assert config.rms_prop.gradient_norm_clipping == 40
    assert config.optimizer_spec() == RMSProp(decay=0.99, epsilon=0.1)


def test_defaults_are_those_of_the_paper_except_documented() -> None:
    config = load_algorithm("da3c", Path()).configure({"path": "da3c"})
    assert config.initial_learning_rate == 7e-4
    assert config.anneal_learning_rate is True
    assert (config.episode_len, config.rewards_gamma, config.entropy_beta) == (5, 0.99, 0.01)
    assert (config.gae_lambda, config.rms_prop.gradient_norm_clipping) == (1.0, 40.0)
    assert config.optimizer_spec() == RMSProp(decay=0.99, epsilon=1e-5), "the paper does not give epsilon"
    assert config.normalize_rewards == "auto"


def test_spaces_of_the_ale_game_are_accepted() -> None:
    configuration = load_configuration(FILE)
    algorithm = load_algorithm(configuration.algorithm_path, configuration.folder)
    config = algorithm.configure(configuration.algorithm)
    screen = Box(0, 255, shape=(84, 84), dtype=np.uint8)
    assert algorithm.Agent.refusal(config, screen, Discrete(18)) is None


def test_defaults_of_added_keys_keep_the_original_algorithm() -> None:
    config = load_algorithm("da3c", Path()).configure({"path": "da3c"})
    assert (config.lstm, config.network.lstm_size, config.gae_lambda, config.sync_interval) == (False, 256, 1.0, 1)
