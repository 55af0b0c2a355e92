"""The ops dashboard: NiceGUI pages inside the observer, over what it hears of the cluster, and a client to act with.

Read in this order: :mod:`context` (what pages work with), :mod:`links` (where they are), :mod:`frame` and :mod:`theme` (what they share),
:mod:`live` (how they keep up to date), :mod:`actions` (what buttons do), ``widgets`` (charts, tables, editors), a folder for each page, :mod:`serving`.
"""
