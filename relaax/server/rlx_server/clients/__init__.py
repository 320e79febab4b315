"""Clients of an RLX server: tokens, quotas, claimed resources and usage.

Begin with `accounts` (the file of clients), then `claims` (admission) and `meters` (usage).
"""
