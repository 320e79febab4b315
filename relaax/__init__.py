"""RELAAX: a reinforcement-learning service for environments that live anywhere."""

__version__ = "1.0.0"
