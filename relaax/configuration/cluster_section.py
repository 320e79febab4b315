"""The configuration keys of a training on a Ray cluster."""

from __future__ import annotations

from typing import Literal

import pydantic
from pydantic import Field

from relaax.configuration.validation import Section


class ClusterSection(Section):
    """`relaax-cluster`: how a training is spread over the machines of a Ray cluster."""

    rlx_servers: int | None = Field(
        None,
        ge=1,
        description="Number of RLX servers, or the smallest if it changes by itself; by default one on each machine, "
        "and one if it changes.",
    )
    scaling: Literal["fixed", "refusals", "timeout"] = Field(
        "fixed",
        description="How the number of RLX servers follows the environments that come: fixed: not; refusals: more when "
        "one refuses a connection or fewer places than `free_places` are free, fewer when one less would be enough for "
        "`idle_seconds`, and its connections move to others with the end of their episodes; timeout: more when one "
        "refuses, fewer when the last one had no connection for `idle_seconds`.",
    )
    max_rlx_servers: int | None = Field(None, ge=1, description="The largest number of RLX servers, if it changes.")
    free_places: int = Field(
        0, ge=0, description="Connections that there should be room for at any time, with scaling by refusals."
    )
    idle_seconds: float = Field(
        60.0, gt=0, description="Seconds for which an RLX server was not needed before it ends, if the number changes."
    )
    clients: int | None = Field(
        None,
        ge=0,
        description="Environment programs to start; by default relaax-run.clients; 0 if all are elsewhere.",
    )
    resources: dict[str, dict[str, float]] = Field(
        {},
        description="Ray resources that each process of a role takes, by the role's name: {rlx-server: {CPU: 4}, "
        "client: {environments: 1}}; by default one CPU, and for environment programs one `environments` where a "
        "machine has them.",
    )

    @pydantic.model_validator(mode="after")
    def _a_number_that_can_change(self) -> ClusterSection:
        if self.scaling == "fixed" and self.max_rlx_servers is not None:
            raise ValueError("max_rlx_servers has no effect with scaling fixed: set scaling to refusals or timeout")
        if self.scaling != "fixed" and self.max_rlx_servers is None:
            raise ValueError(f"scaling {self.scaling} needs max_rlx_servers, the largest number of RLX servers")
        if self.max_rlx_servers is not None and self.max_rlx_servers < (self.rlx_servers or 1):
            raise ValueError(f"max_rlx_servers {self.max_rlx_servers} is less than rlx_servers {self.rlx_servers}")
        if self.free_places and self.scaling != "refusals":
            raise ValueError(f"free_places has no effect with scaling {self.scaling}: set scaling to refusals")
        return self
