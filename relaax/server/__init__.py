"""The server processes: one package per role, and the code that they share.

Begin reading at `command.role`, which runs the command of a role, and then at the `main` module of a role.
"""
