"""What the model is, for the parameter server."""

from __future__ import annotations

from relaax.algorithm_base import TargetInterval

from ..async_q import parameter_server


class ParameterServer(parameter_server.ParameterServer):
    """One value network, its target network, and an optimizer shared by all learners."""

    def target_interval(self) -> TargetInterval:
        return TargetInterval(updates=self.config.target_interval)
