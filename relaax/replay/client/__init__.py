"""The client of all replay servers: by gRPC, and through shared memory on their host."""
