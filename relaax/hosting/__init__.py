"""What servers and commands do with an algorithm: load it, compare configurations, filter its gradients."""
