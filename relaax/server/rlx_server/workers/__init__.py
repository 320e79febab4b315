"""The worker processes: how they are started, and how each serves one connection with an agent."""
