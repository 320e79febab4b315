"""Clipping of gradients."""

from __future__ import annotations

import math

import numpy as np

from relaax.optim.vector import FlatVector


def clip_by_norm(gradient: FlatVector, limit: float | None) -> float:
    """Scale a gradient down to the norm `limit` if it is longer, in place (Pascanu et al. 2013). Return its old norm.

    `gradient`: float32 [P]. `limit`: None to only compute the norm. A gradient with a norm that is not finite does not
    become finite.
    """
    with np.errstate(all="ignore"):  # the caller checks for NaN and infinity
        norm = math.sqrt(float(np.dot(gradient, gradient)))
        if limit is not None and limit < norm < math.inf:
            gradient *= np.float32(limit / norm)
    return norm
