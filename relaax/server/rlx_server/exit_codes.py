"""What a worker process says with its exit code."""

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_TRAINING_FINISHED = 10
