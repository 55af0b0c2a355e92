"""Static configuration: the settings of a cluster before it starts.

:mod:`settings` has what can be set, :mod:`loading` where it comes from, :mod:`address` what an address is and which of
them may be listened on.
"""
