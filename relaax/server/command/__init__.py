"""The code that the commands of all roles share: options, configuration, logs, signals and exit codes.

Begin reading at `role.role_app` and `role.run_server`.
"""
