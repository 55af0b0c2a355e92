"""Where the turns of a shard become durable: the log under its store.

A store shows a batch to its shard at once. Whether the batch survives is the log's to say: :mod:`port` is what a store and a host
need of it, :mod:`local` the log of one machine, RocksDB's own. For a log on other machines, :mod:`records` is its format and
:mod:`rule` says which of its records count. :mod:`leadership` says who leads a shard by that log alone, :mod:`placement` where shards should
be, and :mod:`bodies` is what hosts tell each other about it.
"""
