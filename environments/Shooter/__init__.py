"""A shooting range with mixed actions."""
