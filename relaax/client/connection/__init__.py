"""What speaks RLX: sockets, sessions and the clients of one and of many environments."""
