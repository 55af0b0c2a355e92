"""The shard: queues, lanes, fairness, leases, dead letters, as a state machine without sockets, clock or disk.

:class:`fila_worker.core.shard.Shard` is the entry. Reading order: ``store`` and ``keys`` (what is kept, and under which
key), ``lanes`` and ``fairness`` (who is next), ``leases`` and ``consumers`` (who has what), ``ledger`` (how counts survive),
then ``state`` and the verbs: ``enqueueing``, ``delivery``, ``settlement``, ``attempts``, ``graveyard``, ``dead_letters``, ``delays``, ``recovery``.
"""
