"""Values of actions from the outputs of a network's heads, and derivatives by these outputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


class ActionValues:
    """The value of each of `choices` actions, Q(s, a).

    Without `dueling`, the outputs of the head `q` are the values. With `dueling`, the head `value` gives V(s) and the
    head `advantage` gives A(s, a), and Q(s, a) = V(s) + A(s, a) - mean_a A(s, a) (Wang et al. 2016, equation 9). The
    action with the largest advantage also has the largest value.

    heads: names and widths of the network's heads that describe the values.
    """

    heads: Mapping[str, int]

    def __init__(self, choices: int, dueling: bool = False) -> None:
        self.choices, self.dueling = choices, dueling
        self.heads = {"value": 1, "advantage": choices} if dueling else {"q": choices}

    def values(self, outputs: Mapping[str, Array]) -> Array:
        """Compute the values of the actions, float32 [B, choices]. `outputs`: head -> float32 [B, width].

        The result is always a new array, because an engine reuses the memory of its outputs.
        """
        if not self.dueling:
            return np.array(outputs["q"], np.float32)
        advantage = outputs["advantage"]
        values: Array = outputs["value"] + (advantage - advantage.mean(axis=1, keepdims=True))
        return values

    def gradient(self, by_values: Array) -> dict[str, Array]:
        """Compute a loss's derivative by the outputs from its derivative by the values.

        `by_values`: float32 [B, choices], the derivative by the values. The values are linear in the outputs, so the
        outputs are not needed. Returns head -> float32 [B, width].
        """
        by_values = np.asarray(by_values, np.float32)
        if not self.dueling:
            return {"q": by_values}
        by_advantage: Array = by_values - by_values.mean(axis=1, keepdims=True)
        return {"value": by_values.sum(axis=1, keepdims=True), "advantage": by_advantage}
