"""The worker's own door: clients on plain sockets, without the router in between.

:mod:`clients` decides (which client is on which connection, what is taken in, which way an answer goes), :mod:`door` moves bytes.
"""
