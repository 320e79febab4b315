"""A gRPC port that strangers may reach: who may call, what holds it up, how it is."""
