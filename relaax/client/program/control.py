"""Taken actions, which environments report to the server, and parameters, which the server sends to environments."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from relaax.client.connection.failure import EnvironmentFault
from relaax.client.connection.values import Values, fill_rows, single_leaves
from relaax.client.program.checked_env import PARAMETERS
from relaax.rlx import Discrete, ProtocolError
from relaax.rlx.leaf_checks import LeavesCheck
from relaax.rlx.value_mismatch import ValueMismatch

Form = Literal["options", "attributes"]
Mask = npt.NDArray[np.bool_]


class TakenActions:
    """The actions in the entry `name` of the infos. `values`: the converter of the action space.

    An environment whose entry is missing or None took the agent's action. A vector of environments has one array of all
    entries, and a mask in the entry _NAME, as gymnasium's vectors make them. Raises EnvironmentFault for an entry that
    is not in the action space.
    """

    def __init__(self, name: str | None, values: Values) -> None:
        self._name, self._values = name, values
        self._check = LeavesCheck(values.space, 1, bounded=True)

    def of_one(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        """Return the argument `action` of `Client.send` and `reset`, if the environment has taken its own action."""
        taken = None if self._name is None else infos.get(self._name)
        return {} if taken is None else {"action": self._checked(taken, "")}

    def of_many(self, infos: Mapping[str, Any], ended: Mask, actions: Any, void: Mask | None = None) -> dict[str, Any]:
        """Return the arguments `actions` and `chosen` of `VectorClient.step`, if an environment took its own action.

        `ended`: bool [N], whose infos are in the entry `final_info`, if there is one. `actions`: the agent's, [N, ...].
        `void`: bool [N], environments that took no action: they were reset, or are idle.
        """
        if self._name is None:
            return {}
        final = infos.get("final_info")
        acted = np.ones_like(ended) if void is None else ~void
        rows = self._rows(infos, acted & ~ended if isinstance(final, Mapping) else acted)
        if isinstance(final, Mapping):
            rows |= self._rows(final, ended)
        if not rows:
            return {}
        chosen = np.zeros_like(ended)
        chosen[list(rows)] = True
        values = self._values
        filled = fill_rows(values, values.to_leaves(actions, 1), [rows.get(i) for i in range(len(ended))])
        return {"actions": values.from_leaves(iter(filled), False), "chosen": chosen}

    def _rows(self, infos: Mapping[str, Any], where: Mask) -> dict[int, Any]:
        """Return the actions by index, of the environments in `where`."""
        assert self._name is not None
        entries = infos.get(self._name)
        if entries is None:
            return {}
        marked = np.asarray(infos.get(f"_{self._name}", True), np.bool_)
        found = {index: _row(entries, index) for index in np.flatnonzero(where & marked).tolist()}
        return {
            index: self._checked(row, f" of environment {index}") for index, row in found.items() if row is not None
        }

    def _checked(self, taken: Any, which: str) -> Any:
        """Return an action that is in the action space. `which`: the environment, for the error."""
        if isinstance(taken, float) and taken.is_integer() and isinstance(self._values.space, Discrete):
            taken = int(taken)  # a CheckedEnv has converted it
        try:
            self._check.check("the action", single_leaves(self._values, taken))
        except (ValueMismatch, ProtocolError) as error:
            raise EnvironmentFault(f"the entry {self._name!r} of the infos{which}: {error}") from None
        return taken


def _row(entries: Any, index: int) -> Any:
    """Return the entry of one environment. A vector has a dict of arrays for the parts of a Dict."""
    if isinstance(entries, Mapping):
        return {key: _row(part, index) for key, part in entries.items() if not str(key).startswith("_")}
    return entries[index]


class ServerParameters:
    """The parameters of an Env or a VectorEnv, which is made of CheckedEnvs.

    `form`: see `relaax.client.run`; None if the environments do not use parameters. Raises EnvironmentFault if the
    vector is not made of CheckedEnvs.
    """

    def __init__(self, form: Form | None, env: Any, is_vector: bool) -> None:
        self._form, self._env, self._is_vector = form, env, is_vector
        self._given: Mapping[str, Any] | None = None
        if form is None or not is_vector:
            return
        self._env = getattr(env, "unwrapped", env)  # wrappers of vectors do not pass attributes
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an AsyncVectorEnv warns of the error, with tracebacks
                self._env.get_attr(PARAMETERS)
        except AttributeError:
            raise EnvironmentFault(
                f"{type(self._env).__name__} cannot give the server's parameters to its environments: use a "
                "SyncVectorEnv, or an AsyncVectorEnv whose functions return relaax.client.CheckedEnv(env)"
            ) from None

    def update(self, client: Any) -> None:
        """Give the environments the parameters of their next episodes, if these have changed."""
        if self._form is None:
            return
        values, given = client.parameters, self._given or {}
        if given.keys() == values.keys() and all(np.array_equal(given[name], values[name]) for name in values):
            return
        self._given = values
        if self._is_vector:
            count = self._env.num_envs
            rows = [{name: float(each[index]) for name, each in values.items()} for index in range(count)]
            self._env.set_attr(PARAMETERS, [(self._form, row) for row in rows])
        else:
            self._env.set_wrapper_attr(PARAMETERS, (self._form, values))
