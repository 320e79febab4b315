"""What runs an environment's program: the loop, its checks, its processes and its screen."""
