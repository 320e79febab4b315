"""The RLX server: one process that listens, and one worker process for each connection."""
