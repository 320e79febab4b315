"""The keys of apex_dpg's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from relaax.algorithm_base import Fixed, Free, TargetInterval
from relaax.algorithm_base.config import Probability
from relaax.algorithm_base.network import NatureNetworkConfig

from .._continuous.model import MEAN, ContinuousConfig


class TanhNetworkConfig(NatureNetworkConfig):
    """The policy's network, for images that of Mnih et al. 2015. Defaults of missing keys depend on the observation."""

    dense: list[PositiveInt] | None = Field([300, 200], description="Widths of dense layers; null: as for gorila.")
    activation: Literal["relu", "tanh"] | None = Field("tanh", description="Activation between layers.")


class Config(ContinuousConfig):
    """Ape-X DPG. The defaults are the paper's, unless a key's description gives another source."""

    name = "apex_dpg"

    initial_learning_rate: Free[float] = Field(1e-4, gt=0, description="Learning rate at global step 0.")
    network: Fixed[TanhNetworkConfig] = Field(TanhNetworkConfig(), description="The policy's network.")
    critic_dense: Fixed[list[PositiveInt] | None] = Field(
        [400, 300], description="Widths of the critic's dense layers; null: the policy's, network.dense."
    )
    learning_starts: Free[int] = Field(
        1_000, ge=1, description="Transitions before the first sample; not given in the paper."
    )
    batch_size: Free[int] = Field(256, ge=1, le=1_000, description="Transitions of an update.")
    samples_per_insert: Free[PositiveFloat | None] = Field(
        None,
        description="How often a transition is sampled on average; actors and learners wait for each other to keep "
        "this average. null: no waiting, as in the paper.",
    )
    n_step: Free[int] = Field(5, ge=1, le=100, description="Number of rewards in a target.")
    prioritized: Free[bool] = Field(True, description="Sample by the size of errors (Schaul et al. 2016).")
    removal: Free[Literal["oldest", "lowest_priority", "inverse_priority"]] = Field(
        "inverse_priority",
        description="Which transition to evict from a full memory. inverse_priority: a random one, in proportion to "
        "priority ** removal_exponent. All but oldest need `prioritized`.",
    )
    final_importance_exponent: Free[Probability] = Field(0.4, description="Importance exponent at max_global_step.")
    actor_interval: Free[int] = Field(
        10, ge=1, description="Steps after which an agent reports steps and pulls parameters; not given in the paper."
    )
    target_interval: Free[int] = Field(100, ge=1, description="Updates between two copies to the target networks.")
    noise: Free[float] = Field(
        0.3, ge=0, description="Standard deviation of the noise of actor 0 in actions from -1 to 1."
    )
    noise_exponent: Free[float] = Field(
        1.0,
        ge=0,
        description="alpha in noise^(1 + alpha i / (N - 1)), the standard deviation for actor i of N, as the epsilons "
        "of apex. 0: the same for all actors, as in the paper.",
    )
    action_gradient_clipping: Free[float | None] = Field(
        1.0,
        gt=0,
        description="Bound of the value's derivative by each number of an action; null: no limit. The paper bounds the "
        "policy's gradient.",
    )

    @property
    def critics(self) -> tuple[str, ...]:
        return ("q",)

    @property
    def target_renewal(self) -> TargetInterval:
        return TargetInterval(updates=self.target_interval)

    @property
    def actors_set_priorities(self) -> bool:
        return self.prioritized

    def policy_heads(self, actions: int) -> Mapping[str, int]:
        return {MEAN: actions}
