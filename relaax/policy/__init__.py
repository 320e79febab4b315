"""What was learned, in any Python program and without the service: `relaax.policy.load(FILE)`.

`relaax checkpoints export` writes the file. It holds parameters, statistics and a description, and no code: the
algorithm that it names is one of those that come with RELAAX, or the one that the program gives the path of.
"""

from relaax.extras import explained

with explained("policy"):
    from relaax.policy.file import PolicyError
    from relaax.policy.loading import load
    from relaax.policy.policy import Policy

__all__ = ["Policy", "PolicyError", "load"]
