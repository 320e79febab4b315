"""A running parameter server, assembled from its configuration."""
