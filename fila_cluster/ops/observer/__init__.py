"""The observer: an ordinary client of the router that asks for all counters every second, and publishes them.

Routers and workers only count; everything that costs time (text, HTTP, exports) happens here, so that a scrape does not delay
queues. Begin with :mod:`catalogue`, the names of all numbers, and :mod:`serving`, the process.
"""
