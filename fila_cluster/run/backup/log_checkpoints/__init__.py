"""The process that keeps checkpoints of replicated shards: it carries them from this host's workers to a target, and back to hosts that begin.

``store`` says how they lie at the target, ``keeping`` what is done with each shard. The workers' side is :mod:`fila_worker.replication.log_checkpoints`. A checkpoint is of
one shard at one position of its log. It is no backup of a cluster, and in no list of backups.
"""
