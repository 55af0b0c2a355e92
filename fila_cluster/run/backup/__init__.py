"""Backups of a running cluster: taken, listed, verified, pruned and restored. ``docs/backup.md`` is for operators.

``taking`` asks the workers for checkpoints of all shards at one moment, and copies their files to a ``repository`` at a
``target``: a folder, or what fsspec reaches. ``manifest`` describes a backup.
"""
