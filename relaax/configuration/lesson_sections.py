"""The sections `environment-parameters`, `curriculum` and `opponents`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import pydantic
from pydantic import Field

from relaax.configuration.errors import ConfigurationError, unknown
from relaax.configuration.validation import Section, normalized, validate_section
from relaax.lessons.curriculum import Curriculum, Lesson
from relaax.lessons.values import ValueRange

PARAMETERS, CURRICULUM, OPPONENTS = "environment-parameters", "curriculum", "opponents"
"""Names of the sections."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FORMS = "a number, {low: 0, high: 1} or {choices: [1, 2, 4]} is expected"


def _values(value: Any) -> ValueRange:
    """Return the values that a key's value describes. Raises ValueError."""
    if isinstance(value, ValueRange):
        return value
    if isinstance(value, Mapping):
        keys = set(value)
        if keys == {"low", "high"}:
            low, high = _number(value["low"]), _number(value["high"])
            if low > high:
                raise ValueError(f"low, {low:g}, exceeds high, {high:g}")
            return ValueRange(low, high)
        if keys == {"choices"} and isinstance(value["choices"], list | tuple) and value["choices"]:
            return ValueRange(choices=tuple(_number(choice) for choice in value["choices"]))
        raise ValueError(_FORMS)
    return ValueRange.constant(_number(value))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(_FORMS)
    from relaax.rlx.messages import MAX_NUMBER  # it imports numpy, before which commands set variables

    if not abs(value) <= MAX_NUMBER:
        raise ValueError(f"at most {MAX_NUMBER:g} is allowed, and not NaN")
    return float(value)


def _as_written(values: ValueRange) -> Any:
    """Return values in a file's form."""
    if values.choices:
        return {"choices": list(values.choices)}
    return values.low if values.low == values.high else {"low": values.low, "high": values.high}


ParameterValues = Annotated[
    ValueRange,
    pydantic.PlainValidator(_values),
    pydantic.PlainSerializer(_as_written),
    pydantic.WithJsonSchema(
        {
            "anyOf": [
                {"type": "number"},
                {
                    "type": "object",
                    "properties": {
                        "low": {"type": "number", "description": "The smallest value."},
                        "high": {"type": "number", "description": "The largest value."},
                    },
                    "required": ["low", "high"],
                    "additionalProperties": False,
                },
                {
                    "type": "object",
                    "properties": {
                        "choices": {
                            "type": "array",
                            "items": {"type": "number"},
                            "minItems": 1,
                            "description": "All values, each as likely.",
                        }
                    },
                    "required": ["choices"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
"""A number, a range {low, high} or {choices}."""


class EnvironmentParametersSection(Section):
    """`environment-parameters`: numbers that the server sets for each episode of an environment, by name."""

    model_config = pydantic.ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, ParameterValues]

    @pydantic.model_validator(mode="after")
    def _check_names(self) -> EnvironmentParametersSection:
        names = self.values
        for name in names:
            if _NAME.fullmatch(name) is None:
                raise ValueError(
                    f"{name!r} is no name: use letters, digits and underscores, not beginning with a digit"
                )
        from relaax.rlx.messages import MAX_ENVIRONMENT_PARAMETERS

        if len(names) > MAX_ENVIRONMENT_PARAMETERS:
            raise ValueError(f"{len(names)} parameters are given; at most {MAX_ENVIRONMENT_PARAMETERS} are possible")
        return self

    @property
    def values(self) -> dict[str, ValueRange]:
        """The values of all parameters, by name."""
        return dict(self.__pydantic_extra__ or {})


class UntilKeys(Section):
    """When a lesson ends."""

    mean_return: float | None = Field(None, description="Mean return of the lesson's last episodes.")
    episodes: int = Field(100, ge=1, description="Number of these episodes.")
    progress: float | None = Field(None, ge=0, le=1, description="Share of `max_global_step`, 0 to 1.")

    @pydantic.model_validator(mode="after")
    def _check_measure(self) -> UntilKeys:
        if (self.mean_return is None) == (self.progress is None):
            raise ValueError("give either mean_return or progress")
        return self


class LessonKeys(Section):
    """A lesson."""

    name: str = Field("", description="Name of the lesson, for logs.")
    parameters: dict[str, ParameterValues] = Field({}, description="Values that differ from environment-parameters.")
    until: UntilKeys | None = Field(None, description="When the next lesson begins; only the last one has none.")

    @pydantic.model_validator(mode="before")
    @classmethod
    def _accept_dashes(cls, data: Any) -> Any:
        return normalized(data)

    def lesson(self) -> Lesson:
        """Return the lesson."""
        until = self.until
        if until is None:
            return Lesson(self.name, self.parameters)
        return Lesson(self.name, self.parameters, until.mean_return, until.episodes, until.progress)


class CurriculumSection(Section):
    """`curriculum`: lessons with their own values of the environments' parameters."""

    lessons: list[LessonKeys] = Field(
        [],
        description="Lessons, in order: [{parameters: {size: 1}, until: {mean_return: 0.8}}, {parameters: {size: 4}}].",
    )

    @pydantic.model_validator(mode="after")
    def _check_ends(self) -> CurriculumSection:
        *others, last = self.lessons or [LessonKeys()]
        for index, lesson in enumerate(others):
            if lesson.until is None:
                raise ValueError(f"lessons.{index}: until is missing: without it the next lesson never begins")
        if last.until is not None:
            raise ValueError(f"lessons.{len(others)}: the last lesson has no next one: omit until")
        names = [lesson.name for lesson in self.lessons if lesson.name]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two lessons have the name {twice!r}")
        return self


class OpponentsSection(Section):
    """`opponents`: self-play: connections in exploit mode act with older checkpoints, another one in each episode."""

    keep: int = Field(10, ge=1, le=1000, description="Number of the newest checkpoints that opponents act with.")
    every: int | None = Field(
        None,
        ge=1,
        description="Environment steps between these checkpoints, such as 50000; null: no opponents.",
    )

    @pydantic.model_validator(mode="after")
    def _check_every(self) -> OpponentsSection:
        if "keep" in self.model_fields_set and "every" not in self.model_fields_set:
            raise ValueError(
                "keep has no effect without every: add the steps between checkpoints, such as every: 50000"
            )
        return self


def stored_curriculum(document: Mapping[str, Any]) -> Curriculum | None:
    """Return the curriculum of a configuration in a checkpoint's manifest; None without parameters of environments.

    Raises ConfigurationError.
    """
    parameters = validate_section(EnvironmentParametersSection, document.get(PARAMETERS), PARAMETERS)
    return curriculum_of(parameters, validate_section(CurriculumSection, document.get(CURRICULUM), CURRICULUM))


def curriculum_of(parameters: EnvironmentParametersSection, curriculum: CurriculumSection) -> Curriculum | None:
    """Return the curriculum that two sections describe; None without parameters of environments.

    Raises ConfigurationError if a lesson has a parameter that is not in `environment-parameters`.
    """
    known = parameters.values
    wrong = [
        f"curriculum.lessons.{index}.parameters: {unknown('parameter', name, known)}: add it to environment-parameters"
        for index, lesson in enumerate(curriculum.lessons)
        for name in lesson.parameters
        if name not in known
    ]
    if wrong:
        raise ConfigurationError("\n".join(wrong))
    return Curriculum(known, [lesson.lesson() for lesson in curriculum.lessons]) if known else None
