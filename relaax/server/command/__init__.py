"""The commands of the roles: options, configuration, logs, signals and exit codes."""
