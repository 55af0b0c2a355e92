"""Which requests a process of the broker takes in: the same rules at the router and at a worker's own door.

It builds on the protocol alone and does no I/O.
"""
