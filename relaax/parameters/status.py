"""The state of a training, as the parameter server reports it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

from relaax.parameters import parameter_server_pb2 as pb

_Status = TypeVar("_Status", bound="TrainingStatus")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStatus:
    """The state of a training. Its fields are those of the message `GetStatusResponse`, which documents them.

    A field is None if the message does not have it.
    """

    incarnation: int = 0
    global_step: int = 0
    frames: int = 0
    updates: int = 0
    discarded: int = 0
    discarded_stale: int = 0
    discarded_not_finite: int = 0
    discarded_loss: int = 0
    dropped_samples: int = 0
    episodes: int = 0
    mean_return_100: float | None = None
    best_mean_return_100: float | None = None
    workers: int = 0
    exploit_workers: int = 0
    learners: int = 0
    workers_by_shared_memory: int = 0
    mean_staleness: float = 0.0
    staleness_p95: float = 0.0
    learning_rate: float = 0.0
    checkpoint: str = ""
    checkpoint_global_step: int | None = None
    checkpoint_time: float | None = None
    checkpoint_error: str = ""
    max_global_step: int = 0
    finished: bool = False
    training_seconds: float = 0.0
    act_ms_p50: float | None = None
    act_ms_p99: float | None = None
    version: str = ""
    description: str = ""
    spaces: str = ""
    mean_actor_staleness: float | None = None
    agreed_return: float | None = None
    discarded_returns: int = 0
    outlying_clients: int = 0
    lesson: int = 0
    lessons: int = 0
    lesson_name: str = ""
    lesson_return: float | None = None
    environment_parameters: str = ""
    opponent_win_rate: float | None = None
    elo: float | None = None

    @property
    def discarded_for(self) -> dict[str, int]:
        """Gradients discarded, by reason."""
        return {"stale": self.discarded_stale, "not_finite": self.discarded_not_finite, "loss": self.discarded_loss}

    def reaches(self, target: float) -> bool:
        """Return whether `mean_return_100` and `agreed_return` are at least `target`, after at least 100 episodes."""
        means = [mean for mean in (self.mean_return_100, self.agreed_return) if mean is not None]
        return self.episodes >= 100 and bool(means) and min(means) >= target

    def to_message(self) -> pb.GetStatusResponse:
        """Convert the status to a message."""
        return pb.GetStatusResponse(**{field.name: getattr(self, field.name) for field in fields(TrainingStatus)})

    @classmethod
    def from_message(cls: type[_Status], message: pb.GetStatusResponse) -> _Status:
        """Convert a message to a status."""
        absent = {one.name for one in message.DESCRIPTOR.fields if one.has_presence and not message.HasField(one.name)}
        if not message.checkpoint:
            absent |= {"checkpoint_global_step", "checkpoint_time"}
        names = {field.name for field in fields(TrainingStatus)} - absent
        return cls(**{name: getattr(message, name) for name in names})
