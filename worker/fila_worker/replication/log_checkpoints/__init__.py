"""What keeps the log of a replicated shard short, and lets copies begin without its beginning: checkpoints at a target that all hosts reach.

A worker talks to no target. It makes checkpoints (``cutting``) and asks for them (``beginning``) by files on its own disk (``exchange``). A
process beside the workers (:mod:`fila_cluster.run.backup.log_checkpoints`) carries them to the target and back.
"""
