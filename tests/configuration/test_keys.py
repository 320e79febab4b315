"""Suggestions for unknown keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaax.configuration import SECTIONS, ConfigurationError, load_configuration
from relaax.configuration.validation import _SYNONYMS, all_paths
from relaax.hosting.loader import load_config


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            "algorithm.log_level=INFO",
            "algorithm: unknown key 'log_level'; did you mean 'relaax-parameter-server.log_level' or "
            "'relaax-replay-server.log_level' or "
            "'relaax-rlx-server.log_level' or 'relaax-learner.log_level'?",
        ),
        ("run.entropy_beta=1", "relaax-run: unknown key 'entropy_beta'; did you mean 'algorithm.entropy_beta'?"),
        ("run.Entropy_Beta=1", "relaax-run: unknown key 'Entropy_Beta'; did you mean 'algorithm.entropy_beta'?"),
        ("run.max_step=1", "relaax-run: unknown key 'max_step'; did you mean 'max_steps'?"),
        ("algorithm.max_workers=1", "algorithm: unknown key 'max_workers'; did you mean 'relaax-rlx-server.max_work"),
        ("rlx-server.entropi_beta=1", "relaax-rlx-server: unknown key 'entropi_beta'; did you mean 'algorithm.entropy"),
        ("algorithm.beta1=0", "algorithm: unknown key 'beta1'; did you mean 'algorithm.Adam.beta1'?"),
        ("algorithm.RMSProp.entropy_beta=0", "algorithm.RMSProp: unknown key 'entropy_beta'; did you mean 'algorithm."),
        ("algorithm.adam.beta1=0.5", "algorithm: unknown key 'adam'; did you mean 'Adam'?"),
        ("algorithm.rms_prop.decay=0.5", "algorithm: unknown key 'rms_prop'; did you mean 'RMSProp'?"),
        ("algorithm.learning_rate=1", "algorithm: unknown key 'learning_rate'; did you mean 'initial_learning_rate'?"),
        ("algorithm.lr=1", "algorithm: unknown key 'lr'; did you mean 'initial_learning_rate'?"),
        ("algorithm.n_steps=1", "algorithm: unknown key 'n_steps'; did you mean 'episode_len'?"),
        ("algorithm.vf_coef=1", "algorithm: unknown key 'vf_coef'; did you mean 'value_loss_weight'?"),
        ("run.num_envs=1", "relaax-run: unknown key 'num_envs'; did you mean 'envs_per_client'?"),
        ("algorithm.num_envs=1", "algorithm: unknown key 'num_envs'; did you mean 'relaax-run.envs_per_client'?"),
        ("algorithm.network.dens=[8]", "algorithm.network: unknown key 'dens'; did you mean 'dense'?"),
    ],
)
def test_misplaced_or_misspelt_key_gets_a_suggestion(override: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    file.write_text("algorithm: {path: da3c}\n")
    with pytest.raises(ConfigurationError) as refused:
        load_configuration(file, [override], {}, load_config)
    assert str(refused.value).startswith(sentence)


def test_all_errors_are_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    file.write_text("relaax-run: {clients: 0}\nrelaax-rlx-server: {timeout: 0}\nalgorithm: {path: da3c, gama: 1}\n")
    with pytest.raises(ConfigurationError) as refused:
        load_configuration(file, (), {}, load_config)
    assert [line.partition(":")[0] for line in str(refused.value).splitlines()] == [
        "relaax-rlx-server.timeout",
        "relaax-run.clients",
        "algorithm",
    ]


def test_synonyms_belong_to_existing_keys() -> None:
    models = {**SECTIONS, "algorithm": load_config("da3c", Path())}
    assert _SYNONYMS.keys() <= {path[-1] for path in all_paths(models)}
