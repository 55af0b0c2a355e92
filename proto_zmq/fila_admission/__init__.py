"""Which requests a process of the broker takes in: the same rules at the router and at a worker's own door.

How many wrong keys an address may try is one rule for the router and the observer. The package builds on the protocol alone
and does no I/O.
"""
