"""The command `relaax-tensorboard`, which shows the metrics of a training in a browser.

Begin reading at `main.serve`: it runs TensorBoard on the folder of the metrics.
"""
