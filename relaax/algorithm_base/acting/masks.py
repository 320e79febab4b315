"""Action masks (see `relaax.rlx.action_masks`) of an agent. A mask is no input of the network."""

from __future__ import annotations

from relaax.algorithm_base.agent import InvalidObservation, Leaves, Mask
from relaax.rlx import Dict, Space, Tuple
from relaax.rlx.action_masks import choices_of, leaves_named, mask_length, read_mask


def mask_part(name: str | None, observation_space: Space) -> int | None:
    """Return the index of the leaf `name`, the mask; None if there is no such leaf. `name`: the key of a Dict."""
    found = _found(name, observation_space)
    return found[0] if found else None


def mask_size(name: str | None, observation_space: Space, action_space: Space) -> int:
    """Return the number of elements of an environment's mask; 0 if there is no leaf `name`."""
    return 0 if mask_part(name, observation_space) is None else sum(choices_of(action_space))


def mask_refusal(name: str | None, observation_space: Space, action_space: Space) -> str | None:
    """Return a sentence that refuses the mask; None if it fits the actions, or without a mask."""
    found = _found(name, observation_space)
    if not found:
        return None
    hint = "rename it, or set algorithm.action_mask to null to make it an input"
    if len(found) > 1:
        return f"{len(found)} of its parts are named {name!r}, and one mask is supported; {hint}"
    element, choices = list(observation_space.elements())[found[0]], choices_of(action_space)
    if not choices:
        return f"{name} is a mask of actions, and the action space {action_space} has no choices; {hint}"
    size = mask_length(element)
    if size != sum(choices):
        what = f"has {size} elements" if size else f"is {element}"
        return f"{name} {what}, and a mask of the action space {action_space} has {sum(choices)}; {hint}"
    if len(list(observation_space.elements())) == 1:
        return f"it has nothing but the mask {name}, and the network needs an input; {hint}"
    return None


def without_mask(name: str | None, observation_space: Space) -> Space:
    """Return the space without the leaf `name`. A Dict or Tuple with one part left is replaced by that part."""
    if not _found(name, observation_space):
        return observation_space
    reduced = _reduced(name, observation_space)
    assert reduced is not None, "`mask_refusal` refuses a space that has only a mask"
    return reduced


class ActionMasks:
    """The masks of N environments. `part`: the index of the mask's leaf. `choices`: see `choices_of`."""

    def __init__(self, part: int, choices: tuple[int, ...], name: str) -> None:
        self._part, self._choices, self._name = part, choices, name

    def inputs_of(self, observations: Leaves) -> Leaves:
        """Return the leaves of the network's inputs."""
        return observations[: self._part] + observations[self._part + 1 :]

    def read(self, observations: Leaves) -> tuple[Mask, Mask]:
        """Return the masks, bool [N, elements], and where a choice has no valid action, bool [N].

        There all actions are marked as valid.
        """
        return read_mask(observations[self._part], self._choices)

    def check(self, blocked: Mask, step: int) -> None:
        """Raise InvalidObservation if an environment in `blocked`, bool [N], needs an action. `step`: its number."""
        if blocked.any():
            raise InvalidObservation(
                f"{self._name} of environment {int(blocked.argmax())} allows no action at step {step} over all "
                "episodes: every choice needs a valid action, unless the episode has ended"
            )


def _found(name: str | None, space: Space) -> list[int]:
    return [] if name is None else leaves_named(name, space)


def _reduced(name: str | None, space: Space) -> Space | None:
    """Return the space without leaves of this name, None if nothing is left."""
    if isinstance(space, Dict):
        parts = {key: _reduced(name, part) for key, part in space.spaces.items() if not _is_mask(name, key, part)}
        left = {key: part for key, part in parts.items() if part is not None}
        if left == space.spaces:
            return space
        return Dict(left) if len(left) > 1 else next(iter(left.values()), None)
    if isinstance(space, Tuple):
        kept = [part for part in (_reduced(name, part) for part in space.spaces) if part is not None]
        if tuple(kept) == space.spaces:
            return space
        return Tuple(kept) if len(kept) > 1 else next(iter(kept), None)
    return space


def _is_mask(name: str | None, key: str, part: Space) -> bool:
    return key == name and not isinstance(part, Dict | Tuple)
