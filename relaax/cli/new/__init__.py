"""The commands `relaax new algorithm` and `relaax new environment`."""
