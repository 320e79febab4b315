"""Learned policies for use in any Python program without the service: `relaax.policy.load(FILE)`.

`relaax checkpoints export` writes the file. It holds parameters, statistics and a description, but no code: the
algorithm comes with RELAAX, or the program passes its path. Begin with `policy.Policy`.
"""

from relaax.libraries import explained

with explained("policy"):
    from relaax.policy.file import PolicyError
    from relaax.policy.policy import Policy, load
with explained("policy"):  # `load` needs YAML: fail here instead of in `load`
    import relaax.configuration.yaml_file  # noqa: F401

__all__ = ["Policy", "PolicyError", "load"]
