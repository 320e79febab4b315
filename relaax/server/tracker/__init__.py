"""The process that copies the metrics of a training to an MLflow server.

The parameter server starts it (`launch`). It reads the files that TensorBoard reads (`event_tail`), so that training
never waits for the network, and nothing is lost while the MLflow server is unavailable.
"""
