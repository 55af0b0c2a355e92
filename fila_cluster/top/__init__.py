"""``fila-cluster top``: the cluster, live, in a terminal. An ordinary client that looks every few seconds.

Read in this order: :mod:`lookout` (asks), :mod:`summary` and :mod:`fila_cluster.analysis` (what the answers mean),
:mod:`columns`, :mod:`listing` and :mod:`formats` (how it is told, without a terminal), then what draws: :mod:`grid`, :mod:`dialogs`, :mod:`app`.
:mod:`acting` changes things, :mod:`snapshot` is all of it as JSON.
"""
