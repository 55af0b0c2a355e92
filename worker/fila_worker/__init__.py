"""A worker of fila-cluster: an OS process that hosts one or more shards.

``core`` decides everything and touches nothing; ``storage`` keeps it on disk; ``host`` joins shards and frames, ``loop`` joins
those to a clock and a socket.
"""
