"""The process that copies checkpoints of replicated shards from this host's workers to a target, and back to new hosts.

The workers' side is :mod:`fila_worker.replication.log_checkpoints`. A checkpoint is of one shard at one position of its log; lists of backups do
not have it.
"""
