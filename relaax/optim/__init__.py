"""Optimizers and learning-rate schedules on flat vectors."""
