"""A worker of fila-cluster: an OS process that hosts one or more shards.

``core`` decides everything and does no I/O; ``storage`` keeps data on disk; ``process`` joins shards and frames; ``loop``
joins the process to a clock and sockets.
"""
