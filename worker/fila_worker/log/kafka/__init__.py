"""A shard's commit log on Apache Kafka: one topic for a cluster, one of its partitions for each shard.

``settings`` is for every process. The other modules need ``pip install 'fila-cluster[hosts]'``, and only a process whose
cluster has such a log imports them. ``topic`` makes or checks the topic; ``partition`` is the port
:mod:`fila_worker.log.partition`, with ``appender`` and ``tail`` behind it.
"""
