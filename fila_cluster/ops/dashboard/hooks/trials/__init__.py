"""Trials of hook scripts on messages before they are applied: their decisions, made in a process of its own.

:mod:`plan` has the question to such a process, its answer and its start, :mod:`run` is its work, :mod:`messages` collects
messages to try scripts on, :mod:`verdicts` makes table rows of the answer.
"""
