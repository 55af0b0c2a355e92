"""Where the turns of a shard become durable: the log under its store.

A store shows a batch to its shard at once, and the log decides whether it survives. :mod:`local` has the port that a store
needs, and the log of one machine: RocksDB's own.

For a log on other machines, :mod:`partition` is the port and :mod:`kafka` its implementation. :mod:`records` is the format,
:mod:`rule` decides which records count, :mod:`leadership` who leads, :mod:`placement` who should lead. :mod:`member` joins
these to one process's part in a shard.
"""
