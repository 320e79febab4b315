"""The server's parameters, given to environments before their episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from relaax.client.program.checked_env import PARAMETERS

Form = Literal["options", "attributes"]


class ServerParameters:
    """The parameters of an Env or a VectorEnv, which is made of CheckedEnvs.

    `form`: see `relaax.client.run`; None if the environments do not use parameters.
    """

    def __init__(self, form: Form | None, env: Any, is_vector: bool) -> None:
        self._form, self._env, self._is_vector = form, env, is_vector
        self._given: Mapping[str, Any] | None = None

    def update(self, client: Any) -> None:
        """Give the environments the parameters of their next episodes, if these have changed."""
        if self._form is None:
            return
        values = client.parameters
        if self._given is not None and all(np.array_equal(self._given[name], value) for name, value in values.items()):
            return
        self._given = values
        if self._is_vector:
            count = self._env.num_envs
            rows = [{name: float(each[index]) for name, each in values.items()} for index in range(count)]
            self._env.set_attr(PARAMETERS, [(self._form, row) for row in rows])
        else:
            self._env.set_wrapper_attr(PARAMETERS, (self._form, values))
