"""The page ``/hosts``: which host leads and follows which shard, and what is at risk now."""
