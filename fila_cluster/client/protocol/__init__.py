"""The client's side of the protocol, sans-I/O: no sockets, no clock, no threads."""
