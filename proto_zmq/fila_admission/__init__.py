"""Which requests a process of the broker takes in: the same rules at the router and at a worker's own door, without I/O."""
