"""A policy that acts: the algorithm's own agent in exploit mode, with constant parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import (
    AgentBase,
    AgentContext,
    ConfigBase,
    Discrete,
    InvalidObservation,
    Leaves,
    Space,
    StepResult,
    load_algorithm,
)
from relaax.algorithm_base.acting.policy_graph import PolicyGraph
from relaax.bundled import bundled_folder, bundled_names
from relaax.configuration import ConfigurationError
from relaax.configuration.secrets import HIDDEN
from relaax.hosting.fingerprint import changed_keys, parse_fingerprint
from relaax.hosting.loader import Algorithm
from relaax.libraries import explained
from relaax.parameters.interfaces import MetricsRecorder, Parameters, ParameterServerError, Pulled, Pushed
from relaax.parameters.moments import Moments
from relaax.policy.file import Description, PolicyError, PolicyFile, read
from relaax.rlx.errors import ProtocolError
from relaax.rlx.leaf_checks import LeavesCheck

Mask = npt.NDArray[np.bool_]


class Policy:
    """A policy that acts in one environment or in N at once; see `act`. Made by `relaax.policy.load`. Not thread-safe.

    The state of the agent in an episode, such as the last frames or the state of an LSTM, is kept per environment until
    `first` or `reset` starts another episode.

    `observation_space` and `action_space` are spaces of `relaax.rlx`. The observation space has no bounds.
    `configuration` holds the algorithm's keys, and `description` the other contents of the file's description.
    """

    def __init__(
        self, file: PolicyFile, algorithm: Algorithm, config: ConfigBase, spaces: tuple[Space, Space], seed: int
    ):
        self.algorithm = algorithm.name
        self.configuration: Mapping[str, Any] = config.model_dump(mode="json", by_alias=True)
        self.observation_space, self.action_space = spaces
        self.description: Description = file.description
        self._pulled = Pulled(file.parameters, 0, file.description.global_step, file.statistics)
        self._algorithm = algorithm
        self._config = config
        self._seed = seed
        self._agent: AgentBase | None = None
        self._environments = 0
        self._started = False
        self._agent_for(1)  # report mismatches before the first observation

    @property
    def global_step(self) -> int:
        """Return the number of environment steps of the training."""
        return self._pulled.global_step

    def act(self, observations: Any, first: npt.ArrayLike | None = None) -> Any:
        """Return the actions for observations.

        `observations`: a value of the observation space, or a batch: a value with a leading axis of length N in each of
        its arrays. `first`, a bool or bool [N]: whether an observation starts an episode. Returns an action, or a batch
        of N actions. The action of a Discrete space is an int, or int64 [N].

        The first call, and the first call after `reset`, start an episode in every environment. N may change only then.

        Raises PolicyError if the observations do not fit.
        """
        leaves, single = self._leaves(observations)
        environments = len(leaves[0])
        if self._started and environments != self._environments:
            raise PolicyError(
                f"{environments} observations after {self._environments}: call reset() when the number changes"
            )
        agent = self._agent_for(environments)
        restart = self._mask(first)
        try:
            with explained("policy"):
                if not self._started or restart.all():
                    actions = agent.reset(leaves)
                else:
                    rewards, (terminated, truncated) = np.zeros(environments), np.zeros((2, environments), np.bool_)
                    actions = agent.step(StepResult(rewards, leaves, terminated, truncated, first=restart.copy()))
        except InvalidObservation as error:
            raise PolicyError(str(error)) from None
        self._started = True
        return self._to_result(actions, single)

    def reset(self, seed: int | None = None) -> None:
        """Start an episode in every environment with the next observations. Their number may change.

        `seed`: the seed of sampled actions from then on; by default the random stream continues.
        """
        self._started = False
        if seed is not None:
            self._seed, self._agent = seed, None

    def graph(self) -> PolicyGraph:
        """Return the graph that computes actions. Raises PolicyError if the algorithm does not describe it."""
        graph = self._agent_for(1).policy_graph()
        if graph is None:
            raise PolicyError(
                f"the algorithm {self.algorithm} does not describe its network: its Agent needs policy_graph()"
            )
        return graph

    def __repr__(self) -> str:
        return (
            f"<Policy of {self.algorithm} at global step {self.global_step}: {self.observation_space} to "
            f"{self.action_space}>"
        )

    def _agent_for(self, environments: int) -> AgentBase:
        if self._agent is None or environments != self._environments:
            context = AgentContext(
                observation_space=self.observation_space,
                action_space=self.action_space,
                environments=environments,
                actors=tuple(range(environments)),
                seed=self._seed,
                exploit=True,
                parameters=FixedParameters(self._pulled),
                metrics=NoMetrics(),
            )
            try:
                with explained("policy"):
                    agent = self._algorithm.Agent(self._config, context)
            except (ValueError, KeyError) as error:
                raise PolicyError(
                    f"the parameters do not fit the algorithm {self._algorithm.source}: {error}; has its code changed "
                    "since the training?"
                ) from error
            self._agent, self._environments = agent, environments
        return self._agent

    def _leaves(self, observations: Any) -> tuple[Leaves, bool]:
        """Return leaves [N, ...], and whether the input was one observation without an axis for environments."""
        space = self.observation_space
        try:
            leaves = space.flatten(observations)
        except (ValueError, TypeError) as error:
            raise PolicyError(f"an observation in {space} is needed: {error}") from None
        axes = {
            leaf.shape[: leaf.ndim - len(element.shape)] for leaf, element in zip(leaves, space.elements(), strict=True)
        }
        if len(axes) != 1 or any(len(shape) > 1 or 0 in shape for shape in axes):
            raise PolicyError(f"one observation in {space} is needed, or N of them with an additional axis")
        single = axes == {()}
        batch = [leaf[None] for leaf in leaves] if single else leaves
        try:
            LeavesCheck(space, len(batch[0]), bounded=False).check("observation", batch)
        except ProtocolError as error:
            raise PolicyError(error.message) from None
        return batch, single

    def _mask(self, first: npt.ArrayLike | None) -> Mask:
        needed = f"a bool for each of {self._environments} observations is needed"
        try:
            mask = np.asarray(False if first is None else first, np.bool_)
        except (ValueError, TypeError) as error:
            raise PolicyError(f"first is not an array of bools, and {needed}: {error}") from None
        try:
            return np.broadcast_to(mask, (self._environments,))
        except ValueError:
            raise PolicyError(f"first has shape {list(mask.shape)}; {needed}") from None

    def _to_result(self, actions: Leaves, single: bool) -> Any:
        leaves = [leaf[0] for leaf in actions] if single else [np.array(leaf) for leaf in actions]
        value = self.action_space.unflatten(leaves)
        return int(value) if single and isinstance(self.action_space, Discrete) else value


_GREEDY = "greedy_exploit"


def load(
    file: Path | str,
    *,
    algorithm: Path | str | None = None,
    greedy: bool | None = None,
    keys: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Policy:
    """Load the policy of a file that `relaax checkpoints export` wrote.

    `algorithm`: the path of the algorithm's directory or file, if it does not come with RELAAX. Its code is run, so the
    path is never read from the file. `greedy`: if True, use the most probable action, or the mean of a Gaussian. If
    False, sample actions with `seed`: the same observations then get the same actions. By default, the run's
    configuration for exploit mode applies. `keys`: values of the algorithm's keys that differ from those in the
    training, such as {"exploit_epsilon": 0.01}. Keys that are fixed when a run is resumed must not change.

    Raises PolicyError, and ModuleNotFoundError if the algorithm needs a library that is not installed.
    """
    found = read(file)
    try:
        described, *spaces = parse_fingerprint(json.dumps(found.description.fingerprint))
        name, trained = str(described["algorithm"]), dict(described["configuration"])
    except (ValueError, KeyError, TypeError) as error:
        raise PolicyError(f"{file} has no valid description: {error}") from None
    loaded = _algorithm(name, algorithm, file)
    changes = dict(keys or {})
    if greedy is not None:
        if _GREEDY in loaded.Config.model_fields:
            changes[_GREEDY] = greedy
        elif not greedy:
            raise PolicyError(f"the algorithm {name} has no key {_GREEDY}: its exploit mode cannot be changed")
    config = _config(loaded, trained, changes)
    refused = loaded.refusal(config, spaces[0], spaces[1])
    if refused is not None:
        raise PolicyError(f"{file}: {refused.sentence}")
    return Policy(found, loaded, config, (spaces[0], spaces[1]), seed)


def _algorithm(name: str, path: Path | str | None, file: Path | str) -> Algorithm:
    """Load an algorithm. Without `path`, it must be a bundled one: a file must not choose the code that is run."""
    if path is None and name not in bundled_names("algorithms"):
        raise PolicyError(
            f"{file} uses the algorithm {name!r}, which does not come with RELAAX: give its path, as in "
            f"load({str(file)!r}, algorithm='path/to/{name}')"
        )
    try:
        with explained("policy"):
            loaded = load_algorithm(
                name if path is None else str(path), bundled_folder("algorithms") if path is None else Path.cwd()
            )
    except ConfigurationError as error:
        raise PolicyError(str(error)) from error
    if loaded.name != name:
        raise PolicyError(
            f"{file} uses the algorithm {name!r}, not {loaded.name!r}, which was loaded from {loaded.source}"
        )
    return loaded


def _config(algorithm: Algorithm, trained: Mapping[str, Any], changes: Mapping[str, Any]) -> ConfigBase:
    """Return the configuration of a training with some keys changed. Raises PolicyError."""
    known = {key: value for key, value in trained.items() if value != HIDDEN}
    try:
        config: ConfigBase = algorithm.configure({**known, "path": str(algorithm.source)})
    except ConfigurationError as error:
        raise PolicyError(
            f"the algorithm {algorithm.name} differs from the version that trained this policy: {error}"
        ) from error
    if not changes:
        return config
    try:
        changed: ConfigBase = algorithm.configure({**known, **changes, "path": str(algorithm.source)})
    except ConfigurationError as error:
        raise PolicyError(str(error)) from error
    fixed = changed_keys(config.model_dump(mode="json", by_alias=True), changed)
    if fixed:
        raise PolicyError(f"a trained policy acts only with the values of its training: {'; '.join(map(str, fixed))}")
    return changed


class FixedParameters(Parameters):
    """Parameters that do not change: each pull returns the same parameters and statistics."""

    def __init__(self, pulled: Pulled) -> None:
        self._pulled = pulled

    def pull(self) -> Pulled:
        return self._pulled

    def push(self, gradient: Any, env_steps: int, want_parameters: bool = True, *, loss: float | None = None) -> Pushed:
        """Raise ParameterServerError, because an agent in exploit mode does not push."""
        raise ParameterServerError("a policy that was loaded from a file does not learn")


class NoMetrics(MetricsRecorder):
    """A recorder that discards all metrics, for a policy that only acts."""

    def scalar(self, name: str, value: float) -> None: ...

    def statistic(self, name: str, moments: Moments) -> None: ...

    def episode(self, episode_return: float, length: int, drawn: Any = None) -> None: ...
