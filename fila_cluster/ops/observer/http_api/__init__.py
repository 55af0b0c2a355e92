"""The HTTP door: messages in and out by HTTP, for shell scripts and other languages.

Read in this order: :mod:`bodies`, :mod:`answers` (errors and their statuses), :mod:`receivers` (leases by key, and limits),
:mod:`operations`, :mod:`routes` (the paths), :mod:`openapi` (their description).
"""
