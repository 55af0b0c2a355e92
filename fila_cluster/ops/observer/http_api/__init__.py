"""The HTTP door: messages in and out by HTTP, for shell scripts and other languages.

Read in this order: :mod:`bodies` (what travels), :mod:`answers` (errors and their statuses), :mod:`receivers` (who holds which lease, and
the limits), :mod:`operations` (what each request does), :mod:`routes` (the paths), :mod:`openapi` (the same, described).
"""
