"""Backups of a running cluster: taken, listed, verified, pruned and restored. ``docs/backup.md`` is for operators.

``cut`` asks the workers for checkpoints of all shards at one moment, ``copying`` brings their files to a ``repository``, which lies
at a ``target``: a folder, or what fsspec reaches. ``manifest`` says what a backup consists of.
"""
