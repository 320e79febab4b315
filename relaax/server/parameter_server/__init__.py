"""The process that holds the global parameters."""
