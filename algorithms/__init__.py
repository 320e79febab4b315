"""The algorithms that come with RELAAX: one directory each, named after the method of its paper.

Begin reading with `da3c`. Directories whose names begin with `_` are shared code, not algorithms.
"""
