"""The keys of async_sarsa's configuration: those of async_q, but for double estimates."""

from __future__ import annotations

from ..async_q.config import ValueConfig


class Config(ValueConfig):
    """Asynchronous one-step Sarsa."""
