"""The roles: the kinds of processes of a training run.

All code that starts, configures, checks or shows processes reads this one table. A further kind of process is a row
here, with a section and a command of its own.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from relaax.configuration.cluster_section import ClusterSection
from relaax.configuration.sections import (
    LearnerSection,
    ParameterServerSection,
    ReplayServerSection,
    RlxServerSection,
    RunSection,
    TensorBoardSection,
)
from relaax.configuration.validation import Section

Sections = Mapping[str, Section]
"""The sections of a configuration by name."""

Addresses = Mapping[str, Sequence[str]]
"""HOST:PORT of every process of the started roles, by role name, or one @FILE for all of a role."""

ENVIRONMENTS_TOKEN = "RELAAX_TOKEN"
"""The variable for the token that environments send to an RLX server."""
WORKERS_TOKEN = "RELAAX_PARAMETER_SERVER_TOKEN"
"""The variable for the token that workers, learners and shards send to a parameter server."""
REPLAY_TOKEN = "RELAAX_REPLAY_SERVER_TOKEN"
"""The variable for the token that workers and learners send to a replay server."""


class Restart(enum.Enum):
    """When to restart a process that has ended."""

    ALWAYS = enum.auto()
    """Whatever its exit code."""
    IF_FAILED = enum.auto()
    """Unless its exit code is 0, which means that it is done."""
    UNTIL_DONE = enum.auto()
    """Unless it has said that it is done: exit code 0 alone may mean that somebody has ended it."""


@dataclass(frozen=True, slots=True)
class Role:
    """One kind of process."""

    name: str
    """The name of its first process and log; further ones append their number."""
    title: str
    """The name in messages."""
    section: str
    """The configuration section."""
    model: type[Section]
    """The section's keys."""
    command: str | None
    """The command that starts one by hand; None for the user's programs, which the plan of a run knows."""
    module: str | None
    """The module to run, which prints `... listening on HOST:PORT`, or `... ready` if it does not listen, when it is
    ready, and `... done` at the end of training if it is to be restarted until then; None for the user's programs.
    """
    count: Callable[[Sections], int]
    """The number of processes."""
    restart: Restart
    stop_seconds: Callable[[Sections], float]
    """Seconds from SIGTERM until a process is killed."""
    stop_key: str | None
    """The key that sets this time; None if no key does."""
    tokens: tuple[str, ...]
    """The environment variables of the tokens that it needs."""
    arguments: Callable[[Addresses, int, int], list[str]]
    """Return the options of the process of this number, of so many, given the addresses of those it connects to."""
    needs: tuple[str, ...] = ()
    """The names of the roles, above it in the table, that its processes connect to: without them they neither become
    ready nor fail.
    """
    reserved: bool = False
    """Whether the addresses are fixed before the processes start, and do not change: others keep to them."""
    led: bool = False
    """Whether the first of several processes leads: it starts and ends before the others, and its exit code 0 means
    that training is over.
    """

    vital: bool = True
    """Whether training cannot do without it. What is not is left out if it fails repeatedly."""

    @property
    def listens(self) -> bool:
        """Whether it has a port, and the key `bind`."""
        return "bind" in self.model.model_fields


def _status_of_first(section: str, number: int) -> list[str]:
    """Return the options by which only the first of several processes serves the status page."""
    return ["--set", f"{section}.status_bind=null"] if number else []


def _shard_arguments(addresses: Addresses, shard: int, shards: int) -> list[str]:
    arguments = ["--shard", f"{shard}/{shards}"] if shards > 1 else []
    if shard:
        arguments += ["--first-shard", addresses["parameter-server"][0]]
    return [*arguments, *_status_of_first("relaax-parameter-server", shard)]


def _replay_arguments(_: Addresses, shard: int, shards: int) -> list[str]:
    arguments = ["--shard", f"{shard}/{shards}"]
    return [*arguments, *_status_of_first("relaax-replay-server", shard)]


def _learner_arguments(addresses: Addresses, learner: int, _: int) -> list[str]:
    arguments = [*_services(addresses), "--learner", str(learner)]
    return [*arguments, *_status_of_first("relaax-learner", learner)]


def _shards(sections: Sections) -> int:
    section = sections["relaax-parameter-server"]
    assert isinstance(section, ParameterServerSection)
    return section.shards


def _replay(sections: Sections) -> ReplayServerSection:
    section = sections["relaax-replay-server"]
    assert isinstance(section, ReplayServerSection)
    return section


def _rlx_server(sections: Sections) -> RlxServerSection:
    section = sections["relaax-rlx-server"]
    assert isinstance(section, RlxServerSection)
    return section


