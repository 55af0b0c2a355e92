"""Checkpoints at a target that all hosts reach. They keep a shard's log short, and let a copy begin without the log's
beginning.

A worker does not reach the target. It makes checkpoints (``cutting``) and asks for them, by files on its own disk
(``exchange``). A process beside the workers (:mod:`fila_cluster.run.backup.log_checkpoints`) moves them to the target and
back.
"""
