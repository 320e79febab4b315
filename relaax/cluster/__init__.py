"""Run the processes of a training on the machines of a Ray cluster."""
