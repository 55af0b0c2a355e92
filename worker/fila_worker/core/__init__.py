"""A shard as a state machine: no sockets, no clock, no disk.

:class:`fila_worker.core.shard.Shard` is the entry. Reading order: ``store`` and ``keys`` (what is kept, and under which key), ``model`` (``lanes`` and
``drr``: who is next; ``leases`` and ``consumers``: who has what; ``ledger``: how counts survive), ``state``, then the folders of what is asked:
``enqueue``, ``deliver``, ``settle``, ``inspect``, ``explain``, ``manage``, ``metrics``. ``recovery`` makes a shard from its store.
"""
