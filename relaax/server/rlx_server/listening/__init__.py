"""The listening process: it accepts connections and starts a worker for each. It uses neither gRPC nor TensorFlow.

Begin with `listener`.
"""
