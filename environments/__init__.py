"""Programs that run environments of one family each against an RLX server."""
