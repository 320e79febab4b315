"""Use a learned policy in any Python program without the service: `relaax.policy.load(FILE)`.

`relaax checkpoints export` writes the file. It holds parameters, statistics and a description, but no code: the
algorithm is one that comes with RELAAX, or one whose path the program gives.
"""

from relaax.libraries import explained

with explained("policy"):
    from relaax.policy.file import PolicyError
    from relaax.policy.loading import load
    from relaax.policy.policy import Policy
with explained("policy"):  # `load` needs YAML, and is the wrong place for the error
    import relaax.configuration.yaml_file  # noqa: F401

__all__ = ["Policy", "PolicyError", "load"]
