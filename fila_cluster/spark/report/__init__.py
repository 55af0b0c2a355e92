"""``fila-cluster spark report``: a queue's dead letters, waiting times and shares, as numbers and as a page.

:mod:`.content` has the numbers, :mod:`.measures` counts them with Spark or takes them from the broker's statistics,
:mod:`.plots` draws them, :mod:`.page` is the HTML.
"""
