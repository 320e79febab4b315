"""Exit codes of a worker process."""

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_TRAINING_FINISHED = 10
