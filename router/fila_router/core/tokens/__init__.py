"""The token buckets of all throttle keys."""
