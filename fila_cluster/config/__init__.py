"""Static configuration: what a cluster is told before it starts.

:mod:`settings` says what can be set, :mod:`loading` where it comes from, :mod:`address` what an address is and which of
them may be listened on.
"""