def _learners(sections: Sections) -> int:
    section = sections["relaax-learner"]
    assert isinstance(section, LearnerSection)
    return section.learners


def _tensorboards(sections: Sections) -> int:
    section = sections["relaax-tensorboard"]
    assert isinstance(section, TensorBoardSection)
    return int(section.enabled)


def _services(addresses: Addresses) -> list[str]:
    """Return the options that say where the parameter server is, and the replay servers if there are any."""
    options = ["--parameter-server", ",".join(addresses["parameter-server"])]
    replay = addresses["replay-server"]
    return [*options, "--replay-server", ",".join(replay)] if replay else options


def _run(sections: Sections) -> RunSection:
    section = sections["relaax-run"]
    assert isinstance(section, RunSection)
    return section


_LAST_CHECKPOINT = 120.0
"""Seconds to stop with one: it is retried for a minute, and the last attempt may be slow."""

PARAMETER_SERVER = Role(
    name="parameter-server",
    title="the parameter server",
    section="relaax-parameter-server",
    model=ParameterServerSection,
    command="relaax-parameter-server",
    module="relaax.server.parameter_server.main",
    count=_shards,
    restart=Restart.ALWAYS,
    stop_seconds=lambda _: _LAST_CHECKPOINT,
    stop_key=None,
    tokens=(WORKERS_TOKEN,),
    arguments=_shard_arguments,
    reserved=True,
    led=True,
)

REPLAY_SERVER = Role(
    name="replay-server",
    title="the replay server",
    section="relaax-replay-server",
    model=ReplayServerSection,
    command="relaax-replay-server",
    module="relaax.server.replay_server.main",
    count=lambda sections: _replay(sections).shards,
    restart=Restart.ALWAYS,
    stop_seconds=lambda sections: _LAST_CHECKPOINT if _replay(sections).keeps else 10.0,
    stop_key=None,
    tokens=(REPLAY_TOKEN,),
    arguments=_replay_arguments,
    reserved=True,
)

_SERVICES = (PARAMETER_SERVER.name, REPLAY_SERVER.name)

RLX_SERVER = Role(
    name="rlx-server",
    title="the RLX server",
    section="relaax-rlx-server",
    model=RlxServerSection,
    command="relaax-rlx-server",
    module="relaax.server.rlx_server.main",
    count=lambda _: 1,
    restart=Restart.ALWAYS,
    stop_seconds=lambda sections: 10.0 + _rlx_server(sections).drain,  # it ends at once if it has no workers
    stop_key=None,
    tokens=(WORKERS_TOKEN, REPLAY_TOKEN, ENVIRONMENTS_TOKEN),
    arguments=lambda addresses, _, __: _services(addresses),
    needs=_SERVICES,
)

LEARNER = Role(
    name="learner",
    title="a learner",
    section="relaax-learner",
    model=LearnerSection,
    command="relaax-learner",
    module="relaax.server.learner.main",
    count=_learners,
    restart=Restart.UNTIL_DONE,
    stop_seconds=lambda _: 10.0,
    stop_key=None,
    tokens=(WORKERS_TOKEN, REPLAY_TOKEN),
    arguments=_learner_arguments,
    needs=_SERVICES,
)

TENSORBOARD = Role(
    name="tensorboard",
    title="TensorBoard",
    section="relaax-tensorboard",
    model=TensorBoardSection,
    command="relaax-tensorboard",
    module="relaax.server.tensorboard.main",
    count=_tensorboards,
    restart=Restart.ALWAYS,
    stop_seconds=lambda _: 10.0,
    stop_key=None,
    tokens=(),
    arguments=lambda _, __, ___: [],
    vital=False,
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
    arguments=lambda _, __, ___: [],
    needs=(RLX_SERVER.name,),
)

ROLES: tuple[Role, ...] = (PARAMETER_SERVER, REPLAY_SERVER, RLX_SERVER, LEARNER, TENSORBOARD, CLIENT)
"""All roles in starting order; they are stopped in reverse order."""

SECTIONS: dict[str, type[Section]] = {**{role.section: role.model for role in ROLES}, "relaax-cluster": ClusterSection}
"""Maps the name of each section to its model. The algorithm declares the section `algorithm`."""


TOKENS = tuple(dict.fromkeys(token for role in ROLES for token in role.tokens))
"""The variables of all tokens."""


def own() -> list[Role]:
    """Return the roles whose programs are RELAAX's own."""
    return [role for role in ROLES if role.module is not None]


def servers() -> list[Role]:
    """Return those of them that listen on an address."""
    return [role for role in own() if role.listens]


def section_of(settings: Section) -> str:
    """Return the name of the section that these settings are of."""
    return next(role.section for role in ROLES if isinstance(settings, role.model))
