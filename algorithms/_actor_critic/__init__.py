"""The loss that da3c and da3c_cont share, for any distribution of the policy.

This package is not an algorithm: `da3c` and `da3c_cont` import it.
"""
