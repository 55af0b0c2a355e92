"""The process that watches: an ordinary client of the router that asks for all counters every second, and tells the world.

Routers and workers only count; whatever costs time (text, HTTP, exports) happens here, so a scrape disturbs nobody. Read in this
order: :mod:`watch` (what was last heard), :mod:`sources` (who has numbers),
:mod:`catalogue` (what each is called), :mod:`samples` (the numbers under their
names), :mod:`prometheus` and :mod:`otlp` (the two ways out), :mod:`app` (HTTP), :mod:`serving` (all of it).
"""
