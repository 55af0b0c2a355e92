"""The decisions of a router, as plain objects: no sockets, no clock, no logging. Time is the argument ``now_ms``.

Each topic is a feature, see :mod:`feature`. The README of the package has the modules in the order to read them.
"""
