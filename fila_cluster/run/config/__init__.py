"""Static configuration: the settings of a cluster before it starts.

:mod:`settings` has all settings, :mod:`loading` their sources, :mod:`address` addresses, and which may be listened on.
"""
