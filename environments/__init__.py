"""Programs that run environments, one family each, against an RLX server."""
