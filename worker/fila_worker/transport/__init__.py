"""How frames come to a worker and leave it: links to all routers, and a socket for clients.

Routers are alike, and clients may be at any of them. :mod:`link` is the wire to one router, :mod:`router_links` has all of them.
:mod:`direct_clients` decides which client is on which connection and which way an answer goes; :mod:`client_socket` moves bytes.
"""
