"""``fila-cluster top``: the cluster, live, in a terminal. An ordinary client that asks every few seconds.

Read in this order: :mod:`poller` (asks), :mod:`summary` and :mod:`fila_cluster.ops.analysis` (the meaning of the answers),
:mod:`columns`, :mod:`listing` and :mod:`formats` (their presentation, without a terminal), then the widgets: :mod:`grid`,
:mod:`dialogs`, :mod:`app`. :mod:`actions` changes queues.
"""
