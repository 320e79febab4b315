"""The loss that da3c and da3c_cont share: it asks the policy's distribution, whatever that is.

It is no algorithm: those are the packages whose agents import it.
"""
