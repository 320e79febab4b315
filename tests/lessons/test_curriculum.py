"""When lessons begin, and what a checkpoint keeps of them."""

from __future__ import annotations

import json

import pytest

from relaax.lessons.curriculum import RESTORED, Curriculum, Lesson
from relaax.lessons.values import ValueRange

VALUES = {"size": ValueRange.constant(8), "gravity": ValueRange(1, 9)}
LESSONS = [
    Lesson("small", {"size": ValueRange.constant(1)}, mean_return=0.5, episodes=4),
    Lesson("larger", {"size": ValueRange(2, 4)}, progress=0.6),
    Lesson("full"),
]


def made() -> Curriculum:
    return Curriculum(VALUES, LESSONS)


def sizes(curriculum: Curriculum) -> str:
    return str(curriculum.edition.values["size"])


def test_lesson_ends_at_a_mean_return_of_enough_episodes() -> None:
    curriculum = made()
    assert (curriculum.edition.number, curriculum.edition.lesson, sizes(curriculum)) == (1, 0, "1")
    curriculum.record([(1, 1.0)] * 3, 0.0)
    assert (curriculum.edition.lesson, curriculum.mean_return) == (0, 1.0), "3 episodes of 4"
    curriculum.record([(1, -2.0)], 0.0)
    curriculum.record([(1, 0.0)] * 2, 0.0)
    assert curriculum.edition.lesson == 0
    curriculum.record([(1, 2.0)] * 3, 0.0)
    assert (curriculum.edition.number, curriculum.edition.lesson, sizes(curriculum)) == (2, 1, "2 to 4")
    assert curriculum.mean_return is None


def test_episodes_of_another_edition_do_not_count() -> None:
    curriculum = made()
    curriculum.record([(0, 9.0), (2, 9.0)] * 4, 0.0)
    assert (curriculum.edition.lesson, curriculum.mean_return) == (0, None)
    curriculum.record([(1, 1.0)] * 4 + [(1, 1.0)] * 9, 0.0)
    assert (curriculum.edition.lesson, curriculum.mean_return) == (1, None), "they began in the first lesson"


def test_lesson_ends_at_a_share_of_the_training() -> None:
    curriculum = made()
    curriculum.record([(1, 1.0)] * 4, 0.59)
    assert curriculum.edition.lesson == 1
    curriculum.record([], 0.6)
    assert (curriculum.edition.lesson, curriculum.lesson.name, sizes(curriculum)) == (2, "full", "8")
    curriculum.record([(3, 1e9)] * 100, 1.0)
    assert curriculum.edition.lesson == 2, "the last lesson does not end"


def test_lessons_whose_share_is_over_are_skipped() -> None:
    lessons = [Lesson(progress=0.1), Lesson(progress=0.2), Lesson(mean_return=1), Lesson()]
    curriculum = Curriculum(VALUES, lessons)
    curriculum.record([], 0.9)
    assert curriculum.edition.lesson == 2


def test_number_that_was_set_holds_in_all_lessons() -> None:
    curriculum = made()
    curriculum.set_number("size", 3)
    assert (curriculum.edition.number, sizes(curriculum)) == (2, "3")
    curriculum.record([(2, 1.0)] * 4, 0.9)
    assert (curriculum.edition.lesson, sizes(curriculum)) == (2, "3")
    curriculum.set_number("size", None)
    assert sizes(curriculum) == "8"
    with pytest.raises(KeyError):
        curriculum.set_number("sise", 1)


def test_checkpoint_continues_the_lesson() -> None:
    before = made()
    before.record([(1, 1.0)] * 4, 0.0)
    before.set_number("gravity", 2)
    state = json.loads(json.dumps(before.as_json()))
    after = made()
    after.restore(state)
    assert after.edition.values == before.edition.values
    assert (after.edition.lesson, after.edition.number) == (1, before.edition.number + RESTORED)
    half = made()
    half.record([(1, 1.0)] * 3, 0.0)
    after = made()
    after.restore(half.as_json())
    after.record([(after.edition.number, 1.0)], 0.0)
    assert after.edition.lesson == 1, "the 3 episodes before count"


def test_checkpoint_of_other_lessons_continues_by_name_or_index() -> None:
    state = made().as_json() | {"lesson": 2, "name": "full"}
    inserted = Curriculum(VALUES, [LESSONS[0], Lesson("new", progress=0.1), *LESSONS[1:]])
    inserted.restore(state)
    assert inserted.edition.lesson == 3
    shorter = Curriculum(VALUES, [Lesson(progress=0.5), Lesson()])
    shorter.restore(state)
    assert shorter.edition.lesson == 1
    fewer = Curriculum({"size": ValueRange.constant(1)})
    fewer.restore(state | {"numbers": {"gravity": 3, "size": 5}})
    assert str(fewer.edition) == "size 5"


@pytest.mark.parametrize("wrong", [{}, {"lesson": "x"}, {"numbers": [1]}, {"returns": ["a"]}])
def test_damaged_state_is_refused_and_changes_nothing(wrong: dict[str, object]) -> None:
    curriculum = made()
    state = curriculum.as_json() | wrong if wrong else {}
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        curriculum.restore(state)
    assert (curriculum.edition.number, curriculum.edition.lesson) == (1, 0)
