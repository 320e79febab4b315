"""The listening process: it accepts connections and starts a worker for each. No gRPC object, no TensorFlow."""
