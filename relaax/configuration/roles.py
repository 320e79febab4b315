"""The roles: the kinds of processes that a training is made of.

One table, read by whoever starts, configures, checks or shows processes. A further kind is a row here, with a section
and a command of its own.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from relaax.configuration.sections import ParameterServerSection, RlxServerSection, RunSection
from relaax.configuration.validation import Section

Sections = Mapping[str, Section]
"""The sections of a configuration by their names."""

Addresses = Mapping[str, Sequence[str]]
"""HOST:PORT of every process of the roles that were started, by the name of the role."""

ENVIRONMENTS_TOKEN = "RELAAX_TOKEN"
"""The variable with the token that environments show an RLX server."""
WORKERS_TOKEN = "RELAAX_PARAMETER_SERVER_TOKEN"
"""The variable with the token that workers and shards show a parameter server."""


class Restart(enum.Enum):
    """When a process that has ended is started again."""

    ALWAYS = enum.auto()
    """Whatever its exit code."""
    IF_FAILED = enum.auto()
    """If its exit code is not 0: with 0 it says that it is done."""


@dataclass(frozen=True, slots=True)
class Role:
    """One kind of process."""

    name: str
    """Of its processes and their logs; further ones have their number behind it."""
    title: str
    """As sentences call it."""
    section: str
    """Its section in a configuration."""
    model: type[Section]
    """The section's keys."""
    command: str | None
    """What starts one by hand; None for programs of the user's, which the plan of a run knows."""
    module: str | None
    """The module that is run. It announces `... listening on HOST:PORT` when it is ready; None as above."""
    count: Callable[[Sections], int]
    """How many there are."""
    restart: Restart
    stop_seconds: Callable[[Sections], float]
    """How long one may take to end, after SIGTERM, before it is killed."""
    stop_key: str | None
    """The key that gives it longer."""
    tokens: tuple[str, ...]
    """The environment variables with the tokens that it needs."""
    arguments: Callable[[Addresses, int], list[str]]
    """Options of the process of this number, given the addresses of the processes that it talks to."""
    led: bool = False
    """Whether the first of several leads: it is started, and ended, before the others, and with exit code 0 it says
    that training is over. Their addresses are settled before they start, and stay the same."""


def _shard_arguments(addresses: Addresses, shard: int) -> list[str]:
    shards = addresses["parameter-server"]
    arguments = ["--shard", f"{shard}/{len(shards)}"] if len(shards) > 1 else []
    if shard:  # one page tells how training goes: the first shard's
        arguments += ["--first-shard", shards[0], "--set", "relaax-parameter-server.status_bind=null"]
    return arguments


def _shards(sections: Sections) -> int:
    section = sections["relaax-parameter-server"]
    assert isinstance(section, ParameterServerSection)
    return section.shards


def _run(sections: Sections) -> RunSection:
    section = sections["relaax-run"]
    assert isinstance(section, RunSection)
    return section


PARAMETER_SERVER = Role(
    name="parameter-server",
    title="the parameter server",
    section="relaax-parameter-server",
    model=ParameterServerSection,
    command="relaax-parameter-server",
    module="relaax.server.parameter_server.main",
    count=_shards,
    restart=Restart.ALWAYS,
    stop_seconds=lambda _: 120.0,  # it tries its last checkpoint for a minute, and the last attempt takes its time
    stop_key=None,
    tokens=(WORKERS_TOKEN,),
    arguments=_shard_arguments,
    led=True,
)

RLX_SERVER = Role(
    name="rlx-server",
    title="the RLX server",
    section="relaax-rlx-server",
    model=RlxServerSection,
    command="relaax-rlx-server",
    module="relaax.server.rlx_server.main",
    count=lambda _: 1,
    restart=Restart.ALWAYS,
    stop_seconds=lambda _: 10.0,  # it gives its workers 5 s itself, and ends at once without any
    stop_key=None,
    tokens=(WORKERS_TOKEN, ENVIRONMENTS_TOKEN),
    arguments=lambda addresses, _: ["--parameter-server", ",".join(addresses["parameter-server"])],
)

CLIENT = Role(
    name="client",
    title="a client",
    section="relaax-run",
    model=RunSection,
    command=None,
    module=None,
    count=lambda sections: _run(sections).clients,
    restart=Restart.IF_FAILED,
    stop_seconds=lambda sections: _run(sections).stop_timeout,
    stop_key="relaax-run.stop-timeout",
    tokens=(ENVIRONMENTS_TOKEN,),
    arguments=lambda addresses, _: [],
)

ROLES: tuple[Role, ...] = (PARAMETER_SERVER, RLX_SERVER, CLIENT)
"""In the order in which they are needed; they are ended in the reverse order."""

SECTIONS: dict[str, type[Section]] = {role.section: role.model for role in ROLES}
"""The model of each section by its name. The section `algorithm` is the algorithm's own."""


def servers() -> list[Role]:
    """Return the roles that listen at an address."""
    return [role for role in ROLES if role.module is not None]
