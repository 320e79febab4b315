"""Opponents: the agent of a connection that plays each episode with one of the training's older checkpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentBase, AgentContext, ConfigBase, Leaves, StepResult
from relaax.checkpoint import CheckpointManager, Damaged, Milestones, Store, StoreError
from relaax.lessons.values import Draw
from relaax.parameters.interfaces import ParameterServerError, Pulled
from relaax.policy.policy import FixedParameters, NoMetrics
from relaax.server.rlx_server.workers.checkpoint_client import pulled_of

_log = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
"""Interval at which a worker lists the checkpoints."""
LATE = 3
"""Multiples of the interval of checkpoints after which a worker that finds none logs a warning."""
NEWEST = ""
"""The id of the parameters in training, with which opponents act before the first checkpoint."""
Mask = npt.NDArray[np.bool_]
MakeAgent = Callable[[ConfigBase, AgentContext], AgentBase]


class OlderCheckpoints:
    """The checkpoints that opponents act with: the newest `milestones` of a store. Parameters are read when drawn.

    Parameters that are no longer among them are dropped. A checkpoint that cannot be used is skipped.
    """

    def __init__(
        self,
        store: Store,
        milestones: Milestones,
        config: ConfigBase,
        fingerprint: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = CheckpointManager(store)
        self._milestones, self._config, self._fingerprint, self._clock = milestones, config, fingerprint, clock
        self._listed_at = -CHECK_SECONDS
        self._ids: list[str] = []  # oldest first
        self._unusable: set[str] = set()
        self._loaded: dict[str, Pulled] = {}

    def at(self, share: float) -> tuple[str, Pulled] | None:
        """Return id and parameters of the checkpoint at `share`, 0 to 1, of all in order; None without checkpoints."""
        self._list_if_due()
        while self._ids:
            checkpoint_id = self._ids[min(int(share * len(self._ids)), len(self._ids) - 1)]
            if checkpoint_id not in self._loaded:
                try:
                    checkpoint = self._manager.load(checkpoint_id)
                    self._loaded[checkpoint_id] = pulled_of(checkpoint, self._fingerprint, self._config)
                except (Damaged, StoreError, ParameterServerError, ValueError, LookupError) as error:
                    _log.warning("no opponent acts with checkpoint %s: %s", checkpoint_id, error)
                    if not isinstance(error, StoreError):  # a store that does not respond may recover
                        self._unusable.add(checkpoint_id)
                    self._ids.remove(checkpoint_id)
                    continue
            return checkpoint_id, self._loaded[checkpoint_id]
        return None

    def missing(self, global_step: int) -> str:
        """Return a sentence if a training at this step should have checkpoints of opponents; else ""."""
        if global_step < LATE * self._milestones.every:
            return ""
        return (
            f"{self._manager.store.location} has no checkpoint for opponents, and the training is at global step "
            f"{global_step}: let this server read the checkpoints of the parameter server, in S3 or a shared folder"
        )

    def _list_if_due(self) -> None:
        if (now := self._clock()) - self._listed_at < CHECK_SECONDS:
            return
        self._listed_at = now
        try:
            found = self._milestones.among(self._manager.published())
        except StoreError as error:
            _log.warning("listing the checkpoints of opponents failed: %s", error)
            return
        self._unusable.intersection_update(found)
        self._ids = [one for one in reversed(found) if one not in self._unusable]
        self._loaded = {one: self._loaded[one] for one in self._ids if one in self._loaded}


@dataclass(slots=True, eq=False)
class _Group:
    """Places for environments whose opponents act with one checkpoint. `rows`: int64 [places], -1 if free."""

    checkpoint_id: str
    agent: AgentBase
    rows: npt.NDArray[np.int64]
    started: bool = False

    def act(self, step: StepResult, restart: Mask) -> tuple[npt.NDArray[np.int64], Leaves]:
        """Return the rows in use, int64 [U], and their actions, leaves [U, ...]."""
        used = self.rows >= 0
        rows = self.rows[used]
        taken = np.where(used, self.rows, rows[0])  # a free place sees what a used one sees
        observations = [leaf[taken] for leaf in step.observations]
        if self.started:
            unwanted = None if step.unwanted is None else step.unwanted[taken]
            own = StepResult(
                rewards=np.zeros(len(taken)),
                observations=observations,
                terminated=step.ended[taken],
                truncated=np.zeros(len(taken), np.bool_),
                first=restart[taken] | ~used,
                unwanted=unwanted if unwanted is not None and unwanted.any() else None,
            )
            actions = self.agent.step(own)
        else:
            self.started = True
            actions = self.agent.reset(observations)
        return rows, [leaf[used] for leaf in actions]


class OpponentAgent(AgentBase):
    """An agent whose environments each play an episode with a checkpoint that is drawn for it.

    It has agents of the algorithm for a few environments each (`_Group`), so that an environment keeps its agent, with
    stacked frames and the state of an LSTM, until its episode ends, and one call acts for several environments. Before
    the first checkpoint, opponents act with the parameters in training.
    """

    def __init__(
        self,
        make_agent: MakeAgent,
        config: ConfigBase,
        context: AgentContext,
        checkpoints: OlderCheckpoints,
        places: int,
        joined: int,
        global_step: Callable[[], int],
    ) -> None:
        """`places`: environments of a group. `joined`: see `Draw`. `global_step`: returns that of the training."""
        super().__init__(config, context)
        self._global_step, self._has_warned = global_step, False
        self._make_agent, self._checkpoints, self._places = make_agent, checkpoints, places
        self._groups: list[_Group] = []
        self._made = 0
        self._place_of: list[tuple[_Group, int] | None] = [None] * context.environments
        self._draws = [Draw(context.seed, joined, actor, 0) for actor in context.actors]

    def checkpoint_of(self, environment: int) -> str:
        """Return the id of the checkpoint that plays an environment's episode; `NEWEST` for the parameters in training.

        It is known until the agent gets the first observation of the next episode.
        """
        place = self._place_of[environment]
        return NEWEST if place is None else place[0].checkpoint_id

    def reset(self, observations: Leaves) -> Leaves:
        n = self.context.environments
        none, every = np.zeros(n, np.bool_), np.ones(n, np.bool_)
        return self._act(StepResult(np.zeros(n), observations, none, none, none), every)

    def step(self, step: StepResult) -> Leaves:
        restart = step.restart if step.unwanted is None else step.restart & ~step.unwanted
        return self._act(step, restart)

    def close(self) -> None:
        for group in self._groups:
            group.agent.close()

    def _act(self, step: StepResult, restart: Mask) -> Leaves:
        for environment in np.flatnonzero(restart).tolist():
            self._begin(environment)
        unused = [group for group in self._groups if (group.rows < 0).all()]
        for group in unused:
            group.agent.close()
        self._groups = [group for group in self._groups if group not in unused]
        acted = [group.act(step, restart) for group in self._groups]
        actions = [np.empty((self.context.environments, *leaf.shape[1:]), leaf.dtype) for leaf in acted[0][1]]
        for rows, chosen in acted:
            for leaf, part in zip(actions, chosen, strict=True):
                leaf[rows] = part
        return actions

    def _begin(self, environment: int) -> None:
        """Draw the opponent of an environment's next episode, and move the environment to a place in its group."""
        if (place := self._place_of[environment]) is not None:
            place[0].rows[place[1]] = -1
        of = self._draws[environment]
        self._draws[environment] = replace(of, number=of.number + 1)
        drawn = self._checkpoints.at(share_of(of))
        checkpoint_id = NEWEST if drawn is None else drawn[0]
        if drawn is None and not self._has_warned and (sentence := self._checkpoints.missing(self._global_step())):
            self._has_warned = True
            _log.warning("%s", sentence)
        group = next((one for one in self._groups if one.checkpoint_id == checkpoint_id and (one.rows < 0).any()), None)
        if group is None:
            group = self._new_group(checkpoint_id, None if drawn is None else drawn[1])
        index = int((group.rows < 0).argmax())
        group.rows[index] = environment
        self._place_of[environment] = group, index

    def _new_group(self, checkpoint_id: str, pulled: Pulled | None) -> _Group:
        self._made += 1
        first = self.context.actors[0] + (self._made << 32)  # no actor has these random numbers
        context = replace(
            self.context,
            environments=self._places,
            actors=tuple(range(first, first + self._places)),
            metrics=NoMetrics(),
        )
        if pulled is not None:
            context = replace(context, parameters=FixedParameters(pulled))
        group = _Group(checkpoint_id, self._make_agent(self.config, context), np.full(self._places, -1))
        self._groups.append(group)
        return group


def share_of(of: Draw) -> float:
    """Return the number, 0 to 1, that decides which checkpoint plays an episode."""
    return float(np.random.default_rng([of.seed, of.joined, of.actor, of.number]).random())


@dataclass(frozen=True, slots=True)
class OpponentSource:
    """Where the workers of a server find the checkpoints of opponents.

    `open_store` returns the store; call it in the worker: connections to S3 do not survive a fork.
    """

    open_store: Callable[[], Store]
    milestones: Milestones

    def agent(
        self,
        make_agent: MakeAgent,
        config: ConfigBase,
        context: AgentContext,
        fingerprint: str,
        joined: int,
        global_step: Callable[[], int],
    ) -> OpponentAgent:
        """Return the agent of a connection. `fingerprint`: of its spaces and the configuration."""
        checkpoints = OlderCheckpoints(self.open_store(), self.milestones, config, fingerprint)
        places = -(-context.environments // self.milestones.keep)
        return OpponentAgent(make_agent, config, context, checkpoints, places, joined, global_step)
