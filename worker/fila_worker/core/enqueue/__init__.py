"""Enqueueing: checks, hooks, dedup, quotas and rates, and the insert."""
