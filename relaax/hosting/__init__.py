"""The use of an algorithm by servers and commands: loading, fingerprints, gradient filters, errors in its code.

Begin reading with `loader.py`.
"""
