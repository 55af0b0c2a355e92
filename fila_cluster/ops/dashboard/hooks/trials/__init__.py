"""Trials of hook scripts on messages before they are applied: their decisions, made in a process of its own.

:mod:`plan` has the question to such a process and its answer, :mod:`run` is its work, :mod:`start` starts and stops it,
:mod:`messages` collects messages to try scripts on, :mod:`verdicts` makes table rows of the answer.
"""
