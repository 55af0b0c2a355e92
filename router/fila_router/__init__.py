"""The one entry of a cluster: forwards clients' frames to the worker that holds the queue, and the answers back.

``core`` decides (no sockets, no clock), ``sockets`` and ``loop`` move the bytes, ``__main__`` starts it all.
"""
