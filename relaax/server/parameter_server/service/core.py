"""The core of a shard's parameter server, without transports: model, workers, metrics and the end of training."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from relaax import __version__
from relaax.checkpoint import Checkpoint
from relaax.checkpoint.manifest import require_model
from relaax.configuration import redacted
from relaax.hosting.fingerprint import SPACES
from relaax.lessons.curriculum import Curriculum
from relaax.lessons.ratings import OpponentRatings
from relaax.lessons.values import Edition
from relaax.metrics import Aggregator
from relaax.metrics.system import available_memory
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.editions import edition_message
from relaax.parameters.interfaces import EXPLOIT, LEARN, TRAIN, Purpose
from relaax.parameters.status import TrainingStatus
from relaax.server.checkpoints.checkpointing import CheckpointLate, ModelState, Saved
from relaax.server.parameter_server.service.metrics import PeriodicMetrics, Rates
from relaax.server.parameter_server.service.pictures import Pictures
from relaax.server.parameter_server.service.registry import UNKNOWN_ORIGIN, RegisteredWorker, Registry, WorkerOrigin
from relaax.server.parameter_server.shard.model import (
    Difference,
    Model,
    ModelAccess,
    ModelFactory,
    ModelRefused,
    ShardPosition,
    differs_from_worker,
    make_model,
)
from relaax.server.parameter_server.shard.persistence import (
    check_origin,
    describe_shard,
    errors_as_damaged,
    restore_shard,
    shard_arrays,
)
from relaax.server.parameter_server.shard.shard import Push, PushResult
from relaax.server.parameter_server.shard.snapshot_segments import Segments
from relaax.server.parameter_server.shard.state import Counters
from relaax.server.parameter_server.shard.synchronous import SynchronousCounts
from relaax.server.ports.shared_budget import SharedBudget

_log = logging.getLogger(__name__)

CURRICULUM, OPPONENTS = "curriculum", "opponents"
"""The keys of a manifest for the state of the lessons, and for the ratings of the opponents."""
CUT = 30.0
"""Seconds for which updates are held while the only shard of a model copies its state. Beyond it, the checkpoint is
late.
"""
SHARED_PART = 1 / 2
"""Fraction of the memory available at the start that workers of this host may share."""


class ParameterServerCore:
    """The state behind the parameter service. Thread-safe.

    Calls on behalf of a worker enter `access`. Each checkpoint's manifest contains `facts`: configuration, seed and
    versions of libraries. `on_finished` is called once, by the thread that applies the update that ends training.
    """

    def __init__(
        self,
        model_factory: ModelFactory,
        difference: Difference,
        *,
        incarnation: int | None = None,
        facts: Mapping[str, Any] | None = None,
        on_finished: Callable[[], None] = lambda: None,
        registry: Registry | None = None,
        clock: Callable[[], float] = time.monotonic,
        position: ShardPosition = ShardPosition(),  # noqa: B008 - it is a value
        access: ModelAccess | None = None,
        curriculum: Curriculum | None = None,
        ratings: OpponentRatings | None = None,
    ) -> None:
        self.position = position
        self.access = access or ModelAccess()
        # Milliseconds since 1970 distinguish the incarnations of a server without checkpoints.
        self.incarnation = time.time_ns() // 1_000_000 if incarnation is None else incarnation
        self.origin = self.incarnation, 0
        """The incarnation, and the global step from which it continues."""
        self.shared = SharedBudget(available_memory() * SHARED_PART)
        """The budget of memory that workers of this host share with this server."""
        self.segments = Segments(self.shared)
        """The memory of snapshots, which workers of this host can read."""
        self.metrics = Aggregator()
        self.periodic_metrics = PeriodicMetrics(clock)
        self.registry = registry or Registry()
        self.registry.on_absent = self._stop_waiting_for
        self.pictures = Pictures(clock)
        self.description = ""
        """Algorithm and configuration for status requests; set by the assembly."""
        self.on_episodes: Callable[[int, Iterable[pb.EpisodeResult]], None] = lambda global_step, episodes: None
        """Called with the global step and the episodes whose parameters the server set."""
        self._curriculum, self._ratings = curriculum, ratings
        self._model_factory, self._difference = model_factory, difference
        self._facts, self._on_finished = dict(facts or {}), on_finished
        self._finish_reported = False
        self._was_finished_at_start = False
        self._clock = clock
        self._rates = Rates(clock)
        self._workers_written = 0
        self._synchronous_written = SynchronousCounts()
        self._begun: float | None = None
        self.model: Model | None = None
        """The model; None before the first worker if no checkpoint was restored."""
        self._saved: Saved | None = None
        self._save_error = ""
        self._repeated: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._initial = self._progress()

    @property
    def finished(self) -> bool:
        """Whether training has reached its last global step."""
        model = self.model
        return model is not None and model.shard.counters.env_steps >= model.spec.max_global_step

    def is_finished_for(self, purpose: Purpose) -> bool:
        """Return whether training is finished for a worker of this purpose.

        If training was finished at the start of this server, it is not finished for workers that only act.
        """
        return self.finished and not (purpose.outlives_training and self._was_finished_at_start)

    @property
    def global_step(self) -> int:
        """Number of environment steps so far."""
        model = self.model
        return model.shard.counters.env_steps if model else 0

    def resume(self, checkpoint: Checkpoint, fingerprint: str) -> None:
        """Continue from a checkpoint, under a new incarnation. Called before the first worker registers.

        `fingerprint` describes the model as configured now. Algorithm, spaces and length of the vector must be equal to
        the checkpoint's values; others may differ. Raises ModelRefused and Damaged.
        """
        require_model(checkpoint.manifest)
        self.roll_back(checkpoint, fingerprint, max(checkpoint.manifest["incarnation"] + 1, self.incarnation))
        if self.finished:
            self._was_finished_at_start = True
            _log.info("training is finished at global step %d: workers only act with the model", self.global_step)

    def roll_back(self, checkpoint: Checkpoint | None, fingerprint: str, incarnation: int) -> None:
        """Return to a checkpoint, or without one to the state before the first worker, under another incarnation.

        All workers are removed and must register again. Called while no update can be applied: before the first worker,
        or while the access is closed. Raises ModelRefused and Damaged. If it raises, the model is unchanged.
        """
        model = None
        if checkpoint is not None:
            require_model(checkpoint.manifest)
            check_origin(checkpoint, fingerprint)
            model = make_model(self._model_factory, fingerprint, self.position, self.segments.empty)
            restore_shard(model.shard, self.position, model.parameters, checkpoint)
        with self._lock:
            if self.position.index == 0 and (checkpoint or self.model):  # without both, there is no progress to forget
                self._restore_progress(checkpoint.manifest if checkpoint else self._initial)
                if checkpoint is not None and self._ratings is not None:
                    self._ratings.add_checkpoint(checkpoint.checkpoint_id, checkpoint.manifest["global_step"])
            self.incarnation = incarnation
            self.model = model
            self.origin = incarnation, self.global_step
            self._save_error = ""  # the state that could not be saved is dropped
            self._was_finished_at_start = (
                self._was_finished_at_start and self.finished
            )  # if the checkpoint is older than the end of training, training continues
            for worker_id in self.registry.clear():
                self.periodic_metrics.remove_worker(worker_id)
                self.metrics.forget(worker_id)

    def register(
        self,
        worker_id: str,
        fingerprint: str,
        session: str,
        environments: int,
        purpose: Purpose,
        frame_skip: int,
        origin: WorkerOrigin = UNKNOWN_ORIGIN,
    ) -> tuple[Model, RegisteredWorker]:
        """Register a worker. Raises ModelRefused if its configuration differs from the model's."""
        with self._lock:
            model = self.model
            if model is None:
                model = make_model(self._model_factory, fingerprint, self.position, self.segments.empty)
                self.model = model
                _log.info("the first worker made a new model: %d parameters", model.shard.size)
            if self._begun is None and purpose.acts:
                self._begun = self._clock()
        if model.fingerprint != fingerprint:
            self._refuse_difference(fingerprint, model.fingerprint)
        self.remove_silent_workers()
        return model, self.registry.register(worker_id, session, environments, purpose, frame_skip, origin)

    def push(self, push: Push) -> PushResult | None:
        """Apply an update of a registered worker. If training has ended, return None without applying it.

        Raises PushRefused and PushOutOfOrder.
        """
        model = self.model
        assert model is not None, "a worker cannot be registered without a model"
        if self.finished:
            return self._repeat("same", push.worker, push.push_id)
        applied = model.shard.push(push)
        if applied.repeated:
            self._count_repeated("same")
        elif push.gradient is not None or push.applied:
            self.metrics.staleness(applied.outcome.staleness)
        elif push.env_steps and not push.withheld:
            self.metrics.actor_staleness(applied.counters.version - push.base_version)
        if self.global_step >= model.spec.max_global_step and not self._was_finished_at_start:
            with self._lock:
                reported, self._finish_reported = self._finish_reported, True
            if not reported:
                _log.info("the whole training has ended at global step %d", self.global_step)
                self._on_finished()
        return applied

    def await_version(self, worker_id: str, newer_than: int, seconds: float) -> None:
        """Wait up to `seconds` until a synchronous update makes a version above `newer_than`.

        The first caller that finds the update complete applies it: no other thread waits for late workers. Raises
        TryAgain.
        """
        model = self.model
        if model is None or self.finished or not model.shard.await_version(worker_id, newer_than, seconds):
            return
        with self.access.enter(update=True):
            if model is self.model and not self.finished:
                model.shard.complete_update()

    def repeat_of_earlier(self, worker_id: str, push_id: int) -> PushResult | None:
        """Return the result of a push of an earlier incarnation if the checkpoint contains it, else None."""
        return self._repeat("earlier", worker_id, push_id)

    @property
    def repeated(self) -> Mapping[str, int]:
        """Number of pushes answered from the ledger, by the incarnation of their update."""
        with self._lock:
            return {incarnation: self._repeated[incarnation] for incarnation in ("same", "earlier")}

    @property
    def parameter_names(self) -> Sequence[str]:
        """The names of the environments' parameters."""
        return () if self._curriculum is None else self._curriculum.edition.names

    def new_edition(self, have: int) -> pb.Edition | None:
        """Return the current edition; None without parameters of environments, or if its number is `have`."""
        if self._curriculum is None or (edition := self._curriculum.edition).number == have:
            return None
        return edition_message(edition)

    def set_parameter(self, name: str, number: float | None) -> Edition:
        """Set a parameter of the environments; None: to the values of the lessons again. Raises KeyError."""
        if self._curriculum is None:
            raise KeyError(name)
        self._curriculum.set_number(name, number)
        _log.info("a user has set the parameter %s: %s", name, self._curriculum.edition)
        return self._curriculum.edition

    def record_lesson(self, episodes: Iterable[pb.EpisodeResult]) -> None:
        """Count episodes whose parameters the server set. They may end the lesson."""
        if self._curriculum is None:
            return
        model, step = self.model, self.global_step
        count = len(self.parameter_names)  # others are of a worker that has not registered again since a restart
        recorded = [episode for episode in episodes if episode.edition and len(episode.parameters) == count]
        if recorded:
            self.on_episodes(step, recorded)
        progress = step / model.spec.max_global_step if model else 0.0
        self._curriculum.record(((episode.edition, episode.episode_return) for episode in recorded), progress)

    def record_games(self, games: Iterable[pb.GameResult]) -> None:
        """Count games of the policy against its checkpoints."""
        if self._ratings is not None:
            self._ratings.record((game.checkpoint, game.episode_return) for game in games)

    def deregister(self, worker_id: str) -> None:
        """Remove a worker. No effect if it is unknown."""
        self.registry.remove(worker_id)
        self._remove_state([worker_id])

    def remove_silent_workers(self) -> None:
        """Remove workers that have not sent requests for very long."""
        self._remove_state(self.registry.remove_silent())

    def checkpoint_saved(self, saved: Saved) -> None:
        """Record the newest checkpoint."""
        self._saved, self._save_error = saved, ""
        if self._ratings is not None:
            self._ratings.add_checkpoint(saved.checkpoint_id, saved.global_step)

    def checkpoint_late(self, why: str) -> None:
        """Record that the last attempt to save a checkpoint failed."""
        self._save_error = why

    def scalars(self) -> tuple[int, dict[str, float]]:
        """Return the global step and the scalars to write at it; empty if nothing has changed. For one caller."""
        model = self.model
        if model is None:
            return 0, {}
        counters, workers = model.shard.counters, self.registry.count(TRAIN)
        scalars = {**self.metrics.drain(), **self.periodic_metrics.scalars()}
        rates = self._rates({"steps": counters.env_steps, "updates": counters.version})
        if scalars or any(rates.values()) or workers != self._workers_written:
            scalars.update((f"speed/{name}_per_second", value) for name, value in rates.items())
            scalars["workers/connected"] = float(workers)
            scalars["learning_rate"] = model.spec.schedule(counters.env_steps)
            scalars.update((f"discarded/{reason}", float(count)) for reason, count in counters.discarded_for.items())
            scalars["discarded/samples"] = float(model.shard.dropped_samples)
            scalars["outliers/returns"] = float(self.metrics.discarded_returns)
            scalars["outliers/clients"] = float(model.shard.outlying_clients)
            scalars.update(self._synchronous_scalars(model))
            if self._curriculum is not None:
                scalars["lesson/number"] = float(self._curriculum.edition.lesson + 1)
                if (mean := self._curriculum.mean_return) is not None:
                    scalars["lesson/mean_return"] = mean
            if self._ratings is not None:
                scalars["opponents/elo"] = self._ratings.rating
                if (share := self._ratings.win_rate) is not None:
                    scalars["opponents/win_rate"] = share
            if (age := model.shard.target_age) is not None:
                scalars[f"target/age_{age[0]}"] = float(age[1])
            self._workers_written = workers
        return counters.env_steps, scalars

    def _synchronous_scalars(self, model: Model) -> dict[str, float]:
        """Return the mean number of contributions to the updates since the last call, and the workers left out."""
        if (counts := model.shard.synchronous_counts) is None:
            return {}
        before, self._synchronous_written = self._synchronous_written, replace(counts)
        scalars = {"sync/left_out": float(counts.left_out)}
        if (updates := counts.updates - before.updates) > 0:
            scalars["sync/contributions"] = (counts.contributions - before.contributions) / updates
        return scalars

    @property
    def left_out(self) -> int:
        """Number of workers that synchronous updates of this process did not wait for any longer."""
        counts = self.model.shard.synchronous_counts if self.model else None
        return counts.left_out if counts else 0

    def status(self) -> TrainingStatus:
        """Return the status of training."""
        model = self.model
        episodes, mean, best, staleness = self.metrics.progress()
        counters, saved = model.shard.counters if model else Counters(), self._saved
        p50, p99 = self.periodic_metrics.act_ms()
        return TrainingStatus(
            incarnation=self.incarnation,
            global_step=counters.env_steps,
            frames=counters.frames,
            updates=counters.version,
            discarded=counters.discarded,
            discarded_stale=counters.discarded_stale,
            discarded_not_finite=counters.discarded_not_finite,
            discarded_loss=counters.discarded_loss,
            dropped_samples=model.shard.dropped_samples if model else 0,
            episodes=episodes,
            mean_return_100=mean,
            best_mean_return_100=best,
            workers=self.registry.count(TRAIN),
            exploit_workers=self.registry.count(EXPLOIT),
            learners=self.registry.count(LEARN),
            mean_staleness=staleness,
            staleness_p95=self.metrics.staleness_p95(),
            mean_actor_staleness=self.metrics.mean_actor_staleness(),
            learning_rate=model.spec.schedule(self.global_step) if model else 0.0,
            checkpoint=saved.location if saved else "",
            checkpoint_global_step=saved.global_step if saved else None,
            checkpoint_time=saved.time if saved else None,
            checkpoint_error=self._save_error,
            max_global_step=model.spec.max_global_step if model else 0,
            finished=self.finished,
            training_seconds=0.0 if self._begun is None else self._clock() - self._begun,
            act_ms_p50=p50,
            act_ms_p99=p99,
            version=__version__,
            description=self.description,
            spaces=model.spaces if model else "",
            agreed_return=self.metrics.agreed_return({worker.client for worker in self.registry.connected()}),
            discarded_returns=self.metrics.discarded_returns,
            outlying_clients=model.shard.outlying_clients if model else 0,
            **self._lesson_status(),
            opponent_win_rate=self._ratings.win_rate if self._ratings else None,
            elo=self._ratings.rating if self._ratings else None,
        )

    def _lesson_status(self) -> dict[str, Any]:
        curriculum = self._curriculum
        if curriculum is None:
            return {}
        status: dict[str, Any] = {"environment_parameters": str(curriculum.edition)}
        if curriculum.count > 1:
            status |= {"lesson": curriculum.edition.lesson + 1, "lessons": curriculum.count}
            status |= {"lesson_name": curriculum.lesson.name, "lesson_return": curriculum.mean_return}
        return status

    def mark(self) -> object | None:
        """Return the `mark` of the current state without copying the state; None before there is a model."""
        model = self.model
        return None if model is None else model.shard.mark

    def prepare(self) -> None:
        """Allocate the memory of the next `state` in advance."""
        if (model := self.model) is not None:
            model.shard.prepare()

    def free_prepared(self) -> None:
        """Free memory that `prepare` allocated and `state` has not used."""
        if (model := self.model) is not None:
            model.shard.free_prepared()

    def cut(self) -> ModelState | None:
        """Return the state at a moment without a pending update; None before there is a model.

        It contains each update with all its effects, including episodes, or not at all. Raises CheckpointLate if an
        update took too long.
        """
        self.prepare()
        try:
            unbroken = self.access.hold(CUT)
            try:
                state = self.state()
            finally:
                unbroken &= self.access.release()
        finally:
            self.free_prepared()
        if not unbroken:
            raise CheckpointLate(f"updates did not pause within {CUT:g} s, or the copy of the state took longer")
        return state

    def state(self) -> ModelState | None:
        """Return the state of a checkpoint; None before there is a model. Called while no update is pending."""
        model = self.model
        if model is None:
            return None
        snapshot = model.shard.snapshot()
        counters = snapshot.counters
        fingerprint = json.loads(model.fingerprint)
        if "configuration" in fingerprint:
            fingerprint["configuration"] = redacted(fingerprint["configuration"])
        manifest = {
            **self._facts,
            "incarnation": self.incarnation,
            "fingerprint": fingerprint,
            "frames": counters.frames,
            "updates": counters.version,
            "shards": [describe_shard(self.position, model.shard, snapshot)],
            **self._progress(),
        }
        return ModelState(counters.env_steps, {self.position.part: shard_arrays(snapshot)}, manifest, snapshot.mark)

    def _progress(self) -> dict[str, Any]:
        """Return the part of a manifest that describes the training besides the model."""
        _, mean, best, _ = self.metrics.progress()
        progress = {
            "actors": self.registry.actors_as_json(),
            "returns": self.metrics.returns_as_json(),
            "mean_return": mean,
            "best_mean_return": best,
        }
        if self._curriculum is not None:
            progress[CURRICULUM] = self._curriculum.as_json()
        if self._ratings is not None:
            progress[OPPONENTS] = self._ratings.as_json()
        return progress

    def _restore_progress(self, manifest: Mapping[str, Any]) -> None:
        """Restore the training besides the model from a manifest, or from `_progress`. Raises Damaged."""
        with errors_as_damaged("actors"):
            self.registry.restore_actors(manifest["actors"])
        with errors_as_damaged("returns"):
            self.metrics.restore_returns(manifest["returns"])
        if self._curriculum is not None and CURRICULUM in manifest:
            with errors_as_damaged(CURRICULUM):
                self._curriculum.restore(manifest[CURRICULUM])
        if self._ratings is not None and OPPONENTS in manifest:
            with errors_as_damaged("ratings"):
                self._ratings.restore(manifest[OPPONENTS])

    def _repeat(self, incarnation: Literal["same", "earlier"], worker_id: str, push_id: int) -> PushResult | None:
        model = self.model
        applied = model.shard.repeated_result(worker_id, push_id) if model else None
        if applied is not None:
            self._count_repeated(incarnation)
        return applied

    def _count_repeated(self, incarnation: Literal["same", "earlier"]) -> None:
        with self._lock:
            self._repeated[incarnation] += 1

    def _stop_waiting_for(self, worker_id: str) -> None:
        if (model := self.model) is not None:
            model.shard.stop_waiting_for(worker_id)

    def _refuse_difference(self, theirs: str, ours: str) -> None:
        try:
            difference = self._difference(theirs, ours) or ""
        except (ValueError, RecursionError):
            raise ModelRefused("the worker's fingerprint is not JSON") from None
        if difference.partition(":")[0] in SPACES:
            raise ModelRefused(
                "the client's environment does not fit the model, whose spaces come from the first client or a "
                f"checkpoint: {difference}; connect environments with the same spaces, or use another run"
            )
        if difference:
            raise differs_from_worker(difference)

    def _remove_state(self, workers: Iterable[str]) -> None:
        for worker_id in workers:
            self.periodic_metrics.remove_worker(worker_id)
            self.metrics.forget(worker_id)
            if self.model is not None:
                self.model.shard.remove_worker(worker_id)
