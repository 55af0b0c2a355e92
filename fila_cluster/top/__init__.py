"""``fila-cluster top``: the cluster, live, in a terminal. An ordinary client that looks every few seconds.

Read in this order: :mod:`poller` (asks), :mod:`summary` and :mod:`fila_cluster.analysis` (what the answers mean),
:mod:`columns`, :mod:`listing` and :mod:`formats` (how it is shown, without a terminal), then what draws: :mod:`grid`, :mod:`dialogs`, :mod:`app`.
:mod:`actions` changes things.
"""
