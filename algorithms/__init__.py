"""The algorithms that come with RELAAX: one directory each, named after its paper's method."""
