"""A running parameter server, assembled from its configuration.

Begin reading at `assembly.assemble` and `server.Server`.
"""
