"""A shard as a state machine: no sockets, no clock, no disk.

:class:`fila_worker.core.shard.Shard` is the entry. A good order for reading:

* ``store`` and ``keys``: the stored data, and its keys.
* ``model``: ``lanes`` and ``drr`` (which message is next), ``leases`` and ``consumers`` (which client has which messages),
  ``ledger`` (how counts become durable), then ``state``.
* The folders of commands: ``enqueue``, ``deliver``, ``settle``, ``inspect``, ``explain``, ``manage``, ``metrics``.
* ``recovery``: how a shard is made from its store.
"""
