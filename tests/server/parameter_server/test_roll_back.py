from __future__ import annotations

from pathlib import Path

from relaax.checkpoint import Checkpoint, CheckpointManager, LocalStore
from relaax.hosting.fingerprint import first_difference
from relaax.lessons.curriculum import Curriculum, Lesson
from relaax.parameters.interfaces import EXPLOIT, TRAIN
from relaax.server.parameter_server.service.core import ParameterServerCore
from relaax.server.parameter_server.shard.shard import Push
from support.parameter_servers import Models, fingerprint

WORKER = "0" * 32


def push(core: ParameterServerCore, push_id: int) -> None:
    core.push(Push(WORKER, push_id, 0, None, env_steps=10, frames=10, global_step=0))


def saved(core: ParameterServerCore, manager: CheckpointManager) -> Checkpoint:
    state = core.state()
    assert state is not None
    manager.save(state.global_step, state.parts, state.manifest)
    checkpoint = manager.restore()
    assert checkpoint is not None
    return checkpoint


def test_training_continues_after_a_roll_back_from_its_end(tmp_path: Path) -> None:
    """The server resumes at the end of training, and another shard cannot read the newest checkpoint."""
    manager, ends = CheckpointManager(LocalStore(tmp_path)), []
    first = ParameterServerCore(Models(max_global_step=20), first_difference)
    first.register(WORKER, fingerprint(), "", 1, TRAIN, 1)
    checkpoints = []
    for push_id in (1, 2):
        push(first, push_id)
        checkpoints.append(saved(first, manager))
    core = ParameterServerCore(
        Models(max_global_step=20), first_difference, on_finished=lambda: ends.append("finished")
    )
    core.resume(checkpoints[1], fingerprint())
    assert not core.is_finished_for(EXPLOIT)
    core.roll_back(checkpoints[0], fingerprint(), core.incarnation + 1)
    core.register(WORKER, fingerprint(), "", 1, TRAIN, 1)
    push(core, 2)
    assert core.finished
    assert ends == ["finished"]


def test_last_push_of_training_is_repeatable_and_is_the_last() -> None:
    core = ParameterServerCore(Models(max_global_step=10), first_difference)
    core.register(WORKER, fingerprint(), "", 1, TRAIN, 1)
    last = Push(WORKER, 1, 0, None, env_steps=10, frames=10, global_step=0)
    first, again = core.push(last), core.push(last)
    assert first is not None
    assert again is not None
    assert (first.repeated, again.repeated) == (False, True)
    assert again.counters == first.counters
    assert core.push(Push(WORKER, 2, 0, None, env_steps=10, frames=10, global_step=10)) is None
    assert core.global_step == 10


def test_roll_back_without_a_checkpoint_forgets_the_training() -> None:
    curriculum = Curriculum({}, [Lesson("easy", mean_return=1.0, episodes=10), Lesson("hard")])
    core = ParameterServerCore(Models(max_global_step=20), first_difference, curriculum=curriculum)
    core.register(WORKER, fingerprint(), "", 1, TRAIN, 1)
    core.metrics.episodes([(5.0, 1)] * 120)
    curriculum.record([(curriculum.edition.number, 5.0)] * 10, 0.0)
    assert (core.metrics.progress()[:2], curriculum.lesson.name) == ((120, 5.0), "hard")
    core.roll_back(None, fingerprint(), core.incarnation + 1)
    assert core.metrics.progress()[:3] == (0, None, None)
    assert curriculum.lesson.name == "easy"
