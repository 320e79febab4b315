"""Parameters of environments, and the lessons of a curriculum."""

from __future__ import annotations
