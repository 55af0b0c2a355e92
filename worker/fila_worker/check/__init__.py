"""Check, repair and salvage of stored shards, offline.

``shard`` checks all families over a store that is only read, and repairs what can be derived; ``findings`` has the results;
``salvage`` reads messages around damage; ``directory`` does this for the shards of a data directory.
"""
