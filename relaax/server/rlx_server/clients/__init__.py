"""The clients of an RLX server: their tokens and quotas, what they hold, and what they use."""
