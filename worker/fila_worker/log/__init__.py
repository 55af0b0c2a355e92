"""Where the turns of a shard become durable: the log under its store.

A store shows a batch to its shard at once. Whether the batch survives is the log's to say: :mod:`port` is what a store and a host
need of it, :mod:`local` the log of one machine, RocksDB's own.

For a log on other machines, :mod:`partition` is the port, :mod:`kafka` the one there is, and :mod:`memory` its twin for tests.
:mod:`records` is its format, :mod:`rule` says which of its records count, :mod:`leadership` who leads, :mod:`placement` who should.
:mod:`member` joins these to one process's part in a shard.
"""
