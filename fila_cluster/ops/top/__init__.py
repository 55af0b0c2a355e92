"""``fila-cluster top``: the cluster, live, in a terminal. An ordinary client that asks every few seconds.

Read in this order: :mod:`poller` (asks, and sums up), :mod:`fila_cluster.ops.analysis` (the meaning of the answers),
:mod:`columns` and :mod:`listing` (their presentation, without a terminal), then the widgets: :mod:`grid`, :mod:`dialogs`
(with the changes to queues), :mod:`app`.
"""
