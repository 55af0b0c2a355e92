"""Check, repair and salvage of stored shards, offline.

``findings`` is what a check returns, ``shard`` checks all families over a store that is only read, ``repair`` writes what can
be derived, ``salvage`` reads messages around damage, and ``directory`` does this for the shards of a data directory.
"""
