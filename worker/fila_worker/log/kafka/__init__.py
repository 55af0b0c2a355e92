"""A shard's commit log on Apache Kafka: one topic for a cluster, one of its partitions for each shard.

``settings`` is for every process. All else needs ``pip install 'fila-cluster[hosts]'``, and only a process whose cluster has such a log imports
it. ``topic`` makes the topic or says what is wrong with it; ``partition`` is the port :mod:`fila_worker.log.partition`, with ``appender``,
``tail`` and ``trimming`` behind it.
"""
