"""Backups of a running cluster: taken, listed, verified, pruned and restored. ``docs/backup.md`` is for operators."""
