"""Evaluation of a policy: episodes from fixed seeds, without learning, and their comparison with published scores.

Begin with `playing.play`, which runs the environments' programs; `program` is the code inside them.
"""
