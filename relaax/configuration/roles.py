"""The table of roles: the kinds of processes of a training run.

All code that starts, configures, checks or shows processes reads it. To add a kind of process, add a row, a section and
a command.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from relaax.configuration.lesson_sections import (
    CURRICULUM,
    OPPONENTS,
    PARAMETERS,
    CurriculumSection,
    EnvironmentParametersSection,
    OpponentsSection,
)
from relaax.configuration.sections import (
    ClusterSection,
    LearnerSection,
    ParameterServerSection,
    ReplayServerSection,
    RlxServerSection,
    RunSection,
    TensorBoardSection,
)
from relaax.configuration.tune_section import TUNE, TuneSection
from relaax.configuration.validation import Section

_Section = TypeVar("_Section", bound=Section)
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

WEB_TOKEN = "RELAAX_WEB_TOKEN"
"""The variable for the token of the live page."""


class Restart(enum.Enum):
    """When to restart a process that has ended."""

    ALWAYS = enum.auto()
    """With any exit code."""
    IF_FAILED = enum.auto()
    """Unless its exit code is 0."""
    UNTIL_DONE = enum.auto()
    """Unless it has printed `... done`: with exit code 0 alone, it may have been stopped by a user."""


@dataclass(frozen=True, slots=True)
class Role:
    """One kind of process."""

    name: str
    """The name of its first process and log; further processes append their number."""
    title: str
    """The name in messages."""
    section: str
    """The configuration section."""
    model: type[Section]
    """The section's keys."""
    command: str | None
    """The command that starts a process by hand; None for the user's programs, which are in the plan of a run."""
    module: str | None
    """The module to run; None for the user's programs.

    When it is ready, it prints `... listening on HOST:PORT`, or `... ready` if it does not listen. If its `restart` is
    UNTIL_DONE, it prints `... done` at the end of training.
    """
    count: Callable[[Sections], int]
    """The number of processes."""
    restart: Restart
    stop_seconds: Callable[[Sections], float] = lambda sections: 10.0
    """Seconds from SIGTERM until a process is killed."""
    stop_key: str | None = None
    """The key that sets `stop_seconds`; None if there is none."""
    tokens: tuple[str, ...] = ()
    """The environment variables of its tokens."""
    arguments: Callable[[Addresses, int, int], list[str]] = lambda addresses, number, count: []
    """Return the options of a process, given the addresses to connect to, its number, and the number of processes."""
    needs: tuple[str, ...] = ()
    """The names of the roles, above it in the table, that its processes connect to. Until those are ready, its
    processes wait.
    """
    reserved: bool = False
    """Whether the addresses are chosen before the processes start and never change, because others store them."""
    led: bool = False
    """Whether the first process leads: it starts and ends before the others, and its exit code 0 ends the training."""

    vital: bool = True
    """Whether training needs it. If it fails repeatedly and is not vital, it is no longer restarted."""

    @property
    def listens(self) -> bool:
        """Whether it has a port and the key `bind`."""
        return "bind" in self.model.model_fields


def _status_of_first(section: str, number: int) -> list[str]:
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


def _of(sections: Sections, model: type[_Section]) -> _Section:
    return next(section for section in sections.values() if isinstance(section, model))


def _services(addresses: Addresses) -> list[str]:
    """Return the options with the addresses of parameter servers and, if there are any, replay servers."""
    options = ["--parameter-server", ",".join(addresses["parameter-server"])]
    replay = addresses["replay-server"]
    return [*options, "--replay-server", ",".join(replay)] if replay else options


_LAST_CHECKPOINT = 120.0
"""Seconds to stop a server that saves a last checkpoint: a save is retried for a minute, and may be slow."""

PARAMETER_SERVER = Role(
    name="parameter-server",
    title="the parameter server",
    section="relaax-parameter-server",
    model=ParameterServerSection,
    command="relaax-parameter-server",
    module="relaax.server.parameter_server.main",
    count=lambda sections: _of(sections, ParameterServerSection).shards,
    restart=Restart.ALWAYS,
    stop_seconds=lambda _: _LAST_CHECKPOINT,
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
    count=lambda sections: _of(sections, ReplayServerSection).shards,
    restart=Restart.ALWAYS,
    stop_seconds=lambda sections: _LAST_CHECKPOINT if _of(sections, ReplayServerSection).is_persistent else 10.0,
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
    stop_seconds=lambda sections: 10.0 + _of(sections, RlxServerSection).drain,  # without workers it ends at once
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
    count=lambda sections: _of(sections, LearnerSection).learners,
    restart=Restart.UNTIL_DONE,
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
    count=lambda sections: int(_of(sections, TensorBoardSection).enabled),
    restart=Restart.ALWAYS,
    vital=False,
)

CLIENT = Role(
    name="client",
    title="a client",
    section="relaax-run",
    model=RunSection,
    command=None,
    module=None,
    count=lambda sections: _of(sections, RunSection).clients,
    restart=Restart.IF_FAILED,
    stop_seconds=lambda sections: _of(sections, RunSection).stop_timeout,
    stop_key="relaax-run.stop-timeout",
    tokens=(ENVIRONMENTS_TOKEN,),
    needs=(RLX_SERVER.name,),
)

ROLES: tuple[Role, ...] = (PARAMETER_SERVER, REPLAY_SERVER, RLX_SERVER, LEARNER, TENSORBOARD, CLIENT)
"""All roles in starting order; they are stopped in reverse order."""

SECTIONS: dict[str, type[Section]] = {
    **{role.section: role.model for role in ROLES},
    "relaax-cluster": ClusterSection,
    PARAMETERS: EnvironmentParametersSection,
    CURRICULUM: CurriculumSection,
    OPPONENTS: OpponentsSection,
    TUNE: TuneSection,
}
"""Maps the name of each section to its model. The algorithm declares the section `algorithm`."""


TOKENS = tuple(dict.fromkeys(token for role in ROLES for token in role.tokens))
"""The variables of all tokens."""


def relaax_roles() -> list[Role]:
    """Return the roles whose programs belong to RELAAX: all but clients."""
    return [role for role in ROLES if role.module is not None]


def listening_roles() -> list[Role]:
    """Return the roles of RELAAX that listen on an address."""
    return [role for role in relaax_roles() if role.listens]


def section_of(settings: Section) -> str:
    """Return the name of the section with these settings."""
    return next(role.section for role in ROLES if isinstance(settings, role.model))
