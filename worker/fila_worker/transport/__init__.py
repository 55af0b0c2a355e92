"""Frames of a worker: links to all routers, and a socket for clients.

Routers are alike, and clients may be at any of them. :mod:`link` is the connection to one router, :mod:`router_links` has all
of them. :mod:`direct_clients` assigns clients to connections, and answers to ways; :mod:`client_socket` moves bytes.
"""
